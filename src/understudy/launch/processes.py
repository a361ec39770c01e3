"""The processes of a job on this computer, as the launcher sees them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from understudy.agent.fork_client import ForkClient, ForkedWorker
from understudy.agent.spec import AgentSpec

OnLine = Callable[[str], None]
"""Called with each line that a process writes."""


async def start_module(module: str, spec: msgspec.Struct, *args: str, **options: Any) -> asyncio.subprocess.Process:
    """Start a module of this package, which reads the spec from its standard input and ends with this process."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, "--parent", str(os.getpid()), *args),
        stdin=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for this process to pass on
        **options,
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(spec))
    process.stdin.close()
    return process


class ModuleProcess:
    """A Python process that runs a module of this package. Its output goes to `on_line`."""

    def __init__(self, process: asyncio.subprocess.Process, on_line: OnLine) -> None:
        self.pid = process.pid
        self._process, self._on_line = process, on_line
        self._exited = asyncio.ensure_future(self._run())

    @classmethod
    async def start(
        cls, module: str, spec: msgspec.Struct, on_line: OnLine, *args: str, fd: int | None = None
    ) -> ModuleProcess:
        """Start the module, which inherits the descriptor `fd`."""
        pipe, same = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
        fds = () if fd is None else (fd,)
        process = await start_module(module, spec, *args, stdout=pipe, stderr=same, limit=1 << 20, pass_fds=fds)
        return cls(process, on_line)

    @property
    def exited(self) -> asyncio.Future[int]:
        """The exit code, once all output was passed on. Each call returns a future of its own, which may be
        cancelled."""
        return asyncio.shield(self._exited)

    def kill(self, number: int = signal.SIGKILL) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def _run(self) -> int:
        """Pass on the output. Returns the exit code."""
        assert self._process.stdout is not None
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:
                continue  # an endless line
            if not line:
                return await self._process.wait()
            self._on_line(line.decode(errors="replace").rstrip("\n"))


AgentProcess = ModuleProcess | ForkedWorker


async def fork_agent(server: ForkClient, spec: AgentSpec, on_line: OnLine) -> ForkedWorker:
    """Fork an agent from a server that has imported all that workers need."""
    child = await server.spawn(
        "understudy.agent.agent:forked",
        msgspec.json.encode(spec),
        env=os.environ,
        cwd=str(Path.cwd()),
        on_output=lambda line, stream: on_line(line.decode(errors="replace")),
    )
    child.connection.close()
    return child
