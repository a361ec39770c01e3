"""Thousands of simulated agents with one worker each, in one process.

They speak the real protocol over real sockets and train nothing. Of an order they decode only the fields that they
need; they answer with the messages of real workers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

import aiohttp
import msgspec

from understudy.agent.agent import BEAT_S
from understudy.protocol.frames import (
    Ack,
    Beat,
    Dismiss,
    EndWorker,
    Frame,
    Numbered,
    Refused,
    Register,
    Relayed,
    Report,
    StartWorker,
    Welcome,
)
from understudy.protocol.messages import (
    Arm,
    Cancel,
    Cancelled,
    Finish,
    FromWorker,
    Gave,
    Halt,
    Halted,
    Here,
    Leave,
    Park,
    Prepared,
    Rehearse,
    Rehearsed,
    Settled,
    Stop,
    Switched,
    Tracked,
)
from understudy.protocol.roster import WorkerAddress
from understudy.protocol.sessions import Inbox, Outbox

STAGES = 16
"""Machines of one replica; machines at the same place of their replica hold equal state."""


class _Roster(msgspec.Struct):
    generation: int


class _Worker(msgspec.Struct):
    uid: str


class _Move(msgspec.Struct):
    giver: _Worker
    taker: _Worker


class _Prepare(msgspec.Struct, tag="prepare"):
    roster: _Roster
    moves: tuple[_Move, ...] = ()


class _Resume(msgspec.Struct, tag="resume"):
    roster: _Roster
    step: int
    moves: tuple[_Move, ...] = ()


_Heard = Rehearse | _Prepare | _Resume | Arm | Cancel | Halt | Finish | Leave | Park | Stop


class _Tell(msgspec.Struct, tag="tell"):
    uid: str
    message: _Heard


class _Numbered(msgspec.Struct, tag="numbered"):
    number: int
    content: _Tell | StartWorker | EndWorker | Dismiss


_decoder = msgspec.msgpack.Decoder(Welcome | _Numbered | Ack | Refused)
_encoder = msgspec.msgpack.Encoder()


class Counts:
    """Frames and bytes over all sockets, both directions."""

    def __init__(self) -> None:
        self.frames = self.bytes = 0

    def add(self, size: int) -> None:
        self.frames += 1
        self.bytes += size


class SimulatedAgents:
    """All agents, and when each kind of order last reached one of them."""

    def __init__(self, url: str, secret: str, machines: int) -> None:
        self.machines = machines
        self.counts = Counts()
        self.told: dict[str, float] = {}
        """Kind of order → time at which the last one was read."""
        self.agents: dict[str, SimulatedAgent] = {}
        self._url, self._secret = url, secret
        self._tasks: set[asyncio.Task[None]] = set()
        self.step = 5
        self.broken = 0
        """Connections that had to be opened again."""
        self.error: BaseException | None = None

    async def __aenter__(self) -> SimulatedAgents:
        headers = {"Authorization": f"Bearer {self._secret}"}
        self._session = aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(agent.ws.close() for agent in self.agents.values()), return_exceptions=True)
        await self._session.close()

    async def come(self, names: Iterable[str], *, standby: bool = False) -> None:
        """Connect the agents of these machines, 64 at a time, as many as a listening socket takes."""
        doors = asyncio.Semaphore(64)

        async def enter(name: str) -> None:
            agent = self.agents[name] = SimulatedAgent(self, name, standby)
            async with doors:
                await agent.connect()
            self.soon(agent.listen())

        await asyncio.gather(*(enter(name) for name in names))

    async def connection(self) -> aiohttp.ClientWebSocketResponse:
        return await self._session.ws_connect(f"{self._url}/agent", max_msg_size=0)

    def soon(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.error = task.exception()

    async def gone(self, name: str) -> None:
        """Disconnect a machine's agent for good."""
        agent = self.agents.pop(name)
        agent.over = True
        await agent.ws.close()

    def all_say(self, do: Callable[[SimulatedAgent], Iterable[FromWorker]]) -> None:
        """Send the messages that `do` gives for each worker."""
        for agent in list(self.agents.values()):
            for message in do(agent):
                agent.say(message)

    async def beat(self, seconds: float) -> float:
        """Let all agents send heartbeats, one after the other, for so long. Returns heartbeats per second."""
        began, beats = time.monotonic(), 0
        while (now := time.monotonic()) < began + seconds:
            for agent in list(self.agents.values()):
                await agent.send(Beat(self.step, {"loss": 1.0}, 0.2, False))
                beats += 1
            await asyncio.sleep(max(0.0, now + BEAT_S - time.monotonic()))
        return beats / (time.monotonic() - began)


class SimulatedAgent:
    """One agent and its worker."""

    ws: aiohttp.ClientWebSocketResponse

    def __init__(self, all_agents: SimulatedAgents, name: str, standby: bool) -> None:
        self._all, self._name, self._standby = all_agents, name, standby
        self.over = False
        self.uid = ""
        self.role: int | None = None
        self.generation = 0
        self.holds = False
        self._outbox: Outbox[Report] = Outbox()
        self._inbox = Inbox()
        self._sent = 0
        self._sending = False
        self._seated = 0
        """Generation of the last roster that the worker received."""

    async def send(self, frame: Frame) -> None:
        data = _encoder.encode(frame)
        self._all.counts.add(len(data))
        with suppress(ConnectionError):
            await self.ws.send_bytes(data)

    def say(self, message: FromWorker) -> None:
        self._outbox.put(Relayed(self.uid, message))
        if not self._sending:
            self._sending = True
            self._all.soon(self._flush())

    async def _flush(self) -> None:
        for number, report in self._outbox.after(0):
            if number > self._sent:
                self._sent = number
                await self.send(Numbered(number, report))
        self._sending = False
        if self._sent < self._outbox.last:  # said meanwhile
            await self._flush()

    async def connect(self) -> None:
        self.ws = await self._all.connection()
        received, seated = self._inbox.last, self._seated
        await self.send(Register(self._name, f"{self._name}-a", self._standby, received, roster=seated))

    async def listen(self) -> None:
        """Read and answer orders until the agent is dismissed; reconnect after a broken connection, as agents do."""
        while True:
            async for message in self.ws:
                if message.type == aiohttp.WSMsgType.BINARY:
                    self._all.counts.add(len(message.data))
                    await self._heed(_decoder.decode(message.data))
            if self.over:
                return
            self._all.broken += 1
            await self.connect()

    async def _heed(self, frame: Welcome | _Numbered | Ack | Refused) -> None:
        if isinstance(frame, _Numbered):
            if self._inbox.take(frame.number):
                self._carry_out(frame.content)
            await self.send(Ack(self._inbox.last))
        elif isinstance(frame, Welcome):
            self._outbox.acknowledged(frame.received)
            self._sent = frame.received
            await self._flush()
        elif isinstance(frame, Ack):
            self._outbox.acknowledged(frame.number)
        else:
            self.over = True

    def _carry_out(self, order: _Tell | StartWorker | EndWorker | Dismiss) -> None:
        if isinstance(order, _Tell):
            self._all.told[type(order.message).__name__.strip("_")] = time.monotonic()
            self._hear(order.message)
        elif isinstance(order, Dismiss):
            self.over = True
        elif isinstance(order, StartWorker):
            self.uid, self.role, self.holds = order.uid, None, False
            self.say(
                Here(WorkerAddress(order.uid, self._name, "10.0.0.1", 20_000 + int(order.uid[1:]) % 40_000), pid=1)
            )

    def _hear(self, message: _Heard) -> None:
        all_agents = self._all
        if isinstance(message, _Prepare | _Resume):
            self._seated = message.roster.generation
        if isinstance(message, Rehearse):
            self.role = message.role
            self.say(Rehearsed(message.role, 1.0, twins(message.role, all_agents.machines)))
        elif isinstance(message, _Prepare):
            self.say(Prepared(message.roster.generation, 0.01))
        elif isinstance(message, _Resume):
            self._resume(message)
        elif isinstance(message, Arm):
            self._switch(message.generation)
        elif isinstance(message, Halt):
            self.say(
                Halted(message.number, self.generation, all_agents.step, False, self.holds, able=self.holds, usual=0.2)
            )
        elif isinstance(message, Cancel):
            self.say(Cancelled(message.generation))

    def _resume(self, message: _Resume) -> None:
        self.generation = message.roster.generation
        takes = any(move.taker.uid == self.uid for move in message.moves)
        self.say(Switched(self.generation, message.step, 0.1 if takes else 0.0, 1 << 20 if takes else 0))
        if not self.holds and self.generation == 1:
            self.role = int(self._name[1:])
            self.say(Tracked(self.role, twins(self.role, self._all.machines), 1 << 20))
        self.holds = True
        self.say(Settled(self.generation, message.step + 1, None if self.generation == 1 else 0.01))

    def _switch(self, generation: int) -> None:
        """Switch all workers: the leaver was told to arm, so that the next vote would agree at one boundary."""
        all_agents = self._all

        def changes(agent: SimulatedAgent) -> list[FromWorker]:
            if agent is self:
                return [Switched(generation, all_agents.step), Gave(generation)]
            if agent.role is None or (not agent.holds and agent.role != self.role):
                return []  # another standby
            size = 0 if agent.holds else 1 << 20
            agent.generation, agent.holds = generation, True
            return [Switched(generation, all_agents.step, 0.1, size), Settled(generation, all_agents.step + 1, 0.01)]

        self.generation, self.holds = generation, False
        all_agents.all_say(changes)


def twins(role: int, machines: int) -> tuple[int, ...]:
    """The roles with equal state: those of the same stage in all replicas."""
    return tuple(range(role % STAGES, machines, STAGES))
