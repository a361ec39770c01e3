"""A job that a benchmark watches and acts upon while it trains."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

from understudy.launch.local import Ended, LocalJob
from understudy.launch.spec import make
from understudy_bench.processes import CommandFailed, descendants

LIMIT_S = 300.0
LOOK_S = 0.1

T = TypeVar("T")
Entry = Mapping[str, Any]
"""A line of metrics, a machine as the controller sees it, or an event."""


def entries_of(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Metrics, as agents write them; a line that is not complete yet is left out."""
    return [json.loads(line) for line in lines if line.endswith("\n")]


class Running:
    """As a context it leaves nothing behind."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._spec = make(dict(settings))
        self._lines: list[str] = []
        self.events: list[dict[str, Any]] = []

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            job = LocalJob(self._spec, on_line=self._lines.append, on_tale=self.events.append)
            self._job = await stack.enter_async_context(job)
            self._following = asyncio.ensure_future(self._job.wait())
            stack.callback(self._following.cancel)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def until(self, what: str, look: Callable[[], Awaitable[T | None]]) -> T:
        """What `look` finds, once it finds something; the job must not end before."""
        late = time.monotonic() + LIMIT_S
        while (found := await look()) is None:
            self.check()
            if time.monotonic() > late:
                raise CommandFailed(self.said(f"{what}: nothing for {LIMIT_S:g} s"))
            await asyncio.sleep(LOOK_S)
        return found

    def check(self) -> None:
        """Raises where the job has ended."""
        if self._following.done():
            ended = self._following.result()
            raise CommandFailed(self.said(f"the job has {ended.status}: {ended.reason}"))

    def said(self, what: str) -> str:
        """What is wrong with it, and its last lines."""
        return "\n  ".join([what, *self._lines[-15:]])

    async def call(self, method: str, path: str, body: object = None) -> Any:
        return await asyncio.to_thread(self._job.client.call, method, path, body)

    async def machines(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self.call("GET", "/machines")
        return found

    async def player(self, role: int) -> dict[str, Any]:
        """The machine that plays a role."""
        return next(machine for machine in await self.machines() if role in machine["roles"])

    def family(self, machine: str) -> list[int]:
        """A machine's processes, its agent first."""
        agent = self._job.agents[machine].pid
        return [agent, *descendants(agent)]

    def metrics(self, machine: str = "*") -> list[dict[str, Any]]:
        """What a machine, or all of them, have written so far."""
        found: list[dict[str, Any]] = []
        for path in Path(self._job.run_dir).glob(f"metrics-{machine}.jsonl"):
            with path.open() as file:
                found += entries_of(file)
        return found

    @property
    def step(self) -> int:
        """The last one that somebody has made; -1: none."""
        return max((int(entry["step"]) for entry in self.metrics()), default=-1)

    async def train(self, steps: int) -> None:
        """So many more are made."""
        await self.reach(self.step + steps)

    async def reach(self, goal: int) -> None:
        async def there() -> bool | None:
            return True if self.step >= goal else None

        await self.until(f"step {goal}", there)

    async def add_standby(self, count: int = 1) -> None:
        await self.call("POST", "/standbys", {"type": "add-standby", "count": count})

    async def remove_standby(self, name: str) -> None:
        await self.call("DELETE", f"/standbys/{name}")

    async def replace(self, leaver: str, newcomer: str) -> dict[str, Any]:
        """The answer to the request, once it has been granted and training has gone on."""
        return await self.replace_all([leaver], [newcomer])

    async def replace_all(self, leavers: Sequence[str], newcomers: Sequence[str] = ()) -> dict[str, Any]:
        """The same for several at one boundary; where no newcomers are named, whoever is ready comes."""
        request = {"type": "replace", "machines": leavers, "standbys": newcomers}
        leaver = " and ".join(leavers)
        id = (await self.call("POST", "/replace", request))["id"]

        async def answered() -> dict[str, Any] | None:
            found: dict[str, Any] = await asyncio.to_thread(self._job.client.answer, id, 1.0)
            return found if found["done"] else None

        answer = await self.until(f"replacing {leaver}", answered)
        if not answer["ok"]:
            raise CommandFailed(self.said(f"replacing {leaver}: {answer['text']}"))
        return answer

    async def standby_ready(self) -> None:
        """Somebody waits who could take any role at once."""

        async def ready() -> bool | None:
            machines = await self.machines()
            roles = {role for machine in machines for role in machine["roles"]}
            return True if any(roles <= set(machine["rehearsed"]) for machine in machines) else None

        await self.until("a standby that is ready", ready)

    async def slow(self, machine: str, uid: str, factor: float) -> None:
        """From now on, everything that a worker computes takes so many times as long."""
        body = {"type": "extension", "kind": "slow", "machine": machine, "uid": uid, "options": {"factor": factor}}
        await self.call("POST", "/extensions", body)

    async def event(self, kind: str, since: float) -> dict[str, Any]:
        """The first of a kind after some time."""

        async def seen() -> dict[str, Any] | None:
            return next((each for each in self.events if each["kind"] == kind and each["at"] > since), None)

        return await self.until(f"an event {kind!r}", seen)

    async def ended(self) -> Ended:
        """How it has ended, however long that takes, as long as steps are made."""
        while True:
            before = self.step
            done, _ = await asyncio.wait([self._following], timeout=LIMIT_S)
            if done:
                return self._following.result()
            if self.step == before:
                raise CommandFailed(self.said(f"the job makes no steps and has not ended for {LIMIT_S:g} s"))

    async def stop(self) -> Ended:
        """It ends at the next boundary."""
        await self._job.stop()
        return await self.ended()
