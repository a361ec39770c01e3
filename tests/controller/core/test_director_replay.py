"""Repeated, late and unknown reports change nothing, and a replayed ledger gives the same state."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import msgspec
import pytest

from tests.controller.core.rig import Rig
from understudy.controller.core.actions import UnexpectedEvent
from understudy.controller.core.director import Director
from understudy.controller.core.events import (
    AddStandby,
    Event,
    Lost,
    Registered,
    RemoveStandby,
    Replace,
    Reported,
    StopJob,
)
from understudy.protocol.frames import Exited, Tell
from understudy.protocol.messages import (
    Arm,
    Cancel,
    Cancelled,
    Done,
    FromWorker,
    Gave,
    Halt,
    Halted,
    Prepare,
    Prepared,
    Rehearse,
    Resume,
    Stop,
    Unprepared,
)


def test_a_report_counts_once_in_order_and_from_present_machines_only() -> None:
    rig = Rig.training(standbys=2)
    last = rig.job.machines["m1"].inbox.last
    rig.ask("r0", RemoveStandby("m3"))
    before = snapshot(rig.director)
    for machine, incarnation, number in [
        ("m1", "m1-a", last),  # again
        ("m1", "m1-a", last + 2),  # one is missing before it
        ("m1", "m1-b", last + 1),  # of another life
        ("m3", "m3-a", 2),  # from a dismissed machine
        ("m9", "m9-a", 1),  # from an unknown machine
    ]:
        assert rig.feed(Reported(machine, incarnation, number, Exited("w1", -9))) == []
        assert snapshot(rig.director) == before
    rig.feed(Reported("m1", "m1-a", last + 1, Exited("w1", -9)))
    assert rig.status() == "halting"


@pytest.mark.parametrize("event", [Lost("m1", "m1-b", "late"), Lost("m2", "m2-b", "late"), Registered("m1", "m1-a")])
def test_news_of_another_life_or_of_what_is_known_change_nothing(event: Event) -> None:
    rig = Rig.training()
    before = snapshot(rig.director)
    assert rig.feed(event) == []
    assert snapshot(rig.director) == before


@pytest.mark.parametrize("message", [Prepared(1), Prepared(3), Unprepared(1, "late"), Gave(1)])
def test_messages_of_another_generation_change_nothing(message: FromWorker) -> None:
    rig = Rig.training()
    rig.replace(until="prepare")
    rig.orders()
    rig.each(("w0", "w1", "w2"), message)
    assert rig.phase() == "prepare"
    assert rig.change.waiting == {"w0", "w1", "w2"}
    assert rig.orders() == {}


@pytest.mark.parametrize("message", [Cancelled(2), Gave(2)])
def test_a_message_that_the_phase_rules_out_raises_with_the_latest_events(message: FromWorker) -> None:
    rig = Rig.training()
    rig.replace(until="prepare")
    rig.orders()
    with pytest.raises(UnexpectedEvent, match=r"in phase prepare of a replace; the latest events: .*Rehearsed"):
        rig.say("w0", message)
    rig.job.validate()
    assert rig.phase() == "prepare"
    assert rig.change.waiting == {"w0", "w1", "w2"}
    assert rig.orders() == {}


def test_a_report_of_an_earlier_halt_decides_nothing() -> None:
    rig = Rig.training(machines=3, standbys=2)
    rig.exits("w2")
    rig.halted("w0", "w1")
    rig.lose("m3")  # the joiner's machine
    rig.halted("w0")
    rig.say("w1", Halted(1, 1, 5, False, True))
    assert (rig.job.halts, rig.status()) == (2, "halting")
    rig.halted("w1")
    assert rig.status() == "recovering"


def test_the_dead_are_not_heard() -> None:
    rig = Rig.training()
    rig.exits("w1")
    rig.say("w1", Halted(1, 1, 9, False, True))
    rig.halted("w0", step=5)
    assert rig.told("decided") == ["step 5 begins again; state comes from a live replica"]


# -- a controller that comes back --------------------------------------------------------------------------------------


def snapshot(director: Director) -> object:
    """Everything that others can see of it, as plain data."""
    machines = {
        name: (machine.incarnation, machine.state, machine.why, list(machine.outbox.after(0)), machine.inbox.last)
        for name, machine in director.job.machines.items()
    }
    change = director.job.change
    return msgspec.to_builtins(
        {
            "status": (
                director.job.status,
                director.job.reason,
                director.job.halts,
                sorted(director.job.unreported),
                director.job.wanted,
            ),
            "machines": machines,
            "roster": director.job.roster,
            "change": None if change is None else (change.kind, change.phase, change.places, sorted(change.waiting)),
            "queue": [(item.id, item.attempts) for item in director.job.queue],
            "answers": director.job.answers,
            "due": director.due(),
        },
        str_keys=True,
    )


def history() -> Rig:
    """The first joiner of a replacement dies, a second one settles, a failure with a recovery, and the end."""
    rig = Rig.training(machines=3, nproc=2, standbys=4)
    rig.replace("m1", until="prepare", by=500.0)
    rig.ask("r2", Replace(("m0",), ("m5",)))
    rig.lose("m3")
    rig.each(("w0", "w1", "w2", "w3", "w4", "w5"), Cancelled(rig.change.generation))
    rig.go_on("settled")
    rig.exits("w4")
    rig.halted(*sorted(rig.job.unreported), voted=True)
    rig.rehearsed()
    rig.all_switch()
    rig.feed(rig.ledger[-1][1])  # said twice
    rig.ask("r3", AddStandby())
    rig.come("m7", standby=True)
    rig.here("m7")
    rig.ask("r4", RemoveStandby("m7"))
    rig.go_on("settled")
    rig.ask("r5", StopJob())
    rig.each(rig.seats(), Done(8, "ff", True))
    return rig


def test_the_history_is_worth_replaying() -> None:
    rig = history()
    assert rig.status() == "stopped"
    kinds = {type(order.message) for m in rig.job.machines.values() for _, order in m.outbox.after(0)
             if isinstance(order, Tell)}  # fmt: skip
    assert kinds >= {Rehearse, Prepare, Arm, Cancel, Halt, Resume, Stop}
    assert set(rig.job.answers) == {"r1", "r2", "r3", "r4", "r5"}
    assert all(reply.ok for reply in rig.job.answers.values())
    assert "decided" in {event.kind for event in rig.announcements}


def test_the_same_events_give_the_same_orders_at_every_moment() -> None:
    """A new director that reads the first N events of the ledger is where the old one was after them, for every N."""
    told = history()
    ledger = told.ledger
    old = Director(told.plan)
    for count in range(len(ledger) + 1):
        new = Director(told.plan)
        for at, event in ledger[:count]:
            outputs = new.feed(msgspec.json.decode(msgspec.json.encode(event), type=Event), at)
        if count:
            at, event = ledger[count - 1]
            assert old.feed(event, at) == outputs
        assert snapshot(new) == snapshot(old)


REPLAY = """
import msgspec
from tests.controller.core.test_director_replay import history, snapshot
print(msgspec.json.encode(snapshot(history().director)).decode())
"""


@pytest.mark.parametrize("seed", ["1", "2"])
def test_another_process_comes_to_the_same(seed: str) -> None:
    """Nothing depends on the order of a set, which is another one in every process."""
    env = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run(
        [sys.executable, "-c", REPLAY], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(msgspec.json.encode(snapshot(history().director)))
