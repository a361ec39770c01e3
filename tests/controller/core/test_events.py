"""Events and messages survive the ledger and the wire; their streams survive duplicates and loss."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.controller.core.events import (
    AddStandby,
    Asked,
    Event,
    Lost,
    Overdue,
    Registered,
    RemoveStandby,
    Replace,
    Reported,
    Slipping,
    StopJob,
    TakeBack,
)
from understudy.protocol.frames import (
    Ack,
    Beat,
    Dismiss,
    EndWorker,
    Exited,
    Frame,
    KeepCopy,
    KeptCopy,
    Leaving,
    Numbered,
    Refused,
    Register,
    Relayed,
    StartWorker,
    Tell,
    Welcome,
)
from understudy.protocol.messages import (
    Done,
    Failed,
    Halt,
    Halted,
    Here,
    Move,
    Prepare,
    Recorded,
    Resume,
    Switched,
    Tracked,
)
from understudy.protocol.roster import Roster, WorkerAddress
from understudy.protocol.samples import Sample, Traffic
from understudy.protocol.sessions import Inbox, Outbox

W0, W1 = WorkerAddress("w0", "m0", port=4, local="a"), WorkerAddress("w1", "m1")
ROSTER = Roster.of(3, [(0, "w0"), (1, "w1")], [W0, W1])
EVENTS: list[Event] = [
    Registered("m0", "m0-ab", True),
    Lost("m0", "m0-ab", "nothing heard"),
    Reported("m0", "m0-ab", 1, Relayed("w0", Here(W0))),
    Reported("m0", "m0-ab", 2, Relayed("w0", Tracked(0, (0, 1)))),
    Reported("m0", "m0-ab", 3, Relayed("w0", Switched(2, 7, 0.5, 100))),
    Reported("m0", "m0-ab", 4, Relayed("w0", Halted(0, 1, 2, True, True, False, "eof", "w1 is gone", "w1"))),
    Reported("m0", "m0-ab", 5, Relayed("w0", Failed(3, "ValueError: ü", "a\nb"))),
    Reported("m0", "m0-ab", 6, Relayed("w0", Done(9, "ff", True))),
    Reported("m0", "m0-ab", 7, Exited("w0", -9, "last\nwords")),
    Asked("r1", Replace(("m0", "m1"), ("m2", "m3"), 12.5)),
    Asked("r2", AddStandby(2)),
    Asked("r3", RemoveStandby("m2")),
    Asked("r4", StopJob()),
    Asked("r5", Replace(("m0",), in_turns=True, keep=True, why="new firmware")),
    Asked("r6", TakeBack("m2")),
    Registered("m1", "m1-ab", False, {"rack": "r7"}),
    Reported("m0", "m0-ab", 8, Leaving(30.0, "preempted")),
    Reported("m0", "m0-ab", 9, KeptCopy(Recorded(0, "ab", 10, 3, "http://m0:80/recordings/ab"))),
    Overdue("rehearse"),
    Slipping("r5", 12.5),
]
FRAMES: list[Frame] = [
    Register("m0", "m0-ab", False, 4),
    Register("m0", "m0-ab", False, 4, labels={"rack": "r7"}),
    Numbered(9, Leaving(30.0, "preempted")),
    Welcome(3),
    Numbered(1, StartWorker("w0", 0)),
    Numbered(2, Tell("w0", Prepare(ROSTER, (Move(1, W0, W1),)))),
    Numbered(3, Tell("w0", Resume(ROSTER, 5))),
    Numbered(4, Tell("w0", Halt(1, "w1 is gone"))),
    Numbered(5, EndWorker("w0")),
    Numbered(6, Dismiss("over")),
    Numbered(6, KeepCopy(Recorded(0, "ab", 10, 3, "http://m1:80/recordings/ab"))),
    Numbered(7, Relayed("w0", Here(W0))),
    Numbered(8, Exited("w0", 1)),
    Ack(8),
    Beat(3, {"loss": 0.5}, 0.25, True),
    Beat(3, samples=(Sample("w0", 0, 3, 0.5, (0.1, 0.1, 0.2, 0.1), 0.25, 2, "", (Traffic("w1", 9, 0.5),)),)),
    Refused("over"),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_comes_out_of_the_ledger_as_it_went_in(event: Event) -> None:
    assert msgspec.json.decode(msgspec.json.encode(event), type=Event) == event


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_frame_comes_over_the_wire_as_it_was_sent(frame: Frame) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(frame), type=Frame) == frame


# -- streams -----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 30), st.data())
def test_everything_arrives_once_and_in_order_however_bad_the_connection(count: int, data: st.DataObject) -> None:
    """Frames are lost, doubled and swapped; acknowledgements are lost; the connection is made again and again."""
    outbox: Outbox[int] = Outbox()
    inbox = Inbox()
    got: list[int] = []
    written = 0
    for _ in range(200):
        if written < count and data.draw(st.booleans()):
            outbox.put(written)
            written += 1
        frames = list(outbox.after(0))
        kept = data.draw(st.lists(st.sampled_from(frames), max_size=6)) if frames else []
        for number, content in kept:
            if inbox.take(number):
                got.append(content)
        if data.draw(st.booleans()):
            outbox.acknowledged(inbox.last)
        assert got == list(range(len(got)))
        if len(got) == count:
            break
    while written < count:
        outbox.put(written)
        written += 1
    got += [content for number, content in outbox.after(inbox.last) if inbox.take(number)]
    assert got == list(range(count))
    assert list(outbox.after(inbox.last)) == []


@given(st.lists(st.integers(-2, 12), max_size=40))
def test_an_inbox_takes_each_number_once_in_order(numbers: list[int]) -> None:
    inbox = Inbox()
    taken = [number for number in numbers if inbox.take(number)]
    assert taken == list(range(1, len(taken) + 1))
    assert inbox.last == len(taken)


def test_an_outbox_forgets_what_is_acknowledged_and_nothing_else() -> None:
    outbox: Outbox[str] = Outbox()
    assert [outbox.put(text) for text in "abcd"] == [1, 2, 3, 4]
    assert list(outbox.after(0)) == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    outbox.acknowledged(2)
    outbox.acknowledged(1)
    assert list(outbox.after(0)) == [(3, "c"), (4, "d")]
    assert list(outbox.after(3)) == [(4, "d")]
    outbox.acknowledged(99)
    assert outbox.put("e") == 5
    assert list(outbox.after(0)) == [(5, "e")]
