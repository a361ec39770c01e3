"""A copy of a role's state from one worker to another, in the frames of a hand-over.

Who takes it may be a buddy, who keeps it as a copy (`CopyTaker`), or a newcomer, who takes it straight into what it
tracks (`handover.Taker`): whoever gives it need not know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from understudy.comm.links.link import Link
from understudy.state.copy import Copy, CopyMemory
from understudy.state.errors import StreamBroken
from understudy.state.stream import take

from .handover import Goods, KeepStep, Last, RoomReady, Stop, Taken, Tempo, expect, hand, send


def give_copy(links: Sequence[Link], copy: Copy, stop: Stop, tempo: Tempo | None = None) -> int:
    """Returns when the other side has all of it, checked: how many bytes of tensors that took. The copy must not change
    meanwhile."""
    sockets = [link.sock for link in links]
    size = hand(sockets, Goods(copy.slots, tuple(range(len(copy.slots))), True), copy.tensors, stop, check=True)
    last = Last(
        copy.step, (), tuple(copy.carried), copy.zeros, copy.rest, tempo or Tempo(), False, gradients=copy.gradients
    )
    size += hand(sockets, last, list(copy.carried.values()), stop, check=True)
    expect(sockets[0], Taken, stop)
    return size


def send_copy(links: Sequence[Link], copy: Copy, keep: int, stop: Stop) -> int:
    """The same to a buddy, which may be a vote behind: it is told which step's copy it must not overwrite."""
    send(links[0].sock, KeepStep(keep), stop)
    return give_copy(links, copy, stop)


class CopyTaker:
    """Takes one copy after the other: `take`, and `confirm` once it is where it will be found."""

    def __init__(self, links: Sequence[Link], stop: Stop) -> None:
        self._sockets = [link.sock for link in links]
        self._stop = stop
        self._bytes = 0

    def take(self, spare: Callable[[int], Copy | None]) -> Copy:
        """The next copy, whole and checked. `spare` is asked, when it begins to come, for one whose memory may be
        overwritten, and told which step's may not."""
        line, stop = self._sockets[0], self._stop
        keep = expect(line, KeepStep, stop).step
        goods = expect(line, Goods, stop)
        if not goods.check or goods.send != tuple(range(len(goods.slots))):
            raise StreamBroken("a part of the state where a whole copy was due")
        memory = CopyMemory(spare(keep))
        tensors = memory.tensors(goods.slots)
        send(line, RoomReady(), stop)
        self._bytes = take(self._sockets, tensors, stop=stop)
        last = expect(line, Last, stop)
        if last.send or last.check or len(last.gradients) != len(last.carried):
            raise StreamBroken("the end of a hand-over where that of a copy was due")
        carried = memory.gradients(last.carried, last.gradients)
        send(line, RoomReady(), stop)
        self._bytes += take(self._sockets, list(carried.values()), stop=stop)
        return Copy(last.step, goods.slots, tensors, last.rest, carried, last.zeros)

    def confirm(self) -> None:
        send(self._sockets[0], Taken(self._bytes), self._stop)
