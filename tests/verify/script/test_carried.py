"""Which variables of a loop are state, and which are only recomputed."""

from __future__ import annotations

from textwrap import dedent, indent

import pytest

from understudy.verify.script.carried import Use, carried, defined_at

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
