"""A job of `understudy run` that a benchmark observes and acts on: it adds, replaces and slows down machines."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

from understudy.launch.local import Ended, LocalJob
from understudy.launch.spec import make
from understudy_bench.harness.processes import CommandFailed, descendants, rests

LIMIT_S = 300.0
LOOK_S = 0.1

T = TypeVar("T")
Entry = Mapping[str, Any]
"""A line of the metrics, a machine as the controller describes it, or an event."""


def entries_of(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Parse metrics as agents write them; an incomplete last line is left out."""
    return [json.loads(line) for line in lines if line.endswith("\n")]


class BenchJob:
    """A job on this computer. When the context ends, none of its processes and files is left."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._spec = make(dict(settings))
        self._lines: list[str] = []
        self.events: list[dict[str, Any]] = []

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            job = LocalJob(self._spec, on_line=self._lines.append, on_event=self.events.append)
            self._job = await stack.enter_async_context(job)
            self._following = asyncio.ensure_future(self._job.wait())
            stack.callback(self._following.cancel)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    # -- waiting -------------------------------------------------------------------------------------------------------

    async def until(self, what: str, look: Callable[[], Awaitable[T | None]]) -> T:
        """Call `look` until it returns a value, and return that; raise if the job ends or the limit passes before."""
        late = time.monotonic() + LIMIT_S
        while (found := await look()) is None:
            self.check()
            if time.monotonic() > late:
                raise CommandFailed(self.with_output(f"{what}: nothing for {LIMIT_S:g} s"))
            await asyncio.sleep(LOOK_S)
        return found

    def check(self) -> None:
        """Raise `CommandFailed` if the job has ended."""
        if self._following.done():
            ended = self._following.result()
            raise CommandFailed(self.with_output(f"the job has {ended.status}: {ended.reason}"))

    def with_output(self, what: str) -> str:
        """An error message: `what` is wrong, and the job's last output lines."""
        return "\n  ".join([what, *self._lines[-15:]])

    async def event(self, kind: str, since: float) -> dict[str, Any]:
        """Wait for the first event of a kind after the time `since`."""

        async def seen() -> dict[str, Any] | None:
            return next((each for each in self.events if each["kind"] == kind and each["at"] > since), None)

        return await self.until(f"an event {kind!r}", seen)

    # -- asking --------------------------------------------------------------------------------------------------------

    async def call(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to the job's controller."""
        return await asyncio.to_thread(self._job.client.call, method, path, body)

    async def machines(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self.call("GET", "/machines")
        return found

    async def machine_of(self, role: int) -> dict[str, Any]:
        """The machine that has a role."""
        return next(machine for machine in await self.machines() if role in machine["roles"])

    def processes_of(self, machine: str) -> list[int]:
        """The ids of a machine's processes, its agent's first."""
        agent = self._job.agents[machine].pid
        return [agent, *descendants(agent)]

    def metrics(self, machine: str = "*") -> list[dict[str, Any]]:
        """The metrics that one machine, by default all machines, have written so far."""
        found: list[dict[str, Any]] = []
        for path in Path(self._job.run_dir).glob(f"metrics-{machine}.jsonl"):
            with path.open() as file:
                found += entries_of(file)
        return found

    @property
    def step(self) -> int:
        """The last step that at least one role has completed; -1: none."""
        return max((int(entry["step"]) for entry in self.metrics()), default=-1)

    # -- training ------------------------------------------------------------------------------------------------------

    async def train(self, steps: int) -> None:
        """Wait until so many more steps are completed."""
        await self.reach(self.step + steps)

    async def reach(self, goal: int) -> None:
        async def there() -> bool | None:
            return True if self.step >= goal else None

        await self.until(f"step {goal}", there)

    async def ended(self) -> Ended:
        """Wait for the end of the job, without a limit as long as it completes steps."""
        while True:
            before = self.step
            done, _ = await asyncio.wait([self._following], timeout=LIMIT_S)
            if done:
                return self._following.result()
            if self.step == before:
                raise CommandFailed(self.with_output(f"the job completes no steps and has not ended for {LIMIT_S:g} s"))

    async def stop(self) -> Ended:
        """End the job at its next step boundary."""
        await self._job.stop()
        return await self.ended()

    # -- acting --------------------------------------------------------------------------------------------------------

    async def add_standby(self, count: int = 1) -> None:
        await self.call("POST", "/standbys", {"type": "add-standby", "count": count})

    async def remove_standby(self, name: str) -> None:
        await self.call("DELETE", f"/standbys/{name}")

    async def new_standby(self, rehearsed: Collection[int] = (), *, idle: bool = False) -> dict[str, Any]:
        """Add a standby and wait until its workers have started and it has rehearsed these roles.

        `idle`: wait also until its processes have nothing left to do.
        """
        await self.add_standby()

        async def there() -> dict[str, Any] | None:
            for machine in await self.machines():
                started = machine["state"] == "standby" and machine["pids"] and all(machine["pids"])
                if started and set(machine["rehearsed"]) >= set(rehearsed):
                    return machine if not idle or await rests(self.processes_of(machine["name"])) else None
            return None

        return await self.until("a standby", there)

    async def standby_ready(self) -> None:
        """Wait for a standby that can take any role at once."""

        async def ready() -> bool | None:
            machines = await self.machines()
            roles = {role for machine in machines for role in machine["roles"]}
            return True if any(roles <= set(machine["rehearsed"]) for machine in machines) else None

        await self.until("a standby that is ready", ready)

    async def replace(self, leavers: Sequence[str], joiners: Sequence[str] = (), **options: object) -> dict[str, Any]:
        """Replace machines at one boundary, and wait until training continues. Returns the controller's answer.

        Without `joiners`, the controller chooses standbys that are ready.
        """
        request = {"type": "replace", "machines": leavers, "standbys": joiners, **options}
        names = " and ".join(leavers)
        id = (await self.call("POST", "/replace", request))["id"]

        async def answered() -> dict[str, Any] | None:
            found: dict[str, Any] = await asyncio.to_thread(self._job.client.answer, id, 1.0)
            return found if found["done"] else None

        answer = await self.until(f"replacing {names}", answered)
        if not answer["ok"]:
            raise CommandFailed(self.with_output(f"replacing {names}: {answer['text']}"))
        return answer

    async def slow(self, machine: str, uid: str, factor: float) -> None:
        """Let everything that a worker computes from now on take `factor` times as long."""
        body = {"type": "extension", "kind": "slow", "machine": machine, "uid": uid, "options": {"factor": factor}}
        await self.call("POST", "/extensions", body)
