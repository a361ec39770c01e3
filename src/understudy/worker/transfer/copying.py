"""A copy of a role's state from one worker to another, in the frames of a hand-over.

The taker is a backup, which keeps the copy (`take_copy`), or a joiner, which takes it into its tracked objects
(`handover.Taker`). The giver does the same for both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from understudy.comm.links.link import Link
from understudy.state.copy import Copy, CopyMemory
from understudy.state.errors import StreamBroken
from understudy.state.stream import take

from .handover import KeepStep, Last, RoomReady, Stop, Taken, Tempo, TensorBatch, expect, hand, send


def give_copy(links: Sequence[Link], copy: Copy, stop: Stop) -> int:
    """Give a copy, which must not change meanwhile. Returns the number of bytes once the taker has it, verified."""
    sockets, carried, slots = [link.sock for link in links], copy.carried, copy.gradients
    size = hand(sockets, TensorBatch(copy.slots, tuple(range(len(copy.slots))), True), copy.tensors, stop, check=True)
    last = Last(copy.step, (), tuple(carried), copy.zeros, copy.rest, tempo=Tempo(), check=False, gradients=slots)
    size += hand(sockets, last, list(carried.values()), stop, check=True)
    expect(sockets[0], Taken, stop)
    return size


def send_copy(links: Sequence[Link], copy: Copy, keep: int, stop: Stop) -> int:
    """Give a copy to a backup, which must not overwrite its copy of the step `keep`."""
    send(links[0].sock, KeepStep(keep), stop)
    return give_copy(links, copy, stop)


def take_copy(links: Sequence[Link], spare: Callable[[int], Copy | None], stop: Stop) -> Copy:
    """Receive the next copy, whole and verified; `confirm_copy` follows once it can be found. `spare` gets the step of
    the copy that must be kept, and returns a copy to overwrite."""
    sockets = [link.sock for link in links]
    first = sockets[0]
    keep = expect(first, KeepStep, stop).step
    batch = expect(first, TensorBatch, stop)
    if not batch.check or batch.send != tuple(range(len(batch.slots))):
        raise StreamBroken("received a part of the state, expected a whole copy")
    memory = CopyMemory(spare(keep))
    tensors = memory.tensors(batch.slots)
    send(first, RoomReady(), stop)
    take(sockets, tensors, stop=stop)
    last = expect(first, Last, stop)
    if last.send or last.check or len(last.gradients) != len(last.carried):
        raise StreamBroken("received the end of a hand-over, expected the end of a copy")
    carried = memory.gradients(last.carried, last.gradients)
    send(first, RoomReady(), stop)
    take(sockets, list(carried.values()), stop=stop)
    return Copy(last.step, batch.slots, tensors, last.rest, carried, last.zeros)


def confirm_copy(links: Sequence[Link], stop: Stop) -> None:
    send(links[0].sock, Taken(), stop)
