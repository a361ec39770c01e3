"""Detecting is not acting. Whatever says that a worker or a machine is gone or ill is a signal with its source; what is
done about it is decided here, and nowhere else. Pure, with the reason."""

from __future__ import annotations

from typing import Literal

import msgspec

Source = Literal["exit", "agent", "heartbeat", "link", "limit", "script", "checker"]
"""A worker's process has ended; its agent has; nothing was heard of its agent; a neighbour has noticed; it did not
answer or come along in time; the training script has said so; somebody outside has."""
Act = Literal["nothing", "note", "halt", "cancel", "replace", "end", "fail"]
"""Nothing depends on it; a decision is due anyway; everybody stops and reports; a replacement is given up; a standby
takes its place while it still works; it is ended, and then judged as dead; the job cannot go on."""


class Situation(msgspec.Struct, frozen=True):
    """What matters about the workers concerned, when the signal comes."""

    status: str
    """Of the job."""
    dead: bool = True
    """Whether they are gone for certain."""
    trusted: bool = True
    """Whether, as long as they live, their state may be used."""
    founding: bool = False
    """They are among the first, and the first generation has not been formed."""
    plays: bool = False
    """They hold roles of the generation in play."""
    needed: bool = False
    """A change under way cannot be made without them: they come, give, or are to play without a vote."""
    planned: bool = False
    """That change can still be given up, because training goes on without it."""
    switching: bool = False
    """… no longer: somebody has switched."""
    standby: bool = False
    """Somebody could take their place."""


class Verdict(msgspec.Struct, frozen=True):
    act: Act
    reason: str


def judge(s: Situation) -> Verdict:
    """What to do about it."""
    if s.status in ("finished", "stopped", "failed"):
        return Verdict("nothing", "the job is over")
    if not s.dead:
        return _judge_living(s)
    if s.founding:
        if s.standby:
            return Verdict("note", "the job has not begun: another one takes its place")
        return Verdict("fail", "the job has not begun, and there is no standby")
    if s.status in ("halting", "closing"):
        return Verdict("note", "the others are about to report")
    if s.plays:
        return Verdict("halt", "it plays: nobody can finish the step without it")
    if not s.needed:
        return Verdict("nothing", "nobody depends on it")
    if s.planned and not s.switching:
        return Verdict("cancel", "training goes on without the newcomer")
    return Verdict("halt", "the change under way cannot be finished without it")


def _judge_living(s: Situation) -> Verdict:
    if not s.trusted:
        return Verdict("end", "what it holds is not to be trusted")
    if not s.plays:
        return Verdict("nothing", "it plays no role")
    return Verdict("replace", "it still works: a standby takes over at a boundary")
