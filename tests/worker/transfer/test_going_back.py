"""Real processes that lose one of them: copies bring all of them back to the same step."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.comm.helpers import eventually
from understudy.comm.group import install, uninstall
from understudy.comm.links.link import Link
from understudy.comm.sandbox import Echo
from understudy.protocol.roster import Roster
from understudy.state.inventory import digest, take_inventory
from understudy.state.twins import twins
from understudy.testing.local_workers import LocalWorker, LocalWorkers, WorkerHandle, first_roster
from understudy.worker.transfer import copying, handover
from understudy.worker.transfer.copies import CopyKeeper
from understudy.worker.transfer.copying import give_copy
from understudy.worker.transfer.handover import Taker

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("frameworks")]

STREAMS = 2
WIDTH = 1024
"""A copy of this model is larger than what sockets hold."""


def build(kind: str) -> dict[str, Any]:
    torch.manual_seed(5)
    model: nn.Module = nn.Sequential(nn.Linear(8, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1))
    if kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for layer in (model[0], model[2], model):  # type: ignore[index]
            fully_shard(layer)
    else:
        from torch.nn.parallel import DistributedDataParallel

        model = DistributedDataParallel(model)
    return {"model": model, "optim": torch.optim.Adam(model.parameters(), lr=1e-3)}


def never() -> bool:
    return False


class Keeping:
    """A worker that trains step by step, as it is told."""

    def __init__(self, worker: LocalWorker, kind: str) -> None:
        self.worker, self.fabric = worker, worker.fabric
        install(self.fabric, 3)
        self.tracked = build(kind)
        # The state of DDP is kept as if it had no twins.
        self.twins = twins(self.tracked) if kind == "fsdp" else frozenset()
        self.keeper = CopyKeeper(self.fabric, self.fabric.uid, self.tracked, STREAMS)
        self.brought: list[Link] = []

    def entered(self, roster: Roster) -> None:
        self.keeper.entered(roster, self.twins)

    def enter(self, roster: Roster) -> None:
        self.worker.enter(roster)
        self.entered(roster)

    def step(self, number: int) -> None:
        model, optim = self.tracked["model"], self.tracked["optim"]
        generator = torch.Generator().manual_seed(100 * number + dist.get_rank())
        model(torch.randn(4, 8, generator=generator)).square().mean().backward()
        self.keeper.hold()
        optim.step()
        optim.zero_grad()
        assert self.fabric.fault is None, self.fabric.fault

    def begin(self, number: int, force: bool) -> bool:
        return self.keeper.begin(number, force=force)

    def settle(self, number: int) -> None:
        eventually(lambda: self.keeper.complete == number, 30)
        self.keeper.settle(number)

    def complete(self) -> int:
        return self.keeper.complete

    def kept(self) -> dict[int, set[int]]:
        return self.keeper.kept()

    def digest(self) -> str:
        return digest(take_inventory(self.tracked))

    def go_back(self, number: int) -> None:
        assert self.fabric.role is not None
        self.keeper.restore(number, [self.fabric.role])
        self.keeper.forget(after=number)

    def give(self, roster: Roster, role: int, number: int, taker: str) -> None:
        links = self.fabric.dial_state(roster, taker, STREAMS)
        give_copy(links, self.keeper.copy(role, number), never)
        for link in links:
            link.close()

    def expect(self, generation: int) -> None:
        self.fabric.expect_state(generation, self.brought.append)

    def take(self) -> int:
        eventually(lambda: len(self.brought) == STREAMS, 30)
        links = sorted(self.brought, key=lambda link: link.id.rail)
        arrival = Taker(links, self.tracked, never).run(lambda _: True)
        for link in links:
            link.close()
        assert arrival is not None
        return arrival.step

    def stop_in_taking(self) -> None:
        """From now on it reads no more than the first bytes of a copy."""

        def halts(sockets: Any, tensors: Any, **options: Any) -> int:
            self.worker.tell("in the middle")
            threading.Event().wait()
            return 0

        vars(copying)["take"] = halts

    def stop_in_giving(self) -> None:
        """From now on it sends no more than the first bytes of a copy."""

        def halts(sockets: Any, tensors: Any, **options: Any) -> int:
            sockets[0].send(b"x" * 1000)
            self.worker.tell("in the middle")
            threading.Event().wait()
            return 0

        vars(handover)["give"] = halts


def act(worker: LocalWorker, kind: str, role: int | None) -> None:
    """Words are a method's name and its arguments; every one is answered with what it returned."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if role is None:
        worker.enter(worker.hear())
    else:
        worker.fabric.assume(role, Echo())
    keeping = Keeping(worker, kind)
    if role is not None and kind == "ddp":
        for number in range(2):  # DDP arranges its gradients anew after the first
            keeping.step(number)
    if role is None:
        assert worker.fabric.roster is not None
        keeping.entered(worker.fabric.roster)
    worker.tell("ready")
    while (word := worker.hear(90)) is not None:
        worker.tell(getattr(keeping, word[0])(*word[1:]))
    keeping.keeper.close()
    uninstall()


class Scene:
    """Three machines of one worker each."""

    def __init__(self, local: LocalWorkers, kind: str) -> None:
        self.local, self.kind = local, kind
        self.hands = [local.start(f"m{number}", 1, act, kind, None)[0] for number in range(3)]
        self.roster = first_roster(self.hands)
        for hand in self.hands:
            hand.tell(self.roster)
        assert [hand.hear(90) for hand in self.hands] == ["ready"] * 3

    def do(self, *word: Any, by: list[WorkerHandle] | None = None) -> list[Any]:
        """All of them at once, or these."""
        hands = self.hands if by is None else by
        for hand in hands:
            hand.tell(word)
        return [hand.hear(90) for hand in hands]

    def refresh(self, number: int, *, force: bool = False) -> None:
        assert self.do("begin", number, force) == [True] * 3
        self.do("settle", number)

    def joiner(self, role: int) -> WorkerHandle:
        (hand,) = self.local.start("m9", 1, act, self.kind, role)
        assert hand.hear(90) == "ready"
        return hand

    def recover(self, role: int, number: int, giver: int) -> None:
        """Put a joiner into the role of the dead worker, and take all workers to the beginning of this step."""
        new = self.joiner(role)
        stayers = [hand for other, hand in enumerate(self.hands) if other != role]
        self.roster = self.roster.successor({role: new.worker}, fresh=True)
        self.do("expect", self.roster.generation, by=[new])
        self.hands[role] = new
        self.do("enter", self.roster)
        new.tell(("take",))
        self.do("give", self.roster, role, number, new.uid, by=[self.hands[giver]])
        assert new.hear(90) == number
        self.do("go_back", number, by=stayers)

    def end(self) -> None:
        for hand in self.hands:
            hand.tell(None)
        for hand in self.hands:
            hand.result(90)


@pytest.fixture
def local() -> Iterator[LocalWorkers]:
    with LocalWorkers(limit=60.0, setup_limit=60.0) as local:
        yield local


@pytest.mark.parametrize("kind", ["fsdp", "ddp"])
def test_a_worker_dies_and_all_go_back(local: LocalWorkers, kind: str) -> None:
    """The steps that are repeated end in the same bits."""
    scene = Scene(local, kind)
    scene.refresh(0, force=True)
    seen = []
    for number in range(4):
        seen.append(scene.do("digest"))
        if number == 2:
            scene.refresh(2)
        scene.do("step", number)
    seen.append(scene.do("digest"))
    assert len(set(seen[4])) == (3 if kind == "fsdp" else 1)
    assert scene.do("kept") == [{0: {2}, 2: {2}}, {1: {2}, 0: {2}}, {2: {2}, 1: {2}}]
    scene.hands[1].kill()
    scene.recover(1, 2, giver=2)
    assert scene.do("digest") == seen[2]
    scene.refresh(2, force=True)
    for number in range(2, 4):
        scene.do("step", number)
    assert scene.do("digest") == seen[4]
    scene.end()


def test_the_backup_dies_in_the_middle_of_a_copy(local: LocalWorkers) -> None:
    """The ward trains on, and what it has from before is whole: here, from before Adam had any state."""
    scene = Scene(local, "fsdp")
    scene.refresh(0, force=True)
    then = scene.do("digest")
    scene.do("step", 0)
    scene.do("stop_in_taking", by=[scene.hands[1]])
    for hand in scene.hands:
        hand.tell(("begin", 1, False))
    heard = {scene.hands[1].hear(90) for _ in range(2)}
    assert heard == {True, "in the middle"}
    assert [scene.hands[role].hear(90) for role in (0, 2)] == [True, True]
    for number in (1, 2):
        scene.do("step", number)
    assert scene.do("begin", 3, False) == [False] * 3
    scene.hands[1].kill()
    others = [scene.hands[0], scene.hands[2]]
    assert scene.do("complete", by=others[:1]) == [0]
    assert scene.do("kept", by=others)[0] == {0: {0, 1}, 2: {0, 1}}
    scene.recover(1, 0, giver=2)
    assert scene.do("digest") == then
    scene.refresh(0, force=True)
    scene.end()


def test_the_ward_dies_in_the_middle_of_a_copy(local: LocalWorkers) -> None:
    """What has come of it is never listed; its copy from before is whole, and brings it back."""
    scene = Scene(local, "fsdp")
    scene.do("step", 0)
    scene.refresh(1)
    then = scene.do("digest")
    scene.do("stop_in_giving", by=[scene.hands[0]])
    for hand in scene.hands:
        hand.tell(("begin", 2, False))
    heard = {scene.hands[0].hear(90) for _ in range(2)}
    assert heard == {True, "in the middle"}
    assert [scene.hands[role].hear(90) for role in (1, 2)] == [True, True]
    scene.do("step", 1)
    scene.hands[0].kill()
    others = scene.hands[1:]
    assert scene.do("kept", by=others)[0][0] == {1}
    scene.recover(0, 1, giver=1)
    assert scene.do("digest") == then
    assert scene.do("kept") == [{}, {1: {1}, 0: {1}}, {2: {1}, 1: {1}}]
    scene.refresh(1, force=True)
    scene.end()
