"""The workers of a machine: starts their processes, passes messages on, and sees them stop and end."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from understudy.host.tasks import BackgroundTasks
from understudy.protocol.framing import FramingError
from understudy.protocol.messages import TO_AGENT, TO_WORKER, ExtensionMessage, FromWorker, Telemetry, ToWorker
from understudy.protocol.samples import Sample

from .fork_client import ForkClient, ForkedWorker
from .output import Bars
from .spec import AgentSpec

log = logging.getLogger("understudy.agent")

_LAST_LINES = 12
"""Lines of a worker's standard error that are reported with its end."""
_LIVE_S, _BAR_S = 0.5, 30.0
"""Time between two states of a progress bar that are shown: on a live screen, and as lines of a log."""
_SAMPLES = 64
"""The latest samples of each worker that are kept between two beats."""
_GRACE_S = 3.0
"""Time for workers to end."""


class WorkerProcess:
    """One worker, as the agent sees it."""

    def __init__(self, uid: str, slot: int, child: ForkedWorker, last_lines: deque[str] | None = None) -> None:
        self.uid, self.slot, self.child = uid, slot, child
        self.role: int | None = None
        self.last_lines = deque(maxlen=_LAST_LINES) if last_lines is None else last_lines
        self.received = bytearray()
        """Bytes from the worker that are not a whole message yet."""
        self.done = False
        """Whether the training function has returned."""
        self.samples: deque[Sample] = deque(maxlen=_SAMPLES)
        self.stopped_at = 0.0
        """When a signal was first seen to have stopped the worker; 0: it runs."""
        self.reported = False
        """Whether the controller knows that the worker is stopped."""


class Workers:
    """Starts and ends workers. `on_message` gets their messages, `on_exit` an ended worker and its exit code."""

    def __init__(
        self,
        spec: AgentSpec,
        server: ForkClient,
        show: Callable[[str], None],
        *,
        on_message: Callable[[WorkerProcess, FromWorker | Telemetry], None],
        on_exit: Callable[[WorkerProcess, int], None],
    ) -> None:
        self._spec, self._server, self._show = spec, server, show
        self._on_message, self._on_exit = on_message, on_exit
        self._running: dict[str, WorkerProcess] = {}
        self._tasks = BackgroundTasks()

    async def start(self, uid: str, slot: int) -> None:
        spec = self._spec
        own = msgspec.structs.replace(spec.worker, uid=uid, slot=slot, machine=spec.machine)
        last_lines: deque[str] = deque(maxlen=_LAST_LINES)

        def writer() -> str:
            worker = self._running.get(uid)
            role = f"role {worker.role}" if worker is not None and worker.role is not None else uid
            return f"[{spec.machine} {role}]"

        drawn = writer()

        def output(line: bytes, stream: str) -> None:
            text = line.decode(errors="replace")
            if stream == "stderr" and text.strip():
                last_lines.append(text)
            self._show(f"{writer()} {text}")

        def changing(state: bytes, stream: str) -> None:
            nonlocal drawn
            if spec.live and drawn != writer():
                self._show(f"{drawn} \r")  # it was drawn under the name that the worker had before its role
            drawn = writer()
            self._show(f"{drawn} {state.decode(errors='replace').rstrip()}" + ("\r" if spec.live else ""))

        child = await self._server.spawn(
            target="understudy.worker.entry:main",
            spec=msgspec.msgpack.encode(own),
            env=spec.env,
            cwd=spec.cwd,
            on_output=output,
            bars=Bars(changing, _LIVE_S if spec.live else _BAR_S),
        )
        worker = self._running[uid] = WorkerProcess(uid, slot, child, last_lines)
        asyncio.get_running_loop().add_reader(child.connection, self._read, worker)
        self._tasks.start(self._await_end(worker))

    async def send(self, uid: str, message: ToWorker | ExtensionMessage) -> None:
        """Send a message to a worker; nothing happens if the worker has ended."""
        if (worker := self._running.get(uid)) is not None:
            with suppress(OSError):
                await asyncio.get_running_loop().sock_sendall(worker.child.connection, TO_WORKER.encode(message))

    def kill(self, uid: str) -> None:
        if (worker := self._running.get(uid)) is not None:
            worker.child.kill(signal.SIGKILL)

    async def end(self) -> None:
        """Let workers that are done end by themselves, and kill the others."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _GRACE_S
        for worker in self._running.values():
            if not worker.done:
                worker.child.kill(signal.SIGKILL)
        while self._running and loop.time() < deadline:
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        await self._tasks.cancel()

    def take_samples(self) -> tuple[Sample, ...]:
        samples = tuple(sample for worker in self._running.values() for sample in worker.samples)
        for worker in self._running.values():
            worker.samples.clear()
        return samples

    def newly_stopped(self, limit: float) -> Iterator[tuple[str, float]]:
        """Workers that a signal has stopped for longer than `limit` seconds, once each, and for how long.

        A process that is stopped neither ends nor says anything."""
        now = asyncio.get_running_loop().time()
        for worker in self._running.values():
            if not _is_stopped(worker.child.pid):
                worker.stopped_at = 0.0
            elif not worker.stopped_at:
                worker.stopped_at = now
            elif now - worker.stopped_at > limit and not worker.reported:
                worker.reported = True
                yield worker.uid, now - worker.stopped_at

    def _read(self, worker: WorkerProcess) -> None:
        try:
            data = worker.child.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(worker.child.connection)
            return
        try:
            self._take(worker, data)
        except FramingError as error:
            log.error("%s on %s: %s", worker.uid, self._spec.machine, error)
            asyncio.get_running_loop().remove_reader(worker.child.connection)
            worker.child.kill(signal.SIGKILL)

    def _take(self, worker: WorkerProcess, data: bytes) -> None:
        worker.received += data
        for message in TO_AGENT.split(worker.received):
            self._on_message(worker, message)

    async def _await_end(self, worker: WorkerProcess) -> None:
        code = await worker.child.exited
        for _ in range(10_000):
            try:
                data = worker.child.connection.recv(1 << 16)
            except OSError:
                break
            if not data:
                break
            with suppress(FramingError):
                self._take(worker, data)
        asyncio.get_running_loop().remove_reader(worker.child.connection)
        worker.child.connection.close()
        self._running.pop(worker.uid, None)
        self._on_exit(worker, code)


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False
