"""A job that its machines join: real commands as separate processes, which a test disturbs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.jobs.running import SCRIPT, losses_in
from understudy.agent.spec import UNFIT
from understudy.controller.client import Client
from understudy.launch import registry
from understudy.verify.processes import table

HEARTBEAT_S = 3.0


class JoinedJob:
    """`understudy run` here, `understudy join` wherever a test wants it."""

    def __init__(self, folder: Path, address: str, *more: str) -> None:
        self.folder = folder
        folder.mkdir()
        self.script = folder / "train.py"
        self.script.write_text(SCRIPT)
        options = ["--json", "--machines", "2", "--local", "0", "--listen", address, *more]
        options += ["--heartbeat", str(HEARTBEAT_S), "--run-dir", str(folder / "run")]
        self.run = self._start((), "run", "run", *options, str(self.script))
        self.until(registry.running, "an entry in the registry")
        entry = registry.running()[0]
        self.client = Client(entry.url, entry.secret)
        self.secret = folder / "secret"
        self.secret.write_text(entry.secret + "\n")
        self.joined: dict[str, subprocess.Popen[bytes]] = {}

    def _start(self, prefix: Sequence[str], name: str, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.out").open("wb") as out, (self.folder / f"{name}.err").open("wb") as err:
            command = [*prefix, sys.executable, "-m", "understudy.cli.main", *words]
            return subprocess.Popen(command, stdout=out, stderr=err)

    def join(
        self, name: str, address: str, there: Sequence[str] = (), script: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """`there` is what to put before a command to run it on that host."""
        options = ["--host", address, "--name", name, "--secret-file", str(self.secret)]
        options += ["--grace", "120", "--run-dir", str(self.folder / name), self.client.url, str(script or self.script)]
        self.joined[name] = self._start(there, name, "join", *options)
        return self.joined[name]

    def is_refused(self, name: str, address: str, there: Sequence[str] = ()) -> None:
        """A machine with another script learns so when it registers."""
        script = self.folder / "other.py"
        script.write_text(SCRIPT.replace("lr=1e-2", "lr=1e-3"))
        assert self.join(name, address, there, script).wait(60) == UNFIT, self.said(name)
        del self.joined[name]
        (why,) = self.texts("refused")
        assert why.startswith(f"{name} has another script (digest ")
        assert f"understudy: {why}\n" in self.said(name)
        assert self.machine(name)["state"] == "unknown"

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.err").read_text()

    def until(self, true: Callable[[], object], what: str, limit: float = 60.0) -> None:
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
        self.until(lambda: self.step >= goal, f"step {goal}")

    def machine(self, name: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = self.client.call("GET", "/machines")
        return next((machine for machine in found if machine["name"] == name), {"state": "unknown", "roles": []})

    def waits(self, name: str) -> None:
        """Wait until it is a standby that could train at once."""
        self.until(lambda: self.machine(name)["state"] == "standby" and self.machine(name)["rehearsed"], name)

    def has_role(self, name: str, role: int) -> None:
        self.until(lambda: self.machine(name)["roles"] == [role], f"{name} in role {role}")

    def texts(self, kind: str, machine: str = "") -> list[str]:
        """What events of a kind say, of all machines or of one."""
        events = [event for event in self.client.events()["events"] if event["kind"] == kind]
        return [event["text"] for event in events if not machine or event["data"]["machine"] == machine]

    def given_up(self, name: str, times: int = 1) -> None:
        self.until(lambda: len(self.texts("lost", name)) == times, f"{name} to be given up")
        assert set(self.texts("lost", name)) == {f"{name} is gone: nothing heard from its agent for {HEARTBEAT_S:g} s"}

    def silence(self, seconds: float) -> None:
        """Wait until the controller has heard nothing for so long, and says so."""
        begin = time.monotonic()
        self.until(lambda: "the controller seems to be cut off" in self.client.job()["reason"], "silence")
        time.sleep(max(0.0, begin + seconds + HEARTBEAT_S - time.monotonic()))

    def heard(self) -> None:
        self.until(lambda: not self.client.job()["reason"], "the controller to hear again")

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
                process.send_signal(signal.SIGINT)
        for process in (*self.joined.values(), self.run):
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def alive(pids: list[int]) -> list[int]:
    now = table()
    return [pid for pid in pids if pid in now]
