"""A command of the user's as the source of machines. A machine counts once its agent has registered."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import Callable, Mapping
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


class CommandMachines:
    """A command that is run as `CMD request N` and `CMD release NAME`; its environment describes the job.

    A command that fails is run again, less and less often, until it succeeds or the job is over.
    """

    def __init__(
        self, command: str, env: Mapping[str, str], say: Say, *, limit: float = LIMIT_S, first: float = FIRST_S
    ) -> None:
        self._command, self._env, self._say, self._limit, self._first = shlex.split(command), env, say, limit, first
        self._tasks = BackgroundTasks()

    def request(self, count: int) -> None:
        self._tasks.start(self._run_until_success("request", str(count)))

    def release(self, machine: str) -> None:
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
