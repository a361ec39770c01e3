"""One machine's agent: starts workers, sees them die, passes words on, and keeps in touch with the controller."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import aiohttp
import msgspec

from understudy.host.extensions import Extensions
from understudy.host.family import die_with_parent
from understudy.protocol.frames import (
    Ack,
    Beat,
    Dismiss,
    EndWorker,
    Exited,
    Frame,
    KeepCopy,
    KeptCopy,
    Leaving,
    Numbered,
    Order,
    Refused,
    Register,
    Relayed,
    Report,
    StartWorker,
    Stopped,
    Tell,
    Welcome,
)
from understudy.protocol.framing import MAX_MESSAGE, FramingError
from understudy.protocol.messages import (
    TO_AGENT,
    TO_WORKER,
    Copied,
    Done,
    ExtensionMessage,
    FromWorker,
    Progress,
    Recorded,
    Telemetry,
    Tracked,
    WorkerSpec,
)
from understudy.protocol.roster_delta import Seats
from understudy.protocol.samples import Sample
from understudy.protocol.sessions import Inbox, Outbox, sign_of_life_s

from .facts import facts_of
from .fork_client import ForkClient, ForkedWorker
from .library import Library

log = logging.getLogger("understudy.agent")

PRELOAD = ("torch", "torch.distributed", "torch.nn.parallel", "torch.optim", "understudy.worker.entry")
BEAT_S = 0.5
"""Between two signs of life."""
_AGAIN_S = 0.1
"""Between two attempts to reach the controller."""
_CONNECT_S = 3.0
"""How long one of them may take; in a network that was cut, a later one is the quicker way."""
_PING_S = 4.0
"""Of silence, at least, after which the controller is asked for a sign of life, to come in half of that."""
_TELL_S = 10.0
"""Without an answer from the controller, after which somebody should know."""
_GRACE_S = 3.0
"""How long workers that are told to end may take."""
_LAST_WORDS = 12
_SAMPLES = 64
"""Of each worker that are kept between two beats: the latest."""
AGAIN = 75
"""Exit code of an agent that was given up and may be started again."""
UNFIT = 78
"""Exit code of an agent whose machine cannot be part of the job; starting it again does not help."""
ABANDONED = 69
"""Exit code of an agent that has heard nothing of the job for so long that it must be over."""
NOTICE, END = signal.SIGUSR1, signal.SIGUSR2
"""From whoever has started an agent: this machine has to go soon, however often it is said; and end at once."""
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


class AgentSpec(msgspec.Struct, frozen=True):
    """What an agent has to know from the start."""

    machine: str
    incarnation: str
    standby: bool
    url: str
    """Of the controller."""
    worker: WorkerSpec
    """For all workers; each gets its own uid and slot."""
    run_dir: str
    cwd: str
    env: dict[str, str]
    patience: float = 0.0
    """Seconds without controller and training after which the job is over, as far as can be known; 0: never."""
    labels: dict[str, str] = {}


class WorkerProcess:
    """One worker, as the agent sees it."""

    def __init__(self, uid: str, slot: int, child: ForkedWorker) -> None:
        self.uid, self.slot, self.child = uid, slot, child
        self.role: int | None = None
        self.words: deque[str] = deque(maxlen=_LAST_WORDS)
        self.received = bytearray()
        """Bytes from the worker that are not a whole message yet."""
        self.done = False
        self.samples: deque[Sample] = deque(maxlen=_SAMPLES)
        self.stopped_at = 0.0
        """Since when a signal has stopped it, as far as was seen."""
        self.reported = False


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


class Agent:
    def __init__(self, spec: AgentSpec, nursery: ForkClient, show: Callable[[str], None]) -> None:
        self.spec = spec
        self._nursery = nursery
        self._show = show
        self._staff: dict[str, WorkerProcess] = {}
        self._outbox: Outbox[Report] = Outbox()
        self._inbox = Inbox()
        self._seats = Seats()
        self.connection: aiohttp.ClientWebSocketResponse | None = None
        self._unsent = asyncio.Event()
        self._sent = 0
        self._beat = Beat()
        self._over = asyncio.Event()
        self._known = False
        """Whether the controller has taken this machine in."""
        self._leaving = False
        """Whether this machine has to go soon, and the controller knows."""
        self.code = 0
        """With which this process is to end."""
        self._facts = facts_of(spec.worker)
        self._ping_s = sign_of_life_s(_PING_S, spec.worker.roles // spec.worker.nproc)
        self._last_sign = asyncio.get_running_loop().time()
        """When anything of the job was last seen: a word of the controller, or a step."""
        self._silent_since: float | None = None
        """Since when the controller cannot be reached."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._library = Library(spec.worker.host, spec.worker.secret)
        self._extensions = Extensions(spec.worker.extensions, "extend_agent", self)
        if spec.worker.extensions:
            log.warning("%s runs extensions: %s", spec.machine, ", ".join(spec.worker.extensions))
        self._metrics = (Path(spec.run_dir) / f"metrics-{spec.machine}.jsonl").open("a", buffering=1)

    async def run(self) -> None:
        """Until the controller dismisses this machine."""
        talk = asyncio.ensure_future(self._keep_in_touch())
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
            await self._nursery.close()
            for task in self._tasks:
                task.cancel()
            await self._library.close()
            self._metrics.close()

    # -- the controller ----------------------------------------------------------------------------------------------

    async def _keep_in_touch(self) -> None:
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
                await asyncio.sleep(_AGAIN_S)

    def _unreachable(self, error: Exception) -> None:
        """The controller may come back, and training goes on without it; but not for ever."""
        machine, url, now = self.spec.machine, self.spec.url, asyncio.get_running_loop().time()
        if self._silent_since is None:
            self._silent_since = now
        elif self._silent_since < now - _TELL_S:
            self._silent_since = float("inf")
            why = str(error) or type(error).__name__
            log.warning("%s: the controller at %s does not answer: %s; trying again and again", machine, url, why)
        if self.spec.patience and now - self._last_sign > self.spec.patience:
            log.error("%s: nothing seen of the job for %g s; it must be over", machine, self.spec.patience)
            self.code = ABANDONED
            self._over.set()

    async def _converse(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        spec = self.spec
        received, seated = self._inbox.last, self._seats.generation
        register = Register(spec.machine, spec.incarnation, spec.standby, received, self._facts, spec.labels, seated)
        await ws.send_bytes(_encoder.encode(register))
        sender: asyncio.Task[None] | None = None
        try:
            async for message in ws:
                if message.type != aiohttp.WSMsgType.BINARY:
                    continue
                frame = _decoder.decode(message.data)
                self._last_sign, self._silent_since = asyncio.get_running_loop().time(), None
                match frame:
                    case Welcome(received):
                        self._sent, self._known = received, True
                        self._unsent.set()
                        sender = asyncio.ensure_future(self._send(ws))
                    case Numbered(number, order, seating) if isinstance(order, Order):
                        complete = self._seats.seated(order, seating)
                        if self._inbox.take(number):
                            await self._carry_out(complete)
                        await ws.send_bytes(_encoder.encode(Ack(self._inbox.last)))
                    case Ack(number):
                        self._outbox.acknowledged(number)
                    case ExtensionMessage():
                        await self._pass_on(frame)
                    case Refused(reason, unfit):
                        log.warning("%s", reason if unfit else f"{spec.machine} is not wanted: {reason}")
                        self.code = UNFIT if unfit else 0
                        self._over.set()
                        return
        finally:
            if sender is not None:
                sender.cancel()
                await asyncio.gather(sender, return_exceptions=True)

    async def _send(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        """Reports as they come, beats in between."""
        while True:
            for number, report in self._outbox.after(0):
                if number > self._sent:
                    self._sent = number
                    await ws.send_bytes(_encoder.encode(Numbered(number, report)))
            self._unsent.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._unsent.wait(), BEAT_S)
            if not self._unsent.is_set():
                await ws.send_bytes(_encoder.encode(self._next_beat()))
                self._look_for_stopped()

    def _next_beat(self) -> Beat:
        samples = tuple(sample for staff in self._staff.values() for sample in staff.samples)
        for staff in self._staff.values():
            staff.samples.clear()
        return msgspec.structs.replace(self._beat, samples=samples) if samples else self._beat

    def _look_for_stopped(self) -> None:
        """A process that a signal has stopped neither ends nor says anything."""
        now = asyncio.get_running_loop().time()
        for staff in self._staff.values():
            if not _is_stopped(staff.child.pid):
                staff.stopped_at = 0.0
            elif not staff.stopped_at:
                staff.stopped_at = now
            elif now - staff.stopped_at > self.spec.worker.settings.recovery.answer_limit and not staff.reported:
                staff.reported = True
                self._report(Stopped(staff.uid, now - staff.stopped_at))

    async def _pass_on(self, message: ExtensionMessage) -> None:
        if (staff := self._staff.get(message.uid)) is not None:
            with suppress(OSError):
                await asyncio.get_running_loop().sock_sendall(staff.child.line, TO_WORKER.encode(message))
        elif not message.uid:
            self._extensions.hear(message)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _report(self, report: Report) -> None:
        self._outbox.put(report)
        self._unsent.set()

    # -- leaving -------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """At once, with all workers; for the others it is a failure."""
        self._over.set()

    def terminated(self) -> None:
        """SIGTERM: whoever runs this machine takes it away. A second one does not wait."""
        if self._leaving:
            self.end()
        else:
            self.leave("it was told to go by SIGTERM")

    def leave(self, why: str) -> None:
        """Let somebody take this machine's place before it goes; once."""
        if self._leaving:
            return
        if not self._known:
            self.end()  # nobody counts on it
            return
        self._leaving = True
        grace = self.spec.worker.settings.replacement.grace
        self._report(Leaving(grace, why))
        asyncio.get_running_loop().call_later(grace, self.end)

    # -- orders --------------------------------------------------------------------------------------------------------

    async def _carry_out(self, order: Order) -> None:
        match order:
            case StartWorker(uid, slot):
                await self._start(uid, slot)
            case Tell(uid, message):
                staff = self._staff.get(uid)
                if staff is not None:
                    with suppress(OSError):
                        await asyncio.get_running_loop().sock_sendall(staff.child.line, TO_WORKER.encode(message))
            case EndWorker(uid):
                if (staff := self._staff.get(uid)) is not None:
                    staff.child.kill(signal.SIGKILL)
            case KeepCopy(recorded):
                self._later(self._keep_copy(recorded))
            case Dismiss(_, again):
                self.code = AGAIN if again and not self._leaving else 0
                task = asyncio.ensure_future(self._end())
                self._tasks.add(task)

    async def _start(self, uid: str, slot: int) -> None:
        spec = self.spec
        worker = msgspec.structs.replace(spec.worker, uid=uid, slot=slot, machine=spec.machine)
        words: deque[str] = deque(maxlen=_LAST_WORDS)

        def output(line: bytes, stream: str) -> None:
            text = line.decode(errors="replace").rstrip("\n")
            if stream == "stderr" and text.strip():
                words.append(text)
            staff = self._staff.get(uid)
            role = f"role {staff.role}" if staff is not None and staff.role is not None else uid
            self._show(f"[{spec.machine} {role}] {text}")

        child = await self._nursery.spawn(
            target="understudy.worker.entry:main",
            spec=msgspec.msgpack.encode(worker),
            env=spec.env,
            cwd=spec.cwd,
            on_output=output,
        )
        staff = self._staff[uid] = WorkerProcess(uid, slot, child)
        staff.words = words
        asyncio.get_running_loop().add_reader(child.line, self._read, staff)
        self._later(self._await_end(staff))

    def _read(self, staff: WorkerProcess) -> None:
        """What a worker says, until it has no more to say."""
        try:
            data = staff.child.line.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(staff.child.line)
            return
        try:
            staff.received += data
            for message in TO_AGENT.split(staff.received):
                self._heed(staff, message)
        except FramingError as error:
            log.error("%s on %s: %s", staff.uid, self.spec.machine, error)
            asyncio.get_running_loop().remove_reader(staff.child.line)
            staff.child.kill(signal.SIGKILL)

    def _heed(self, staff: WorkerProcess, message: FromWorker | Telemetry) -> None:
        if isinstance(message, Copied):
            self._beat = msgspec.structs.replace(self._beat, copied=message)
            return
        if isinstance(message, Progress):
            staff.role = message.role
            if message.sample is not None:
                staff.samples.append(message.sample)
            self._last_sign = asyncio.get_running_loop().time()
            self._metrics.write(
                json.dumps(
                    {"step": message.step - 1, "role": message.role, "seconds": message.seconds, **message.values}
                )
                + "\n"
            )
            if message.primary or self._beat.step < 0 or not self._beat.primary:
                self._beat = Beat(message.step, message.values, message.seconds, message.primary, self._beat.copied)
            return
        if isinstance(message, Tracked):
            staff.role = message.role
        elif isinstance(message, Done):
            staff.done = True
        elif isinstance(message, Recorded) and message.digest:
            self._later(self._keep_recording(staff, message))
            return
        self._report(Relayed(staff.uid, message))

    async def _keep_recording(self, staff: WorkerProcess, recorded: Recorded) -> None:
        """It outlives its worker here."""
        try:
            url = await self._library.keep(recorded.digest, f"/proc/{staff.child.pid}/fd/{recorded.fd}")
        except OSError as error:
            log.warning("%s: a recording cannot be kept: %s", self.spec.machine, error)
            url = ""
        self._report(Relayed(staff.uid, msgspec.structs.replace(recorded, url=url, fd=-1)))

    async def _keep_copy(self, recorded: Recorded) -> None:
        """It outlives its machine here."""
        try:
            url = await self._library.fetch(recorded, self.spec.worker.settings.standbys.recordings)
        except (OSError, aiohttp.ClientError, ValueError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            log.warning("%s: no copy of role %d's recording: %s", self.spec.machine, recorded.role, why)
            url = ""
        self._report(KeptCopy(msgspec.structs.replace(recorded, url=url)))

    async def _await_end(self, staff: WorkerProcess) -> None:
        code = await staff.child.exited
        loop = asyncio.get_running_loop()
        for _ in range(10_000):
            try:
                data = staff.child.line.recv(1 << 16)
            except OSError:
                break
            if not data:
                break
            with suppress(FramingError):
                staff.received += data
            for message in TO_AGENT.split(staff.received):
                self._heed(staff, message)
        loop.remove_reader(staff.child.line)
        staff.child.line.close()
        self._staff.pop(staff.uid, None)
        self._report(Exited(staff.uid, code, "\n".join(staff.words)))

    async def _end(self) -> None:
        """Let workers that are done end by themselves, end the others, then this agent."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _GRACE_S
        for staff in self._staff.values():
            if not staff.done:
                staff.child.kill(signal.SIGKILL)
        while self._staff and loop.time() < deadline:
            await asyncio.sleep(0.01)
        self._over.set()


async def _main(spec: AgentSpec, *, forks: bool) -> int:
    loop = asyncio.get_running_loop()
    nursery = ForkClient.fork() if forks else await ForkClient.open(PRELOAD, env=spec.env)

    def show(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    agent = Agent(spec, nursery, show)
    for number in (signal.SIGINT, END):
        loop.add_signal_handler(number, agent.end)
    loop.add_signal_handler(signal.SIGTERM, agent.terminated)
    loop.add_signal_handler(NOTICE, agent.leave, "its launcher was told to go by SIGTERM")
    await agent.run()
    return agent.code


def _live(spec: bytes, *, forks: bool) -> NoReturn:
    logging.basicConfig(level=logging.WARNING, format="understudy: %(message)s")
    code = asyncio.run(_main(msgspec.json.decode(spec, type=AgentSpec), forks=forks))
    sys.stdout.flush()
    os._exit(code)  # there is nothing left to put away, and others may be training on these cores


def forked(line: int, spec: bytes) -> NoReturn:
    """An agent that is a fork of a process with `PRELOAD` and this module in it: what it has, its workers have."""
    os.close(line)
    for name in ("torch", "numpy.random"):  # random numbers that nobody has seeded differ from machine to machine
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
