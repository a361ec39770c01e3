"""Agents on this computer, as whoever has started them sees them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from understudy.agent.agent import PRELOAD, AgentSpec
from understudy.agent.fork_client import ForkClient, ForkedWorker

Say = Callable[[str], None]
"""What is done with a line that a process has written."""


class AgentProcess(Protocol):
    """An agent's process."""

    words: str
    """The last line it has written."""

    @property
    def pid(self) -> int: ...

    def kill(self, number: int = signal.SIGKILL) -> None: ...

    async def wait(self) -> int: ...


class Program:
    """A Python process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, say: Say) -> None:
        self._process, self._say = process, say
        self.words = ""
        self._told = asyncio.ensure_future(self._listen())

    @classmethod
    async def start(cls, module: str, spec: msgspec.Struct, say: Say, *args: str, fd: int | None = None) -> Program:
        """Runs a module of this package, which reads the spec from its standard input."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, "--parent", str(os.getpid()), *args),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            limit=1 << 20,
            pass_fds=() if fd is None else (fd,),
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(spec))
        process.stdin.close()
        return cls(process, say)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self, number: int = signal.SIGKILL) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def wait(self) -> int:
        """Its exit code, once everything that it has written was shown."""
        await asyncio.shield(self._told)
        return await self._process.wait()

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:
                continue  # an endless line
            if not line:
                return
            text = line.decode(errors="replace").rstrip("\n")
            self.words = text or self.words
            self._say(text)


class Fork:
    """An agent that was forked from a process with everything in it."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._child: ForkedWorker | None = None
        self.words = ""

    @classmethod
    async def start(cls, nursery: ForkClient, spec: AgentSpec, say: Say) -> Fork:
        fork = cls(say)
        fork._child = await nursery.spawn(
            "understudy.agent.agent:forked",
            msgspec.json.encode(spec),
            env=os.environ,
            cwd=str(Path.cwd()),
            on_output=fork._hear,
        )
        fork._child.line.close()
        return fork

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self._child is not None
        self._child.kill(number)

    async def wait(self) -> int:
        assert self._child is not None
        return await self._child.exited

    def _hear(self, line: bytes, stream: str) -> None:
        text = line.decode(errors="replace")
        self.words = text or self.words
        self._say(text)


async def nursery(env: Mapping[str, str]) -> ForkClient:
    """Where agents are forked that begin together: what they import, they import once."""
    return await ForkClient.open([*PRELOAD, "understudy.agent.agent"], env=env)
