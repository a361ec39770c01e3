"""A stream of messages that survives its connection, and the death of the other side's process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")
_CROWD = 1000
"""Machines whose words a controller reads within a second or two when all speak at once."""


def sign_of_life_s(least: float, machines: int) -> float:
    """For how long a connection may be silent before the other side is asked for a sign of life. With many machines
    words wait to be read while others are; that is no silence."""
    return least * max(1.0, machines / _CROWD)


class Outbox(Generic[T]):
    """Numbers what is sent and keeps it until it is acknowledged."""

    def __init__(self) -> None:
        self.last = 0
        self._kept: deque[tuple[int, T]] = deque()

    def put(self, content: T) -> int:
        self.last += 1
        self._kept.append((self.last, content))
        return self.last

    def acknowledged(self, number: int) -> None:
        while self._kept and self._kept[0][0] <= number:
            self._kept.popleft()

    def after(self, number: int) -> Iterable[tuple[int, T]]:
        """What the other side does not have."""
        self.acknowledged(number)
        return list(self._kept)


class Inbox:
    """Takes every number once, in order, however often it comes."""

    def __init__(self, last: int = 0) -> None:
        self.last = last

    def take(self, number: int) -> bool:
        """Whether this is the next one. What comes out of order is left to be sent again."""
        if number != self.last + 1:
            return False
        self.last = number
        return True
