"""One fault after another, each followed to the job's recovery."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from random import Random

import msgspec

from .kinds import known
from .mix import Draw
from .scene import Over, Scene, Unrecovered
from .victims import Passed


class Deed(msgspec.Struct, frozen=True):
    """A fault and what became of it."""

    number: int
    kind: str
    text: str
    outcome: str
    """`recovered`, `passed` where it was not possible, `over` where the job ended, or `stuck`."""
    seconds: float = 0.0
    """From the fault to the job's recovery."""

    @property
    def counts(self) -> bool:
        return self.outcome != "passed"


class Campaign(msgspec.Struct):
    deeds: list[Deed]
    problem: str = ""
    """Why there are fewer faults than were wanted, or one too many."""

    @property
    def faults(self) -> int:
        return sum(deed.counts for deed in self.deeds)


_PASSES = 5
"""So many faults that are not possible for each that was wanted, and it is given up."""


def strike(scene: Scene, plan: Iterator[Draw], faults: int, tell: Callable[[Deed], None]) -> Campaign:
    """Let so many faults happen. Returns early, with the problem, when the job ends or does not recover."""
    campaign = Campaign([])
    try:
        while campaign.faults < faults:
            scene.ready()
            if len(campaign.deeds) - campaign.faults >= _PASSES * faults:
                campaign.problem = f"nothing in the mix is possible here: {campaign.deeds[-1].text}"
                break
            draw = next(plan)
            scene.pause(draw.wait)
            deed = _one(scene, draw, campaign.faults + 1)
            campaign.deeds.append(deed)
            tell(deed)
            if deed.outcome == "stuck":
                campaign.problem = f"{deed.kind}: {deed.text}"
                break
        scene.job()
    except Over as over:
        campaign.problem = f"{over}, after {campaign.faults} of {faults} faults"
    except Unrecovered as stuck:
        campaign.problem = str(stuck)
    return campaign


def _one(scene: Scene, draw: Draw, number: int) -> Deed:
    scene.job()
    began = time.monotonic()
    text = ""
    try:
        wound = known()[draw.kind].strike(scene, Random(draw.seed))
        text = wound.text
        began = time.monotonic()
        scene.recovered(wound.dead)
    except Passed as why:
        return Deed(number, draw.kind, str(why), "passed")
    except Over as over:
        return Deed(number, draw.kind, f"{text}; {over}" if text else str(over), "over", time.monotonic() - began)
    except Unrecovered as stuck:
        return Deed(number, draw.kind, f"{text}; {stuck}" if text else str(stuck), "stuck", time.monotonic() - began)
    return Deed(number, draw.kind, text, "recovered", time.monotonic() - began)
