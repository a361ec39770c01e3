"""Recordings of this machine's workers, and copies of other machines' recordings, for joiners to rehearse with."""

from __future__ import annotations

import asyncio
import os
import secrets
from typing import IO, TYPE_CHECKING

import aiohttp
import xxhash

from understudy.host.temporary import nameless
from understudy.protocol.messages import Recorded

if TYPE_CHECKING:
    from aiohttp import web

_CHUNK = 1 << 20
_FETCH = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=60.0)


class RecordingStore:
    """Keeps recordings and serves them over HTTP to clients with the job's secret. Listens from the first recording on.

    The files have no names: they are gone when the agent is, however it ends."""

    def __init__(self, host: str, secret: bytes) -> None:
        self._host = host
        self._token = f"Bearer {secret.hex()}".encode()
        self._files: dict[str, int] = {}
        self._runner: web.AppRunner | None = None
        self._opening = asyncio.Lock()
        self._port = 0

    async def keep(self, digest: str, path: str) -> str:
        """Take over a worker's file. Returns its URL."""
        self._put(digest, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        return await self._address(digest)

    async def fetch(self, recorded: Recorded, folder: str) -> str:
        """Keep a copy of another machine's recording. Returns its URL; raises if the copy fails or is damaged."""
        if recorded.digest not in self._files:
            with nameless(folder) as file:
                await self._download(recorded, file)
                self._put(recorded.digest, os.dup(file.fileno()))
        return await self._address(recorded.digest)

    async def _download(self, recorded: Recorded, file: IO[bytes]) -> None:
        headers, digest, size = {"Authorization": self._token.decode()}, xxhash.xxh3_128(), 0
        async with (
            aiohttp.ClientSession(headers=headers, timeout=_FETCH, raise_for_status=True) as session,
            session.get(recorded.url) as answer,
        ):
            async for data in answer.content.iter_chunked(_CHUNK):
                size += len(data)
                if size > recorded.bytes:
                    break
                file.write(data)
                digest.update(data)
        file.flush()
        if size != recorded.bytes or digest.hexdigest() != recorded.digest:
            raise ValueError("the recording that came is not the one that was asked for")

    def _put(self, digest: str, fd: int) -> None:
        if digest in self._files:
            os.close(fd)
        else:
            self._files[digest] = fd

    async def _address(self, digest: str) -> str:
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
        return web.FileResponse(f"/proc/self/fd/{fd}")  # the file has no other name

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()
