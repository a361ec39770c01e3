"""The job as a training script sees it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import cached_property

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from understudy.device import torch_private
from understudy.device.cpu import local_device
from understudy.protocol.mesh import alike, dimensions, replica_of, replicated
from understudy.state.inventory import take_inventory
from understudy.state.kinds import modules, optimizers, tracked_objects
from understudy.state.undo import Undo

from .flags import LiveFlag
from .identity import Places
from .masked.gradients import Averaging, check_tracked
from .masked.masking import Masking
from .runtime import JobError, Repeat, WorkerRuntime
from .step import BETWEEN_STEPS, Step, seed_everything

log = logging.getLogger("understudy.worker")


class Job:
    """The argument of `train(job)`: the job as one role sees it. `train` may be entered again in the same process, for
    another role and with another `Job`, so a script keeps nothing about its role in a global variable."""

    def __init__(self, runtime: WorkerRuntime) -> None:
        spec = runtime.spec
        self._runtime = runtime
        self.seed = spec.settings.training.seed
        """The job's seed, the same on all roles: `torch.manual_seed(job.seed)` before the model is made."""
        self.device = local_device().torch_device()
        """The device of this worker."""
        self._spec, self._meter, self._observer = spec, runtime.meter, runtime.observer
        self._undo: Undo | None = None
        self._step: Step | None = None
        self._again: Step | None = None
        self._closed = self._stopped = False
        self._averaged: list[nn.Module] = []
        self._over: tuple[str, ...] = ()
        """The dimensions over which the gradients of these modules are averaged."""
        self._averaging: Averaging | None = None
        self._at_boundary = False
        self._submitted = 0
        """Operations at the end of the latest step."""
        self._noticed = False
        """Whether an update of an optimizer that is not tracked was noticed outside of a step."""
        self._masking: Masking | None = None
        self._hook = register_optimizer_step_pre_hook(self._before_update)

    @property
    def role(self) -> int:
        """The role of this process: its global rank."""
        self._runtime.identity.told()
        return self._runtime.role

    @property
    def places(self) -> Mapping[str, int]:
        """The coordinates of the role in the mesh, by dimension."""
        return Places(self._spec.mesh, self._runtime.role, self._runtime.identity)

    @cached_property
    def mesh(self) -> DeviceMesh:
        """The device mesh over all roles, with the dimensions given to `understudy run`."""
        names, sizes = dimensions(self._spec.mesh)
        return init_device_mesh(local_device().name, tuple(sizes), mesh_dim_names=tuple(names))

    @property
    def replicas(self) -> tuple[int, int]:
        """(number of replicas, the replica of this role)."""
        self._runtime.identity.told(*replicated(self._spec.mesh))
        return replica_of(self._spec.mesh, self._runtime.role)

    @property
    def is_primary(self) -> LiveFlag:
        """True on exactly one role that trains, and never in a rehearsal: role 0 or, in a pipeline, the first role of
        the last stage, which has the loss. If that role is vacant, the next one that has the loss. A live flag: it may
        be stored before the loop, and is looked at when it is tested."""
        return LiveFlag("job.is_primary", lambda: self._runtime.is_primary, self._runtime.readings)

    @property
    def rehearsing(self) -> LiveFlag:
        """Whether this is a rehearsal in the sandbox: its results are discarded. A live flag: false once the standby
        has a role."""
        return LiveFlag("job.rehearsing", lambda: self._runtime.rehearsing, self._runtime.readings)

    def track(self, **things: object) -> None:
        """Declare the objects that move with the role: modules, optimizers, schedulers, scalers, random number
        generators of torch, numpy and Python, any object with state_dict and load_state_dict. Call this before the
        first step, on every role with the same names."""
        if self._undo is not None:
            raise JobError("job.track was called after the first step began; track everything before job.steps(...)")
        for name, thing in things.items():
            if name in self._runtime.tracked and self._runtime.tracked[name] is not thing:
                raise JobError(f"job.track: two things are called {name!r}; give each its own name")
            self._runtime.tracked[name] = thing

    def same_over(self, *names: str) -> None:
        """Declare that the tracked state is the same on roles that differ only in these dimensions of the mesh, so that
        each of them can give a joiner the state of another. For scripts that average gradients themselves; DDP and
        FSDP2 are recognised. The runtime compares the states once, after the first step."""
        unknown = [name for name in names if name not in dict(self._spec.mesh)]
        if unknown or not names:
            known = ", ".join(name for name, _ in self._spec.mesh)
            raise JobError(f"job.same_over: the mesh has the dimensions {known}; name one of them, not {unknown}")
        if self._undo is not None:
            raise JobError("job.same_over was called after the first step began; call it before job.steps(...)")
        self._runtime.same = alike(self._spec.mesh, self._runtime.role, names)

    def average(self, *modules: nn.Module, over: str | tuple[str, ...] = "dp") -> None:
        """Average the gradients of plain modules over these dimensions of the mesh, at the end of step.shards(). The
        tracked state is the same over these dimensions then, see `same_over`. Not needed with DDP and FSDP2."""
        names = (over,) if isinstance(over, str) else tuple(over)
        if self._over and set(names) != set(self._over):
            raise JobError(
                f"job.average: some gradients are averaged over {', '.join(self._over)} and others over "
                f"{', '.join(names)}; use the same dimensions for all"
            )
        self.same_over(*names)
        self._over = names
        self._averaged += modules

    def log(self, **values: float | torch.Tensor) -> None:
        """Log numbers with the step; they are recorded once the step is applied. Inside the loop over shards the mean
        over the micro-shards is logged: those of this replica or, with `--mask`, of all replicas."""
        if self._step is None:
            raise JobError("job.log was called outside of a step; call it inside `with step:`")
        where = self._step.values if self._step._shard is None else self._step._shard
        for name, value in values.items():
            where[name] = float(value.detach() if isinstance(value, torch.Tensor) else value)

    def report_fault(self, reason: str, *, fatal: bool = False) -> None:
        """Report a fault of this worker's machine, which is replaced as soon as a standby can take over. `fatal`: its
        state and results cannot be trusted. Then this call does not return, the step is repeated without this worker,
        and the state of its role comes from another source."""
        if not self._runtime.rehearsing:
            self._runtime.report_fault(reason, fatal=fatal)

    def steps(self, count: int | None = None) -> Iterator[Step]:
        """The remaining steps: `for step in job.steps(1000):` with `with step:` around everything that a step does. All
        roles make the same number of steps. `--steps` of `understudy run` overrides `count`.

        An interrupted step is repeated from the top of the loop body, with everything tracked as it was there."""
        total = self._spec.settings.training.steps if self._spec.settings.training.steps is not None else count
        if total is None:
            raise JobError("how many steps? give job.steps(n) a number, or understudy run --steps N")
        self._check_rehearsals()
        self._runtime.first_boundary()
        self._undo = Undo(self._runtime.tracked)
        self._meter.watch([module for _, module in modules(self._runtime.tracked)])
        check_tracked(self._averaged, self._runtime.tracked)
        roles = alike(self._spec.mesh, self._runtime.role, self._over)
        if self._spec.settings.masking.mask:
            self._masking = Masking(self._runtime, self._averaged, roles)
        elif self._averaged:
            self._averaging = Averaging(self._averaged, self._runtime.process.group(roles))
        if self._runtime.rehearsing:
            yield from self._shadow_steps(total)
        while True:
            index = self._boundary()
            if self._observer is not None:
                self._observer.at_boundary(index)
            if index >= total or self._stopped:
                try:
                    self._runtime.vote(over=True)
                except Repeat:
                    continue
                break
            self._undo.remember()
            seed_everything(self.seed, index, self._runtime.role, BETWEEN_STEPS)
            step = Step(self, index)
            yield step
            if self._step is not None or not step._voted:
                if self._again is step:
                    continue
                raise JobError(f"step {index} was not used; write `with step:` around what it does")
        self._closed = True

    def _boundary(self) -> int:
        """Do what has to happen between two steps; a joiner repeats the leaver's last update there."""
        if self._runtime.fabric.fault is not None and self._runtime.submitted != self._submitted:
            log.warning(
                "role %d: a worker was lost during collectives after step %d, outside of `with step:`; their results "
                "are undefined, and they are not repeated: call them inside `with step:`, before the update",
                self._runtime.role,
                self._runtime.protocol.step - 1,
            )
        self._at_boundary = True
        try:
            return self._runtime.boundary()
        finally:
            self._at_boundary = False

    def _check_rehearsals(self) -> None:
        """Raise JobError if a joiner would rehearse too few steps: DDP lays out its buckets in the first two."""
        rehearsals = self._spec.settings.standbys.rehearsals
        few = rehearsals < 2 and self._spec.roles > 1 and not self._spec.settings.masking.mask
        inner = (each for _, module in modules(self._runtime.tracked) for each in module.modules())
        if few and any(isinstance(each, DistributedDataParallel) for each in inner):
            raise JobError(
                f"rehearsals is {rehearsals}, but with DDP a joiner must have rehearsed two steps, in "
                "which DDP lays out its buckets; set rehearsals to 2 or more"
            )

    def _shadow_steps(self, total: int) -> Iterator[Step]:
        """The steps of a rehearsal: everything runs once, and the results are discarded."""
        start = self._runtime.world.monotonic()
        for number in range(self._spec.settings.standbys.rehearsals):
            self._runtime.change_role()
            self._runtime.recordings.shadow_step(number + 1)
            index = min(number, total - 1)
            seed_everything(self.seed, index, self._runtime.role, BETWEEN_STEPS)
            yield Step(self, index)
        self._runtime.rehearsed(self._runtime.world.monotonic() - start)

    # -- a step ------------------------------------------------------------------------------------------------------

    def _begin(self, step: Step) -> None:
        if self._step is not None:
            raise JobError(f"step {step.index} begins inside step {self._step.index}")
        self._step, self._again = step, None
        step.values, step._shard, step._complete = {}, None, False
        if self._masking is not None:
            self._masking.begin()
        self._runtime.identity.watching = False  # a script that asks inside of a step asks again in the next one
        if not self._runtime.rehearsing:
            self._runtime.step_begins(step.index)
        seed_everything(self.seed, step.index, self._runtime.role)

    def _before_update(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        """Vote before the first update of a step: a step is applied by all roles or by none."""
        step = self._step
        if step is None:
            if not self._at_boundary:
                self._updated_outside(optimizer)
            return
        if not self._runtime.rehearsing:
            self._meter.update()
        if not step._voted:
            self._vote(step)
        if not self._runtime.rehearsing:
            closure = args[1] if isinstance(args, tuple) and len(args) > 1 else None
            self._runtime.updating(optimizer, replayable=closure is None and not kwargs)

    def _updated_outside(self, optimizer: Optimizer) -> None:
        """An optimizer makes an update outside of a step: no vote comes before it, and it cannot be undone."""
        if not changes_parameters(optimizer):
            return
        name = type(optimizer).__name__
        if any(known is optimizer for _, known in optimizers(self._runtime.tracked)):
            raise JobError(
                f"{name}.step() was called outside of a step; an update belongs inside `with step:`, where all roles "
                "make it or none does",
                "outside-step",
            )
        if not self._noticed and not self._runtime.rehearsing:
            log.warning(
                "role %d: %s.step() was called outside of a step by an optimizer that is not tracked; a joiner does "
                "not have the result: call it inside `with step:` and track it, if training depends on it",
                self._runtime.role,
                name,
            )
        self._noticed = True

    def _vote(self, step: Step) -> None:
        if (self._masking is not None or self._averaging is not None) and not step._complete:
            raise JobError(
                f"step {step.index} has not gone through its shards; gradients that the runtime averages are complete "
                f"after the last one ({'--mask' if self._masking else 'job.average'}): write `for shard in "
                "step.shards():` around what computes them, and do not leave it early"
            )
        if not self._runtime.rehearsing:
            if self._observer is not None:
                self._observer.before_vote(step.index)
            outcome = self._runtime.vote(sound=not self._spec.settings.training.check_gradients or self._sound())
            self._stopped = self._stopped or outcome.stop
        step._voted = True

    @torch.no_grad()
    def _sound(self) -> bool:
        """Whether all gradients are finite. A gradient scaler checks this itself."""
        if any(each.kind.checks_gradients(each.thing) for each in tracked_objects(self._runtime.tracked)):
            return True
        found = [grad for _, grad in take_inventory(self._runtime.tracked).gradients() if grad is not None]
        norms = torch_private.foreach_norm(found, ord=float("inf")) if found else ()
        return all(bool(norm.isfinite()) for norm in norms)

    def _end(self, step: Step, error: BaseException | None) -> bool:
        try:
            return self._ends(step, error)
        finally:
            self._submitted = self._runtime.submitted

    def _ends(self, step: Step, error: BaseException | None) -> bool:
        if self._runtime.rehearsing:
            self._step = None
            self._runtime.identity.watching = True
            if self._masking is not None:
                self._masking.applied()
            return False
        try:
            if error is None and not step._voted:
                self._vote(step)
        except Repeat as repeat:
            error = repeat
        if error is None:
            self._step = None
            self._runtime.applied(step.values)
            if self._masking is not None:
                self._masking.applied()
            return False
        if isinstance(error, Repeat) or (isinstance(error, Exception) and self._interrupted()):
            assert self._undo is not None
            if self._masking is not None:
                self._masking.interrupted(error)
            self._undo.restore()
            self._step, self._again = None, step
            return True
        return False

    def _interrupted(self) -> bool:
        """Whether an exception was caused by an interruption, so that the step is repeated."""
        if not self._runtime.failed_in_step():
            return False
        try:
            self._runtime.verdict()
        except Repeat:
            return True
        return False

    def _left(self) -> None:
        """The training function has ended, also by an exception."""
        self._hook.remove()
        self._meter.close()

    def _close(self) -> None:
        """The training function has returned. A job without a step is an error, unless its number of steps is 0 or its
        checkpoint is complete: then the loop over the steps has ended by itself."""
        if not self._closed:
            if not self._runtime.protocol.step:
                raise JobError(
                    "the training function has returned without a step; write `for step in job.steps(n):` and "
                    "`with step:` around what a step does: the runtime does not see the loop of a library's trainer",
                    "no-steps",
                )
            while True:
                try:
                    self._runtime.vote(over=True)
                    return
                except Repeat:
                    self._boundary()


def changes_parameters(optimizer: Optimizer) -> bool:
    """Whether an update changes parameters. torch.distributed.checkpoint makes updates with learning rate 0, to create
    the optimizer's state."""
    return any(group.get("lr", 1.0) for group in optimizer.param_groups)
