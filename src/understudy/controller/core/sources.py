"""Sources of state: which roles can give one another theirs, and what each role could be replaced from."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from understudy.protocol.messages import Compared, Difference
from understudy.protocol.sentences import listed, named

from .actions import announce
from .state import JobState


class StateSource(StrEnum):
    """The source of a role's state if its machine were lost now."""

    REPLICA = "live replica"
    COPY = "copy in memory"
    CHECKPOINT = "checkpoint"
    NONE = "nothing"


def source_of(job: JobState, role: int) -> StateSource:
    """The best source of a role's state, the role's own machine aside."""
    roster = job.roster
    mine = None if roster is None else roster.worker_of(role)
    for twin in job.twins.get(role, ()) if roster is not None else ():
        worker = roster.worker_of(twin) if roster is not None else None
        if worker is not None and twin != role and (mine is None or worker.machine != mine.machine):
            return StateSource.REPLICA
    if job.plan.settings.checkpoint.copy_every and job.plan.machines > 1:
        return StateSource.COPY
    written = job.plan.settings.checkpoint.every > 0 or job.latest_checkpoint() is not None
    return StateSource.CHECKPOINT if written else StateSource.NONE


def identical(job: JobState) -> dict[int, tuple[int, ...]]:
    """Role → roles whose whole state has the same bits: a copy of one of them is a copy of the role."""
    return {role: (role,) if job.own.get(role) else twins for role, twins in job.twins.items()}


def note_comparison(job: JobState, compared: Compared) -> None:
    """Take in what the comparison of all roles' states has found for one of them, and say what is new."""
    role = compared.role
    if not compared.twins:
        forget_own(job, [role])
        return
    job.own[role] = compared.own
    if job.twins.get(role) != compared.twins:
        job.twins[role] = compared.twins
        job.replica_cache = []
    job.compared.add(role)
    for difference in compared.differences:
        key = (difference.item, difference.roles)
        if key not in job.named_differences:
            job.named_differences.add(key)
            announce(job, "redundancy", _differs(difference, compared.step), item=difference.item)
    mutual = all(each in job.twins.get(twin, ()) for each, twins in job.twins.items() for twin in twins)
    complete = len(job.compared) == job.plan.roles and mutual
    if complete and (said := _summary(job)) != job.announced_sources:
        job.announced_sources = said
        announce(job, "redundancy", said, step=compared.step)


def forget_own(job: JobState, roles: Iterable[int]) -> None:
    """What these roles have told one another of their own state is of no use any more, as when all roles go back to an
    earlier step. Masked jobs keep their replicas, and a lost role begins with what a twin has."""
    if job.plan.settings.masking.mask:
        return
    for role in [role for role in roles if job.own.get(role)]:
        job.twins[role], job.own[role] = (role,), ()
        job.replica_cache = []


def _differs(difference: Difference, step: int) -> str:
    """How the roles differ, and what follows."""
    groups = [named("role", roles) for roles in difference.roles]
    said = f"{difference.item} differs between {listed(groups)} from step {step} on"
    if difference.exchanged:
        return f"{said}: its {difference.bytes:,} bytes are exchanged with every vote, so each role can be replaced"
    alone = [named("role", roles) for roles in difference.roles if len(roles) == 1]
    lost = f"no live copy of it for {listed(alone)}" if alone else "fewer live copies of it"
    return (
        f"{said} ({difference.bytes / 1e6:.3g} MB): {lost}; change it in the same way on all roles, or keep copies in "
        "memory with --copy-every"
    )


def _summary(job: JobState) -> str:
    """What each role could be replaced from, in words."""
    found: dict[StateSource, list[int]] = {}
    for role in range(job.plan.roles):
        found.setdefault(source_of(job, role), []).append(role)
    said = "; ".join(
        f"{named('role', roles)} from a {source}" for source, roles in found.items() if source != "nothing"
    )
    lost = found.get(StateSource.NONE, [])
    if lost:
        said += f"{'; ' if said else ''}{named('role', lost)} from nothing"
        said += ": a machine that is lost ends the job; keep copies with --copy-every, or checkpoints with --checkpoint"
    return f"a lost machine is replaced: {said}"
