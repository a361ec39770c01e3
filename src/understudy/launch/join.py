"""This computer as a machine of a job that runs elsewhere."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from understudy.agent.spec import AGAIN, END, NOTICE, AgentSpec
from understudy.controller.client import Client, ControllerError
from understudy.controller.core.state import OVER
from understudy.controller.server.spec import Offer
from understudy.protocol.options import SettingError, options, with_options
from understudy.protocol.settings import ReplacementSettings

from . import address
from .processes import start_module

INTERRUPTED = 130
_GRACE_S = 8.0
"""Time for an agent and its workers to end."""
_ASK_S = 10.0
"""How long a machine that wants to join waits for the controller to answer."""
GRACE = options(ReplacementSettings)["grace"]


class JoinError(RuntimeError):
    """This machine cannot join; the message says why and what to do."""


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """What the user says about a machine that is to join a job."""

    url: str
    secret: str
    script: str
    args: tuple[str, ...]
    name: str
    host: str
    run_dir: str = ""
    standby: bool = False
    grace: float = GRACE.default
    labels: dict[str, str] = {}


def check(ticket: Ticket) -> Ticket:
    """Return the ticket. Raises JoinError if it cannot be right, as far as is known without asking the job."""
    if not re.fullmatch(r"https?://[^/]+/?", ticket.url):
        raise JoinError(f"{ticket.url} is not a controller; write it as http://HOST:PORT")
    if not re.fullmatch(r"([0-9a-f]{2})+", ticket.secret):
        raise JoinError("the secret is not one: it consists of digits and letters from a to f")
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", ticket.name) or not ticket.name.strip("."):
        raise JoinError(f"name is {ticket.name!r}; it must consist of letters, digits and the signs _ . -")
    if not Path(ticket.script).is_file():
        raise JoinError(f"there is no script {ticket.script}; a copy of the job's must be here")
    try:
        GRACE.check(ticket.grace)
        address.check_host(ticket.host)
    except (SettingError, address.AddressError) as error:
        raise JoinError(str(error)) from None
    return ticket


def read_secret(path: Path) -> str:
    """The secret from a file with nothing else in it, or from a job's entry in the registry."""
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise JoinError(f"secret file {path}: {getattr(error, 'strerror', None) or error}") from None
    with suppress(msgspec.MsgspecError):
        return str(msgspec.json.decode(text, type=dict[str, object])["secret"])
    return text


class JoinedMachine:
    """This machine in a job. An agent that dies is started again, as often as the job allows."""

    def __init__(self, ticket: Ticket, say: Callable[[str], None]) -> None:
        self.ticket, self._say = ticket, say
        self._client = Client(ticket.url, ticket.secret, patience=0.0)
        self._stopping = asyncio.Event()
        self._leaving = asyncio.Event()
        self._agent: asyncio.subprocess.Process | None = None

    def leave(self) -> None:
        """Let a standby take this machine's place, then leave. A second call does not wait."""
        if self._leaving.is_set() or self._agent is None:
            self.stop()
        else:
            self._leaving.set()
            with suppress(ProcessLookupError):
                self._agent.send_signal(NOTICE)

    def stop(self) -> None:
        """End the agent and its workers; the job goes on without this machine."""
        self._stopping.set()

    async def run(self) -> int:
        """Take part in the job until this machine is dismissed; returns the exit code."""
        name, standby = self.ticket.name, self.ticket.standby
        offer = await self._ask(_ASK_S)
        while offer is not None:
            code = await self._run_agent(offer, standby=standby)
            if self._stopping.is_set():
                break
            if self._leaving.is_set():
                self._say(f"{name} has left")
                return max(0, code)
            if code >= 0 and code != AGAIN:
                if not code:
                    self._say(f"{name} is dismissed")
                return code
            recovery = offer.worker.settings.recovery
            if not recovery.repair:
                self._say(f"{name} was given up, and machines of this job do not come back; join again if it should")
                return AGAIN
            self._say(f"{name} was given up; it comes back as a standby")
            await self._pause(recovery.repair)
            standby, offer = True, await self._ask(recovery.patience)
        return INTERRUPTED

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _ask(self, patience: float) -> Offer | None:
        """Ask for the job's settings, for at most `patience` seconds; None if this machine is to stop meanwhile."""
        deadline = time.monotonic() + patience
        while not self._stopping.is_set():
            try:
                path = f"/spec?machine={self.ticket.name}"
                offer = msgspec.convert(await asyncio.to_thread(self._client.call, "GET", path, limit=3.0), Offer)
            except msgspec.ValidationError as error:
                what = f"what answers at {self.ticket.url}"
                raise JoinError(f"{what} is not a controller like this one: {error}") from None
            except ControllerError as error:
                if error.status == 401:
                    where = "the file that understudy run names when it starts"
                    raise JoinError(f"this is not the job's secret; it is in {where}") from None
                if not error.silent:
                    raise JoinError(str(error).removeprefix("GET /spec: ")) from None
                if error.hopeless or time.monotonic() > deadline:
                    raise JoinError(f"{error}; is the address right, and does the job still run?") from None
                await self._pause(0.5)
                continue
            if offer.status in OVER:
                raise JoinError(f"the job {offer.job} is {offer.status}; there is nothing to join")
            return offer
        return None

    async def _run_agent(self, offer: Offer, *, standby: bool) -> int:
        """Run an agent to its end; returns its exit code."""
        incarnation = f"{self.ticket.name}-{secrets.token_hex(4)}"
        spec = self._agent_spec(offer, incarnation, standby=standby)
        self._agent = await start_module("understudy.agent.agent", spec, env=_own_variables())
        code = await self._wait_for(self._agent)
        self._agent = None
        if code < 0 or self._stopping.is_set():
            why = "it was ended by its user" if self._stopping.is_set() else f"its agent ended with exit code {code}"
            news = {"why": why, "incarnation": incarnation, "joined": True}
            with suppress(ControllerError):
                path = f"/machines/{self.ticket.name}/lost"
                await asyncio.to_thread(self._client.call, "POST", path, news, limit=2.0)
        return code

    def _agent_spec(self, offer: Offer, incarnation: str, *, standby: bool) -> AgentSpec:
        """The job's settings and what is this machine's own."""
        ticket = self.ticket
        run_dir = Path(ticket.run_dir or f"runs/{offer.job}-{ticket.name}").resolve()
        run_dir.mkdir(parents=True, exist_ok=True)
        worker = msgspec.structs.replace(
            offer.worker,
            secret=bytes.fromhex(ticket.secret),
            script=str(Path(ticket.script).resolve()),
            args=ticket.args,
            host=ticket.host,
            machine=ticket.name,
            settings=with_options(offer.worker.settings, grace=ticket.grace),
        )
        return AgentSpec(
            machine=ticket.name,
            incarnation=incarnation,
            standby=standby,
            url=ticket.url.rstrip("/"),
            worker=worker,
            run_dir=str(run_dir),
            cwd=str(Path.cwd()),
            env={**_own_variables(), **offer.env},
            patience=offer.worker.settings.recovery.patience,
            labels=ticket.labels,
        )

    async def _wait_for(self, process: asyncio.subprocess.Process) -> int:
        """The exit code of the agent, which is ended if this machine is to stop."""
        ended, stopped = asyncio.ensure_future(process.wait()), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([ended, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                process.send_signal(END)
                await asyncio.wait([ended], timeout=_GRACE_S)
            if not ended.done():
                process.kill()
            return await ended
        finally:
            stopped.cancel()


def _own_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "UNDERSTUDY_SECRET"}
