"""Judges signals. Every report that a worker or a machine is dead or ill is a signal with a source; `judge` decides
what to do about it, as a pure function that also returns the reason. Detecting is not acting."""

from __future__ import annotations

from typing import Literal

import msgspec

Source = Literal["exit", "agent", "heartbeat", "link", "limit", "script", "checker"]
"""Origin of a signal: a worker's process ended; an agent reported or ended; an agent's heartbeats stopped; a neighbour
lost a link; a time limit passed; the training script reported; a health checker outside the job reported."""
Act = Literal["nothing", "note", "halt", "cancel", "replace", "end", "fail"]
"""Consequence of a signal: none, because nothing depends on the worker; none, because a decision is due anyway; all
workers halt and report; the planned change is given up; a standby takes over while the worker still works; the worker
is ended and then judged as dead; the job fails."""


class Situation(msgspec.Struct, frozen=True):
    """The facts about the workers concerned that a judgement depends on."""

    status: str
    """Status of the job."""
    dead: bool = True
    """Whether the workers are dead for certain."""
    trusted: bool = True
    """Whether the state of the workers may be used as long as they live."""
    founding: bool = False
    """The workers belong to the first generation, which has not been formed."""
    seated: bool = False
    """The workers have roles in the present generation."""
    needed: bool = False
    """The change under way cannot be made without the workers: they join, give state, or are to have roles."""
    planned: bool = False
    """The change under way is a planned one: training goes on without it."""
    switching: bool = False
    """The change under way can no longer be given up, because a worker has switched."""
    standby: bool = False
    """Another machine could take the place of the workers."""


class Verdict(msgspec.Struct, frozen=True):
    act: Act
    reason: str


def judge(s: Situation) -> Verdict:
    """Decide what to do about a signal."""
    if s.status in ("finished", "stopped", "failed"):
        return Verdict("nothing", "the job is over")
    if not s.dead:
        return _judge_living(s)
    if s.founding:
        if s.standby:
            return Verdict("note", "the job has not begun: another worker takes its place")
        return Verdict("fail", "the job has not begun, and there is no standby")
    if s.status in ("halting", "closing"):
        return Verdict("note", "the others are about to report")
    if s.seated:
        return Verdict("halt", "it has a role: the step cannot be finished without it")
    if not s.needed:
        return Verdict("nothing", "nothing depends on it")
    if s.planned and not s.switching:
        return Verdict("cancel", "training goes on without the joiner")
    return Verdict("halt", "the change under way cannot be finished without it")


def _judge_living(s: Situation) -> Verdict:
    if not s.trusted:
        return Verdict("end", "its state is not to be trusted")
    if not s.seated:
        return Verdict("nothing", "it has no role")
    return Verdict("replace", "it still works: a standby takes over at a boundary")
