"""This computer as a machine of a job that runs elsewhere."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from understudy.agent.agent import AGAIN, END, NOTICE, AgentSpec
from understudy.controller.client import Client, ControllerError
from understudy.controller.core.state import OVER
from understudy.controller.server.spec import Offer

from . import address

INTERRUPTED = 130
_GRACE_S = 8.0
"""For an agent and its workers to end."""
_ASK_S = 10.0
"""How long the controller may be away when a machine asks to join."""


class JoinError(RuntimeError):
    """This machine cannot join; the message says why and what to do."""


class Ticket(msgspec.Struct, frozen=True):
    """Which job, as which machine, with what."""

    url: str
    secret: str
    script: str
    args: tuple[str, ...]
    name: str
    host: str
    run_dir: str = ""
    standby: bool = False
    grace: float = 30.0
    labels: dict[str, str] = {}


def check(ticket: Ticket) -> Ticket:
    """The same, as far as can be known without asking the job."""
    if not re.fullmatch(r"https?://[^/]+/?", ticket.url):
        raise JoinError(f"{ticket.url} is not a controller; write it as http://HOST:PORT")
    if not re.fullmatch(r"([0-9a-f]{2})+", ticket.secret):
        raise JoinError("the secret is not one: it consists of digits and letters from a to f")
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", ticket.name) or not ticket.name.strip("."):
        raise JoinError(f"name is {ticket.name!r}; it must consist of letters, digits and the signs _ . -")
    if not ticket.grace >= 0:
        raise JoinError(f"grace is {ticket.grace}; it must be at least 0 seconds")
    if not Path(ticket.script).is_file():
        raise JoinError(f"there is no script {ticket.script}; a copy of the job's must be here")
    try:
        address.check_host(ticket.host)
    except address.AddressError as error:
        raise JoinError(str(error)) from None
    return ticket


def read_secret(path: Path) -> str:
    """From a file that has nothing else in it, or from a job's entry in the registry."""
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise JoinError(f"secret file {path}: {getattr(error, 'strerror', None) or error}") from None
    with suppress(msgspec.MsgspecError):
        return str(msgspec.json.decode(text, type=dict[str, object])["secret"])
    return text


def own_name() -> str:
    return socket.gethostname().partition(".")[0]


class JoinedMachine:
    """One machine's part in a job, over as many lives of its agent as it takes."""

    def __init__(self, ticket: Ticket, say: Callable[[str], None]) -> None:
        self.ticket, self._say = ticket, say
        self._client = Client(ticket.url, ticket.secret, patience=0.0)
        self._stopping = asyncio.Event()
        self._leaving = asyncio.Event()
        self._agent: asyncio.subprocess.Process | None = None

    def leave(self) -> None:
        """This computer is taken away: let somebody take its place first. Whoever says so twice does not wait."""
        if self._leaving.is_set() or self._agent is None:
            self.stop()
        else:
            self._leaving.set()
            with suppress(ProcessLookupError):
                self._agent.send_signal(NOTICE)

    def stop(self) -> None:
        """End the agent and its workers; the job goes on without this machine."""
        self._stopping.set()

    async def last(self) -> int:
        """Until this machine is dismissed; the exit code."""
        name, standby = self.ticket.name, self.ticket.standby
        offer = await self._ask(_ASK_S)
        while offer is not None:
            code = await self._live(offer, standby=standby)
            if self._stopping.is_set():
                break
            if self._leaving.is_set():
                self._say(f"{name} has left")
                return max(0, code)
            if code >= 0 and code != AGAIN:
                if not code:
                    self._say(f"{name} is dismissed")
                return code
            if not offer.repair:
                self._say(f"{name} was given up, and machines of this job do not come back; join again if it should")
                return AGAIN
            self._say(f"{name} was given up; it comes back as a standby")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), offer.repair)
            standby, offer = True, await self._ask(offer.patience)
        return INTERRUPTED

    async def _ask(self, patience: float) -> Offer | None:
        """What the job is like; None where nobody wants to know any more."""
        deadline = time.monotonic() + patience
        while not self._stopping.is_set():
            try:
                said = await asyncio.to_thread(self._client.call, "GET", f"/spec?machine={self.ticket.name}", limit=3.0)
                offer = msgspec.convert(said, Offer)
            except msgspec.ValidationError as error:
                raise JoinError(
                    f"what answers at {self.ticket.url} is not a controller like this one: {error}"
                ) from None
            except ControllerError as error:
                if not error.silent:
                    raise JoinError(_plain(str(error))) from None
                if error.hopeless or time.monotonic() > deadline:
                    raise JoinError(f"{error}; is the address right, and does the job still run?") from None
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), 0.5)
                continue
            if offer.status in OVER:
                raise JoinError(f"the job {offer.job} is {offer.status}; there is nothing to join")
            return offer
        return None

    async def _live(self, offer: Offer, *, standby: bool) -> int:
        """One life of the agent."""
        ticket = self.ticket
        incarnation = f"{ticket.name}-{secrets.token_hex(4)}"
        run_dir = Path(ticket.run_dir or f"runs/{offer.job}-{ticket.name}").resolve()
        run_dir.mkdir(parents=True, exist_ok=True)
        worker = msgspec.structs.replace(
            offer.worker,
            secret=bytes.fromhex(ticket.secret),
            script=str(Path(ticket.script).resolve()),
            args=ticket.args,
            host=ticket.host,
            machine=ticket.name,
        )
        own = {name: value for name, value in os.environ.items() if name != "UNDERSTUDY_SECRET"}
        spec = AgentSpec(
            ticket.name,
            incarnation,
            standby,
            ticket.url.rstrip("/"),
            worker,
            str(run_dir),
            str(Path.cwd()),
            {**own, **offer.env},
            offer.patience,
            ticket.grace,
            ticket.labels,
        )
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "understudy.agent.agent", "--parent", str(os.getpid())),
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process to pass on
            env=own,
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(spec))
        process.stdin.close()
        self._agent = process
        code = await self._attend(process)
        self._agent = None
        if code < 0 or self._stopping.is_set():
            why = "it was ended by its user" if self._stopping.is_set() else f"its agent ended with exit code {code}"
            news = {"why": why, "incarnation": incarnation, "joined": True}
            with suppress(ControllerError):
                await asyncio.to_thread(self._client.call, "POST", f"/machines/{ticket.name}/lost", news, limit=2.0)
        return code

    async def _attend(self, process: asyncio.subprocess.Process) -> int:
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


def _plain(text: str) -> str:
    if "secret is missing or wrong" in text:
        return "this is not the job's secret; it is in the file that understudy run names when it starts"
    return text.removeprefix("GET /spec: ")
