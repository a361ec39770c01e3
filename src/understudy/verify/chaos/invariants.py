"""What must hold after chaos: every role has applied every step exactly once, with the values of an undisturbed run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

_SHOWN = 5


class AppliedStep(msgspec.Struct, frozen=True):
    """An agent's note that one of its workers has applied a step."""

    machine: str
    role: int
    step: int
    values: dict[str, float] = {}


def read_records(run_dir: Path) -> list[AppliedStep]:
    """All notes of all agents. The last line of an agent that was killed may be torn and is left out."""
    found = []
    for file in sorted(run_dir.glob("metrics-*.jsonl")):
        machine = file.stem.removeprefix("metrics-")
        *lines, _ = file.read_text().split("\n")
        for line in lines:
            entry = json.loads(line)
            values = {key: value for key, value in entry.items() if key not in ("role", "step", "seconds")}
            found.append(AppliedStep(machine, entry["role"], entry["step"], values))
    return found


# -- what the job's events say -----------------------------------------------------------------------------------------


def machines_lost(events: Iterable[Mapping[str, Any]]) -> set[str]:
    """Machines that died, lost a worker, or left."""
    return {str(event["data"]["machine"]) for event in events if event["kind"] in ("lost", "died", "released")}


def roll_backs(events: Iterable[Mapping[str, Any]]) -> list[int]:
    """The steps to which all roles went back together: decisions with a number of repeated steps."""
    return [
        int(event["data"]["step"])
        for event in events
        if event["kind"] == "decided" and int(event["data"].get("repeated", 0) or 0) > 0
    ]


def repeated_by_successors(events: Iterable[Mapping[str, Any]]) -> Counter[tuple[int, int]]:
    """(role, step) → how often the role was lost in a step that was then repeated.

    The lost worker may have applied the step without a survivor that knew; its successor applies the step again.
    """
    return Counter(
        (int(role), int(event["data"]["step"]))
        for event in events
        if event["kind"] == "decided"
        for role in event["data"].get("roles") or ()
    )


def ever_vacant(events: Iterable[Mapping[str, Any]]) -> set[int]:
    """Roles without which steps were made."""
    return {int(role) for event in events if event["kind"] in ("masked", "vacated") for role in event["data"]["roles"]}


# -- complaints: what does not hold, in words --------------------------------------------------------------------------


def applied_once(
    records: Sequence[AppliedStep], events: Sequence[Mapping[str, Any]], roles: int, steps: int
) -> list[str]:
    """Steps that a role has not applied, or has applied too often, considering what the job's events say.

    The last notes of a machine that was lost may be lost with it: a gap counts only if the machine before it lives and
    the role was never vacant. Steps that all roles went back to, and those that a successor repeats, may be there once
    more.
    """
    lost, back = machines_lost(events), roll_backs(events)
    again, vacant = repeated_by_successors(events), ever_vacant(events)
    found: list[str] = []
    applied: dict[int, dict[int, list[str]]] = {role: {} for role in range(roles)}  # role → step → machines
    for record in records:
        if record.role not in applied or not 0 <= record.step < steps:
            found.append(f"role {record.role} has applied step {record.step}, which does not exist")
        else:
            applied[record.role].setdefault(record.step, []).append(record.machine)
    for role, on in applied.items():
        for step in sorted(on):
            allowed = 1 + sum(first <= step for first in back) + again[role, step]
            if len(on[step]) > allowed:
                found.append(f"role {role} has applied step {step} {len(on[step])} times, on {', '.join(on[step])}")
        for step in range(steps):
            if role not in vacant and step not in on and (step == 0 or step - 1 in on):
                before = set(on.get(step - 1, ()))
                if not before <= lost or (not before and not lost):
                    found.append(f"role {role} has not applied step {step}")
    return found


def same_values(records: Iterable[AppliedStep], undisturbed: Iterable[AppliedStep]) -> list[str]:
    """Steps that were logged with other values than in an undisturbed run."""
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
    """Roles that did not end in the state of an undisturbed run.

    A worker that died after the last step has not told its state: if machines were `lost`, one role that has told its
    state is enough.
    """
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
    """The first few complaints, for people."""
    more = len(complaints) - _SHOWN
    return [*complaints[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]
