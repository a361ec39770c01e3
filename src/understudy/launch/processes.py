"""The processes of a job on this computer, as the launcher sees them."""

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

from understudy.agent.fork_client import ForkClient, ForkedWorker
from understudy.agent.spec import PRELOAD, AgentSpec

OnLine = Callable[[str], None]
"""Called with each line that a process writes."""


class AgentProcess(Protocol):
    """The process of an agent."""

    last_line: str
    """The last line that the process has written."""

    @property
    def pid(self) -> int: ...

    def kill(self, number: int = signal.SIGKILL) -> None: ...

    async def wait(self) -> int:
        """The exit code, once all output was passed on."""


class ModuleProcess:
    """A Python process that runs a module of this package."""

    def __init__(self, process: asyncio.subprocess.Process, on_line: OnLine) -> None:
        self._process, self._on_line = process, on_line
        self.last_line = ""
        self._read = asyncio.ensure_future(self._read_output())

    @classmethod
    async def start(
        cls, module: str, spec: msgspec.Struct, on_line: OnLine, *args: str, fd: int | None = None
    ) -> ModuleProcess:
        """Start the module, which reads the spec from its standard input and inherits the descriptor `fd`."""
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
        return cls(process, on_line)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self, number: int = signal.SIGKILL) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def wait(self) -> int:
        await asyncio.shield(self._read)
        return await self._process.wait()

    async def _read_output(self) -> None:
        assert self._process.stdout is not None
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:
                continue  # an endless line
            if not line:
                return
            text = line.decode(errors="replace").rstrip("\n")
            self.last_line = text or self.last_line
            self._on_line(text)


class ForkedAgent:
    """An agent that is forked from a fork server, which has imported all that workers need."""

    def __init__(self, on_line: OnLine) -> None:
        self._on_line = on_line
        self._child: ForkedWorker | None = None
        self.last_line = ""

    @classmethod
    async def start(cls, server: ForkClient, spec: AgentSpec, on_line: OnLine) -> ForkedAgent:
        agent = cls(on_line)
        agent._child = await server.spawn(
            "understudy.agent.agent:forked",
            msgspec.json.encode(spec),
            env=os.environ,
            cwd=str(Path.cwd()),
            on_output=agent._pass_on,
        )
        agent._child.connection.close()
        return agent

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

    def _pass_on(self, line: bytes, stream: str) -> None:
        text = line.decode(errors="replace")
        self.last_line = text or self.last_line
        self._on_line(text)


async def agents_server(env: Mapping[str, str]) -> ForkClient:
    """A fork server for agents that begin together: the modules are imported once for all of them."""
    return await ForkClient.open([*PRELOAD, "understudy.agent.agent"], env=env)
