"""Recordings that workers of this machine have made, for newcomers on others."""

from __future__ import annotations

import asyncio
import os
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiohttp import web

_CHUNK = 1 << 20


class Library:
    """Serves them over HTTP to whoever has the job's secret; the first one that is kept opens it. The files have no
    names: they are gone when the agent is, however it ends."""

    def __init__(self, host: str, secret: bytes) -> None:
        self._host = host
        self._token = f"Bearer {secret.hex()}".encode()
        self._files: dict[str, int] = {}
        self._runner: web.AppRunner | None = None
        self._opening = asyncio.Lock()
        self._port = 0

    async def keep(self, digest: str, path: str) -> str:
        """Take over a worker's file. Returns where others find it."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if digest in self._files:
            os.close(fd)
        else:
            self._files[digest] = fd
        async with self._opening:
            if self._runner is None:
                await self._open()
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}/recordings/{digest}"

    async def _open(self) -> None:
        from aiohttp import web  # most agents never need it

        app = web.Application()
        app.router.add_get("/recordings/{digest}", self._give)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, 0)
        await site.start()
        self._port = int(self._runner.addresses[0][1])

    async def _give(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        token = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if not secrets.compare_digest(token, self._token):
            return web.Response(status=401, text="the job's secret is needed")
        fd = self._files.get(request.match_info["digest"])
        if fd is None:
            return web.Response(status=404, text="there is no such recording here")
        size = os.fstat(fd).st_size
        response = web.StreamResponse(headers={"Content-Length": str(size)})
        await response.prepare(request)
        for offset in range(0, size, _CHUNK):
            await response.write(os.pread(fd, _CHUNK, offset))
        await response.write_eof()
        return response

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()
