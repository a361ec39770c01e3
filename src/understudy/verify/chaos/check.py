"""Whether a job came through unharmed: every step applied exactly once by every role, with the same values."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

_SHOWN = 5


class Record(msgspec.Struct, frozen=True):
    """A machine's note that one of its workers has applied a step."""

    machine: str
    role: int
    step: int
    values: dict[str, float] = {}


def read_records(run_dir: Path) -> list[Record]:
    """What the agents have written. The last line of one that was killed may be torn."""
    found = []
    for file in sorted(run_dir.glob("metrics-*.jsonl")):
        machine = file.stem.removeprefix("metrics-")
        *lines, _ = file.read_text().split("\n")
        for line in lines:
            entry = json.loads(line)
            values = {key: value for key, value in entry.items() if key not in ("role", "step", "seconds")}
            found.append(Record(machine, entry["role"], entry["step"], values))
    return found


def machines_lost(tales: Iterable[Mapping[str, Any]]) -> set[str]:
    """Machines that died, lost a worker, or left."""
    return {str(tale["data"]["machine"]) for tale in tales if tale["kind"] in ("lost", "died", "released")}


def roll_backs(tales: Iterable[Mapping[str, Any]]) -> list[int]:
    """The steps to which everybody went back together: decisions that say how many steps are repeated."""
    return [
        int(tale["data"]["step"])
        for tale in tales
        if tale["kind"] == "decided" and int(tale["data"].get("repeated", 0) or 0) > 0
    ]


def begun_again(tales: Iterable[Mapping[str, Any]]) -> Counter[tuple[int, int]]:
    """(role, step) → how often a role was lost in a step that began again: if it had applied the step, and nobody who
    is left knew, that is lost with it, and its successor applies the step."""
    return Counter(
        (int(role), int(tale["data"]["step"]))
        for tale in tales
        if tale["kind"] == "decided"
        for role in tale["data"].get("roles") or ()
    )


def ever_vacant(tales: Iterable[Mapping[str, Any]]) -> set[int]:
    """Roles without which steps were made."""
    return {int(role) for tale in tales if tale["kind"] in ("masked", "vacated") for role in tale["data"]["roles"]}


def exactly_once(
    records: Sequence[Record],
    roles: int,
    steps: int,
    *,
    lost: Collection[str] = (),
    back: Sequence[int] = (),
    again: Mapping[tuple[int, int], int] | None = None,
    vacant: Collection[int] = (),
) -> list[str]:
    """What speaks against every role having applied every step exactly once.

    A machine's last notes may be lost with it (`lost`), so a gap counts against a job only where the machine before it
    lives and its role was never vacant. Steps from one in `back` on were repeated by everybody, so they may be there
    once more for each; so may those that a lost worker had applied before they began `again`."""
    found: list[str] = []
    of: dict[int, list[Record]] = {role: [] for role in range(roles)}
    for record in records:
        if record.role not in of or not 0 <= record.step < steps:
            found.append(f"role {record.role} has applied step {record.step}, which there is not")
        else:
            of[record.role].append(record)
    for role, notes in of.items():
        counts = Counter(note.step for note in notes)
        machines: dict[int, list[str]] = {}
        for note in notes:
            machines.setdefault(note.step, []).append(note.machine)
        for step, count in sorted(counts.items()):
            allowed = 1 + sum(first <= step for first in back) + (again or {}).get((role, step), 0)
            if count > allowed:
                found.append(f"role {role} has applied step {step} {count} times, on {', '.join(machines[step])}")
        for step in range(steps):
            if role not in vacant and step not in counts and (step == 0 or step - 1 in counts):
                before = set(machines.get(step - 1, ()))
                if not before <= set(lost) or (not before and not lost):
                    found.append(f"role {role} has not applied step {step}")
    return found


def once_by(records: Sequence[Record], tales: Sequence[Mapping[str, Any]], roles: int, steps: int) -> list[str]:
    """The same, with what a job's events say about who was lost, and what began again."""
    return exactly_once(
        records,
        roles,
        steps,
        lost=machines_lost(tales),
        back=roll_backs(tales),
        again=begun_again(tales),
        vacant=ever_vacant(tales),
    )


def same_values(records: Iterable[Record], undisturbed: Iterable[Record]) -> list[str]:
    """Where what was logged with a step differs from an undisturbed run's."""
    truth = {(record.role, record.step): record.values for record in undisturbed}
    found = []
    for record in records:
        expected = truth.get((record.role, record.step))
        if expected is not None and not _same(expected, record.values):
            found.append(
                f"role {record.role} logged {record.values} in step {record.step}, undisturbed it was {expected}"
            )
    return found


def _same(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    return one.keys() == other.keys() and all(
        value == other[key] or (value != value and other[key] != other[key]) for key, value in one.items()
    )


def same_digests(found: Mapping[str, str], expected: Mapping[str, str], *, lost: Collection[str] = ()) -> list[str]:
    """Roles that did not end in the state of an undisturbed run. Who died after the last step (`lost` says whether
    anybody did) has not told its state; somebody must have."""
    roles = sorted({*found, *expected}, key=int)
    silent = [role for role in roles if role not in found]
    wrong = [role for role in roles if role in found and found[role] != expected.get(role)]
    complaints = []
    if wrong:
        complaints.append(f"the final state of role {', '.join(wrong)} differs from the undisturbed run's")
    if silent and (not lost or not found):
        complaints.append(f"role {', '.join(silent)} has not told its final state")
    return complaints


def shortened(complaints: Sequence[str]) -> list[str]:
    """The first few, for people."""
    more = len(complaints) - _SHOWN
    return [*complaints[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]
