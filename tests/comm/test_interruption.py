"""A worker that is blocked in any operation returns at once when a peer dies or interrupts, and then continues."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.comm.commanded import CommandedWorkers
from tests.comm.helpers import eventually
from tests.comm.stepping import asleep, kill
from tests.comm.training import train
from understudy.testing.local_workers import LocalWorkers, WorkerHandle, first_roster

LAYOUTS = [[1, 1, 1], [3], [2, 2]]
BLOCKING = [
    "small all_reduce",
    "large all_reduce",
    "broadcast",
    "large broadcast",
    "all_gather",
    "all_to_all",
    "barrier",
    "recv",
    "recv from anybody",
    "large send",
]


NEVER_S = 600.0
"""Longer than any test may take: an operation that ended only at its own time limit would fail the test."""


@pytest.mark.parametrize("victim", [0, -1], ids=["first", "last"])
@pytest.mark.parametrize("machines", LAYOUTS, ids=str)
def test_a_worker_is_killed(machines: list[int], victim: int) -> None:
    with LocalWorkers(limit=NEVER_S) as local:
        workers = CommandedWorkers(local, machines)
        dead = workers.roles[victim]
        others = [role for role in workers.roles if role != dead]
        for operation in BLOCKING:
            workers.start(operation, others, dead)
            asleep(workers.pids(others))
            uid, wall = workers.handles[dead].uid, time.time()
            workers.kill(dead)
            for fault in workers.faults(others):
                assert (fault.how, fault.who) == ("eof", uid), fault
                assert f"role {dead} ({uid} on {workers.machines[dead]})" in fault.reason
                assert wall <= fault.when <= time.time()
            workers.recover(dead)
        workers.end()


@pytest.mark.parametrize("machines", LAYOUTS, ids=str)
def test_an_interrupt(machines: list[int]) -> None:
    with LocalWorkers(limit=NEVER_S) as local:
        workers = CommandedWorkers(local, machines)
        for number, operation in enumerate(BLOCKING * 2):
            idle = workers.roles[-1 if number % 2 else 0]
            others = [role for role in workers.roles if role != idle]
            workers.start(operation, others, idle)
            asleep(workers.pids(others))
            workers.handles[idle].tell(("interrupt", f"test {number}"))
            for fault in workers.faults(others):
                assert (fault.how, fault.reason) == ("interrupt", f"test {number}")
                assert fault.noticed_by == workers.handles[idle].uid
            workers.recover()
        workers.end()


@pytest.mark.parametrize("operation", ["small all_reduce", "large all_reduce", "recv"])
@pytest.mark.parametrize("machines", [[1, 1, 1], [3]], ids=str)
def test_a_worker_hangs(machines: list[int], operation: str) -> None:
    with LocalWorkers(limit=1.5) as local:
        workers = CommandedWorkers(local, machines)
        (pid,) = workers.pids([1])
        os.kill(pid, signal.SIGSTOP)
        workers.start(operation, [0, 2], 1)
        for fault in workers.faults([0, 2]):
            assert fault.how == "timeout"
        workers.kill(1)
        workers.recover(1)
        workers.end()


CALLS = [
    ("small all_reduce", "another all_reduce", "all_reduce(sum) of 10 float32", "all_reduce(sum) of 11 float32"),
    ("small all_reduce", "large all_reduce", "all_reduce(sum) of 10 float32", "all_reduce(sum) of 2000000 float32"),
    ("small all_reduce", "all_reduce of doubles", "of 10 float32", "of 10 float64"),
    ("small all_reduce", "maximum", "all_reduce(sum)", "all_reduce(max)"),
    ("large all_reduce", "barrier", "all_reduce(sum) of 2000000 float32", "barrier"),
    ("large all_reduce", "all_gather", "all_reduce(sum)", "all_gather of 100000 float32"),
    ("broadcast", "small all_reduce", "broadcast of 10 float32 at root 0", "all_reduce(sum)"),
    ("all_gather", "broadcast", "all_gather", "broadcast"),
]


@pytest.mark.parametrize("machines", [[1, 1, 1], [3], [2, 1]], ids=str)
def test_roles_call_different_operations(machines: list[int]) -> None:
    with LocalWorkers(limit=NEVER_S) as local:
        workers = CommandedWorkers(local, machines)
        for number, (one, other, first, second) in enumerate(CALLS):
            odd = number % 3
            workers.start(one, [role for role in workers.roles if role != odd])
            workers.start(other, [odd])
            for fault in workers.faults(workers.roles):
                assert fault.how == "mismatch", fault
                assert first in fault.reason, fault
                assert second in fault.reason, fault
                assert any(
                    f"role {role} ({handle.uid} on" in fault.reason for role, handle in enumerate(workers.handles)
                )
            workers.recover()
        workers.end()


STEPS, INTERRUPTED = 8, 4


@pytest.mark.usefixtures("frameworks")
@pytest.mark.parametrize(("machines", "dead"), [([1, 1, 1], 1), ([1, 1, 1], 0), ([2, 1], 1), ([2, 1], 2)], ids=str)
def test_a_death_in_the_middle_of_a_backward_pass(machines: list[int], dead: int) -> None:
    """The same DDP objects train on with a rehearsed joiner, to the bit as though nothing had happened."""
    roles = sum(machines)
    homes = [f"m{machine}" for machine, count in enumerate(machines) for _ in range(count)]
    expected = _undisturbed(tuple(homes))
    with LocalWorkers(limit=20.0) as local:
        handles = _start(local, homes, dead)
        (joiner,) = local.start(homes[dead], 1, train, dead, roles, STEPS, None)
        assert joiner.hear() == "rehearsed"
        others = [handle for role, handle in enumerate(handles) if role != dead]
        assert handles[dead].hear() == "in backward"
        asleep([handle.process.pid for handle in others])
        kill(handles[dead])
        for handle in others:
            kind, step, why = handle.hear()
            assert (kind, step) == ("failed", INTERRUPTED)
            assert handles[dead].uid in why
        roster = first_roster(handles).successor({dead: joiner.worker}, fresh=True)
        for handle in (*others, joiner):
            handle.tell(roster)
        assert {handle.result() for handle in (*others, joiner)} == {expected}


@cache
def _undisturbed(homes: tuple[str, ...]) -> str:
    with LocalWorkers(limit=20.0) as local:
        (digest,) = {handle.result() for handle in _start(local, homes, None)}
    assert isinstance(digest, str)
    return digest


def _start(local: LocalWorkers, homes: Sequence[str], dead: int | None) -> list[WorkerHandle]:
    handles = [
        local.start(home, 1, train, None, len(homes), STEPS, INTERRUPTED if role == dead else None)[0]
        for role, home in enumerate(homes)
    ]
    for handle in handles:
        handle.tell(first_roster(handles))
    return handles


def test_when_all_are_killed_nothing_is_left(tmp_path: Path) -> None:
    """The parent of four workers with arenas is killed, and they die too; then the workers themselves are killed."""
    before = set(Path("/dev/shm").iterdir())
    process = subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(tmp_path)}
    )
    assert process.stdout is not None
    with process.stdout:
        pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 4
    assert list(tmp_path.iterdir())  # where the parent asks for workers
    process.kill()
    process.wait(10)
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), limit=10)
    eventually(lambda: not list(tmp_path.iterdir()), limit=10)
    with LocalWorkers(limit=20.0) as local:
        workers = CommandedWorkers(local, [2, 2])
        workers.start("large all_reduce", [0, 1, 2])
        asleep(workers.pids([0, 1, 2]))
        for role in workers.roles:
            workers.kill(role)
        for handle in workers.handles:
            handle.process.join(10)
            assert handle.process.exitcode == -signal.SIGKILL
    assert set(Path("/dev/shm").iterdir()) <= before


_PARENT = """
import threading
from tests.comm.commanded import CommandedWorkers
from understudy.testing.local_workers import LocalWorkers

if __name__ == "__main__":
    workers = CommandedWorkers(LocalWorkers(limit=20.0), [2, 2])
    workers.start("small all_reduce", [0, 1, 2])
    print(*workers.pids(workers.roles), flush=True)
    threading.Event().wait()
"""
