"""Sources of machines: processes on this computer, a command of the user's, or a person who reads an invitation.

A job asks its source for machines and releases them; a machine counts once its agent has registered. No source is on
the path of training.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from understudy.host.tasks import BackgroundTasks
from understudy.host.temporary import nameless

LIMIT_S = 60.0
"""Time limit for one run of a command: the command passes the request on and does not wait for the machine."""
FIRST_S, LONGEST_S = 5.0, 300.0
"""Pause before a failed command is run again: at first, and at most. The pause doubles after each failure."""
_SHOWN = 200
"""Characters of a failed command's last line that are repeated."""

Say = Callable[[str], None]


class CalledMachines:
    """A call brings machines: it starts agents on this computer, or tells the user what to type on another one.

    A released machine needs nothing more."""

    def __init__(self, bring: Callable[[int], Awaitable[object]]) -> None:
        self._bring = bring

    async def start(self, count: int) -> None:
        """Bring so many more machines; each registers with the controller when it is there."""
        await self._bring(count)

    async def release(self, machine: str) -> None:
        """Take back a machine that the job has dismissed. Its agent ends by itself."""

    async def close(self) -> None:
        """The job is over."""


class CommandMachines:
    """A command of the user's brings machines: `CMD request N` and `CMD release NAME`.

    The environment of the command describes the job. A command that fails is run again, less and less often, until it
    succeeds or the job is over.
    """

    def __init__(
        self, command: str, env: Mapping[str, str], say: Say, *, limit: float = LIMIT_S, first: float = FIRST_S
    ) -> None:
        self._command, self._env, self._say, self._limit, self._first = shlex.split(command), env, say, limit, first
        self._tasks = BackgroundTasks()

    async def start(self, count: int) -> None:
        self._tasks.start(self._run_until_success("request", str(count)))

    async def release(self, machine: str) -> None:
        self._tasks.start(self._run_until_success("release", machine))

    async def close(self) -> None:
        await self._tasks.cancel()

    async def _run_until_success(self, *arguments: str) -> None:
        pause, failed = self._first, False
        while why := await self._run_once(*arguments):
            self._say(f"{shlex.join([*self._command, *arguments])} {why}; tried again in {pause:g} s")
            failed = True
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_S)
        if failed:
            self._say(f"{shlex.join([*self._command, *arguments])} has succeeded now")

    async def _run_once(self, *arguments: str) -> str:
        """Run the command once; returns what went wrong, if anything did. Its background processes may go on."""
        with nameless("") as out:
            try:
                process = await asyncio.create_subprocess_exec(
                    *(*self._command, *arguments),
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
        last = f": {lines[-1][:_SHOWN]}" if lines else ""
        return f"ended with exit code {process.returncode}{last}"


MachineSource = CalledMachines | CommandMachines
"""Starts machines and takes them back: `start` and `release` return without waiting for the machine."""
