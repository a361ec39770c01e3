"""The states that a worker can go back to: checkpoints on disk and copies in memory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from understudy.comm import waits
from understudy.comm.fabric import Fabric
from understudy.comm.links.link import Link
from understudy.host.world import REAL, World
from understudy.masking.coverage import at_risk
from understudy.masking.placement import parse
from understudy.protocol.messages import Copied, Saved, WorkerSpec
from understudy.protocol.roster import Roster
from understudy.state.checkpoint import CheckpointFolder, CheckpointStore, CheckpointWriter
from understudy.state.inventory import Inventory, take_inventory
from understudy.state.kinds import Tracked
from understudy.state.stream import WorldStop
from understudy.worker.driver import Send
from understudy.worker.instructions import GoBack, WriteCheckpoint
from understudy.worker.states import Proposal

from .copies import CopyKeeper
from .copying import give_copy

log = logging.getLogger("understudy.worker")


class Archive:
    """The checkpoints and copies of one worker. Belongs to the training thread; any thread may call `kept`."""

    def __init__(
        self,
        spec: WorkerSpec,
        fabric: Fabric,
        role: int,
        tracked: Tracked,
        twins: tuple[int, ...],
        send: Send,
        *,
        inventory_for: Callable[[int, int], Inventory],
        world: World = REAL,
        checkpoints: CheckpointStore | None = None,
    ) -> None:
        """`inventory_for`: the state of a role with the same state at a boundary. `checkpoints`: None for those in the
        folder that the spec names, if it names one."""
        self._spec, self._role, self._tracked, self._twins, self._send = spec, role, tracked, twins, send
        self._fabric, self._inventory_for = fabric, inventory_for
        if checkpoints is None and spec.settings.checkpoint.folder:
            checkpoints = CheckpointFolder(Path(spec.settings.checkpoint.folder), spec.roles, log.warning)
        self._checkpoints = checkpoints
        self._writer: CheckpointWriter | None = None
        self._saved = 0
        """The step of the last checkpoint that was begun."""
        self._put_off = -1
        """The step of the checkpoint for which this worker has put off leaving."""
        self._keeper: CopyKeeper | None = None
        if spec.settings.checkpoint.copy_every:
            self._keeper = CopyKeeper(fabric, spec.uid, tracked, spec.settings.replacement.streams, world=world)
        self._copied = self._told = -1
        """The last step of which a copy was begun, and the last one that was reported."""
        self._fresh = False
        """Whether a generation was entered since the last step."""
        self._kept_now = False
        """Whether a checkpoint or copy was begun at the last boundary."""

    def become(self, role: int, twins: tuple[int, ...]) -> None:
        """Change to another role before anything is kept."""
        self._role, self._twins = role, twins

    def regard(self, twins: tuple[int, ...]) -> None:
        """From now on these roles count as those with the same state, bit by bit."""
        self._twins = twins
        if self._keeper is not None:
            self._keeper.regard(twins)

    def latest(self) -> int | None:
        """The latest checkpoint that is complete on disk; 0: none. None: there are no checkpoints at all."""
        return None if self._checkpoints is None else self._checkpoints.latest()

    def load(self, step: int) -> None:
        """Restore the state of a checkpoint."""
        assert self._checkpoints is not None
        self._checkpoints.load(step, self._role, self._tracked)
        self._saved = step
        self._report_saved(self._role, step)

    def _report_saved(self, role: int, step: int) -> None:
        self._send(Saved(role, step))

    def entered(self, roster: Roster, proposal: Proposal | None = None) -> None:
        """This worker has entered a generation."""
        self._fresh = True
        if self._keeper is None:
            return
        if proposal is not None and proposal.back:
            self._keeper.forget(after=proposal.step)
        elif proposal is not None and proposal.copied >= 0:
            self._keeper.settle(proposal.copied)
        self._keeper.entered(roster, self._twins)

    # -- in training ---------------------------------------------------------------------------------------------------

    def boundary(self, step: int) -> None:
        """Begin a checkpoint or a copy of the state with which this step begins, if one is due."""
        spec = self._spec
        due = bool(spec.settings.checkpoint.every) and step % spec.settings.checkpoint.every == 0
        checkpoints = self._checkpoints
        if checkpoints is not None and step > self._saved and (due or (self._fresh and self._at_risk())):
            if self._writer is None:
                self._writer = checkpoints.writer(self._role, self._report_saved)
            self._writer.save(step, take_inventory(self._tracked), self._vacant())
            self._saved = step
        self._kept_now = self._saved == step
        fresh, self._fresh = self._fresh, False
        if self._keeper is None or (self._copied == step and not fresh):
            return
        if fresh or step % spec.settings.checkpoint.copy_every == 0:  # at the same boundaries everywhere
            self._copied = step
            self._keeper.begin(step, force=fresh)
            self._kept_now |= spec.settings.checkpoint.copy_every > 1

    def lets_go(self, step: int) -> bool:
        """Whether this worker may leave at the boundary after this step. It may not if a checkpoint begins there or its
        part of one is being written, since no other worker would write that part. Leaving is put off for one checkpoint
        only: if the next one is under way by then, this waits for it and returns True."""
        every, writing = self._spec.settings.checkpoint.every, self._writer is not None and self._writer.busy
        begins = self._checkpoints is not None and every > 1 and (step + 1) % every == 0
        if not writing and not begins:
            return True
        which = self._saved if writing else step + 1
        if self._put_off in (-1, which):
            self._put_off = which
            return False
        if self._writer is not None:
            self._writer.wait()
        return True

    def _at_risk(self) -> bool:
        """Whether the loss of one more replica would be a wipe-out. All roles agree, since they have entered the
        generation at the same step."""
        roster = self._fabric.roster
        if not self._spec.settings.masking.mask or roster is None or None not in roster.seats:
            return False
        live = [replica for replica, role in enumerate(self._twins) if roster.seats[role] is not None]
        return bool(at_risk(parse(self._spec.settings.masking.mask, len(self._twins)), live))

    def _vacant(self) -> list[int]:
        """The vacant roles with the same state for which this role writes: it is the first live one of them."""
        roster = self._fabric.roster
        if roster is None or self._role != min(role for role in self._twins if roster.seats[role] is not None):
            return []
        return [role for role in self._twins if roster.seats[role] is None]

    @property
    def busy(self) -> bool:
        """Whether a checkpoint or copy was begun with the step under way, or a checkpoint is still being written.
        Copies that are renewed at every step do not count."""
        return self._kept_now or (self._writer is not None and self._writer.busy)

    def hold(self) -> None:
        """Wait, before an optimizer steps, until the state that it changes is copied."""
        if self._keeper is not None:
            waits.add(self._keeper.hold())

    @property
    def copied(self) -> int:
        """The latest step of which this worker's copies are complete; -1: none."""
        return -1 if self._keeper is None else self._keeper.complete

    def settle(self, step: int) -> None:
        """All workers have complete copies of this step."""
        if self._keeper is None:
            return
        self._keeper.settle(step)
        if step > self._told:
            self._told = step
            self._send(Copied(self._role, step, self._keeper.bytes, self._keeper.seconds, self._keeper.waited))

    def kept(self) -> tuple[tuple[int, int], ...]:
        """(role, step) of the whole copies in this worker's memory."""
        kept = {} if self._keeper is None else self._keeper.kept()
        return tuple((role, step) for role, steps in kept.items() for step in sorted(steps))

    # -- going back ----------------------------------------------------------------------------------------------------

    def go_back(self, to: GoBack) -> None:
        if to.source == "copy":
            assert self._keeper is not None
            self._keeper.restore(to.step, (self._role, *self._twins))
        else:
            assert self._checkpoints is not None
            self._checkpoints.load(to.step, self._role, self._tracked)
            for _, parameter in take_inventory(self._tracked).parameters:
                parameter.grad = None
        self._saved = to.step

    def give(self, roster: Roster, taker: str, role: int, step: int, stop: WorldStop) -> None:
        """Give this worker's copy of a role to the worker that has the role now."""
        assert self._keeper is not None
        copy = self._keeper.copy(role, step)
        links: list[Link] = []
        try:
            links = self._fabric.dial_state(roster, taker, self._spec.settings.replacement.streams)
            give_copy(links, copy, stop)
        finally:
            for link in links:
                link.close()

    # -- the end -------------------------------------------------------------------------------------------------------

    def conclude(self, keep: WriteCheckpoint) -> None:
        """Write the final checkpoint: for this worker's role, and for lost roles with the same state."""
        self.close()
        if self._checkpoints is not None:
            for role in keep.roles:
                writer = self._checkpoints.writer(role, self._report_saved)
                writer.save(keep.step, self._inventory_for(role, keep.step))
                writer.wait()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.wait()
        if self._keeper is not None:
            self._keeper.close()
