"""A running job, observed and disturbed from outside."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from understudy.controller.client import Client, ControllerError
from understudy.controller.core.state import OVER

from . import processes
from .processes import CONTROLLER, Process, Table
from .victims import STANDBY, NotPossible, Snapshot, snapshot_of

_POLL_S = 0.05


class JobOver(Exception):
    """The job has ended, or the waiting was interrupted by `RunningJob.stop`."""


class NotRecovered(Exception):
    """The job does not go on after a fault; the message says what it waits for."""


@contextmanager
def _over_if_unreachable() -> Iterator[None]:
    """A controller that does not answer, or refuses, has ended its job."""
    try:
        yield
    except ControllerError as error:
        raise JobOver(str(error)) from None


class RunningJob:
    """A client of the job's controller, with signals to the job's processes on this computer."""

    def __init__(
        self,
        client: Client,
        launcher: int | None,
        *,
        inside: bool,
        reckless: bool = False,
        standbys: int = 1,
        patience: float = 60.0,
        first_step: int = 1,
    ) -> None:
        """`launcher`: pid of `understudy run`; None if the job runs on another computer.
        `inside`: whether the job's processes have loaded the faults of `understudy.testing`.
        `reckless`: whether the last copy of a role's state may be lost.
        `standbys`: number of standbys that `ready` waits for.
        `patience`: seconds after which waiting fails.
        `first_step`: the job is not disturbed before this step.
        """
        self.client, self.launcher, self.inside = client, launcher, inside
        self.reckless, self.standbys, self.patience = reckless, standbys, patience
        self.first_step = first_step
        self.seen: dict[int, Process] = {}
        """All processes of the job that were ever seen."""
        self.awaited = ""
        """What is waited for, as the end of a sentence."""
        self._stop = threading.Event()

    # -- observing -----------------------------------------------------------------------------------------------------

    def view(self) -> dict[str, Any]:
        """The controller's view of the job. Raises JobOver if the job has ended."""
        with _over_if_unreachable():
            view: dict[str, Any] = self.client.job()
        if view["status"] in OVER:
            raise JobOver(f"the job is {view['status']}" + (f": {view['reason']}" if view["reason"] else ""))
        return view

    def snapshot(self) -> Snapshot:
        """The job's machines and workers. Raises JobOver if the job has ended."""
        self.view()
        with _over_if_unreachable():
            return snapshot_of(self.client.call("GET", "/machines"), self.client.call("GET", "/roster"))

    def processes(self) -> dict[int, Process]:
        """The job's processes on this computer."""
        if self.launcher is None:
            raise NotPossible("the job runs on another computer; its processes cannot be reached from here")
        found = processes.offspring(self.launcher, processes.table())
        self.seen |= found
        return found

    def agent(self, snapshot: Snapshot, machine: str) -> int:
        return self._above(snapshot.on(machine)[0].pid, processes.agent, "the agent")

    def fork_server(self, snapshot: Snapshot, machine: str) -> int:
        return self._above(snapshot.on(machine)[0].pid, processes.fork_server, "the fork server")

    def _above(self, pid: int, find: Callable[[int, Table], int | None], what: str) -> int:
        found = find(pid, self.processes())
        if found is None:
            raise NotPossible(f"{what} of pid {pid} is not among the processes of the job on this computer")
        return found

    def controller(self) -> int:
        found = [pid for pid, process in self.processes().items() if CONTROLLER in process.command.split()]
        if not found:
            raise NotPossible("the controller does not run on this computer, or is just being restarted")
        return found[0]

    # -- disturbing ----------------------------------------------------------------------------------------------------

    def signal(self, number: signal.Signals, pids: Iterable[int]) -> None:
        """Send a signal to processes of the job, and to no other process."""
        pids, ours = list(pids), self.processes()
        if missing := [pid for pid in pids if pid not in ours]:
            raise NotPossible(f"pid {missing[0]} is no process of the job on this computer any more")
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self, *pids: int) -> None:
        self.signal(signal.SIGKILL, pids)

    @contextmanager
    def frozen(self, *pids: int) -> Iterator[None]:
        """Stop processes by a signal, and continue them on exit."""
        self.signal(signal.SIGSTOP, pids)
        try:
            yield
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def inject(self, machine: str, kind: str, *, uid: str = "", seconds: float = 0.0) -> None:
        """Let a fault happen inside a worker, or inside the machine's agent if no worker is named."""
        if not self.inside:
            raise NotPossible(
                "the job has not loaded the faults for its processes; start it with: understudy run --chaos"
            )
        body = {"type": "extension", "kind": kind, "machine": machine, "uid": uid, "options": {"seconds": seconds}}
        try:
            self.client.call("POST", "/extensions", body)
        except ControllerError as error:
            raise NotPossible(str(error)) from None

    def ask(self, path: str, **body: object) -> str:
        """Send a request to the controller; returns the request's id."""
        with _over_if_unreachable():
            return str(self.client.call("POST", path, body)["id"])

    def replace(self, machine: str) -> str:
        """Ask for a planned replacement; returns the request's id."""
        return self.ask("/replace", type="replace", machines=[machine])

    def answer(self, id: str) -> dict[str, Any]:
        """Wait until a replacement has ended."""
        self.until(lambda: bool(self.view() and self.asked(id)["done"]), "the replacement to end")
        return self.asked(id)

    def asked(self, id: str) -> dict[str, Any]:
        with _over_if_unreachable():
            found: dict[str, Any] = self.client.answer(id)
        return found

    # -- waiting -------------------------------------------------------------------------------------------------------

    def pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise JobOver("interrupted")

    def stop(self) -> None:
        """End all waiting, from any thread."""
        self._stop.set()

    def until(self, true: Callable[[], bool], what: str, *, every: float = _POLL_S) -> None:
        """Wait for a condition. Raises NotRecovered if it does not come true within `patience`."""
        self.awaited = f", while waiting for {what}"
        deadline = time.monotonic() + self.patience
        while not true():
            if time.monotonic() > deadline:
                raise NotRecovered(f"waited {self.patience:g} s for {what}; the job is {self._described()}")
            self.pause(every)
        self.awaited = ""

    def _described(self) -> str:
        """The job's state and its last events, in words."""
        view, events = self.view(), self.client.events()["events"][-3:]
        change = view["change"]
        under_way = "" if change is None else f", a {change['kind']} in its phase {change['phase']}"
        last = "; ".join(event["text"] for event in events)
        return f"{view['status']} in step {view['step']}{under_way}; last: {last}"

    def ready(self, standbys: int | None = None) -> None:
        """Wait until the job trains and enough standbys are ready; missing standbys are asked for."""
        wanted = self.standbys if standbys is None else standbys
        self.until(lambda: self.trains() and self.view()["step"] >= self.first_step, "the job to train")
        coming = [name for name, state in self.snapshot().states.items() if state == STANDBY]
        if len(coming) < wanted:
            self.ask("/standbys", type="add-standby", count=wanted - len(coming))

        def enough() -> bool:
            return len(self.snapshot().machines(STANDBY)) >= wanted

        self.until(enough, f"{wanted} standbys to be ready", every=0.2)

    def trains(self) -> bool:
        """Whether the job trains and no change is under way."""
        view = self.view()
        return view["status"] == "training" and view["change"] is None

    def recovered(self, dead: Collection[int]) -> None:
        """Wait until the job trains again without these processes and has made two more steps."""
        self.until(
            lambda: not any(worker.pid in dead for worker in self.snapshot().workers),
            "the controller to notice a death",
        )
        self.until(self.trains, "the job to train again")
        step = self.view()["step"]
        self.until(lambda: self.trains() and self.view()["step"] >= step + 2, f"a step after {step}")
        if self.launcher is not None:
            self.processes()
