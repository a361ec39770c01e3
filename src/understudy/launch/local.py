"""A job on one computer: the controller and every machine's agent as local processes."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import msgspec

from understudy.agent.agent import AGAIN, END, AgentSpec
from understudy.agent.facts import facts_of
from understudy.agent.fork_client import ForkClient, NurseryError
from understudy.controller.client import Client, ControllerError
from understudy.controller.core.state import OVER, PLAN
from understudy.controller.server.spec import ControlSpec
from understudy.protocol.messages import WorkerSpec
from understudy.steward import stragglers as series

from . import address, registry
from .agents import AgentProcess, Fork, Program, nursery
from .provider import CommandProvider, Invitation, LocalProvider, Provider
from .spec import JobSpec, SpecError

_LOOK_S = 0.2
"""Between two looks at a job that is shown."""
_WAIT_S = 1.0
"""How long one question for news may take; its answer comes as soon as there is some."""
_GRACE_S = 5.0


class Ended(msgspec.Struct, frozen=True):
    """How a job ended."""

    status: str
    reason: str
    view: dict[str, Any]

    @property
    def code(self) -> int:
        return 0 if self.status in ("finished", "stopped") else 1


class LocalJob:
    """Starts everything, keeps the controller alive, and leaves nothing behind."""

    def __init__(
        self,
        spec: JobSpec,
        *,
        on_line: Callable[[str], None] = print,
        on_tale: Callable[[dict[str, Any]], None] = lambda tale: None,
        on_view: Callable[[dict[str, Any], list[dict[str, Any]]], None] | None = None,
    ) -> None:
        self.spec = spec
        self._on_line, self._on_tale, self._on_view = on_line, on_tale, on_view
        stamp = time.strftime("%Y%m%d-%H%M%S")
        self.run_dir = Path(spec.run_dir or f"runs/{spec.title}-{stamp}-{os.getpid()}").resolve()
        self.secret = secrets.token_bytes(32)
        self.agents: dict[str, AgentProcess] = {}
        self.controller: Program | None = None
        self._nursery: ForkClient | None = None
        """Of the machines that the job begins with."""
        self.restarts = 0
        self.view: dict[str, Any] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._names = 0
        self._closing = False
        self._seen = 0
        self._elsewhere: set[str] = set()
        """Names of machines that others have started."""
        self._socket: socket.socket | None = None
        self._log: TextIO | None = None
        self._entry: Path | None = None
        self._provider: Provider = LocalProvider(self.add_standby)

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
            self._socket = sock = address.listen(host, port)
        except address.AddressError as error:
            raise SpecError(str(error)) from None
        sock.set_inheritable(True)
        self.url = address.url(self.spec.own_host if address.everywhere(host) else host, sock.getsockname()[1])
        self.client = Client(self.url, self.secret.hex())
        self._log = (self.run_dir / "log.txt").open("a", buffering=1)
        entry = registry.Entry(self.spec.title, self.url, self.secret.hex(), os.getpid(), str(self.run_dir))
        self._entry = registry.enter(entry)
        self._keep(self._run_controller(sock.fileno()))
        names = self._own_names()
        if names:
            self._nursery = await self._open_nursery()
        for number, name in enumerate(names):
            await self._start_agent(name, standby=number >= self.spec.started_here, nursery=self._nursery)
        self._names = self.spec.machines + self.spec.standbys
        awaited = self.spec.founders - self.spec.started_here
        if self.spec.provider_command:
            self._provider = CommandProvider(self.spec.provider_command, self._told(), self._of_provider)
            if awaited:
                await self._provider.request(awaited)
        elif awaited:
            self._provider = Invitation(self._wanted)
        if self.spec.open and not self.spec.provider_command:
            many = f"{awaited} machine{'s' if awaited > 1 else ''} more must join" if awaited else "machines may join"
            self._invite(many)

    async def _open_nursery(self) -> ForkClient:
        try:
            return await nursery({**os.environ, **self._variables})
        except NurseryError as error:
            raise SpecError(f"no machine can be started here: {error}") from None

    def _own_names(self) -> list[str]:
        """Of the machines that are started here, those that play first."""
        machines, spec = self.spec.machines, self.spec
        return [f"m{number}" for number in [*range(spec.started_here), *range(machines, machines + spec.standbys)]]

    def _told(self) -> dict[str, str]:
        """What a command that brings machines has to know: all that `understudy join` needs."""
        return {
            "UNDERSTUDY_JOB": self.spec.title,
            "UNDERSTUDY_URL": self.url,
            "UNDERSTUDY_SECRET_FILE": str(self._entry),
            "UNDERSTUDY_SCRIPT": shlex.join([str(Path(self.spec.script).resolve()), *self.spec.args]),
        }

    def _of_provider(self, text: str) -> None:
        self._on_tale({"kind": "provider", "text": text})

    def _wanted(self, count: int) -> None:
        self._invite(f"{count} standby machine{'s' if count > 1 else ''} wanted")

    def _invite(self, why: str) -> None:
        """Say what to type on a machine that is to join."""
        script = shlex.join([self.spec.script, *self.spec.args])
        command = f"understudy join --secret-file FILE --host ADDRESS {self.url} {script}"
        self._on_tale({"kind": "join", "text": f"{why}; on each, with the secret from {self._entry}: {command}"})

    async def __aexit__(self, *exc: object) -> None:
        self._closing = True
        await self._provider.close()
        if self.spec.open and self.controller is not None:
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
        if self._nursery is not None:
            await self._nursery.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._entry is not None:
            self._entry.unlink(missing_ok=True)
        if self._log is not None:
            self._log.close()
        if self._socket is not None:
            self._socket.close()

    def _keep(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- processes -----------------------------------------------------------------------------------------------------

    async def _run_controller(self, fd: int) -> None:
        """The controller may die at any moment; another one reads its ledger and goes on."""
        spec = ControlSpec(
            self.spec.title,
            self.secret,
            self.spec.machines,
            self.spec.nproc,
            self.spec.dimensions,
            str(self.run_dir / "ledger.sqlite"),
            self.spec.heartbeat,
            self.spec.answer_limit,
            self.spec.limit,
            self.spec.rehearsal_limit,
            self.spec.patience,
            self.spec.no_standby,
            self.spec.quarantine,
            self.spec.warm,
            facts_of(self._worker()),
            msgspec.structs.replace(self._worker(), secret=b"", script="", host=""),
            self._variables,
            self.spec.repair,
            bool(self.spec.recording_limit) and self.spec.machines > 1,
            tuple(self._own_names()),
            self.spec.first,
            self.spec.at_once,
            self.spec.stewarding,
            series.StragglerSettings(self.spec.straggler_threshold, self.spec.straggler_window),
        )
        (self.run_dir / PLAN).write_bytes(msgspec.json.encode(spec.plan))  # without it, a ledger cannot be understood
        while not self._closing:
            began = time.monotonic()
            say = partial(self._show, "controller")
            self.controller = await Program.start(
                "understudy.controller.server.server", spec, say, "--fd", str(fd), fd=fd
            )
            await self.controller.wait()
            if not self._closing:
                self.restarts += 1
                self._on_tale({"kind": "controller", "text": "the controller has died and is started again"})
                await asyncio.sleep(0.0 if time.monotonic() - began > 1.0 else 0.5)

    @property
    def _variables(self) -> dict[str, str]:
        return {"OMP_NUM_THREADS": str(self.spec.threads), "PYTHONUNBUFFERED": "1", **self.spec.env}

    def _worker(self) -> WorkerSpec:
        """What all workers have in common."""
        spec = self.spec
        return WorkerSpec(
            "",
            "",
            0,
            spec.title,
            self.secret,
            str(Path(spec.script).resolve()),
            spec.args,
            spec.nproc,
            spec.dimensions,
            spec.seed,
            spec.steps,
            spec.transport,
            spec.own_host,
            limit=spec.limit,
            rehearsals=spec.rehearsals,
            overlap=spec.overlap,
            checkpoint=str(Path(spec.checkpoint).resolve()) if spec.checkpoint else "",
            checkpoint_every=spec.checkpoint_every,
            check_gradients=spec.check_gradients,
            answer_limit=spec.answer_limit,
            step_limit=spec.step_limit,
            copy_every=spec.copy_every,
            recordings=str(Path(spec.recordings).resolve()) if spec.recordings else "",
            recording_limit=int(spec.recording_limit * 1e6),
            extensions=spec.loaded,
            mask=spec.masking,
            deterministic=spec.deterministic,
            keep_gradients=spec.keep_gradients,
        )

    async def _start_agent(self, name: str, *, standby: bool, nursery: ForkClient | None = None) -> None:
        """Without a nursery it begins from nothing, as a machine that comes later does on a computer of its own."""
        incarnation, env = f"{name}-{secrets.token_hex(4)}", {**os.environ, **self._variables}
        worker = msgspec.structs.replace(self._worker(), machine=name)
        agent = AgentSpec(name, incarnation, standby, self.url, worker, str(self.run_dir), str(Path.cwd()), env)
        agent = msgspec.structs.replace(agent, grace=self.spec.grace, labels=self.spec.labels.get(name, {}))
        say = partial(self._show, name)
        process: AgentProcess
        if nursery is not None:
            process = await Fork.start(nursery, agent, say)
        else:
            process = await Program.start("understudy.agent.agent", agent, say)
        self.agents[name] = process
        self._keep(self._attend(name, incarnation, process))

    async def add_standby(self) -> str:
        name = f"m{self._names}"
        self._names += 1
        while name in self._elsewhere:
            name = f"m{self._names}"
            self._names += 1
        await self._start_agent(name, standby=True)
        return name

    async def _attend(self, name: str, incarnation: str, process: AgentProcess) -> None:
        """Tell the controller when an agent is gone."""
        code = await process.wait()
        if not self._closing:
            words = f": {process.words}" if code > 0 and process.words else ""
            why = f"its agent ended with exit code {code}{words}"
            news = {"why": why, "incarnation": incarnation}
            with suppress(ControllerError):
                await asyncio.to_thread(self.client.call, "POST", f"/machines/{name}/lost", news)
            if self.spec.repair and (code < 0 or code == AGAIN):
                await asyncio.sleep(self.spec.repair)
                if not self._closing:
                    await self._start_agent(name, standby=True)

    def _show(self, name: str, text: str) -> None:
        """A line that a process has written."""
        if not text.startswith("["):
            text = f"[{name}] {text}"
        if self._log is not None:
            self._log.write(text + "\n")
        self._on_line(text)

    # -- the job's life ------------------------------------------------------------------------------------------------

    async def wait(self) -> Ended:
        """Follow the job to its end."""
        while True:
            try:
                page = await asyncio.to_thread(self.client.events, self._seen, _LOOK_S if self._on_view else _WAIT_S)
                over = any(tale["kind"] in OVER for tale in page["events"])
                if over or self._on_view is not None:
                    self.view = await asyncio.to_thread(self.client.job)
                if self._on_view is not None:
                    self._on_view(self.view, await asyncio.to_thread(self.client.call, "GET", "/machines"))
            except ControllerError:
                continue
            self._seen = page["next"]
            for tale in page["events"]:
                if tale["kind"] == "machine" and tale["data"]["machine"] not in self.agents:
                    self._elsewhere.add(tale["data"]["machine"])
                if tale["kind"] == "wanted":
                    await self._provider.request(int(tale["data"].get("count", 1)))
                elif tale["kind"] == "released":
                    await self._provider.release(tale["data"]["machine"])
                self._on_tale(tale)
            if over:
                await self._let_agents_end()
                return Ended(self.view["status"], self.view["reason"], self.view)

    async def _let_agents_end(self) -> None:
        self._closing = True  # nobody has to be told of it
        for process in self.agents.values():
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _GRACE_S)

    async def stop(self) -> None:
        """Ask the job to end at its next boundary."""
        await asyncio.to_thread(self.client.call, "POST", "/stop")


async def _end(process: AgentProcess) -> None:
    try:
        await asyncio.wait_for(process.wait(), _GRACE_S)
    except TimeoutError:
        process.kill()
        await process.wait()
