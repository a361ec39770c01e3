"""A sentence and a way out for everything that a check can find. Pure."""

from __future__ import annotations

from understudy.protocol.messages import ScriptFailure

from .carried import Position
from .hints import Hint, HintKind


def complaint(kind: str, name: str, *, twice: bool) -> str:
    """What is wrong with a variable that a joiner does not have, or that a repeated step has changed `twice`."""
    if twice:
        return f'"{name}" ({_a(kind)}) is changed by a step and not tracked: a step that is repeated changes it twice'
    if kind == "generator":
        return f'"{name}" draws random numbers and is not tracked: a joiner draws others'
    if kind == "iterator":
        return f'"{name}" is an iterator, and its position is not tracked: a joiner begins elsewhere in the data'
    return f'"{name}" ({_a(kind)}) changes from step to step and is not tracked: a joiner starts with a new one'


def unchanged(kind: str, name: str) -> str:
    """What may go wrong with a variable that has not changed so far."""
    return f'"{name}" ({_a(kind)}) is not tracked; if it changes later, a joiner does not have the change'


def position(found: Position) -> tuple[str, str]:
    """A sentence and a way out for a loop that goes through data, or counts."""
    return (
        f"`for … in {found.call}` has a place in {found.data} that is not tracked: a joiner begins with the first "
        "element",
        "loop over job.steps(…) alone, and compute the batch, the epoch and every count from step.index",
    )


def uneven_state(name: str, roles: str) -> tuple[str, str]:
    """A sentence and a way out for a tracked thing that differs between roles with the same model."""
    return (
        f'"{name}" is tracked and differs between {roles}: neither can give a joiner the whole state of the other',
        "change it in the same way on every role, not only if job.is_primary; keep it out of job.track, if it is only "
        "shown; or start the job with --copy-every N",
    )


def way_out(kind: str, name: str, *, fetched: bool = False) -> str:
    """`fetched`: the loop assigns the variable values that do not come from its old one, as for the next batch."""
    own = name.rpartition(".")[2].partition("[")[0].lstrip("_") or "it"
    if kind in ("module", "optimizer", "scheduler", "scaler", "object"):
        return f"add it: job.track({own}={name})"
    if kind == "sampler":
        return (
            "set its epoch from step.index in every step; or track it in an object with state_dict() and "
            f"load_state_dict(): job.track({own}=…)"
        )
    if fetched and kind in ("tensor", "array", "tuple", "list", "dict"):
        return (
            "fetch it in the step that uses it, by step.index; a batch that was fetched ahead must be dropped if it is "
            "not the one of step.index"
        )
    if kind == "tensor":
        return f'make it a buffer of a tracked module: model.register_buffer("{own}", {name})'
    if kind == "generator":
        return (
            f"add it: job.track({own}={name}); or use torch's, numpy's or Python's global generator, which the runtime "
            "seeds for each step"
        )
    if kind == "iterator":
        return (
            "fetch the batch by number, from step.index and shard.number; or track a loader that has state_dict() and "
            "load_state_dict()"
        )
    if kind in ("counter", "number", "flag"):
        return (
            "compute it from step.index; or keep it in an object with state_dict() and load_state_dict(), and track "
            f"that: job.track({own}=…)"
        )
    return f"keep it in an object with state_dict() and load_state_dict(), and track that: job.track({own}=…)"


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


_HINTED: dict[HintKind, tuple[str, str]] = {
    "clock": ("{call}{into} reads the clock", "let nothing that is trained depend on the time"),
    "entropy": (
        "{call}{into} has no seed, or a random one: it differs from process to process",
        "seed it with job.seed, or draw inside a step: the runtime has seeded the global generators there",
    ),
    "order": (
        "{call}{into} depends on how Python hashes text, which differs from process to process",
        "sort it first: sorted(…)",
    ),
    "uneven": (
        "{call} is only called if {variable}: roles that do not meet it do not take part",
        "take it out of the condition, or use a group of those roles alone",
    ),
    "rank": (
        "{call}{into} is read at import: a standby that has rehearsed another role must start anew",
        "ask job.role inside of train(job)",
    ),
}


def hinted(hint: Hint) -> tuple[str, str]:
    """A sentence and a way out for a line of the script."""
    into = f' (into "{hint.variable}")' if hint.variable else ""
    sentence, way = _HINTED[hint.kind]
    return sentence.format(call=hint.call, into=into, variable=hint.variable), way.format(variable=hint.variable)


SEEDED = (
    "an iterator of a DataLoader draws its seed from torch's global generator, so the step that makes it has other "
    "random numbers: a joiner makes it in another step",
    "give the loader a generator of its own, such as generator=torch.Generator().manual_seed(epoch); or make the "
    "iterator before `with step:`",
)
KERNEL = (
    "no variable and no line of the script explains it: a kernel that is not deterministic, threads that race, or the "
    "order of a set; try torch.use_deterministic_algorithms(True) and one thread"
)
NO_CAUSE = (
    "no variable of the script explains it: look for state inside a library's objects, in a tracked object with an "
    "incomplete state_dict(), or for a kernel that is not deterministic and happened to be so twice"
)
INTERRUPTED = (
    "the check has not caused it and proves nothing: the computer is overloaded, or something else ended the process; "
    "check again when the computer has less to do"
)
STUCK = "see what its roles wait for: run it with understudy run, and look at understudy status and events"
DIED = "no error of the script ended it: look at the logs, with --keep DIR, and at the memory of this computer"
FATAL = (
    "give the role's state a second place: let another role hold the same (DDP, job.average, job.same_over), or start "
    "the job with --copy-every N, or with --checkpoint DIR --checkpoint-every N; then check with --copy-every N"
)
COPIES_HELP = "; with --copy-every 1 all bits were the same"
UNSEEDED = "the state differs before the first step: call torch.manual_seed(job.seed) before the model is made"
ONLY_DISTURBED = (
    "undisturbed it does not fail: a joiner, or a role that repeats a step, has something else than in an undisturbed "
    "run; look for state that is not tracked, or that the state_dict() of a tracked object lacks"
)
FOLLOWS = "it follows from the difference above: repair that first"
WAYS_OUT: dict[ScriptFailure, str] = {
    "never-tracks": "call job.track(model=…, optim=…) before job.steps(…)",
    "collectives": (
        "every role must call the same collectives in the same order: look for an `if` on the role, the rank or the "
        "data around one of the two places"
    ),
    "steps": (
        "every role must make the same number of steps: do not leave the loop by a condition that only some roles meet"
    ),
    "no-steps": "write `for step in job.steps(n):` in train(job), and `with step:` around what a step does",
    "outside-step": "call the optimizer inside `with step:`",
    "no-train": "call understudy.run(train) at the end of the script",
    "exits": "let the training function return; a process that exits by itself is taken for a failure",
    "raises": "the script fails by itself: run it with understudy run, and repair that first",
}
"""How a script has failed → what to do."""
