"""A job on one computer: the controller and the agent of each machine as local processes."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import shlex
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import msgspec

from understudy.agent.fork_client import ForkClient, ForkServerError
from understudy.agent.spec import AGAIN, END, PRELOAD, AgentSpec, facts_of
from understudy.controller.client import Client, ControllerError
from understudy.controller.core.state import OVER, PLAN
from understudy.controller.server.spec import ControlSpec
from understudy.host.tasks import BackgroundTasks
from understudy.protocol.messages import WorkerSpec
from understudy.protocol.provisioning import ReleaseMachine, StartMachines
from understudy.protocol.settings import JobSpec

from . import address, registry
from .processes import AgentProcess, ModuleProcess, fork_agent
from .sources import CalledMachines, CommandMachines, MachineSource
from .spec import SpecError, is_open, own_host

_LOOK_S = 0.2
"""Time between two views of a job that is shown."""
_WAIT_S = 1.0
"""How long the controller may delay its answer to a request for news; it answers as soon as there are some."""
_GRACE_S = 5.0
"""Time for a process to end by itself."""


class Ended(msgspec.Struct, frozen=True):
    """How a job ended."""

    status: str
    reason: str
    view: dict[str, Any]

    @property
    def code(self) -> int:
        return 0 if self.status in ("finished", "stopped") else 1


class LocalJob:
    """Starts the processes of a job, restarts the controller if it dies, and leaves nothing behind. `on_line` gets all
    lines that they write; `on_bar`, if it is given, the states of progress bars as they change, by `[machine role]`."""

    def __init__(
        self,
        spec: JobSpec,
        *,
        on_line: Callable[[str], None] = print,
        on_bar: Callable[[str], None] | None = None,
        on_event: Callable[[dict[str, Any]], None] = lambda event: None,
        on_view: Callable[[dict[str, Any], list[dict[str, Any]]], None] | None = None,
    ) -> None:
        self.spec = spec
        self._on_line, self._on_bar, self._on_event, self._on_view = on_line, on_bar, on_event, on_view
        stamp = time.strftime("%Y%m%d-%H%M%S")
        self.run_dir = Path(spec.run_dir or f"runs/{spec.title}-{stamp}-{os.getpid()}").resolve()
        self.secret = secrets.token_bytes(32)
        self.agents: dict[str, AgentProcess] = {}
        self.controller: ModuleProcess | None = None
        self.view: dict[str, Any] = {}
        self._fork_server: ForkClient | None = None
        """Forks the agents of the machines with which the job begins."""
        self._tasks = BackgroundTasks()
        self._last_lines: dict[str, str] = {}
        """By process: the last line that it has written."""
        self._closing = False
        self._seen = 0
        """Number of events that were passed on."""
        self._opened = ExitStack()
        self._log: TextIO
        self._entry: Path
        self._source: MachineSource = CalledMachines(self.add_standbys)

    async def __aenter__(self) -> LocalJob:
        try:
            await self._open()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _open(self) -> None:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        host, port = address.parse(self.spec.listen)
        try:
            sock = self._opened.enter_context(address.listen(host, port))
        except address.AddressError as error:
            raise SpecError(str(error)) from None
        sock.set_inheritable(True)
        self.url = address.url(own_host(self.spec) if address.everywhere(host) else host, sock.getsockname()[1])
        self.client = Client(self.url, self.secret.hex())
        self._log = self._opened.enter_context((self.run_dir / "log.txt").open("a", buffering=1))
        entry = registry.Entry(self.spec.title, self.url, self.secret.hex(), os.getpid(), str(self.run_dir))
        self._entry = registry.enter(entry)
        self._opened.callback(self._entry.unlink, missing_ok=True)
        self._tasks.start(self._run_controller(sock.fileno()))
        names = self._own_names()
        if names:  # the modules are imported once for all agents that begin together
            try:
                modules, env = [*PRELOAD, "understudy.agent.agent"], {**os.environ, **self._variables}
                self._fork_server = await ForkClient.open(modules, env=env)
            except ForkServerError as error:
                raise SpecError(f"no machine can be started here: {error}") from None
        for number, name in enumerate(names):
            await self._start_agent(name, standby=number >= self.spec.started_here, server=self._fork_server)
        await self._open_source()

    async def _open_source(self) -> None:
        """Ask for the machines with which the job begins and that are not started here; serve later requests."""
        awaited = self.spec.founders - self.spec.started_here
        if self.spec.provider_command:
            tell = partial(self._tell, "provider")
            self._source = CommandMachines(self.spec.provider_command, self._job_variables(), tell)
            if awaited:
                await self._source.start(awaited)
        elif is_open(self.spec):
            if awaited:
                self._source = CalledMachines(self._invite_standbys)
            self._invite(f"{_machines(awaited, 'machine')} more must join" if awaited else "machines may join")
        self._tasks.start(self._provision())

    def _own_names(self) -> list[str]:
        """Names of the machines that are started here: those that train, then the standbys."""
        machines, spec = self.spec.machines, self.spec
        return [f"m{number}" for number in [*range(spec.started_here), *range(machines, machines + spec.standbys)]]

    def _job_variables(self) -> dict[str, str]:
        """All that `understudy join` needs, for a command that brings machines."""
        return {
            "UNDERSTUDY_JOB": self.spec.title,
            "UNDERSTUDY_URL": self.url,
            "UNDERSTUDY_SECRET_FILE": str(self._entry),
            "UNDERSTUDY_SCRIPT": shlex.join([str(Path(self.spec.script).resolve()), *self.spec.args]),
        }

    def _tell(self, kind: str, text: str) -> None:
        self._on_event({"kind": kind, "text": text})

    def _invite(self, why: str) -> None:
        """Tell the user what to type on a machine that is to join."""
        script = shlex.join([self.spec.script, *self.spec.args])
        command = f"understudy join --secret-file FILE --host ADDRESS {self.url} {script}"
        self._tell("join", f"{why}; on each, with the secret from {self._entry}: {command}")

    async def _invite_standbys(self, count: int) -> None:
        self._invite(f"{_machines(count, 'standby machine')} wanted")

    async def __aexit__(self, *exc: object) -> None:
        self._closing = True
        await self._source.close()
        if is_open(self.spec) and self.controller is not None:
            leaving = Client(self.url, self.secret.hex(), patience=0.0)
            with suppress(ControllerError):
                await asyncio.to_thread(leaving.call, "POST", "/disband")
        for process in self.agents.values():
            process.kill(END)
        for process in self.agents.values():
            await _end(process)
        if self.controller is not None:
            self.controller.kill(signal.SIGTERM)
            await _end(self.controller)
        if self._fork_server is not None:
            await self._fork_server.close()
        await self._tasks.cancel()
        self._opened.close()

    # -- processes -----------------------------------------------------------------------------------------------------

    async def _run_controller(self, fd: int) -> None:
        """Keep a controller running: one that dies is followed by another, which reads the ledger and goes on."""
        spec = ControlSpec(
            job=self.spec.title,
            secret=self.secret,
            machines=self.spec.machines,
            nproc=self.spec.nproc,
            mesh=self.spec.dimensions,
            ledger=str(self.run_dir / "ledger.sqlite"),
            settings=self.spec.settings,
            facts=facts_of(self._worker()),
            worker=msgspec.structs.replace(self._worker(), secret=b"", script="", host=""),
            env=self._variables,
            reserved=tuple(self._own_names()),
            first=self.spec.first,
        )
        (self.run_dir / PLAN).write_bytes(msgspec.json.encode(spec.plan))  # without it, a ledger cannot be understood
        while not self._closing:
            began = time.monotonic()
            on_line = partial(self._show, "controller")
            self.controller = await ModuleProcess.start(
                "understudy.controller.server.server", spec, on_line, "--fd", str(fd), fd=fd
            )
            await self.controller.exited
            if not self._closing:
                self._tell("controller", "the controller has died and is started again")
                await asyncio.sleep(0.0 if time.monotonic() - began > 1.0 else 0.5)

    @property
    def _variables(self) -> dict[str, str]:
        return {"OMP_NUM_THREADS": str(self.spec.threads), "PYTHONUNBUFFERED": "1", **self.spec.env}

    def _worker(self, machine: str = "") -> WorkerSpec:
        """What all workers of a machine have in common."""
        spec = self.spec
        return WorkerSpec(
            uid="",
            machine=machine,
            slot=0,
            job=spec.title,
            secret=self.secret,
            script=str(Path(spec.script).resolve()),
            args=spec.args,
            nproc=spec.nproc,
            mesh=spec.dimensions,
            host=own_host(spec),
            settings=spec.settings,
        )

    async def _start_agent(self, name: str, *, standby: bool, server: ForkClient | None = None) -> None:
        """Start a machine. Without a fork server its agent starts from nothing, as on a computer of its own."""
        incarnation = f"{name}-{secrets.token_hex(4)}"
        agent = AgentSpec(
            machine=name,
            incarnation=incarnation,
            standby=standby,
            url=self.url,
            worker=self._worker(name),
            run_dir=str(self.run_dir),
            cwd=str(Path.cwd()),
            env={**os.environ, **self._variables},
            labels=self.spec.labels.get(name, {}),
            live=self._on_bar is not None,
        )
        on_line = partial(self._show, name)
        process: AgentProcess
        if server is not None:
            process = await fork_agent(server, agent, on_line)
        else:
            process = await ModuleProcess.start("understudy.agent.agent", agent, on_line)
        self.agents[name] = process
        self._tasks.start(self._watch_agent(name, incarnation, process))

    async def add_standbys(self, count: int = 1) -> None:
        """Start more machines here, under names that no machine of the job has."""
        machines = await asyncio.to_thread(self.client.call, "GET", "/machines")
        taken = {machine["name"] for machine in machines} | self.agents.keys()
        first = self.spec.machines + self.spec.standbys
        free = (name for number in itertools.count(first) if (name := f"m{number}") not in taken)
        for name in itertools.islice(free, count):
            await self._start_agent(name, standby=True)

    async def _provision(self) -> None:
        """Pass the job's requests for machines on to their source."""
        client, seen = Client(self.url, self.secret.hex(), patience=0.0), 0
        while not self._closing:
            try:
                page = await asyncio.to_thread(client.provision, seen, _WAIT_S)
                for item in page.items:
                    match item:
                        case StartMachines(count):
                            await self._source.start(count)
                        case ReleaseMachine(machine):
                            await self._source.release(machine)
                    seen += 1
            except ControllerError:
                await asyncio.sleep(_LOOK_S)  # until the controller is back

    async def _watch_agent(self, name: str, incarnation: str, process: AgentProcess) -> None:
        """Report the end of an agent to the controller; start the agent again if the settings say so."""
        code = await process.exited
        last = self._last_lines.pop(name, "")
        if self._closing:
            return
        last = f": {last}" if code > 0 and last else ""
        news = {"why": f"its agent ended with exit code {code}{last}", "incarnation": incarnation}
        with suppress(ControllerError):
            await asyncio.to_thread(self.client.call, "POST", f"/machines/{name}/lost", news)
        repair = self.spec.settings.recovery.repair
        if repair and (code < 0 or code == AGAIN):
            await asyncio.sleep(repair)
            if not self._closing:
                await self._start_agent(name, standby=True)

    def _show(self, name: str, text: str) -> None:
        if self._on_bar is not None and text.endswith("\r"):  # the present state of a progress bar
            self._on_bar(text[:-1])
            return
        self._last_lines[name] = text or self._last_lines.get(name, "")
        if not text.startswith("["):
            text = f"[{name}] {text}"
        self._log.write(text + "\n")
        self._on_line(text)

    # -- the job -------------------------------------------------------------------------------------------------------

    async def wait(self) -> Ended:
        """Follow the job to its end."""
        while True:
            try:
                page = await asyncio.to_thread(self.client.events, self._seen, _LOOK_S if self._on_view else _WAIT_S)
                over = page["status"] in OVER
                if over or self._on_view is not None:
                    self.view = await asyncio.to_thread(self.client.job)
                if self._on_view is not None:
                    self._on_view(self.view, await asyncio.to_thread(self.client.call, "GET", "/machines"))
            except ControllerError:
                continue
            self._seen = page["next"]
            for event in page["events"]:
                self._on_event(event)
            if over:
                self._closing = True  # the ends of agents are no failures
                for process in self.agents.values():
                    with suppress(TimeoutError):
                        await asyncio.wait_for(process.exited, _GRACE_S)
                return Ended(self.view["status"], self.view["reason"], self.view)

    async def stop(self) -> None:
        """Ask the job to end at its next step boundary."""
        await asyncio.to_thread(self.client.call, "POST", "/stop")


def _machines(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count > 1 else ''}"


async def _end(process: AgentProcess) -> None:
    try:
        await asyncio.wait_for(process.exited, _GRACE_S)
    except TimeoutError:
        process.kill()
        await process.exited
