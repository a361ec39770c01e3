"""From the observations of runs to findings: all kinds of forgotten state, without a process."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import dedent
from typing import get_args

import msgspec
import pytest

from understudy.controller.core.state import FailureCause
from understudy.protocol.messages import ScriptFailure
from understudy.verify.script.findings import Evidence, ScriptFinding, findings, unclear, verdict
from understudy.verify.script.observation import Observation, Scope, Value
from understudy.verify.script.runs import Disturbance, Run

SCRIPT = dedent(
    """\
    import understudy, time
    COUNT = {}
    def train(job):
        ema, it, warm, average, sched = make(job)
        for step in job.steps(9):
            with step:
                warm += 1
                loss = model(next(it), warm) + ema(1)
                average = 0.9 * average + 0.1 * loss
                print(average)
                ema.update(loss)
                sched.step()
                helper()
    understudy.run(train)
    """
)
FILE = "/somewhere/train.py"
SCOPES = (Scope(FILE, "train", 3, 5), Scope(FILE, "<module>"))
REPLACE = Disturbance("replace", 1, (1,), (0,))
KILL = Disturbance("kill", 0, (0,), (0,))
STEPS = 8


def value(kind: str, number: object) -> Value:
    return Value(kind, str(number), str(number))


def observation(
    role: int, step: int, values: Mapping[str, Value] = {}, *, state: object = None, **more: object
) -> Observation:
    bits = {"model.weight": f"{step if state is None else state}", "optim.lr": "1"}
    made = Observation(role, step, f"w{role}", f"m{role}", bits, dict(values), SCOPES, twins=(0, 1), files=(FILE,))
    return msgspec.structs.replace(made, **more)


def calm(values: Mapping[str, str] = {}, constant: bool = False) -> Run:
    """Two roles; each variable's value is the number of the step."""
    return Run(
        "undisturbed",
        [
            observation(role, step, {name: value(kind, 0 if constant else step) for name, kind in values.items()})
            for role in (0, 1)
            for step in range(STEPS + 1)
        ],
    )


def replaced(values: Mapping[str, str], *, at: int = 5, bad: bool, lasting: bool = True) -> Run:
    """Role 1 belongs to a joiner from `at` on; the joiner's variables come from three steps of rehearsal."""
    found = []
    for role in (0, 1):
        for step in range(STEPS + 1):
            new = role == 1 and step >= at
            late = new and (lasting or step == at)
            held = {name: value(kind, f"{step} of its own" if late else step) for name, kind in values.items()}
            state = f"{step}!" if bad and step > at else None
            uid = "w9" if new else f"w{role}"
            found.append(observation(role, step, held, state=state, uid=uid, disturbances=int(step >= at - 1)))
    return Run("disturbed 1", found, disturbances=(REPLACE,))


def judge(first: Run, *disturbed: Run, again: Run | None = None, source: str = SCRIPT) -> list[ScriptFinding]:
    return findings(Evidence((("dp", 2),), STEPS, first, again, disturbed, {FILE: source}))


def test_nothing_to_find() -> None:
    names = {"0:loss": "tensor", "0:ema": "module"}
    assert judge(calm({}), replaced({}, bad=False)) == []
    assert judge(calm(names), replaced({"0:loss": "tensor"}, bad=False)) == []


@pytest.mark.parametrize(
    ("name", "kind", "sentence", "advice"),
    [
        ("ema", "module", "changes from step to step and is not tracked", "job.track(ema=ema)"),
        ("ema", "tensor", "a joiner starts with a new one", 'model.register_buffer("ema", ema)'),
        ("ema.shadow", "module", '"ema.shadow" (a module)', "job.track(shadow=ema.shadow)"),
        ("it", "iterator", "position is not tracked", "step.index and shard.number"),
        ("it", "generator", "draws random numbers", "job.track(it=it)"),
        ("warm", "counter", "changes from step to step", "compute it from step.index"),
        ("sched", "scheduler", "changes from step to step", "job.track(sched=sched)"),
        ("warm", "list", "changes from step to step", "state_dict() and load_state_dict()"),
    ],
)
def test_what_was_forgotten_is_named(name: str, kind: str, sentence: str, advice: str) -> None:
    held = {f"0:{name}": kind}
    (found,) = judge(calm(held), replaced(held, bad=True))
    assert (found.kind, found.proven, found.step) == ("diverged", True, 5)
    assert found.roles == ("role 0 (dp=0)", "role 1 (dp=1)")
    assert found.tensors == ("model.weight",)
    assert "role 1 is replaced" in found.disturbance
    (cause,) = found.causes
    assert (cause.variable, cause.place, cause.kind) == (name, "train.py:4", kind)
    assert sentence in cause.sentence
    assert advice in cause.advice
    assert cause.evidence == "before step 5: 5 undisturbed, 5 of its own in the joiner"


def test_a_global_is_named_with_its_line() -> None:
    held = {"1:COUNT": "dict"}
    (found,) = judge(calm(held), replaced(held, bad=True))
    assert [(cause.place, cause.variable) for cause in found.causes] == [("train.py:2", "COUNT")]


def test_the_likeliest_comes_first_and_what_is_only_shown_is_a_note() -> None:
    held = {"0:average": "number", "0:warm": "counter", "0:ema": "module", "0:it": "iterator"}
    found, note = judge(calm(held), replaced(held, bad=True))
    assert [cause.variable for cause in found.causes] == ["ema", "it", "warm"]
    assert (note.kind, note.proven, note.variable) == ("forgotten", False, "average")
    assert verdict([found, note]) == "found"
    assert verdict([note]) == "clean"


def test_without_another_cause_a_variable_that_is_only_shown_is_the_cause() -> None:
    (found,) = judge(calm({"0:average": "number"}), replaced({"0:average": "number"}, bad=True))
    assert [cause.variable for cause in found.causes] == ["average"]


def test_a_difference_without_bits_is_only_suspected() -> None:
    held = {"0:warm": "counter"}
    (note,) = judge(calm(held), replaced(held, bad=False))
    assert (note.kind, note.proven, note.place, note.variable) == ("forgotten", False, "train.py:4", "warm")
    assert "may stay" in note.advice
    assert judge(calm(held), replaced(held, bad=False, lasting=False)) == []


@pytest.mark.parametrize("held", [{"0:loss": "tensor"}, {"0:step": "counter"}])
def test_what_is_computed_anew_in_each_step_is_no_state(held: dict[str, str]) -> None:
    (found,) = judge(calm(held), replaced(held, bad=True))
    assert found.causes == ()
    assert "no variable" in found.advice


def test_what_never_changes_is_no_state() -> None:
    held = {"0:warm": "counter"}
    found, warning = judge(calm(held, constant=True), replaced({}, bad=True))
    assert found.causes == ()
    assert (warning.kind, warning.proven, warning.variable) == ("untracked", False, "warm")


def test_an_iterator_that_cannot_be_looked_into() -> None:
    first, second = calm({"0:it": "iterator"}), replaced({"0:it": "iterator"}, bad=True)
    hidden = Value("iterator", "", "a cycle")
    runs = [
        msgspec.structs.replace(
            run, observations=[msgspec.structs.replace(each, values={"0:it": hidden}) for each in run.observations]
        )
        for run in (first, second)
    ]
    (found,) = judge(*runs)
    assert [cause.variable for cause in found.causes] == ["it"]
    assert "cannot be read" in found.causes[0].evidence


def test_a_repeated_step_changes_a_stayer_twice() -> None:
    held = {"0:warm": "counter"}
    observations = [observation(role, step, {"0:warm": value("counter", step)}) for role in (0, 1) for step in range(5)]
    observations += [observation(1, 4, {"0:warm": value("counter", 5)}, disturbances=1)]
    observations += [
        observation(role, 5, {"0:warm": value("counter", 6)}, state="5!", disturbances=1) for role in (0, 1)
    ]
    run = Run("disturbed 1", observations, disturbances=(KILL,))
    (found,) = judge(calm(held), run)
    (cause,) = found.causes
    assert "a step that is repeated changes it twice" in cause.sentence
    assert cause.evidence == "before step 4: 4 undisturbed, 5 in role 1, which repeated it"


def test_data_that_is_gone_through_beside_the_steps() -> None:
    source = SCRIPT.replace("for step in job.steps(9):", "for step, batch in zip(job.steps(9), loader):")
    (found,) = judge(calm(), replaced({}, bad=True), source=source)
    assert [(cause.place, cause.variable) for cause in found.causes] == [("train.py:5", "loader")]


# -- what the undisturbed run alone suggests ---------------------------------------------------------------------------


@pytest.mark.parametrize("steps", ["zip(job.steps(9), loader)", "zip(job.steps(9), enumerate(loader))"])
def test_a_place_in_data_is_a_warning_as_long_as_the_bits_are_the_same(steps: str) -> None:
    target = "step, (i, batch)" if "enumerate" in steps else "step, batch"
    source = SCRIPT.replace("for step in job.steps(9):", f"for {target} in {steps}:")
    (warning,) = judge(calm(), replaced({}, bad=False), source=source)
    assert (warning.kind, warning.proven, warning.place) == ("position", False, "train.py:5")
    assert "loader" in warning.variable
    assert "step.index" in warning.advice


@pytest.mark.parametrize(
    ("name", "kind", "evidence"),
    [
        ("sched", "scheduler", "0, unchanged in 8 steps; train.py:12 uses it"),
        ("elsewhere", "sampler", "0, unchanged in 8 steps; objects like it exist to change"),
        ("elsewhere", "optimizer", "objects like it exist to change"),
        ("ema", "module", "train.py:8 may change it"),
        ("it", "iterator", "train.py:8 draws from it"),
        ("warm", "number", "train.py:7 assigns it"),
    ],
)
def test_what_has_not_changed_yet_is_named(name: str, kind: str, evidence: str) -> None:
    source = SCRIPT.replace("    ema, it", "    elsewhere = make()\n    ema, it").replace(
        "import understudy, time\n", ""
    )
    held = {f"0:{name}": kind}
    scopes = (Scope(FILE, "train", 2, 5), SCOPES[1])

    def moved(run: Run) -> Run:
        each = [msgspec.structs.replace(seen, scopes=scopes) for seen in run.observations]
        return msgspec.structs.replace(run, observations=each)

    (warning,) = judge(moved(calm(held, constant=True)), moved(replaced({}, bad=False)), source=source)
    assert (warning.kind, warning.proven, warning.variable) == ("untracked", False, name)
    assert evidence in warning.evidence
    assert verdict([warning]) == "clean"


@pytest.mark.parametrize(
    ("line", "name", "kind"),
    [
        ("loss = model(teacher(1))", "teacher", "module"),
        ("noise.manual_seed(step.index); loss = rand(noise)", "noise", "generator"),
        ("print(limit)", "limit", "number"),
        ("loss = limit * 2", "limit", "number"),
        ("pass", "split", "generator"),
    ],
)
def test_what_is_constant_or_made_anew_is_not_named(line: str, name: str, kind: str) -> None:
    source = SCRIPT.replace("            warm += 1\n", f"            {line}\n")
    held = {f"0:{name}": kind}
    assert judge(calm(held, constant=True), replaced({}, bad=False), source=source) == []


def test_what_cannot_change_by_what_it_is_is_not_named() -> None:
    disabled = Value("scaler", "0", "a GradScaler", constant=True)
    run = Run("undisturbed", [observation(role, step, {"0:sched": disabled}) for role in (0, 1) for step in range(9)])
    assert judge(run, replaced({}, bad=False)) == []


def test_attributes_that_a_method_assigns_may_change_later() -> None:
    source = SCRIPT + "class Stopper:\n    def see(self, loss):\n        self.bad = self.bad + 1\n"
    held = {"0:warm.bad": "counter", "0:warm.limit": "counter"}
    (warning,) = judge(calm(held, constant=True), replaced({}, bad=False), source=source)
    assert (warning.variable, warning.kind) == ("warm.bad", "untracked")
    assert "train.py:17 assigns it" in warning.evidence


def test_a_module_that_ends_differently_is_proven_though_nothing_tracked_differs() -> None:
    held = {"0:ema": "module"}
    (found,) = judge(calm(held), replaced(held, bad=False))
    assert (found.kind, found.proven, found.variable) == ("ends-different", True, "ema")
    assert "job.track(ema=ema)" in found.advice


def uneven_runs() -> list[Run]:
    """Role 1 alone counts in a tracked thing that is too large to be exchanged."""
    found = []
    for run in (calm(), replaced({}, bad=False)):
        observations = []
        for each in run.observations:
            state = {**each.state, "counter.count": f"{each.step if each.role == 1 else 0}"}
            alone = msgspec.structs.replace(each, state=state, twins=(each.role,), expected=(0, 1))
            observations.append(alone)
        found.append(msgspec.structs.replace(run, observations=observations))
    return found


def test_a_tracked_thing_that_only_one_role_changes_is_named() -> None:
    (found,) = judge(*uneven_runs())
    assert (found.kind, found.proven, found.variable) == ("uneven-state", False, "counter")
    assert "differs between roles 0 and 1" in found.sentence
    assert found.evidence == "counter.count differs from step 0 on"
    assert "not only if job.is_primary" in found.advice


def test_what_differs_is_the_reason_if_a_role_has_no_live_copy() -> None:
    undisturbed, run = uneven_runs()
    dead = msgspec.structs.replace(run, disturbances=(KILL,), status="failed", failure=FailureCause.STATE_LOST)
    (found,) = judge(undisturbed, dead)
    assert (found.kind, [cause.variable for cause in found.causes]) == ("fatal", ["counter"])


def test_what_roles_exchange_is_no_finding() -> None:
    exchanged = [
        msgspec.structs.replace(
            run, observations=[msgspec.structs.replace(each, twins=(0, 1)) for each in run.observations]
        )
        for run in uneven_runs()
    ]
    assert judge(*exchanged) == []


def test_an_iterator_of_a_loader_that_a_joiner_makes_in_another_step() -> None:
    def made(run: Run, steps: tuple[int, ...]) -> Run:
        places = {step: ("train.py:4",) if step in steps else () for step in range(STEPS + 1)}
        seen = [msgspec.structs.replace(each, seeded=places[each.step]) for each in run.observations]
        return msgspec.structs.replace(run, observations=seen)

    (found,) = judge(made(calm(), (1,)), made(replaced({}, bad=True), (1, 6)))
    (cause,) = found.causes
    assert (cause.kind, cause.place, found.step) == ("seed", "train.py:4", 5)
    assert "draws its seed from torch's global generator" in cause.sentence
    assert cause.evidence == "in step 5: in role 0, and not undisturbed"
    (unexplained,) = judge(made(calm(), (1, 6)), made(replaced({}, bad=True), (1, 6)))
    assert unexplained.causes == ()


def test_a_batch_that_is_fetched_ahead_is_to_be_fetched_by_its_step() -> None:
    source = SCRIPT.replace("warm += 1", "old, warm = warm, fetch(step.index + 1)")
    (found,) = judge(calm({"0:warm": "tensor"}), replaced({"0:warm": "tensor"}, bad=True), source=source)
    assert [cause.variable for cause in found.causes] == ["warm"]
    assert "fetch it in the step that uses it, by step.index" in found.causes[0].advice


# -- chance ------------------------------------------------------------------------------------------------------------

CLOCK = SCRIPT.replace("loss = model(next(it), warm)", "loss = model(next(it), time.time() - began)").replace(
    "    ema, it", "    began = time.time()\n    ema, it"
)


def other(held: Mapping[str, str] = {}, *, at: int = 3) -> Run:
    """Another undisturbed run, with other variables and, from some boundary on, another state."""
    return Run(
        "undisturbed again",
        [
            observation(
                role,
                step,
                {name: value(kind, f"{step}?") for name, kind in held.items()},
                state=f"{step}!" if step >= at else None,
            )
            for role in (0, 1)
            for step in range(STEPS + 1)
        ],
    )


def test_two_undisturbed_runs_that_differ() -> None:
    (found,) = judge(calm(), replaced({}, bad=True), again=other())
    assert (found.kind, found.proven, found.step) == ("not-deterministic", True, 2)
    assert "first in step 2" in found.sentence
    assert "use_deterministic_algorithms" in found.advice


def test_a_state_that_differs_from_the_start() -> None:
    (found,) = judge(calm(), replaced({}, bad=True), again=other(at=0))
    assert "before the first step" in found.sentence
    assert "torch.manual_seed(job.seed)" in found.advice


def test_a_disturbed_run_that_differs_before_it_is_disturbed() -> None:
    early = msgspec.structs.replace(other(), disturbances=(REPLACE,))
    (found,) = judge(calm(), early)
    assert found.kind == "not-deterministic"


def test_the_clock_is_named_first_if_its_variable_differs() -> None:
    source = CLOCK.replace("def train(job):\n", "def train(job):\n    made = list(set(words))\n")
    scopes = (Scope(FILE, "train", 3, 7), SCOPES[1])
    runs = [
        msgspec.structs.replace(
            run, observations=[msgspec.structs.replace(each, scopes=scopes) for each in run.observations]
        )
        for run in (calm({"0:began": "number"}), other({"0:began": "number"}))
    ]
    (found,) = judge(runs[0], replaced({}, bad=True), again=runs[1], source=source)
    assert [(cause.kind, cause.place) for cause in found.causes] == [
        ("clock", "train.py:5"),
        ("order", "train.py:4"),
        ("clock", "train.py:10"),
    ]
    assert found.causes[0].variable == "began"
    assert found.causes[0].evidence == "before step 0: 0 in one run, 0? in the other"
    assert found.advice == ""


def test_a_variable_that_differs_from_run_to_run_is_a_clue() -> None:
    (found,) = judge(calm({"0:warm": "counter"}), replaced({}, bad=True), again=other({"0:warm": "counter"}))
    assert [(cause.variable, cause.kind) for cause in found.causes] == [("warm", "variable")]


def test_what_differs_from_run_to_run_anyway_is_not_said_to_be_forgotten() -> None:
    first = calm({"0:warm": "number"})
    second = replaced({"0:warm": "number"}, bad=False)
    shaky = [
        msgspec.structs.replace(each, values={"0:warm": value("number", f"{each.step}?")})
        for each in second.observations
    ]
    assert judge(first, msgspec.structs.replace(second, observations=shaky)) == []


# -- runs that come to no good end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", get_args(ScriptFailure))
def test_a_script_that_fails_by_itself(cause: ScriptFailure) -> None:
    (found,) = judge(Run("undisturbed", [], "failed", "role 0 failed in step 2", cause))
    assert (found.kind, found.proven) == (cause, True)
    assert found.sentence == "undisturbed: role 0 failed in step 2"
    assert found.advice


def test_a_failure_without_a_known_cause() -> None:
    (found,) = judge(Run("undisturbed", [], "failed", "m0 could not start"))
    assert found.kind == "raises"


@pytest.mark.parametrize("failure", ["start", "no-machine", "died-again", "unfinished"])
def test_a_failure_without_an_error_of_the_script_is_not_blamed_on_it(failure: str) -> None:
    (found,) = judge(Run("undisturbed", [], "failed", "m0 is gone", failure=failure))
    assert (found.kind, found.proven) == ("died", True)
    assert "the script fails" not in found.advice


def test_a_machine_that_was_silent_proves_nothing() -> None:
    silent = "m0 is gone: nothing heard from its agent for 60 s"
    run = Run("undisturbed", [], "stuck", "nothing has happened", interference=silent)
    (found,) = judge(run)
    assert (found.kind, found.proven, found.sentence) == ("interrupted", False, f"undisturbed: {silent}")
    assert "check again" in found.advice
    assert verdict([found]) == "unclear"
    (later,) = judge(calm(), msgspec.structs.replace(replaced({}, bad=True), interference=silent))
    assert (later.kind, verdict([later])) == ("interrupted", "unclear")


def test_a_kill_that_ends_the_job_is_found_with_the_way_out() -> None:
    killed = msgspec.structs.replace(KILL, orphans=True, step=4)
    fatal = Run("disturbed 2", [], "failed", "role 0: no live replica", failure="state-lost", disturbances=(killed,))
    (found,) = judge(calm(), replaced({}, bad=False), fatal)
    assert (found.kind, found.proven, found.step) == ("fatal", True, 4)
    assert "kill -9 of the machine with role 0 ends the job: role 0: no live replica" in found.sentence
    assert "--copy-every N" in found.advice
    assert "all bits were the same" not in found.advice
    copied = msgspec.structs.replace(replaced({}, bad=False), disturbances=(killed,), options=("--copy-every 1",))
    (found,) = judge(calm(), fatal, copied)
    assert "with --copy-every 1 all bits were the same" in found.advice


def test_a_collective_that_only_some_roles_call_is_named() -> None:
    source = "import torch.distributed as dist\nif job.role == 0:\n    dist.barrier()\n"
    run = Run("undisturbed", [], "failed", "role 1 called barrier", "collectives")
    (found,) = judge(run, source=source)
    assert [(cause.place, cause.kind) for cause in found.causes] == [("train.py:3", "uneven")]
    assert "only called if job.role == 0" in found.causes[0].sentence


def test_a_script_that_ends_early_or_never() -> None:
    short = Run("undisturbed", [each for each in calm().observations if each.step <= 3])
    (early,) = judge(short)
    assert (early.kind, early.proven) == ("ended-early", True)
    assert "after 3 of 8 steps" in early.sentence
    (stuck,) = judge(msgspec.structs.replace(short, status="stuck", reason="it has not ended within 300 s"))
    assert stuck.kind == "stuck"


def test_a_script_that_only_fails_when_it_is_disturbed() -> None:
    held = {"0:ema": "module"}
    run = msgspec.structs.replace(
        replaced(held, bad=False), status="failed", reason="ValueError: no (train.py, line 3)"
    )
    (found,) = judge(calm(held), run)
    assert (found.kind, found.proven) == ("raises", True)
    assert found.sentence.startswith("the machine with role 1 is replaced as planned: ValueError")
    assert found.advice.startswith("undisturbed it does not fail")
    assert [cause.variable for cause in found.causes] == ["ema"]


def test_a_failure_after_a_difference_follows_from_it() -> None:
    run = msgspec.structs.replace(replaced({}, bad=True), status="failed", reason="ValueError: no (train.py, line 3)")
    first, second = judge(calm(), run)
    assert (first.kind, second.kind) == ("diverged", "raises")
    assert second.advice == "it follows from the difference above: repair that first"


def test_a_rank_that_is_read_at_import_is_a_note() -> None:
    source = "import os\nRANK = int(os.environ['RANK'])\n"
    (note,) = judge(calm(), replaced({}, bad=False), source=source)
    assert (note.kind, note.proven, note.place, note.variable) == ("rank", False, "train.py:2", "RANK")
    assert "job.role" in note.advice


def test_a_second_undisturbed_run_that_fails() -> None:
    again = Run("undisturbed again", [], "failed", "ValueError: no (train.py, line 3)")
    first, second = judge(calm(), replaced({}, bad=True), again=again)
    assert (first.kind, second.kind) == ("raises", "diverged")


# -- what is still to be shown -----------------------------------------------------------------------------------------


def test_what_comes_after_a_difference_is_unclear() -> None:
    run = msgspec.structs.replace(replaced({}, bad=True), disturbances=(REPLACE, KILL))
    assert unclear(calm(), run) == [KILL]
    assert unclear(calm(), replaced({}, bad=False)) == []
    broken = msgspec.structs.replace(replaced({}, bad=False), disturbances=(REPLACE, KILL), status="failed")
    assert unclear(calm(), broken) == [KILL]
