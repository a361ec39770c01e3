"""The processes of a job and their parents, from a made-up process table and from the real one."""

from __future__ import annotations

import os
import subprocess
import sys

from understudy.verify.leftovers import MARK, enclosure
from understudy.verify.processes import CONTROLLER, Process, agent, fork_server, marked, offspring, table

COMMANDS = {
    1: (0, "init"),
    10: (1, "understudy run train.py"),
    11: (10, f"python -m {CONTROLLER} --fd 3"),
    12: (10, "an agent"),
    13: (12, "its fork server"),
    14: (13, "its worker"),
    15: (10, "what agents are forked from"),
    16: (15, "an agent that looks like it"),
    17: (16, "its fork server"),
    18: (17, "its worker"),
    20: (1, "another user's"),
}
TABLE = {pid: Process(pid, parent, 0, command) for pid, (parent, command) in COMMANDS.items()}


def test_a_job_s_processes() -> None:
    assert set(offspring(10, TABLE)) == {11, 12, 13, 14, 15, 16, 17, 18}
    assert offspring(14, TABLE) == {}


def test_the_fork_server_and_the_agent_of_a_worker_are_found() -> None:
    job = offspring(10, TABLE)
    assert (fork_server(14, job), agent(14, job)) == (13, 12)
    assert (fork_server(18, job), agent(18, job)) == (17, 16)
    assert (fork_server(99, job), agent(99, job)) == (None, None)
    assert agent(11, job) is None


def test_the_real_table() -> None:
    ours = table()[os.getpid()]
    assert ours.parent == os.getppid()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in offspring(os.getpid(), table())
        assert child.stdin is not None
        child.stdin.close()
        child.wait()
        assert child.pid not in table()


def test_what_is_left_is_found() -> None:
    before = os.environ.get("TMPDIR")
    with enclosure() as place:
        seen = dict(table())
        ours = {pid: seen[pid] for pid in offspring(os.getpid(), seen)}
        assert place.leftovers({}) == []
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
            assert child.pid in marked(f"{MARK}={place.mark}")
            (place.folder / "scrap").touch()
            found = place.leftovers(ours)
            assert any(f"process {child.pid} still runs" in line for line in found)
            assert any("scrap" in line for line in found)
            child.kill()
        (place.folder / "scrap").unlink()
        assert place.leftovers({child.pid: Process(child.pid, 0, 0, "")}) == []
    assert os.environ.get("TMPDIR") == before
    assert MARK not in os.environ
    assert not place.folder.exists()
