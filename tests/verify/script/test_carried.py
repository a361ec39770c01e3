"""Which variables of a loop are state, and which are only recomputed."""

from __future__ import annotations

from textwrap import dedent, indent

import pytest

from understudy.verify.script.carried import Use, carried, defined_at, positions, reassigned_at, unmentioned

BUILTIN = ("print", "sum", "next", "use", "log", "ValueError")
HEAD = """\
import copy

def train(job):
    model, ema = make(job), None
    count = 0
    it = iter(data)
    for step in job.steps(9):
"""


def used(body: str) -> dict[str, Use]:
    source = HEAD + indent(dedent(body), " " * 8)
    found = carried(source, 3, 7)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("loss = model(1)\nloss.backward()", {"model"}),
        ("count += 1", {"count"}),
        ("count = count + 1", {"count"}),
        ("count = 3\nprint(count)", set()),
        ("x, y = next(it)\nuse(x, y)", {"it"}),
        ("for shard in step.shards():\n    loss = model(shard)\nlog(loss)", {"model"}),
        ("if step.index:\n    use(ema)\nelse:\n    ema = 3", {"ema"}),
        ("if ema is None:\n    ema = 1\nelse:\n    ema = ema + 1", {"ema"}),
        ("if job.role:\n    loss = 1\nuse(loss)", {"job", "loss"}),
        ("if job.role:\n    continue\nelse:\n    loss = 1\nuse(loss)", {"job"}),
        ("with step:\n    loss = model(1)\n    print(loss)", {"model"}),
        ("with step as inner:\n    print(inner)", set()),
        ("try:\n    x = 1\nfinally:\n    pass\nprint(x)", set()),
        ("try:\n    y = 1\nexcept ValueError as error:\n    use(error, count)", {"count"}),
        ("total = sum(x for x in model.parts)", {"model"}),
        ("f = lambda x: x + count\nf(1)", {"count"}),
        ("def f(x):\n    return x + count\nf(1)", {"count"}),
        ("if (n := model(1)) > 1:\n    print(n)", {"model"}),
        ("model.count = model.count + 1", {"model"}),
        ("while count < 3:\n    count += 1", {"count"}),
        ("seen[step.index] = 1", {"seen"}),
    ],
)
def test_what_is_read_before_it_is_assigned(body: str, names: set[str]) -> None:
    assert {name for name in used(body) if name not in BUILTIN} == names


@pytest.mark.parametrize(
    ("body", "name", "feeds", "acts", "drawn"),
    [
        ("count += 1", "count", False, False, False),
        ("count += 1\nprint(count)", "count", False, False, False),
        ("count += 1\njob.log(n=count)", "count", False, False, False),
        ("count += 1\nif count % 5 == 0:\n    print('hello')", "count", False, False, False),
        ("count += 1\nif count % 5 == 0:\n    lr = 3", "count", True, False, False),
        ("count += 1\nloss = model(count)", "count", True, False, False),
        ("ema = 0.9 * ema + 0.1 * count\nprint(f'{ema:.2f}')", "ema", False, False, False),
        ("ema.update(model)", "ema", False, True, False),
        ("ema.total += 1", "ema", False, False, False),
        ("x = next(it)", "it", True, False, True),
        ("for x in it:\n    break", "it", True, False, True),
        ("swap(ema)", "ema", True, False, False),
    ],
)
def test_what_it_is_used_for(body: str, name: str, feeds: bool, acts: bool, drawn: bool) -> None:
    use = used(body)[name]
    assert (use.feeds, use.acts, use.drawn) == (feeds, acts, drawn)


def test_lines() -> None:
    assert used("count += 1\nprint(count)")["count"] == Use(made=5, changed=8, assigned=8)
    assert used("use(model)")["model"].made == 4


def test_other_loops_and_no_loops() -> None:
    source = dedent(
        """
        @decorated
        def train(job):
            n = 0
            steps = job.steps(5)
            while True:
                step = next(steps)
                n += 1

        def main():
            train(1)
        """
    )
    found = carried(source, 2, 7)
    assert found is not None
    assert {"n", "steps"} <= found.keys()
    assert carried(source, 10, 11) is None
    assert carried(source, 99, 11) is None
    assert carried("def (", 1, 1) is None


def test_the_line_of_a_definition_is_found() -> None:
    assert defined_at("import os\nCOUNT = {}\nclass A:\n    n = 1\n", "COUNT") == 2
    assert defined_at("import os\nCOUNT = {}\nclass A:\n    n = 1\n", "A.n") == 3
    assert defined_at("class A:\n    def f(self):\n        self.n = 1\na = A()", "a.n") == 3
    assert defined_at("x = 1", "y") == 0
    assert defined_at("def (", "y") == 0


NESTED = """\
def train(job):
    best, bad = 9.0, 0
    generator = make()
    steps = job.steps(9)
    for epoch in range(3):
        for batch in loader:
            with next(steps) as step:
                loss = model(batch)
        if loss < best:
            best, bad = loss, 0
        else:
            bad += 1
"""


def test_the_loops_around_the_loop_count_too() -> None:
    found = carried(NESTED, 1, 7)
    assert found is not None
    assert {"best", "bad", "model"} <= found.keys()
    assert (found["best"].made, found["best"].assigned, found["best"].feeds) == (2, 10, True)
    assert "batch" not in found
    assert unmentioned(NESTED, 1, 7, "generator") == 3
    assert unmentioned(NESTED, 1, 7, "best") == 0


@pytest.mark.parametrize(
    ("body", "fetched"),
    [
        ("use(ema)\nema = fetch(step.index)", True),
        ("old, ema = ema, fetch(step.index)", True),
        ("ema = ema + 1", False),
        ("ema.update(model)", False),
    ],
)
def test_what_is_fetched_ahead(body: str, fetched: bool) -> None:
    assert used(body)["ema"].fetched is fetched


@pytest.mark.parametrize(
    ("body", "applied", "seeded"),
    [
        ("loss = ema(1)", True, False),
        ("ema.eval()\nloss = ema(1)", True, False),
        ("ema.update(1)", False, False),
        ("blend(ema, model)", False, False),
        ("ema.manual_seed(step.index)\nuse(ema)", False, True),
    ],
)
def test_what_is_only_called_and_what_is_seeded(body: str, applied: bool, seeded: bool) -> None:
    assert (used(body)["ema"].applied, used(body)["ema"].seeded) == (applied, seeded)


@pytest.mark.parametrize(
    ("loop", "data"),
    [
        ("for step in job.steps(9):", []),
        ("for step in steps:", []),
        ("for step, batch in zip(job.steps(9), loader):", ["loader"]),
        ("for (i, batch), step in zip(enumerate(loader), job.steps(9)):", ["enumerate(loader)"]),
        ("for batch, step in zip(loader, steps):", ["loader"]),
        ("for i, step in enumerate(job.steps(9)):", ["enumerate(job.steps(9))"]),
        ("for _, step in enumerate(job.steps(9)):", []),
        ("for batch in loader:", ["loader"]),
        ("for batch in itertools.islice(loader, 9):", ["itertools.islice(loader, 9)"]),
        ("for i in range(9):", ["range(9)"]),
        ("for _ in range(9):", []),
        ("while True:", []),
    ],
)
def test_places_in_data(loop: str, data: list[str]) -> None:
    source = f"def train(job):\n    steps = job.steps(9)\n    {loop}\n        use(i, batch, step)\n"
    assert [each.data for each in positions(source, 1, 4)] == data
    assert all(each.line == 3 for each in positions(source, 1, 4))


def test_a_place_in_each_loop_around() -> None:
    source = NESTED.replace("range(3)", "epochs").replace("loss = model(batch)", "use(batch)")
    assert [(each.line, each.data) for each in positions(source, 1, 7)] == [(5, "epochs"), (6, "loader")]


def test_where_an_attribute_or_a_global_is_assigned_later() -> None:
    source = """\
class Stopper:
    def __init__(self):
        self.best = self.limit = 1

    def see(self, loss):
        self.best = loss

COUNT = LIMIT = 0
def count():
    global COUNT
    COUNT = 1
    LIMIT = 2
"""
    assert reassigned_at(source, "stopper.best") == 6
    assert reassigned_at(source, "stopper.limit") == 0
    assert reassigned_at(source, "COUNT") == 11
    assert reassigned_at(source, "LIMIT") == 0


STATE = """\
class State:
    step = 0
    seen = 0
def see():
    State.seen += 1
state = State()
def go():
    state.step += 1
"""


def test_an_attribute_of_an_object_hides_that_of_its_class() -> None:
    assert reassigned_at(STATE, "State.seen") == 5
    assert reassigned_at(STATE, "State.step") == 0
    assert reassigned_at(STATE, "state.step") == 8


EPOCH = """\
def epoch(steps, number, count, *, ema):
    for step in steps:
        count += 1
        use(number, count, ema)
"""


def test_arguments_that_the_loop_does_not_assign() -> None:
    found = carried(EPOCH, 1, 3)
    assert found is not None
    assert {name for name, use in found.items() if use.given} == {"number", "ema"}
