"""The copies of one role that are in a worker's memory: never more than two."""

from __future__ import annotations

from understudy.state.copy import Copy


class Shelf:
    """Whole copies by step, and memory for the next one. Not thread-safe."""

    def __init__(self) -> None:
        self.whole: dict[int, Copy] = {}
        self._spare: Copy | None = None
        self._lent: set[Copy] = set()

    def put(self, copy: Copy) -> None:
        """A copy is whole; where there is one of the same step already, it takes its place."""
        self._drop(copy.step)
        self.whole[copy.step] = copy

    def spare(self, settled: int) -> Copy | None:
        """A copy whose memory may be overwritten, or None where there is room for one more. Of two whole copies the one
        goes of which it is not known that everybody has it."""
        if self._spare is None and len(self.whole) > 1:
            self._drop(max(step for step in self.whole if step != settled))
        spare, self._spare = self._spare, None
        return spare

    def drop(self, *, before: int = -1, after: int | None = None) -> None:
        for step in [step for step in self.whole if step < before or (after is not None and step > after)]:
            self._drop(step)

    def shed(self) -> None:
        """There will be no next one: free the memory for it."""
        self._spare = None

    def lend(self, step: int) -> Copy:
        """A copy that somebody will read for a while: its memory is never overwritten."""
        copy = self.whole[step]
        self._lent.add(copy)
        return copy

    def _drop(self, step: int) -> None:
        copy = self.whole.pop(step, None)
        if copy is not None and copy in self._lent:
            self._lent.discard(copy)
        elif copy is not None:
            self._spare = copy
