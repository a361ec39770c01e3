"""What observed workers write at step boundaries, how that differs between runs, and their orders. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

EXTENSION = "understudy.verify.script.observer"
"""The extension that workers of a check load; its argument is the folder for observations."""
SHORT_EPOCHS = "understudy.verify.script.epochs"
"""The extension that makes epochs short; its argument is the number of batches and the folder for observations."""
SHORTENED = "shortened"
"""Name of a file in that folder: an epoch was in fact shortened."""


class Value(msgspec.Struct, frozen=True, array_like=True):
    """The value of a variable that is not tracked."""

    kind: str
    """`module`, `optimizer`, `scheduler`, `scaler`, `sampler`, `generator`, `iterator`, `tensor`, `number`, …"""
    digest: str
    """Equal if the values are equal; empty if the value cannot be read."""
    short: str
    """For people."""
    constant: bool = False
    """Whether the value cannot change by what it is: a scaler that is not enabled, a sampler that does not shuffle."""


class Scope(msgspec.Struct, frozen=True):
    """A running function, or a module, that holds variables."""

    file: str
    function: str
    """`<module>` for the globals of a file."""
    first: int = 0
    """The first line of the function."""
    line: int = 0
    """The line that is being executed."""


class Observation(msgspec.Struct, frozen=True):
    """A role before a step: everything that it tracks, and every other variable of its script."""

    role: int
    step: int
    """The step that is about to begin: the state contains this number of steps."""
    uid: str
    machine: str
    state: dict[str, str]
    """Name → digest of each tracked tensor, and of the parts of every other tracked object."""
    values: dict[str, Value] = {}
    """Scope number and path, such as `0:ema` or `1:trainer.count`, → value."""
    scopes: tuple[Scope, ...] = ()
    twins: tuple[int, ...] = ()
    """Roles that can give its state, itself included."""
    expected: tuple[int, ...] = ()
    """Roles that should hold the same parameters, by how the objects were made or by what the script says."""
    files: tuple[str, ...] = ()
    """The script and the modules beside it."""
    seeded: tuple[str, ...] = ()
    """Places that have made an iterator of a DataLoader since the boundary before: each draws a number from torch's
    global generator."""
    disturbances: int = 0
    """Number of disturbances that had begun."""
    primary: bool = False
    """Whether the role is the primary one."""


class Pace(msgspec.Struct, frozen=True):
    """How far workers may go; written by the check to the file `PACE`, read by all workers."""

    steps: int
    """Number of steps that may begin."""
    disturbances: int = 0
    """Number of disturbances that have begun."""
    dying: str = ""
    """A machine; its workers stop before the vote of the last of these steps and wait to be killed."""


PACE = "pace.json"
AWAITS_KILL = "awaits-kill-"
"""Name of a file, followed by the uid of the worker that waits to be killed."""


def read_observations(folder: Path) -> list[Observation]:
    """All observations in a folder. The last line of a worker that was killed may be torn and is left out."""
    decoder = msgspec.json.Decoder(Observation)
    found = []
    for file in sorted(folder.glob("*.jsonl")):
        *lines, _ = file.read_bytes().split(b"\n")
        found += [decoder.decode(line) for line in lines]
    return found


# -- two runs side by side, bit by bit ---------------------------------------------------------------------------------


class Divergence(msgspec.Struct, frozen=True):
    """The first boundary at which a role holds another state than in the undisturbed run."""

    step: int
    """The state contains this number of steps."""
    roles: dict[int, tuple[str, ...]]
    """Role → names of what differs."""

    @property
    def tensors(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for names in self.roles.values() for name in names))


class Observations:
    """The observations of an undisturbed run, by role and step."""

    def __init__(self, observations: Iterable[Observation]) -> None:
        self.all = list(observations)
        self._first: dict[tuple[int, int], Observation] = {}
        for each in self.all:
            self._first.setdefault((each.role, each.step), each)

    def at(self, role: int, step: int) -> Observation | None:
        return self._first.get((role, step))


def differing(observation: Observation, truth: Observation) -> tuple[str, ...]:
    """Names of what differs in the state, in their order."""
    names = dict.fromkeys([*truth.state, *observation.state])
    return tuple(name for name in names if observation.state.get(name) != truth.state.get(name))


def first_divergence(truth: Observations, observations: Iterable[Observation]) -> Divergence | None:
    found: dict[int, dict[int, tuple[str, ...]]] = {}
    for each in observations:
        expected = truth.at(each.role, each.step)
        if expected is not None and (names := differing(each, expected)):
            found.setdefault(each.step, {}).setdefault(each.role, names)
    if not found:
        return None
    step = min(found)
    return Divergence(step, dict(sorted(found[step].items())))
