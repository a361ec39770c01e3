"""Machines on hosts of their own, and what networks do: a host is cut off, hears nothing, is far away. Training goes on
every time, whoever was given up does no harm and comes back, and in the end every bit is as if nothing had been."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.hosts import FarHost, Host, Hosts, Unavailable
from tests.jobs.stage import SCRIPT, losses_in, perform
from understudy.agent.agent import UNFIT
from understudy.chaos.processes import table
from understudy.chaos.remains import room
from understudy.control.client import Client
from understudy.launch import registry

pytestmark = [pytest.mark.job, pytest.mark.timeout(300)]

HEARTBEAT_S = 2.0
FAR_S = 0.05


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    hosts = Hosts(3)
    try:
        hosts.__enter__()
    except Unavailable as error:
        pytest.skip(str(error))
    try:
        yield hosts
    finally:
        hosts.__exit__()
    assert hosts.remains() == []


class Play:
    """`understudy run` on this side of the bridge, `understudy join` on the hosts."""

    def __init__(self, folder: Path, hosts: Hosts) -> None:
        self.folder, self.hosts = folder, hosts
        folder.mkdir()
        self.script = folder / "train.py"
        self.script.write_text(SCRIPT)
        options = ["--json", "--machines", "2", "--local", "0", "--listen", hosts.address]
        options += ["--heartbeat", str(HEARTBEAT_S), "--run-dir", str(folder / "run")]
        self.run = self._start([], "run", "run", *options, str(self.script))
        self._until(registry.running, "an entry in the registry")
        entry = registry.running()[0]
        self.client = Client(entry.url, entry.secret)
        self.secret = folder / "secret"
        self.secret.write_text(entry.secret + "\n")
        self.joined: dict[str, subprocess.Popen[bytes]] = {}

    def _start(self, prefix: list[str], name: str, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.out").open("wb") as out, (self.folder / f"{name}.err").open("wb") as err:
            command = [*prefix, sys.executable, "-m", "understudy.cli.main", *words]
            return subprocess.Popen(command, stdout=out, stderr=err)

    def join(self, name: str, host: Host, script: Path | None = None) -> subprocess.Popen[bytes]:
        options = ["--host", host.address, "--name", name, "--secret-file", str(self.secret)]
        options += ["--run-dir", str(self.folder / name), self.client.url, str(script or self.script)]
        self.joined[name] = self._start(host.command(), name, "join", *options)
        return self.joined[name]

    def is_refused(self, name: str, host: Host) -> None:
        """A machine with another script learns so when it registers."""
        script = self.folder / "other.py"
        script.write_text(SCRIPT.replace("lr=1e-2", "lr=1e-3"))
        assert self.join(name, host, script).wait(60) == UNFIT, self.said(name)
        del self.joined[name]
        (why,) = self.texts("refused")
        assert why.startswith(f"{name} has another script (digest ")
        assert f"understudy: {why}\n" in self.said(name)
        assert self.machine(name)["state"] == "unknown"

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.err").read_text()

    def _until(self, true: Callable[[], object], what: str, limit: float = 60.0) -> None:
        deadline = time.monotonic() + limit
        while not true():
            assert time.monotonic() < deadline, f"waited {limit} s for {what}"
            assert self.run.poll() is None, self.said("run")
            time.sleep(0.05)

    @property
    def step(self) -> int:
        return int(self.client.job()["step"])

    def steps(self, count: int) -> None:
        """Wait for so many more."""
        goal = self.step + count
        self._until(lambda: self.step >= goal, f"step {goal}")

    def machine(self, name: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = self.client.call("GET", "/machines")
        return next((machine for machine in found if machine["name"] == name), {"state": "unknown", "roles": []})

    def waits(self, name: str) -> None:
        """Wait until it is a standby that could play at once."""
        self._until(lambda: self.machine(name)["state"] == "standby" and self.machine(name)["rehearsed"], name)

    def plays(self, name: str, role: int) -> None:
        self._until(lambda: self.machine(name)["roles"] == [role], f"{name} in role {role}")

    def texts(self, kind: str) -> list[str]:
        return [event["text"] for event in self.client.events()["events"] if event["kind"] == kind]

    def given_up(self, name: str, times: int = 1) -> None:
        lost = f"{name} is gone: nothing heard from its agent for {HEARTBEAT_S:g} s"
        self._until(lambda: self.texts("lost").count(lost) == times, f"{name} to be given up")

    def silence(self, seconds: float) -> None:
        """Wait until the controller has heard nothing for so long, and says so."""
        begin = time.monotonic()
        self._until(lambda: "the controller seems to be cut off" in self.client.job()["reason"], "silence")
        time.sleep(max(0.0, begin + seconds + HEARTBEAT_S - time.monotonic()))

    def heard(self) -> None:
        self._until(lambda: not self.client.job()["reason"], "the controller to hear again")

    def written(self) -> int:
        """The last step that a machine has noted."""
        return max(step for _, step in losses_in(self.folder)[0])

    def end(self) -> dict[str, Any]:
        """How the job was at its end."""
        self.client.call("POST", "/stop")
        assert self.run.wait(30) in (0, 130), self.said("run")
        for name, process in self.joined.items():
            assert process.wait(20) == 0, self.said(name)
        last = json.loads((self.folder / "run.out").read_text().splitlines()[-1])
        found: dict[str, Any] = last["data"]
        return found

    def close(self) -> None:
        for process in (*self.joined.values(), self.run):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in (*self.joined.values(), self.run):
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _alive(pids: list[int]) -> list[int]:
    now = table()
    return [pid for pid in pids if pid in now]


def test_networks_do_what_they_do(tmp_path: Path, hosts: Hosts) -> None:
    with room() as place:
        play = Play(tmp_path / "disturbed", hosts)
        try:
            view = _disturb(play, hosts)
        finally:
            play.close()
            left = [pid for number in range(3) for pid in hosts[number].processes()]
        assert left == []
        assert place.remains({}) == []
    steps = int(view["step"])
    undisturbed = perform(tmp_path / "undisturbed", steps=steps)
    losses, _ = losses_in(tmp_path / "disturbed")
    assert {step for _, step in losses} == set(range(steps))
    differing = {key: loss for key, loss in losses.items() if undisturbed.losses[key] != loss}
    assert not differing, f"losses differ from step {min(step for _, step in differing)} on"
    untold = undisturbed.losses.keys() - losses.keys()
    assert len(untold) <= 2, "who is cut off may not know that its last step counts, and nobody else tells its loss"
    assert view["digests"] == undisturbed.digests


def _disturb(play: Play, hosts: Hosts) -> dict[str, Any]:
    near, other, far = hosts[0], hosts[1], hosts[2]
    assert isinstance(far, FarHost)
    assert play.client.job()["reason"] == "waits for 2 more of 2 machines; here: none"
    play.join("m0", near)
    play.join("m1", other)
    play._until(lambda: play.step >= 1, "the first step")
    play.join("m2", far)
    play.is_refused("m3", far)
    play.waits("m2")

    workers = play.machine("m1")["pids"]
    other.cut()
    play.given_up("m1")
    play.plays("m2", 1)
    play.steps(3)
    assert _alive(workers), "they cannot know yet"
    other.heal()
    play.waits("m1")
    assert not _alive(workers)
    assert "m1 was given up; it comes back as a standby" in play.said("m1")

    usual = play.client.job()["seconds"]
    far.delay = FAR_S
    play.steps(5)
    assert play.machine("m2")["roles"] == [1], "a long way is no reason to give somebody up"
    assert play.client.job()["seconds"] > usual + FAR_S

    workers = play.machine("m0")["pids"]
    near.deafen()
    play.given_up("m0")
    play.plays("m1", 0)
    play.steps(3)
    far.delay = 0.0
    near.heal()
    play.waits("m0")
    assert not _alive(workers)

    lost = play.texts("lost")
    hosts.mute()
    play.silence(2 * HEARTBEAT_S)
    made = play.written()
    play._until(lambda: play.written() > made, "a step without a controller")
    hosts.unmute()
    play.heard()
    play.steps(5)
    assert play.texts("lost") == lost, "it was the controller that heard nothing"

    play.steps(1)
    return play.end()
