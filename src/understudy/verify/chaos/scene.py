"""A running job, as whoever disturbs it sees and reaches it."""

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
from .victims import Company, Passed, company_of

_LOOK_S = 0.05


class Over(Exception):
    """The job has ended, or whoever disturbs it was told to stop."""


class Unrecovered(Exception):
    """The job does not go on after a fault; the message says what it waits for."""


class Scene:
    def __init__(
        self,
        client: Client,
        launcher: int | None,
        *,
        inside: bool,
        reckless: bool = False,
        standbys: int = 1,
        patience: float = 60.0,
        first: int = 1,
    ) -> None:
        """`launcher` is the pid of `understudy run`, None where the job runs elsewhere; `inside` says whether the job
        lets faults into its processes; so many `standbys` are kept ready; nothing happens before so many steps
        (`first`)."""
        self.client, self.launcher, self.inside = client, launcher, inside
        self.reckless, self.standbys, self.patience = reckless, standbys, patience
        self.first = first
        self.seen: dict[int, Process] = {}
        """All processes of the job that were ever looked at."""
        self._stop = threading.Event()

    # -- looking -------------------------------------------------------------------------------------------------------

    def job(self) -> dict[str, Any]:
        """What the job is doing. Raises Over when it does nothing any more."""
        try:
            view: dict[str, Any] = self.client.job()
        except ControllerError as error:
            raise Over(str(error)) from None
        if view["status"] in OVER:
            raise Over(f"the job is {view['status']}" + (f": {view['reason']}" if view["reason"] else ""))
        return view

    def company(self) -> Company:
        try:
            return company_of(self.client.call("GET", "/machines"), self.client.call("GET", "/roster"))
        except ControllerError as error:
            raise Over(str(error)) from None

    def processes(self) -> dict[int, Process]:
        """The job's processes on this computer."""
        if self.launcher is None:
            raise Passed("the job runs elsewhere; its processes cannot be reached from here")
        found = processes.offspring(self.launcher, processes.table())
        self.seen |= found
        return found

    def agent(self, company: Company, machine: str) -> int:
        return self._above(company.on(machine)[0].pid, processes.agent, "the agent")

    def fork_server(self, company: Company, machine: str) -> int:
        return self._above(company.on(machine)[0].pid, processes.fork_server, "the fork server")

    def _above(self, pid: int, find: Callable[[int, Table], int | None], what: str) -> int:
        found = find(pid, self.processes())
        if found is None:
            raise Passed(f"{what} of pid {pid} is not among the processes of the job on this computer")
        return found

    def controller(self) -> int:
        found = [pid for pid, process in self.processes().items() if CONTROLLER in process.command.split()]
        if not found:
            raise Passed("the controller does not run on this computer, or is just being started again")
        return found[0]

    # -- doing -----------------------------------------------------------------------------------------------------

    def signal(self, number: signal.Signals, pids: Iterable[int]) -> None:
        """To the job's own processes only."""
        pids, ours = list(pids), self.processes()
        if missing := [pid for pid in pids if pid not in ours]:
            raise Passed(f"pid {missing[0]} is no process of the job on this computer any more")
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self, *pids: int) -> None:
        self.signal(signal.SIGKILL, pids)

    @contextmanager
    def frozen(self, *pids: int) -> Iterator[None]:
        self.signal(signal.SIGSTOP, pids)
        try:
            yield
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def inject(self, machine: str, kind: str, *, uid: str = "", seconds: float = 0.0) -> None:
        """Have something happen inside a worker, or an agent where no worker is named."""
        if not self.inside:
            raise Passed("the job lets no faults into its processes; start it with: understudy run --chaos")
        body = {"type": "inject", "kind": kind, "machine": machine, "uid": uid, "seconds": seconds}
        try:
            self.client.call("POST", "/inject", body)
        except ControllerError as error:
            raise Passed(str(error)) from None

    def ask(self, path: str, **body: object) -> str:
        """Ask the controller for something; the answer's id."""
        try:
            return str(self.client.call("POST", path, body)["id"])
        except ControllerError as error:
            raise Over(str(error)) from None

    def answer(self, id: str) -> dict[str, Any]:
        self.until(lambda: bool(self.job() and self.asked(id)["done"]), "the replacement to end")
        return self.asked(id)

    def asked(self, id: str) -> dict[str, Any]:
        """What has become of a request so far."""
        try:
            found: dict[str, Any] = self.client.answer(id)
        except ControllerError as error:
            raise Over(str(error)) from None
        return found

    # -- waiting -------------------------------------------------------------------------------------------------------

    def pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise Over("interrupted")

    def stop(self) -> None:
        """From any thread: whoever waits here waits no more."""
        self._stop.set()

    def until(self, true: Callable[[], bool], what: str, *, every: float = _LOOK_S) -> None:
        deadline = time.monotonic() + self.patience
        while not true():
            if time.monotonic() > deadline:
                raise Unrecovered(f"waited {self.patience:g} s for {what}; the job is {self._standing()}")
            self.pause(every)

    def _standing(self) -> str:
        """Where the job is, and what was told last."""
        job, tales = self.job(), self.client.events()["events"][-3:]
        change = "" if job["change"] is None else f", a {job['change']['kind']} in its phase {job['change']['phase']}"
        return f"{job['status']} in step {job['step']}{change}; last: {'; '.join(tale['text'] for tale in tales)}"

    def ready(self, standbys: int | None = None) -> None:
        """Everybody trains and enough standbys wait; they are asked for where they do not."""
        wanted = self.standbys if standbys is None else standbys
        self.until(lambda: self.trains() and self.job()["step"] >= self.first, "the job to train")
        found = self.company()
        coming = [name for name, state in found.states.items() if state == "standby"]
        if len(coming) < wanted:
            self.ask("/standbys", type="add-standby", count=wanted - len(coming))
        self.until(lambda: self._waiting() >= wanted, f"{wanted} standbys to be ready", every=0.2)

    def _waiting(self) -> int:
        self.job()
        return len(self.company().machines("standby"))

    def trains(self) -> bool:
        job = self.job()
        return job["status"] == "training" and job["change"] is None

    def recovered(self, dead: Collection[int]) -> None:
        """Everybody trains again, without these processes, and steps are made."""
        self.until(lambda: not self._known() & set(dead), "the controller to notice a death")
        self.until(self.trains, "the job to train again")
        step = self.job()["step"]

        def goes_on() -> bool:
            return self.trains() and self.job()["step"] >= step + 2

        self.until(goes_on, f"a step after {step}")
        self.processes() if self.launcher is not None else None

    def _known(self) -> set[int]:
        self.job()
        return {worker.pid for worker in self.company().workers}
