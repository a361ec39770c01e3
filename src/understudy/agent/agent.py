"""The agent of one machine: carries out the controller's orders, reports, and relays messages of its workers."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import aiohttp
import msgspec

from understudy.host.extensions import Extensions
from understudy.host.family import die_with_parent
from understudy.host.logs import show_log
from understudy.host.tasks import BackgroundTasks
from understudy.protocol import frames, messages
from understudy.protocol.framing import MAX_MESSAGE
from understudy.protocol.roster_delta import RosterDecoder
from understudy.protocol.sessions import Inbox, Outbox, sign_of_life_s

from .fork_client import ForkClient
from .recordings import RecordingStore
from .spec import ABANDONED, AGAIN, END, NOTICE, PRELOAD, UNFIT, AgentSpec, facts_of
from .workers import WorkerProcess, Workers

log = logging.getLogger("understudy.agent")

BEAT_S = 0.5
"""Time between two signs of life."""
_RETRY_S = 0.1
"""Time between two attempts to reach the controller."""
_CONNECT_S = 3.0
"""Time limit of one attempt; after a network was cut, a new attempt succeeds sooner than an old one."""
_PING_S = 4.0
"""Silence, at least, after which the agent asks the controller for a sign of life, which must come in half the time."""
_WARN_S = 10.0
"""Silence of the controller after which the agent warns its operator."""
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(frames.Frame)


class Agent:
    """One machine's agent. `show` gets the lines that workers write."""

    def __init__(self, spec: AgentSpec, server: ForkClient, show: Callable[[str], None]) -> None:
        self.spec = spec
        self.connection: aiohttp.ClientWebSocketResponse | None = None
        self.code = 0
        """The exit code of this process."""
        self._server = server
        self._workers = Workers(spec, server, show, on_message=self._hear_worker, on_exit=self._worker_exited)
        self._outbox: Outbox[frames.Report] = Outbox()
        self._inbox = Inbox()
        self._rosters = RosterDecoder()
        self._unsent = asyncio.Event()
        self._sent = 0
        """Number of the last report that was sent over this connection."""
        self._beat = frames.Beat()
        self._over = asyncio.Event()
        self._known = False
        """Whether the controller has admitted this machine."""
        self._leaving = False
        """Whether this machine has to leave soon, and the controller knows."""
        self._facts = facts_of(spec.worker)
        self._ping_s = sign_of_life_s(_PING_S, spec.worker.roles // spec.worker.nproc)
        self._last_sign = asyncio.get_running_loop().time()
        """When a message of the controller came, or a worker made a step."""
        self._silent_since: float | None = None
        """Since when the controller cannot be reached."""
        self._tasks = BackgroundTasks()
        self._recordings = RecordingStore(spec.worker.host, spec.worker.secret)
        extensions = spec.worker.settings.verify.loaded
        self._extensions = Extensions(extensions, "extend_agent", self)
        if extensions:
            log.warning("%s runs extensions: %s", spec.machine, ", ".join(extensions))
        self._metrics = (Path(spec.run_dir) / f"metrics-{spec.machine}.jsonl").open("a", buffering=1)

    async def run(self) -> None:
        """Work until the controller dismisses this machine."""
        talk = asyncio.ensure_future(self._stay_connected())
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait([talk, over], return_when=asyncio.FIRST_COMPLETED)
            if not self._over.is_set() and (error := talk.exception()) is not None:
                log.error("%s cannot go on: %s", self.spec.machine, error)  # such as: its fork server has died
                self.code = AGAIN
        finally:
            over.cancel()
            talk.cancel()
            await asyncio.gather(talk, return_exceptions=True)
            await self._server.close()
            await self._workers.close()
            await self._tasks.cancel()
            await self._recordings.close()
            self._metrics.close()

    # -- the controller ------------------------------------------------------------------------------------------------

    async def _stay_connected(self) -> None:
        headers = {"Authorization": f"Bearer {self.spec.worker.secret.hex()}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            while not self._over.is_set():
                try:
                    async with asyncio.timeout(_CONNECT_S):
                        self.connection = await session.ws_connect(
                            f"{self.spec.url}/agent", heartbeat=self._ping_s, max_msg_size=MAX_MESSAGE
                        )
                    async with self.connection:
                        await self._converse(self.connection)
                    self._last_sign = asyncio.get_running_loop().time()
                except (OSError, aiohttp.ClientError, TimeoutError, msgspec.MsgspecError) as error:
                    self._unreachable(error)
                self.connection = None
                await asyncio.sleep(_RETRY_S)

    def _unreachable(self, error: Exception) -> None:
        """Training goes on while the controller is away; after the time of `patience` the job must be over."""
        machine, url, now = self.spec.machine, self.spec.url, asyncio.get_running_loop().time()
        if self._silent_since is None:
            self._silent_since = now
        elif self._silent_since < now - _WARN_S:
            self._silent_since = float("inf")
            why = str(error) or type(error).__name__
            log.warning("%s: the controller at %s does not answer: %s; trying again and again", machine, url, why)
        if self.spec.patience and now - self._last_sign > self.spec.patience:
            log.error("%s: nothing seen of the job for %g s; it must be over", machine, self.spec.patience)
            self.code = ABANDONED
            self._over.set()

    async def _converse(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        spec = self.spec
        register = frames.Register(
            machine=spec.machine,
            incarnation=spec.incarnation,
            standby=spec.standby,
            received=self._inbox.last,
            facts=self._facts,
            labels=spec.labels,
            roster=self._rosters.generation,
        )
        await ws.send_bytes(_encoder.encode(register))
        sender: asyncio.Task[None] | None = None
        try:
            async for message in ws:
                if message.type != aiohttp.WSMsgType.BINARY:
                    continue
                frame = _decoder.decode(message.data)
                self._last_sign, self._silent_since = asyncio.get_running_loop().time(), None
                match frame:
                    case frames.Welcome(received):
                        self._sent, self._known = received, True
                        self._unsent.set()
                        sender = asyncio.ensure_future(self._send(ws))
                    case frames.Numbered(number, order, roster) if isinstance(order, frames.Order):
                        complete = self._rosters.restore(order, roster)
                        if self._inbox.take(number):
                            await self._carry_out(complete)
                        await ws.send_bytes(_encoder.encode(frames.Ack(self._inbox.last)))
                    case frames.Ack(number):
                        self._outbox.acknowledged(number)
                    case messages.ExtensionMessage(uid=""):
                        self._extensions.hear(frame)
                    case messages.ExtensionMessage():
                        await self._workers.send(frame.uid, frame)
                    case frames.Refused(reason, unfit):
                        log.warning("%s", reason if unfit else f"{spec.machine} is not wanted: {reason}")
                        self.code = UNFIT if unfit else 0
                        self._over.set()
                        return
        finally:
            if sender is not None:
                sender.cancel()
                await asyncio.gather(sender, return_exceptions=True)

    async def _send(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        """Send reports as they come, and beats in between."""
        while True:
            for number, report in self._outbox.after(0):
                if number > self._sent:
                    self._sent = number
                    await ws.send_bytes(_encoder.encode(frames.Numbered(number, report)))
            self._unsent.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._unsent.wait(), BEAT_S)
            if not self._unsent.is_set():
                await ws.send_bytes(_encoder.encode(self._next_beat()))
                for uid, seconds in self._workers.newly_stopped(self.spec.worker.settings.recovery.answer_limit):
                    self._report(frames.Stopped(uid, seconds))

    def _next_beat(self) -> frames.Beat:
        return msgspec.structs.replace(self._beat, samples=self._workers.take_samples())

    def _report(self, report: frames.Report) -> None:
        self._outbox.put(report)
        self._unsent.set()

    # -- leaving -------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """End at once, with all workers; the job sees a failure of this machine."""
        self._over.set()

    def terminated(self) -> None:
        """SIGTERM: leave. A second SIGTERM ends the agent at once."""
        if self._leaving:
            self.end()
        else:
            self.leave("it was told to go by SIGTERM")

    def leave(self, why: str) -> None:
        """Let a standby take this machine's place before the machine leaves; only the first call counts."""
        if self._leaving:
            return
        if not self._known:
            self.end()  # the job does not count on this machine yet
            return
        self._leaving = True
        grace = self.spec.worker.settings.replacement.grace
        self._report(frames.Leaving(grace, why))
        asyncio.get_running_loop().call_later(grace, self.end)

    # -- orders --------------------------------------------------------------------------------------------------------

    async def _carry_out(self, order: frames.Order) -> None:
        match order:
            case frames.StartWorker(uid, slot):
                await self._workers.start(uid, slot)
            case frames.Tell(uid, message):
                await self._workers.send(uid, message)
            case frames.EndWorker(uid):
                self._workers.kill(uid)
            case frames.KeepCopy(recorded):
                self._tasks.start(self._keep_copy(recorded))
            case frames.Dismiss(_, again):
                self.code = AGAIN if again and not self._leaving else 0
                self._tasks.start(self._end())

    async def _end(self) -> None:
        await self._workers.end()
        self._over.set()

    # -- workers -------------------------------------------------------------------------------------------------------

    def _hear_worker(self, worker: WorkerProcess, message: messages.FromWorker | messages.Telemetry) -> None:
        match message:
            case messages.Copied():
                self._beat = msgspec.structs.replace(self._beat, copied=message)
            case messages.Progress():
                self._note_progress(worker, message)
            case messages.Recorded() if message.digest:
                self._tasks.start(self._keep_recording(worker, message))
            case _:
                if isinstance(message, messages.Tracked):
                    worker.role = message.role
                elif isinstance(message, messages.Done):
                    worker.done = True
                self._report(frames.Relayed(worker.uid, message))

    def _note_progress(self, worker: WorkerProcess, progress: messages.Progress) -> None:
        worker.role = progress.role
        if progress.sample is not None:
            worker.samples.append(progress.sample)
        self._last_sign = asyncio.get_running_loop().time()
        entry = {"step": progress.step - 1, "role": progress.role, "seconds": progress.seconds, **progress.values}
        self._metrics.write(json.dumps(entry) + "\n")
        if progress.primary or self._beat.step < 0 or not self._beat.primary:
            step, values, seconds = progress.step, progress.values, progress.seconds
            self._beat = frames.Beat(step, values, seconds, progress.primary, self._beat.copied)

    async def _keep_recording(self, worker: WorkerProcess, recorded: messages.Recorded) -> None:
        """Keep a worker's recording, which outlives the worker here."""
        try:
            url = await self._recordings.keep(recorded.digest, f"/proc/{worker.child.pid}/fd/{recorded.fd}")
        except OSError as error:
            log.warning("%s: a recording cannot be kept: %s", self.spec.machine, error)
            url = ""
        self._report(frames.Relayed(worker.uid, msgspec.structs.replace(recorded, url=url, fd=-1)))

    async def _keep_copy(self, recorded: messages.Recorded) -> None:
        """Keep a copy of another machine's recording, which outlives that machine here."""
        try:
            url = await self._recordings.fetch(recorded, self.spec.worker.settings.standbys.recordings)
        except (OSError, aiohttp.ClientError, ValueError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            log.warning("%s: no copy of role %d's recording: %s", self.spec.machine, recorded.role, why)
            url = ""
        self._report(frames.KeptCopy(msgspec.structs.replace(recorded, url=url)))

    def _worker_exited(self, worker: WorkerProcess, code: int) -> None:
        self._report(frames.Exited(worker.uid, code, "\n".join(worker.last_lines)))


async def _main(spec: AgentSpec, *, forks: bool) -> int:
    loop = asyncio.get_running_loop()
    server = ForkClient.fork() if forks else await ForkClient.open(PRELOAD, env=spec.env)
    agent = Agent(spec, server, lambda text: print(f"{text}\n", end="", flush=True))
    for number in (signal.SIGINT, END):
        loop.add_signal_handler(number, agent.end)
    loop.add_signal_handler(signal.SIGTERM, agent.terminated)
    loop.add_signal_handler(NOTICE, agent.leave, "its launcher was told to go by SIGTERM")
    await agent.run()
    return agent.code


def _live(spec: bytes, *, forks: bool) -> NoReturn:
    show_log()
    code = asyncio.run(_main(msgspec.json.decode(spec, type=AgentSpec), forks=forks))
    sys.stdout.flush()
    os._exit(code)  # nothing is left to put away, and other processes may be training on these cores


def forked(connection: int, spec: bytes) -> NoReturn:
    """Run an agent in a fork of a process that has imported `PRELOAD`; workers are forks of it in turn."""
    os.close(connection)
    for name in ("torch", "numpy.random"):  # random numbers without a seed differ from machine to machine
        if name in sys.modules:
            sys.modules[name].seed()
    _live(spec, forks=True)


def main() -> None:
    """`python -m understudy.agent.agent`: the spec comes on standard input."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True, help="end when this process does")
    die_with_parent(parser.parse_args().parent)
    _live(sys.stdin.buffer.read(), forks=False)


if __name__ == "__main__":
    main()
