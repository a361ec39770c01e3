"""Rosters on the wire: after any sequence of rosters, the agent has the same one as the controller."""

from __future__ import annotations

import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.protocol.frames import EndWorker, Numbered, Order, Tell
from understudy.protocol.messages import Halt, Prepare, Resume
from understudy.protocol.roster import Roster, WorkerAddress
from understudy.protocol.roster_delta import RosterDecoder, RosterEncoder, RosterUpdate, applied, difference, roster_of

pytestmark = pytest.mark.timeout(60)


def worker(number: int) -> WorkerAddress:
    return WorkerAddress(f"w{number}", f"m{number}", port=1000 + number)


def roster(count: int = 4, generation: int = 1) -> Roster:
    return Roster.of(generation, [(role, f"w{role}") for role in range(count)], [worker(role) for role in range(count)])


def carried(encoder: RosterEncoder, decoder: RosterDecoder, order: Order, machine: str = "m0") -> Order:
    """What the agent understands of an order, by way of bytes."""
    frame = Numbered(1, *encoder.encode(machine, order))
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(frame), type=Numbered)
    assert isinstance(read.content, Tell | EndWorker)
    return decoder.restore(read.content, read.roster)


@st.composite
def stories(draw: st.DrawFn) -> list[Roster]:
    """Rosters as a director makes them: each follows the one in use, which is not always the last."""
    played, found = roster(draw(st.integers(1, 6))), []
    found.append(played)
    for generation in range(2, draw(st.integers(2, 8))):
        roles = draw(st.sets(st.integers(0, len(played.seats) - 1), max_size=3))
        empty = {role for role in roles if draw(st.booleans())}
        changes = {role: None if role in empty else worker(100 * generation + role) for role in roles}
        found.append(played.successor(changes, generation=generation, fresh=draw(st.booleans())))
        played = found[-1] if draw(st.booleans()) else played
    return found


@given(stories())
def test_what_differs_leads_from_any_roster_to_any_later_one(story: list[Roster]) -> None:
    for old in story:
        for new in story:
            succession = difference(old, new)
            assert succession is None or applied(old, succession) == new


@given(stories(), st.data())
def test_the_agent_has_each_roster_as_it_was_meant_however_often_the_connection_breaks(
    story: list[Roster], data: st.DataObject
) -> None:
    encoder, decoder = RosterEncoder(), RosterDecoder()
    for each in story:
        if data.draw(st.booleans()):
            if data.draw(st.booleans()):
                encoder.encode("m0", Tell("w0", Prepare(each)))  # it was sent, and never arrived
            if data.draw(st.booleans()):
                decoder = RosterDecoder()  # another agent
            encoder.connected("m0", decoder.generation)
        order = Tell("w0", Prepare(each) if data.draw(st.booleans()) else Resume(each, 7))
        assert carried(encoder, decoder, order) == order


def test_a_whole_roster_is_sent_once_and_then_what_differs() -> None:
    encoder = RosterEncoder()
    first = roster(200)
    second = first.successor({3: worker(500)})
    sizes = [len(encoder.encode("m0", Tell("w0", Prepare(each)))[1]) for each in (first, second)]
    assert sizes[0] > 1000
    assert sizes[1] < 200


def test_an_agent_that_comes_back_is_not_sent_everything_again() -> None:
    encoder, decoder = RosterEncoder(), RosterDecoder()
    first = roster(200)
    carried(encoder, decoder, Tell("w0", Prepare(first)))
    encoder.connected("m0", decoder.generation)
    order = Tell("w0", Prepare(first.successor({3: worker(500)})))
    assert len(encoder.encode("m0", order)[1]) < 200


def test_what_is_the_same_for_all_is_encoded_once() -> None:
    encoder, order = RosterEncoder(), Tell("w0", Prepare(roster()))
    assert encoder.encode("m0", order)[1] is encoder.encode("m1", order)[1]


def test_orders_without_a_roster_go_as_they_are() -> None:
    encoder, decoder = RosterEncoder(), RosterDecoder()
    for order in (EndWorker("w1"), Tell("w1", Halt(1, "why"))):
        assert roster_of(order) is None
        assert carried(encoder, decoder, order) == order


def test_a_whole_roster_in_an_order_is_understood_too() -> None:
    order = Tell("w0", Prepare(roster()))
    assert RosterDecoder().restore(order, b"") == order


def test_what_follows_a_roster_that_was_never_sent_is_no_message() -> None:
    first = roster()
    seating = RosterUpdate(delta=difference(first, first.successor({0: worker(9)})))
    with pytest.raises(msgspec.MsgspecError, match="never sent"):
        RosterDecoder().restore(Tell("w0", Prepare(first)), zlib.compress(msgspec.msgpack.encode(seating)))


@pytest.mark.parametrize(
    "damaged",
    [b"no", zlib.compress(b"no roster"), zlib.compress(bytes(1000))[:-6], zlib.compress(bytes((1 << 26) + 1), 1)],
)
def test_what_cannot_be_a_roster_is_no_message(damaged: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        RosterDecoder().restore(Tell("w0", Prepare(roster())), damaged)


def test_what_follows_another_roster_than_the_last_is_refused() -> None:
    first = roster()
    second = first.successor({0: worker(9)})
    succession = difference(second, second.successor({1: worker(10)}))
    assert succession is not None
    with pytest.raises(msgspec.MsgspecError, match="generation 2"):
        applied(first, succession)
