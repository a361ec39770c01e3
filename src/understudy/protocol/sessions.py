"""A numbered stream of messages that survives its connection and restarts of either process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")
_CROWD = 1000
"""Number of machines from which a controller reads a message each within a second or two."""


def sign_of_life_s(least: float, machines: int) -> float:
    """Seconds for which a connection may be silent before it is checked. The limit grows with the number of machines,
    since messages wait to be read."""
    return least * max(1.0, machines / _CROWD)


class Outbox(Generic[T]):
    """Numbers messages and keeps each until it is acknowledged."""

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
        """The messages after this number, which the other side has acknowledged."""
        self.acknowledged(number)
        return list(self._kept)


class Inbox:
    """Takes each number once, in order, however often it is sent."""

    def __init__(self, last: int = 0) -> None:
        self.last = last

    def take(self, number: int) -> bool:
        """Whether this is the next number. A message out of order is not taken: it is sent again."""
        if number != self.last + 1:
            return False
        self.last = number
        return True
