"""Arenas, which are shared memory and futexes: rounds, mismatches, time limits, and that nothing is left behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import time
from functools import partial
from multiprocessing import connection, reduction
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.comm.helpers import at_once
from understudy.comm.faults import Fault, Interrupted, Poison
from understudy.comm.native.arena import GENERATION_SHIFT, Arena, ArenaMember, ArenaRounds
from understudy.comm.ops import signature

CALL, OTHER = signature("all_reduce", torch.float32, 4, 0), signature("all_reduce", torch.float32, 5, 0)


def far() -> float:
    return time.monotonic() + 20


def places(count: int, poisons: list[Poison] | None = None, arena: Arena | None = None) -> list[ArenaRounds]:
    """Workers of one machine that have entered a generation."""
    shared = arena or Arena.create(count, 4096)
    members = tuple(ArenaMember(slot, f"role {slot} (w{slot} on m0)", f"w{slot}") for slot in range(count))
    poisons = poisons or [Poison() for _ in range(count)]
    made = [ArenaRounds(shared, slot, members, 1, poisons[slot]) for slot in range(count)]
    for place in made:
        place.arrive()
    return made


def round_of(place: ArenaRounds, call: int = CALL, sequence: int = 1) -> int:
    place.announce(sequence, call)
    buffer = place.begin(far())
    place.mine(buffer, torch.int64)[0] = 10**place.slot
    place.meet(far())
    return sum(int(slot[0]) for slot in place.slots(buffer, torch.int64))


def test_a_word_is_waited_for() -> None:
    arena, poison = Arena.create(2, 4096), Poison()
    thread = threading.Thread(target=lambda: arena.publish(1, 7))
    thread.start()
    arena.wait(ArenaMember(1, "role 1", "w1"), 7, poison, far(), lambda: None)
    thread.join()
    assert arena.progress(1) == 7
    assert arena.progress(0) == 0


def test_a_round_of_three() -> None:
    made = places(3)
    assert at_once(*[partial(_many, place, 300) for place in made]) == [[111] * 300] * 3


def _many(place: ArenaRounds, rounds: int) -> list[int]:
    return [round_of(place) for _ in range(rounds)]


def test_buffers_alternate() -> None:
    made = places(2)
    seen = at_once(*[partial(_buffers, place) for place in made])
    assert seen == [[0, 1, 0, 1]] * 2


def _buffers(place: ArenaRounds) -> list[int]:
    found = []
    for _ in range(4):
        place.announce(1, CALL)
        found.append(place.begin(far()))
        place.meet(far())
    return found


def test_both_roles_report_a_mismatch() -> None:
    poisons = [Poison(), Poison()]
    made = places(2, poisons)

    def run(place: ArenaRounds, call: int) -> None:
        with pytest.raises(Interrupted):
            round_of(place, call)

    at_once(partial(run, made[0], CALL), partial(run, made[1], OTHER))
    for mine, theirs, (here, there) in ((0, 1, ("of 4", "of 5")), (1, 0, ("of 5", "of 4"))):
        fault = poisons[mine].fault
        assert fault is not None
        assert fault.how == "mismatch"
        assert fault.reason == (
            f"role {theirs} (w{theirs} on m0) called all_reduce(sum) {there} float32 "
            f"but this role called all_reduce(sum) {here} float32"
        )


def test_an_interrupt_wakes_a_sleeping_worker() -> None:
    poisons = [Poison(), Poison()]
    made = places(2, poisons)
    ended = threading.Event()

    def run() -> None:
        with pytest.raises(Interrupted):
            round_of(made[0])
        ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    while made[0].arena.progress(0) != (1 << GENERATION_SHIFT) + 1:
        os.sched_yield()
    poisons[0].set(Fault("interrupt", "a test"))
    thread.join()
    assert ended.is_set()


def test_a_time_out_names_the_role_that_did_not_come() -> None:
    poisons = [Poison(), Poison()]
    made = places(2, poisons)
    made[0].announce(1, CALL)
    made[0].begin(far())
    with pytest.raises(Interrupted):
        made[0].meet(time.monotonic() + 0.1)
    fault = poisons[0].fault
    assert fault is not None
    assert (fault.how, fault.who) == ("timeout", "w1")
    assert "role 1 (w1 on m0)" in fault.reason


def test_no_role_waits_for_a_worker_that_has_left() -> None:
    poisons = [Poison(), Poison()]
    made = places(2, poisons)
    poisons[0].gone.add("w1")
    with pytest.raises(Interrupted):
        round_of(made[0])
    fault = poisons[0].fault
    assert fault is not None
    assert (fault.how, fault.who, fault.reason) == ("eof", "w1", "role 1 (w1 on m0) has left")


def test_a_worker_that_leaves_after_a_round_takes_part_in_it() -> None:
    poisons = [Poison(), Poison()]
    made = places(2, poisons)
    thread = threading.Thread(target=round_of, args=(made[1],))
    thread.start()
    poisons[0].gone.add("w1")
    assert round_of(made[0]) == 11
    thread.join()


def test_a_generation_does_not_begin_before_all_are_there() -> None:
    """A worker of the old generation may still read the memory that the new one would overwrite."""
    shared = Arena.create(2, 4096)
    old = places(2, arena=shared)
    at_once(*[partial(round_of, place) for place in old])
    members = tuple(ArenaMember(slot, f"role {slot}", f"w{slot}") for slot in range(2))
    new = [ArenaRounds(shared, slot, members, 2, Poison()) for slot in range(2)]
    new[0].arrive()
    begun = threading.Event()

    def begin() -> None:
        new[0].announce(1, CALL)
        new[0].begin(far())
        begun.set()

    thread = threading.Thread(target=begin)
    thread.start()
    assert not begun.wait(0.05)
    new[1].arrive()
    assert begun.wait(5)
    thread.join()


def test_an_operation_just_changing_is_not_taken_for_another() -> None:
    """A worker's announcement is two words; a reader in between sees neither the old nor the new one."""
    arena = Arena.create(1, 4096)
    stop = threading.Event()

    def change() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            arena.announce(0, number, number * 7)

    thread = threading.Thread(target=change)
    thread.start()
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        operation, call = arena.announced(0)
        assert call == operation * 7
    stop.set()
    thread.join()


def test_different_settings_are_noticed() -> None:
    arena = Arena.create(2, 4096)
    fd = os.dup(arena.fd)
    with pytest.raises(ValueError, match="different settings"):
        Arena(fd, 2, 8192)
    os.close(fd)


def test_an_arena_has_no_name_and_is_freed_with_its_last_user() -> None:
    before, mapped = set(Path("/dev/shm").iterdir()), _mapped()
    arena = Arena.create(2, 4096)
    made = places(2, arena=arena)
    assert _mapped() == mapped + 1
    arena.close()
    arena.close()
    at_once(*[partial(round_of, place) for place in made])
    made.clear()
    del arena
    gc.collect()
    assert _mapped() == mapped
    assert set(Path("/dev/shm").iterdir()) <= before


def _mapped() -> int:
    gc.collect()
    return Path("/proc/self/maps").read_text().count("understudy-arena")


def test_two_processes() -> None:
    context = multiprocessing.get_context("forkserver")
    arena = Arena.create(2, 4096)
    mine = _seat(arena, 0)
    here, there = context.Pipe()
    process = context.Process(target=_other_process, args=(there, reduction.DupFd(arena.fd)), daemon=True)
    process.start()
    assert here.recv() == "here"
    assert _many(mine, 2000) == [11] * 2000
    assert here.recv() == [11] * 2000
    process.kill()
    process.join()
    here.close()
    there.close()


def _seat(arena: Arena, slot: int) -> ArenaRounds:
    members = tuple(ArenaMember(other, f"role {other} (w{other} on m0)", f"w{other}") for other in range(2))
    place = ArenaRounds(arena, slot, members, 1, Poison())
    place.arrive()
    return place


def _other_process(wire: connection.Connection, fd: Any) -> None:
    place = _seat(Arena(fd.detach(), 2, 4096), 1)
    wire.send("here")
    wire.send(_many(place, 2000))
    threading.Event().wait(30)
