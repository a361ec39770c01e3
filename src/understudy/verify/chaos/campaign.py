"""One fault after another in a running job, each followed to the job's recovery."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Literal

import msgspec

from understudy.verify.running_job import JobOver, NotRecovered, RunningJob
from understudy.verify.victims import NotPossible

from .faults import KINDS
from .mix import PlannedFault


class FaultRecord(msgspec.Struct, frozen=True):
    """A fault and its consequences."""

    number: int
    kind: str
    text: str
    outcome: Literal["recovered", "passed", "over", "stuck"]
    """`recovered`; `passed`: the fault was not possible; `over`: the job has ended; `stuck`: it did not recover."""
    seconds: float = 0.0
    """From the fault to the job's recovery."""


class Campaign(msgspec.Struct):
    """The faults that have happened in one job."""

    records: list[FaultRecord]
    problem: str = ""
    """Why there are fewer faults than wanted, or why the last one did harm; empty: there is no problem."""

    @property
    def faults(self) -> int:
        """Number of faults that happened."""
        return sum(record.outcome != "passed" for record in self.records)


_PASSES = 5
"""Faults that are not possible, for each that is wanted, after which the campaign is given up."""


def run_campaign(
    job: RunningJob, plan: Iterator[PlannedFault], faults: int, tell: Callable[[FaultRecord], None]
) -> Campaign:
    """Let `faults` faults happen. Returns early, with the problem, if the job ends or does not recover."""
    campaign = Campaign([])
    try:
        while campaign.faults < faults:
            job.ready()
            if len(campaign.records) - campaign.faults >= _PASSES * faults:
                campaign.problem = f"nothing in the mix is possible here: {campaign.records[-1].text}"
                break
            planned = next(plan)
            job.pause(planned.wait)
            record = _strike(job, planned, campaign.faults + 1)
            campaign.records.append(record)
            tell(record)
            if record.outcome == "stuck":
                campaign.problem = f"{record.kind}: {record.text}"
                break
        job.view()
    except JobOver as over:
        campaign.problem = f"{over}, after {campaign.faults} of {faults} faults"
    except NotRecovered as stuck:
        campaign.problem = str(stuck)
    return campaign


def _strike(job: RunningJob, planned: PlannedFault, number: int) -> FaultRecord:
    job.view()
    began = time.monotonic()
    text = ""
    try:
        damage = KINDS[planned.kind].strike(job, Random(planned.seed))
        text = damage.text
        began = time.monotonic()
        job.recovered(damage.dead)
    except NotPossible as why:
        return FaultRecord(number, planned.kind, str(why), "passed")
    except (JobOver, NotRecovered) as error:
        said = f"{text}; {error}" if text else str(error)
        outcome: Literal["over", "stuck"] = "over" if isinstance(error, JobOver) else "stuck"
        return FaultRecord(number, planned.kind, said, outcome, time.monotonic() - began)
    return FaultRecord(number, planned.kind, text, "recovered", time.monotonic() - began)
