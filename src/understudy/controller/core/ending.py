"""How a job ends: finished, stopped or failed; all requests are answered and all machines dismissed."""

from __future__ import annotations

from understudy.protocol.messages import ScriptFailure, Stop

from .actions import announce, dismiss, reply, tell
from .settling import unsettle
from .state import FailureCause, JobState, JobStatus


def fail(job: JobState, cause: FailureCause, reason: str, script: ScriptFailure | None = None) -> None:
    """End the job as failed; `script`: how its script has failed, if the script is at fault."""
    if job.over:
        return
    job.status, job.failure, job.reason = JobStatus.FAILED, cause, reason
    announce(job, "failed", reason, cause=cause, **({} if script is None else {"script": script}))
    _close(job, "the job has failed")


def stop(job: JobState, id: str) -> None:
    """Stop at the next boundary, as an operator asks; a job that has not begun stops at once."""
    job.stopping = True
    announce(job, "asked", "stop at the next boundary", id=id)
    if job.status == JobStatus.FORMING and job.change is None:
        reply(job, id, True, "the job had not begun")
        job.status = JobStatus.STOPPED
        announce(job, "stopped", "stopped before the first step", step=0)
        _close(job, "the job is stopped")
        return
    reply(job, id, True, "the job stops at its next step boundary")
    for uid in job.living(job.seated(job.change)):
        tell(job, uid, Stop())


def stop_joiners(job: JobState) -> None:
    """Repeat the order to stop after a change, since joiners have not heard it."""
    if job.stopping:
        for uid in job.living(job.seated(None)):
            tell(job, uid, Stop())


def finish(job: JobState) -> None:
    """End the job if all workers with roles have ended."""
    if job.status not in (JobStatus.TRAINING, JobStatus.CLOSING) or job.roster is None:
        return
    if job.status == JobStatus.TRAINING and not job.closing_at:
        return
    if job.closing_reason:
        writing = [job.workers[uid] for uid in job.closing_workers]
        if not any(worker.alive and worker.done is None for worker in writing):
            saved = job.latest_checkpoint() == job.closing_step
            rest = continued_from(job.closing_step) if saved else "no checkpoint could be written"
            fail(job, FailureCause.NO_MACHINE, f"{job.closing_reason}; {rest}")
        return
    seated = [job.workers[uid] for uid in job.roster.seats if uid is not None]
    ends = [worker.done for worker in seated if worker.done is not None]
    if not ends and not any(worker.alive for worker in seated) and job.status == JobStatus.CLOSING:
        fail(job, FailureCause.UNFINISHED, f"{job.halt_reason}; no worker is left that has made all steps")
    if not ends or any(worker.alive and worker.done is None for worker in seated):
        return
    stopped = any(end.stopped for end in ends)
    job.status = JobStatus.STOPPED if stopped else JobStatus.FINISHED
    step = max(end.step for end in ends)
    announce(job, "stopped" if stopped else "finished", f"{job.status} after {step} steps", step=step)
    _close(job, f"the job is {job.status}")


def continued_from(step: int) -> str:
    """How to go on from a checkpoint, in words."""
    return f"step {step} is in the checkpoint: the same command goes on from there"


def _close(job: JobState, why: str) -> None:
    unsettle(job)
    under_way = [change.item for change in (job.change, job.interrupted) if change is not None]
    for id in dict.fromkeys(item.id for item in (*under_way, *job.queue) if item is not None):
        reply(job, id, False, why)
    job.queue.clear()
    job.outcomes.clear()
    for machine in job.machines.values():
        if machine.alive:
            dismiss(job, machine, why)
