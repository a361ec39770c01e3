"""Where machines come from when the job asks for them: started here, invited, or brought by a command of the user's.

None of them is on training's path: the launcher calls them, and a machine counts once its agent has registered.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Protocol

from understudy.host.temporary import nameless

LIMIT_S = 60.0
"""For one run of a command: it is to hand the request on, not to wait for the machine."""
FIRST_S, LONGEST_S = 5.0, 300.0
"""Until a command that has failed is run again; twice as long each time."""
_WORDS = 200
"""Characters of what a failed command has said that are repeated."""

Say = Callable[[str], None]


class Provider(Protocol):
    """Brings machines and takes them back. Both return at once: whether a machine has come is seen when it registers,
    and machines that are dismissed end by themselves."""

    async def request(self, n: int) -> None:
        """Bring n machines more."""

    async def release(self, machine: str) -> None:
        """The job has dismissed this machine and does not need it any more."""

    async def close(self) -> None:
        """The job is over."""


class LocalProvider:
    """Machines are agents on this computer."""

    def __init__(self, start: Callable[[], Awaitable[object]]) -> None:
        self._start = start

    async def request(self, n: int) -> None:
        for _ in range(n):
            await self._start()

    async def release(self, machine: str) -> None:
        """Its agent ends by itself."""

    async def close(self) -> None:
        pass


class Invitation:
    """Nobody can be asked: whoever reads it is told what to type on another computer."""

    def __init__(self, invite: Callable[[int], None]) -> None:
        self._invite = invite

    async def request(self, n: int) -> None:
        self._invite(n)

    async def release(self, machine: str) -> None:
        """Its `understudy join` ends by itself."""

    async def close(self) -> None:
        pass


class CommandProvider:
    """A command of the user's, run as `CMD request N` and `CMD release NAME`. What it needs to know of the job is in
    its environment. It is run again where it fails, less and less often, until it succeeds or the job is over."""

    def __init__(
        self, command: str, env: Mapping[str, str], say: Say, *, limit: float = LIMIT_S, first: float = FIRST_S
    ) -> None:
        self._words, self._env, self._say, self._limit, self._first = shlex.split(command), env, say, limit, first
        self._tasks: set[asyncio.Task[None]] = set()

    async def request(self, n: int) -> None:
        self._begin("request", str(n))

    async def release(self, machine: str) -> None:
        self._begin("release", machine)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, *what: str) -> None:
        task = asyncio.ensure_future(self._insist(*what))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _insist(self, *what: str) -> None:
        pause, failed = self._first, False
        while why := await self._once(*what):
            self._say(f"{shlex.join([*self._words, *what])} {why}; tried again in {pause:g} s")
            failed = True
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_S)
        if failed:
            self._say(f"{shlex.join([*self._words, *what])} has succeeded now")

    async def _once(self, *what: str) -> str:
        """Run it once; what went wrong, if anything did. What it leaves running in the background may go on."""
        with nameless("") as out:
            try:
                process = await asyncio.create_subprocess_exec(
                    *(*self._words, *what),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=out,
                    stderr=asyncio.subprocess.STDOUT,
                    env={**os.environ, **self._env},
                    start_new_session=True,
                )
            except OSError as error:
                return f"cannot be run: {error.strerror}"
            try:
                await asyncio.wait_for(process.wait(), self._limit)
            except TimeoutError:
                return f"has not ended within {self._limit:g} s; let it hand the request on and return"
            finally:
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()
            out.seek(0)
            lines = out.read(1 << 16).decode(errors="replace").strip().splitlines()
        if not process.returncode:
            return ""
        words = f": {lines[-1][:_WORDS]}" if lines else ""
        return f"ended with exit code {process.returncode}{words}"
