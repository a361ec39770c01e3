"""The store of recordings: it serves copies, and only to requests with the job's secret."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO, TypeVar

import aiohttp
import pytest
import xxhash

from understudy.agent.recordings import RecordingStore
from understudy.protocol.messages import Recorded

T = TypeVar("T")
SECRET = b"the secret of this job"
TOKEN = {"Authorization": f"Bearer {SECRET.hex()}"}


def with_store(use: Callable[[RecordingStore], Awaitable[T]]) -> T:
    async def live() -> T:
        store = RecordingStore("127.0.0.1", SECRET)
        try:
            return await asyncio.wait_for(use(store), 20)
        finally:
            await store.close()

    return asyncio.run(live())


def nameless(content: bytes) -> IO[bytes]:
    """A file as a worker has it: open, and nowhere in the file system."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
    file.write(content)
    file.flush()
    return file


def path_of(file: IO[bytes]) -> str:
    return f"/proc/{os.getpid()}/fd/{file.fileno()}"


async def get(url: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers=TOKEN if headers is None else headers) as it,
    ):
        return it.status, await it.read()


def files_open() -> list[str]:
    """Nameless files that this process has open, and how often."""
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(fd.readlink()))
        except OSError:
            continue
    return sorted(name for name in found if name.endswith("(deleted)"))


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_500_000])
def test_content_arrives_as_it_was(size: int) -> None:
    content = os.urandom(size)

    async def use(store: RecordingStore) -> None:
        with nameless(content) as file:
            url = await store.keep("abc", path_of(file))
        assert url.endswith("/recordings/abc")
        for _ in range(2):
            assert await get(url) == (200, content)  # the worker that has made it is gone

    with_store(use)


def test_only_the_secret_opens_it() -> None:
    async def use(store: RecordingStore) -> None:
        with nameless(b"content") as file:
            url = await store.keep("abc", path_of(file))
        wrong = ["", "Bearer ", "Bearer 00", f"Bearer {SECRET.hex()}0", SECRET.hex(), "Bearer \N{SNOWMAN}", "Bearer ü"]
        for headers in ({}, *({"Authorization": token} for token in wrong)):
            status, told = await get(url, headers)
            assert status == 401
            assert b"content" not in told
            assert (await get(url.replace("abc", "def"), headers))[0] == 401
        assert await get(url) == (200, b"content")

    with_store(use)


@pytest.mark.parametrize("other", ["def", "ab", "abcd", "", "..%2Fabc", "abc/abc"])
def test_what_is_not_there(other: str) -> None:
    async def use(store: RecordingStore) -> None:
        with nameless(b"content") as file:
            url = await store.keep("abc", path_of(file))
        assert (await get(url.removesuffix("abc") + other))[0] == 404

    with_store(use)


def test_many_at_once() -> None:
    """They are all at one address, which was opened once."""

    async def use(store: RecordingStore) -> None:
        contents = {f"digest{number}": os.urandom(1000 + number) for number in range(20)}
        files = {digest: nameless(content) for digest, content in contents.items()}
        urls = await asyncio.gather(*(store.keep(digest, path_of(file)) for digest, file in files.items()))
        for file in files.values():
            file.close()
        assert len({url.rpartition("/")[0] for url in urls}) == 1
        found = await asyncio.gather(*(get(url) for url in urls))
        assert found == [(200, content) for content in contents.values()]

    with_store(use)


def test_the_same_content_twice() -> None:
    before = files_open()

    async def use(store: RecordingStore) -> None:
        with nameless(b"content") as file, nameless(b"content") as twin:
            urls = await asyncio.gather(*(store.keep("abc", path_of(each)) for each in (file, twin, file)))
        assert len(set(urls)) == 1
        assert len(files_open()) == len(before) + 1
        assert await get(urls[0]) == (200, b"content")

    with_store(use)


def test_a_worker_that_is_gone_already() -> None:
    async def use(store: RecordingStore) -> None:
        with nameless(b"content") as file:
            path = path_of(file)
        with pytest.raises(FileNotFoundError):
            await store.keep("abc", path)
        with nameless(b"more") as file:
            assert await get(await store.keep("abc", path_of(file))) == (200, b"more")

    with_store(use)


def test_nothing_stays_open() -> None:
    before = files_open()

    async def use(store: RecordingStore) -> str:
        for number in range(3):
            with nameless(b"content") as file:
                url = await store.keep(str(number), path_of(file))
        assert len(files_open()) == len(before) + 3
        return url

    url = with_store(use)
    assert files_open() == before
    with pytest.raises(aiohttp.ClientConnectionError):
        asyncio.run(get(url))


def test_one_that_has_kept_nothing_closes() -> None:
    async def use(store: RecordingStore) -> None:
        await store.close()

    with_store(use)


def test_a_house_with_another_kind_of_address() -> None:
    async def use() -> None:
        store = RecordingStore("::1", SECRET)
        try:
            with nameless(b"content") as file:
                url = await store.keep("abc", path_of(file))
            assert url.startswith("http://[::1]:")
            assert await get(url) == (200, b"content")
        except OSError as error:
            pytest.skip(f"this computer has no such address: {error}")
        finally:
            await store.close()

    asyncio.run(use())


# -- copies ------------------------------------------------------------------------------------------------------------


def recorded_as(content: bytes, url: str = "") -> Recorded:
    return Recorded(0, xxhash.xxh3_128_hexdigest(content), len(content), 3, url)


def with_copy(
    content: bytes, use: Callable[[RecordingStore, Recorded], Awaitable[None]], told: bytes | None = None
) -> None:
    """Another machine's store, and a recording that is kept there; `told` is what it is said to be."""
    before = files_open()

    async def live(other: RecordingStore) -> None:
        recorded = recorded_as(content if told is None else told)
        with nameless(content) as file:
            url = await other.keep(recorded.digest, path_of(file))
        store = RecordingStore("127.0.0.1", SECRET)
        try:
            await use(store, recorded_as(content if told is None else told, url))
        finally:
            await store.close()

    with_store(live)
    assert files_open() == before


@pytest.mark.parametrize("size", [1, 1 << 20, 3_500_000])
def test_a_copy_is_there_when_the_other_machine_is_gone(size: int, tmp_path: Path) -> None:
    content = os.urandom(size)

    async def live() -> None:
        other, store = RecordingStore("127.0.0.1", SECRET), RecordingStore("127.0.0.1", SECRET)
        recorded = recorded_as(content)
        try:
            with nameless(content) as file:
                url = await other.keep(recorded.digest, path_of(file))
            copy = await store.fetch(recorded_as(content, url), str(tmp_path))
        finally:
            await other.close()
        assert copy != url
        assert await get(copy) == (200, content)
        assert await store.fetch(recorded_as(content, url), str(tmp_path)) == copy  # it is not asked for again
        assert await get(copy) == (200, content)
        await store.close()

    asyncio.run(asyncio.wait_for(live(), 20))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "told", [b"contenu", b"content, and more of it", b"con"], ids=["another", "cut short", "without end"]
)
def test_a_copy_that_is_not_what_it_should_be_is_not_kept(told: bytes) -> None:
    async def use(store: RecordingStore, recorded: Recorded) -> None:
        with pytest.raises(ValueError, match="not the one that was asked for"):
            await store.fetch(recorded, "")

    with_copy(b"content", use, told)


def test_a_copy_is_refused_without_the_secret() -> None:
    async def use(store: RecordingStore, recorded: Recorded) -> None:
        stranger = RecordingStore("127.0.0.1", b"another secret")
        with pytest.raises(aiohttp.ClientResponseError, match="401"):
            await stranger.fetch(recorded, "")
        await stranger.close()

    with_copy(b"content", use)
