"""Flags of a job that change when a standby takes its role, as objects that look at the present state each time."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from understudy.protocol.messages import EarlyReading

_OWN = str(Path(__file__).parents[1])
_AND, _OR = "FALSE", "TRUE"
"""The value for which `and`, or `or`, ends with its left operand, as it is spelled in the names of instructions."""


class EarlyReadings:
    """The live flags that a script has evaluated before the first step of a rehearsal: the results are plain values,
    which stay those of a rehearsal once the standby has a role."""

    def __init__(self) -> None:
        self.watching = False
        """Whether the training function is in a rehearsal and has not come to its first step."""
        self.found: dict[EarlyReading, None] = {}

    def begin(self) -> None:
        """The training function is entered for a rehearsal."""
        self.watching = True
        self.found.clear()

    def note(self, name: str, value: bool) -> None:
        """A flag is evaluated. An `and` or `or` that ends with the flag itself keeps it alive and does not count."""
        if not self.watching:
            return
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(_OWN):
            frame = frame.f_back
        if frame is not None and not _keeps_operand(frame, value):
            self.found[EarlyReading(name, value, Path(frame.f_code.co_filename).name, frame.f_lineno)] = None


def _keeps_operand(frame: FrameType, value: bool) -> bool:
    """Whether the frame evaluates the left operand of an `and` or `or` whose result is that operand."""
    ends = _OR if value else _AND
    instructions = list(dis.get_instructions(frame.f_code))
    at = next((number for number, each in enumerate(instructions) if each.offset == frame.f_lasti), 0)
    if instructions[at].opname == f"JUMP_IF_{ends}_OR_POP":  # Python 3.11
        return True
    copied = at > 0 and (instructions[at - 1].opname, instructions[at - 1].arg) == ("COPY", 1)
    jump = next((each.opname for each in instructions[at:] if each.opname != "TO_BOOL"), "")
    return copied and jump == f"POP_JUMP_IF_{ends}"


class LiveFlag:
    """A condition about this process that is looked at whenever it is tested: `master = job.is_primary` before the loop
    is right in every later `if master:`, also after a standby has taken a role.

    `&`, `|`, `^` and `~` make live flags of live flags. `not` and `bool()` make plain values, which do not change any
    more. `is True` never holds."""

    def __init__(self, name: str, look: Callable[[], bool], readings: EarlyReadings) -> None:
        self._name, self._look, self._readings = name, look, readings

    def __bool__(self) -> bool:
        value = self._look()
        self._readings.note(self._name, value)
        return value

    def __int__(self) -> int:
        return int(bool(self))

    __index__ = __int__

    def __eq__(self, other: object) -> bool:
        return bool(self) == (bool(other) if isinstance(other, LiveFlag) else other)

    def __hash__(self) -> NoReturn:
        raise TypeError(f"{self._name} changes its value, so it cannot be hashed; use bool({self._name})")

    def __and__(self, other: LiveFlag | bool) -> LiveFlag:
        return self._with("&", other, lambda a, b: a and b)

    def __or__(self, other: LiveFlag | bool) -> LiveFlag:
        return self._with("|", other, lambda a, b: a or b)

    def __xor__(self, other: LiveFlag | bool) -> LiveFlag:
        return self._with("^", other, lambda a, b: a is not b)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __invert__(self) -> LiveFlag:
        return LiveFlag(f"~{self._name}", lambda: not self._look(), self._readings)

    def _with(self, sign: str, other: LiveFlag | bool, combine: Callable[[bool, bool], bool]) -> LiveFlag:
        if not isinstance(other, LiveFlag | bool):
            return NotImplemented
        look, name = (other._look, other._name) if isinstance(other, LiveFlag) else ((lambda: other), str(other))
        return LiveFlag(f"({self._name} {sign} {name})", lambda: combine(self._look(), look()), self._readings)

    def __copy__(self) -> LiveFlag:
        return self

    def __deepcopy__(self, memo: object) -> LiveFlag:
        return self

    def __reduce__(self) -> tuple[type[bool], tuple[int]]:
        """In another process there is nothing to look at: a plain value arrives there."""
        return bool, (int(self),)

    def __str__(self) -> str:
        return str(self._look())

    def __repr__(self) -> str:
        return f"<{self._name}: {self._look()} now>"
