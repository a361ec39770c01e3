"""The keepers of backup copies, several in one process, each with a fabric of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.comm.helpers import Ensemble, enter, eventually
from understudy.protocol.roster import Roster
from understudy.state.copy import Copy, Draft
from understudy.state.errors import StateError
from understudy.state.inventory import digest, take_inventory
from understudy.worker.transfer import copies
from understudy.worker.transfer.copies import CopyKeeper
from understudy.worker.transfer.copying import send_copy, take_copy


def made(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Linear(50, 40)
    return {"model": model, "optim": torch.optim.Adam(model.parameters())}


def digest_of(tracked: dict[str, Any]) -> str:
    return digest(take_inventory(tracked))


class CopyingWorkers:
    """Workers w0, w1, … of as many machines, in generation 1, that do not talk to each other but by their keepers."""

    def __init__(self, ensemble: Ensemble, count: int, streams: int, twins: set[int]) -> None:
        self.ensemble, self._streams, self._twins = ensemble, streams, twins
        self.roster, self.fabrics, _ = ensemble.start(*(f"m{number}" for number in range(count)))
        self.tracked = [made(number) for number in range(count)]
        self.keepers = [
            CopyKeeper(fabric, fabric.uid, tracked, streams)
            for fabric, tracked in zip(self.fabrics, self.tracked, strict=True)
        ]
        for keeper in self.keepers:
            keeper.entered(self.roster, twins)

    def step(self) -> None:
        for keeper, tracked in zip(self.keepers, self.tracked, strict=True):
            keeper.hold()
            tracked["model"](torch.ones(3, 50)).square().mean().backward()
            tracked["optim"].step()
            tracked["optim"].zero_grad()

    def begin(self, step: int, **options: Any) -> list[bool]:
        return [keeper.begin(step, **options) for keeper in self.keepers]

    def refresh(self, step: int, **options: Any) -> None:
        """Make a copy of this step: complete on all workers, and settled."""
        assert all(self.begin(step, **options))
        self.wait(step)
        for keeper in self.keepers:
            keeper.settle(step)

    def wait(self, step: int) -> None:
        eventually(lambda: all(keeper.complete == step for keeper in self.keepers), 20)

    def replace(self, role: int) -> Roster:
        """The worker of this role dies, a joiner on another machine takes its place."""
        self.keepers[role].close()
        self.fabrics[role].close()
        (new,) = self.ensemble.hire(f"m{len(self.ensemble.fabrics)}")
        new.assume(role)
        new.group(range(len(self.fabrics)))
        self.fabrics[role] = new
        self.roster = self.roster.successor({role: new.worker}, fresh=True)
        enter(self.roster, self.fabrics)
        self.tracked[role] = made(100 + role)
        self.keepers[role] = CopyKeeper(new, new.uid, self.tracked[role], self._streams)
        for keeper in self.keepers:
            keeper.entered(self.roster, self._twins)
        return self.roster

    def close(self) -> None:
        for keeper in self.keepers:
            keeper.close()


@pytest.fixture
def workers() -> Iterator[Callable[..., CopyingWorkers]]:
    started: list[CopyingWorkers] = []
    with Ensemble() as ensemble:

        def start(count: int, *, streams: int = 2, twins: set[int] | None = None) -> CopyingWorkers:
            started.append(CopyingWorkers(ensemble, count, streams, twins or set()))
            return started[-1]

        yield start
        for one in started:
            one.close()
        left = [
            thread.name for thread in threading.enumerate() if thread.name in ("understudy copies", "understudy ward")
        ]
        assert left == []


def test_each_worker_has_its_own_copy_and_that_of_its_ward(workers: Callable[..., CopyingWorkers]) -> None:
    three = workers(3)
    assert [keeper.complete for keeper in three.keepers] == [-1] * 3
    assert three.keepers[0].kept() == {}
    three.step()
    before = [digest_of(tracked) for tracked in three.tracked]
    three.refresh(1)
    assert [keeper.kept() for keeper in three.keepers] == [{0: {1}, 2: {1}}, {1: {1}, 0: {1}}, {2: {1}, 1: {1}}]
    for role, keeper in enumerate(three.keepers):
        assert keeper.bytes == sum(slot.bytes for slot in take_inventory(three.tracked[role]).slots)
        assert keeper.seconds > 0
        assert 0 < keeper.waited <= keeper.seconds
        other = made(77)
        three.keepers[(role + 1) % 3].copy(role, 1).restore(other)
        assert digest_of(other) == before[role]
    three.step()
    for role, keeper in enumerate(three.keepers):
        keeper.restore(1, [role])
    assert [digest_of(tracked) for tracked in three.tracked] == before


def test_another_begins_only_when_all_have_the_one_before(workers: Callable[..., CopyingWorkers]) -> None:
    two = workers(2)
    assert two.begin(0) == [True, True]
    two.wait(0)
    assert two.begin(1) == [False, False], "complete, but no role has said so in a vote"
    for keeper in two.keepers:
        keeper.settle(-1)
    assert two.begin(2) == [False, False]
    for keeper in two.keepers:
        keeper.settle(0)
    assert two.begin(3) == [True, True]
    two.wait(3)
    assert [keeper.kept() for keeper in two.keepers] == [{0: {0, 3}, 1: {0, 3}}] * 2
    for keeper in two.keepers:
        keeper.settle(3)
    assert [keeper.kept() for keeper in two.keepers] == [{0: {3}, 1: {3}}] * 2


def test_a_backup_that_is_a_vote_behind(workers: Callable[..., CopyingWorkers]) -> None:
    """It does not know yet that the second copy is settled when the third one comes: the first must make room."""
    two = workers(2)
    two.refresh(1)
    assert all(two.begin(2))
    two.wait(2)
    ahead, behind = two.keepers
    ahead.settle(2)
    assert ahead.begin(3)
    eventually(lambda: ahead.complete == 3)
    assert behind.kept() == {0: {2, 3}, 1: {1, 2}}
    behind.settle(2)
    assert behind.begin(3)
    two.wait(3)
    assert [keeper.kept() for keeper in two.keepers] == [{0: {2, 3}, 1: {2, 3}}] * 2


def test_what_the_backup_may_overwrite_is_not_claimed(
    workers: Callable[..., CopyingWorkers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that is not known to be settled is replaced by a forced one, on this worker and on its backup."""
    two = workers(2)
    assert all(two.begin(1))
    two.wait(1)
    give = threading.Event()

    def later(*given: Any) -> int:
        assert give.wait(20)
        return send_copy(*given)

    monkeypatch.setattr(copies, "send_copy", later)
    assert two.begin(2, force=True) == [True, True]
    assert [keeper.complete for keeper in two.keepers] == [-1, -1]
    give.set()
    two.wait(2)


def memory(keeper: CopyKeeper) -> set[int]:
    return {
        tensor.data_ptr()
        for role, steps in keeper.kept().items()
        for step in steps
        for tensor in keeper._copies[role].whole[step].tensors
    }


def test_memory_goes_round(workers: Callable[..., CopyingWorkers]) -> None:
    two = workers(2)
    two.step()
    two.refresh(1)
    two.refresh(2)
    two.begin(3)
    two.wait(3)
    places = [memory(keeper) for keeper in two.keepers]
    for keeper in two.keepers:
        keeper.settle(3)
    for step in range(4, 9):
        two.step()
        assert all(two.begin(step))
        two.wait(step)
        assert [memory(keeper) for keeper in two.keepers] == places
        for keeper in two.keepers:
            keeper.settle(step)


@pytest.mark.parametrize("machines", [1, 2])
def test_without_a_backup(workers: Callable[..., CopyingWorkers], machines: int) -> None:
    """On the only machine, and where others hold the same state."""
    some = workers(machines, twins={0, 1} if machines > 1 else set())
    some.refresh(4)
    assert [keeper.kept() for keeper in some.keepers] == [{role: {4}} for role in range(machines)]
    assert some.keepers[0].bytes > 0


def test_a_copy_is_of_the_state_at_the_boundary(
    workers: Callable[..., CopyingWorkers], monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    finish = Draft.finish

    def slowly(draft: Draft) -> Copy:
        assert go.wait(20)
        return finish(draft)

    monkeypatch.setattr(Draft, "finish", slowly)
    one = workers(1)
    before = digest_of(one.tracked[0])
    one.begin(0)
    threading.Timer(0.2, go.set).start()
    assert one.keepers[0].hold() > 0.1
    assert one.keepers[0].hold() == 0.0
    assert one.keepers[0].waited > 0.1
    one.step()
    one.wait(0)
    one.keepers[0].restore(0, [7, 0])
    assert digest_of(one.tracked[0]) == before


def test_a_copy_that_cannot_be_made_stops_no_worker(
    workers: Callable[..., CopyingWorkers], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(draft: Draft) -> Copy:
        raise MemoryError("no room")

    one = workers(1)
    one.refresh(0)
    with monkeypatch.context() as patch:
        patch.setattr(Draft, "finish", fails)
        assert one.begin(1) == [True]
        one.keepers[0].hold()
    assert one.keepers[0].complete == 0
    one.refresh(2, force=True)


def test_a_broken_link_is_dialled_again(
    workers: Callable[..., CopyingWorkers], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: list[int] = []

    def breaks(links: list[Any], *rest: Any) -> int:
        if len(broken) < 3:
            broken.append(links[0].id.rail)
            links[0].close()  # a copy this small takes one
        return send_copy(links, *rest)

    monkeypatch.setattr(copies, "send_copy", breaks)
    two = workers(2)
    two.refresh(1)
    assert len(broken) == 3


class Stuck:
    """Takers of copies that wait until `go` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.reached = threading.Event(), threading.Semaphore(0)

        def slowly(links: Any, spare: Callable[[int], Copy | None], stop: Any) -> Copy:
            def wait(keep: int) -> Copy | None:
                self.reached.release()
                assert self.go.wait(20)
                return spare(keep)

            return take_copy(links, wait, stop)

        monkeypatch.setattr(copies, "take_copy", slowly)


def test_a_slow_backup_is_not_waited_for(
    workers: Callable[..., CopyingWorkers], monkeypatch: pytest.MonkeyPatch
) -> None:
    two = workers(2)
    two.refresh(1)
    two.step()
    stuck = Stuck(monkeypatch)
    two.replace(1)  # new links, and so a new taker
    stuck.go.set()
    two.refresh(2, force=True)
    stuck.go.clear()
    while stuck.reached.acquire(blocking=False):
        pass
    two.step()
    two.begin(3)
    assert stuck.reached.acquire(timeout=20)
    two.step()
    two.step()
    assert two.begin(4) == [False, False]
    assert [keeper.complete for keeper in two.keepers] == [2, 2]
    assert two.begin(5, force=True) == [True, True], "what is on its way is given up"
    assert all(keeper.kept()[role] >= {2} for role, keeper in enumerate(two.keepers))
    stuck.go.set()
    two.wait(5)
    for keeper in two.keepers:
        keeper.settle(5)
    assert [keeper.kept() for keeper in two.keepers] == [{0: {5}, 1: {5}}] * 2


def test_a_joiner_and_the_others_go_back_together(workers: Callable[..., CopyingWorkers]) -> None:
    three = workers(3)
    three.step()
    three.refresh(1)
    then = [digest_of(tracked) for tracked in three.tracked]
    three.step()
    later = [digest_of(tracked) for tracked in three.tracked]
    three.begin(2)
    three.wait(2)
    three.step()
    three.replace(1)
    assert [keeper.kept() for keeper in three.keepers] == [{0: {1, 2}, 2: {1, 2}}, {}, {2: {1, 2}, 1: {1, 2}}]
    assert [keeper.complete for keeper in three.keepers] == [-1, -1, 2], "role 0 has another backup, role 2 the same"
    three.keepers[2].copy(1, 1).restore(three.tracked[1])
    for role in (0, 2):
        three.keepers[role].restore(1, [role])
    for keeper in three.keepers:
        keeper.forget(after=1)
    assert [digest_of(tracked) for tracked in three.tracked] == then
    assert [keeper.kept() for keeper in three.keepers] == [{0: {1}, 2: {1}}, {}, {2: {1}, 1: {1}}]
    three.refresh(1, force=True)
    assert [keeper.kept() for keeper in three.keepers] == [{0: {1}, 2: {1}}, {1: {1}, 0: {1}}, {2: {1}, 1: {1}}]
    three.step()
    assert [digest_of(tracked) for tracked in three.tracked] == later
    three.refresh(2)


def test_a_copy_that_was_lent_stays_as_it_is(workers: Callable[..., CopyingWorkers]) -> None:
    two = workers(2)
    two.refresh(0)
    before = digest_of(two.tracked[0])
    lent = two.keepers[1].copy(0, 0)
    for step in range(1, 4):
        two.step()
        two.refresh(step)
    other = made(5)
    lent.restore(other)
    assert digest_of(other) == before


def test_copies_of_former_wards_are_freed(workers: Callable[..., CopyingWorkers]) -> None:
    """In the order m0, m1, m2 role 0 has its copy with role 1; once m1 plays no more, with role 2."""
    three = workers(3)
    three.refresh(1)
    roster = three.roster.successor({1: None}, fresh=True)
    stayers = [0, 2]
    three.keepers[1].close()
    three.fabrics[1].close()
    enter(roster, [three.fabrics[role] for role in stayers])
    three.keepers = [three.keepers[role] for role in stayers]
    for keeper in three.keepers:
        keeper.entered(roster, ())
    assert three.keepers[1].kept() == {2: {1}, 1: {1}}
    three.refresh(3, force=True)
    assert [keeper.kept() for keeper in three.keepers] == [{0: {3}, 2: {3}}, {2: {3}, 0: {3}}]
    assert 1 not in three.keepers[1]._copies


def test_what_is_not_there(workers: Callable[..., CopyingWorkers]) -> None:
    one = workers(1)
    with pytest.raises(StateError, match="role 0: w0 has no copy of step 3"):
        one.keepers[0].restore(3, [0])
    with pytest.raises(StateError, match="role 4: w0 has no copy of step 3"):
        one.keepers[0].copy(4, 3)
    one.keepers[0].close()
    assert one.begin(1) == [False]
    assert one.keepers[0].hold() == 0.0
    one.keepers[0].entered(one.roster, ())


def test_before_the_first_generation() -> None:
    with Ensemble() as ensemble:
        (fabric,) = ensemble.hire("m0")
        keeper = CopyKeeper(fabric, fabric.uid, made(0), 1)
        assert keeper.complete == -1
        assert not keeper.begin(0)
        with pytest.raises(StateError, match="role 2: w0 has no copy of step 0"):
            keeper.restore(0, [2])
        keeper.close()


def test_late_bytes_of_links_that_were_given_up_cost_no_copy(
    workers: Callable[..., CopyingWorkers], monkeypatch: pytest.MonkeyPatch
) -> None:
    armed = threading.Lock()
    late, go, over = threading.Event(), threading.Event(), threading.Event()

    def one_is_late(links: Any, spare: Callable[[int], Copy | None], stop: Any) -> Copy:
        def wait(keep: int) -> Copy | None:
            if not armed.acquire(blocking=False):
                return spare(keep)
            late.set()
            assert go.wait(20)
            try:
                return spare(keep)
            finally:
                over.set()

        return take_copy(links, wait, stop)

    monkeypatch.setattr(copies, "take_copy", one_is_late)
    with armed:
        two = workers(2)
        two.refresh(1)
    two.step()
    assert all(two.begin(2))
    assert late.wait(20)
    for keeper in two.keepers:
        connections = keeper._connections
        assert connections is not None
        copies._cut(connections.links)
    two.wait(2)
    go.set()
    assert over.wait(20)
    assert [keeper.kept() for keeper in two.keepers] == [{0: {1, 2}, 1: {1, 2}}] * 2
