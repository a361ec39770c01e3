"""All kinds of faults. Those from outside need nothing of the job: signals to its processes, and requests to its
controller. Those from inside happen in workers and agents of a job that was started with `--chaos`."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from random import Random
from typing import Literal, NamedTuple

import msgspec

from understudy.testing.faults import AGENT_FAULTS, WORKER_FAULTS
from understudy.verify.running_job import RunningJob
from understudy.verify.victims import (
    ACTIVE,
    LiveWorker,
    NotPossible,
    Snapshot,
    pick_machines,
    pick_standby,
    pick_worker,
)


class Damage(msgspec.Struct, frozen=True):
    """What a fault has done."""

    text: str
    dead: tuple[int, ...] = ()
    """Processes that have died; the controller has to notice each."""


Strike = Callable[[RunningJob, Random], Damage]


class FaultKind(msgspec.Struct, frozen=True):
    """A kind of fault. `strike` lets it happen, or raises NotPossible."""

    name: str
    origin: Literal["outside", "inside"]
    summary: str
    strike: Strike
    needs: str = ""
    """The option without which no job survives it; such a kind is not in the usual mix."""


KINDS: dict[str, FaultKind] = {}
"""Name → kind."""


def origins() -> dict[str, str]:
    return {name: kind.origin for name, kind in KINDS.items()}


def usual(*, inside: bool) -> dict[str, int]:
    """The mix of faults that a job survives without further options; `inside`: with faults inside its processes."""
    return {name: 1 for name, kind in KINDS.items() if not kind.needs and (inside or kind.origin == "outside")}


def _outside(name: str, summary: str) -> Callable[[Strike], Strike]:
    """Register a function as a fault from outside."""

    def register(strike: Strike) -> Strike:
        KINDS[name] = FaultKind(name, "outside", summary, strike)
        return strike

    return register


# -- victims -----------------------------------------------------------------------------------------------------------


class _Victim(NamedTuple):
    """Processes that get a signal together."""

    text: str
    pids: tuple[int, ...]
    workers: tuple[int, ...] = ()
    """The workers that are lost with these processes."""


def _worker(job: RunningJob, dice: Random) -> tuple[Snapshot, LiveWorker]:
    snapshot = job.snapshot()
    return snapshot, pick_worker(snapshot, dice, reckless=job.reckless)


def _two_workers(job: RunningJob, dice: Random) -> tuple[LiveWorker, LiveWorker]:
    job.ready(2)
    snapshot, one = _worker(job, dice)
    return one, pick_worker(snapshot, dice, reckless=job.reckless, also={one.uid})


def _pids(snapshot: Snapshot, *machines: str) -> tuple[int, ...]:
    return tuple(worker.pid for machine in machines for worker in snapshot.on(machine))


def _name(worker: LiveWorker) -> str:
    return f"role {worker.role} ({worker.uid} on {worker.machine})"


def _victim(what: str, job: RunningJob, dice: Random) -> _Victim:
    if what == "controller":
        return _Victim("the controller", (job.controller(),))
    if what == "worker":
        _, worker = _worker(job, dice)
        return _Victim(_name(worker), (worker.pid,), (worker.pid,))
    snapshot = job.snapshot()
    if what in ("standby", "standby-agent"):
        machine, prefix = pick_standby(snapshot, dice), "the standby "
    else:
        machine, prefix = pick_machines(snapshot, dice, reckless=job.reckless)[0], ""
    workers = _pids(snapshot, machine)
    match what:
        case "standby":
            worker = dice.choice(snapshot.on(machine))
            return _Victim(f"{worker.uid} on the standby {machine}", (worker.pid,), (worker.pid,))
        case "forkserver":
            return _Victim(f"the fork server of {machine}", (job.fork_server(snapshot, machine),), workers)
        case "machine":
            return _Victim(machine, (job.agent(snapshot, machine), *workers), workers)
        case _:
            return _Victim(f"the agent of {prefix}{machine}", (job.agent(snapshot, machine),), workers)


# -- one signal --------------------------------------------------------------------------------------------------------

_SIGNALS = (
    ("kill", "worker", "SIGKILL to a worker with a role"),
    ("kill", "agent", "SIGKILL to a machine's agent; its workers follow it"),
    ("kill", "machine", "SIGKILL to an agent and all its workers at once"),
    ("kill", "forkserver", "SIGKILL to the process that starts a machine's workers; they follow it"),
    ("kill", "standby", "SIGKILL to a worker of a standby"),
    ("kill", "standby-agent", "SIGKILL to the agent of a standby"),
    ("kill", "controller", "SIGKILL to the controller"),
    ("stop", "worker", "SIGSTOP to a worker, for good"),
    ("stop", "agent", "SIGSTOP to an agent, for good; its workers go on"),
    ("stop", "machine", "SIGSTOP to an agent and all its workers, for good"),
    ("pause", "worker", "SIGSTOP to a worker, SIGCONT after 1 to 3 s"),
    ("pause", "agent", "SIGSTOP to an agent, SIGCONT after 1 to 4 s: sometimes too late"),
    ("pause", "machine", "SIGSTOP to an agent and its workers, SIGCONT after 3 to 5 s: it has been replaced"),
    ("pause", "controller", "SIGSTOP to the controller, SIGCONT after 1 to 5 s"),
)
_PAUSES = {"worker": (1.0, 3.0), "agent": (1.0, 4.0), "machine": (3.0, 5.0), "controller": (1.0, 5.0)}
"""Seconds, at least and at most."""


def _signalled(verb: str, what: str) -> Strike:
    def strike(job: RunningJob, dice: Random) -> Damage:
        victim = _victim(what, job, dice)
        if verb == "kill":
            job.kill(*victim.pids)
            return Damage(f"killed {victim.text}", victim.workers)
        if verb == "stop":
            job.signal(signal.SIGSTOP, victim.pids)
            return Damage(f"stopped {victim.text} for good", victim.workers)
        seconds = dice.uniform(*_PAUSES[what])
        with job.frozen(*victim.pids):
            job.pause(seconds)
        return Damage(f"paused {victim.text} for {seconds:.1f} s")

    return strike


for _verb, _what, _summary in _SIGNALS:
    _outside(f"{_verb}-{_what}", _summary)(_signalled(_verb, _what))


@_outside("slow-worker", "a worker that gets the CPU one tenth of the time, for 2 to 4 s")
def slow_worker(job: RunningJob, dice: Random) -> Damage:
    _, worker = _worker(job, dice)
    seconds = dice.uniform(2.0, 4.0)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with job.frozen(worker.pid):
            job.pause(0.09)
        job.pause(0.01)
    return Damage(f"slowed {_name(worker)} for {seconds:.1f} s")


# -- several at once, or one after another -----------------------------------------------------------------------------


@_outside("kill-two-workers", "SIGKILL to two workers at the same time")
def kill_two_workers(job: RunningJob, dice: Random) -> Damage:
    one, two = _two_workers(job, dice)
    job.kill(one.pid, two.pid)
    return Damage(f"killed {_name(one)} and {_name(two)}", (one.pid, two.pid))


@_outside("kill-two-machines", "SIGKILL to two agents and all their workers at once")
def kill_two_machines(job: RunningJob, dice: Random) -> Damage:
    pick_machines(job.snapshot(), Random(0), 2, reckless=job.reckless)  # not possible: no standby is asked for
    job.ready(2)
    snapshot = job.snapshot()
    machines = pick_machines(snapshot, dice, 2, reckless=job.reckless)
    pids = _pids(snapshot, *machines)
    job.kill(*(job.agent(snapshot, machine) for machine in machines), *pids)
    return Damage(f"killed {' and '.join(machines)}", pids)


@_outside("kill-worker-and-controller", "SIGKILL to a worker and, a moment later, to the controller")
def kill_worker_and_controller(job: RunningJob, dice: Random) -> Damage:
    _, worker = _worker(job, dice)
    controller = job.controller()
    job.kill(worker.pid)
    job.pause(dice.uniform(0.0, 0.5))
    job.kill(controller)
    return Damage(f"killed {_name(worker)} and the controller", (worker.pid,))


@_outside("kill-during-recovery", "SIGKILL to a worker, and to a second one while the job recovers")
def kill_during_recovery(job: RunningJob, dice: Random) -> Damage:
    one, two = _two_workers(job, dice)
    job.kill(one.pid)
    job.pause(dice.uniform(0.0, 2.0))
    if two.uid not in {worker.uid for worker in job.snapshot().with_roles()}:
        return Damage(f"killed {_name(one)}; {_name(two)} left before its turn", (one.pid,))
    job.kill(two.pid)
    return Damage(f"killed {_name(one)}, then {_name(two)}", (one.pid, two.pid))


@_outside("kill-joiner-in-recovery", "SIGKILL to a worker, and to the standby that takes its role")
def kill_joiner_in_recovery(job: RunningJob, dice: Random) -> Damage:
    job.ready(2)
    _, worker = _worker(job, dice)
    job.kill(worker.pid)
    joiners: list[LiveWorker] = []

    def chosen() -> bool:
        change = job.view()["change"]
        if change is not None:
            snapshot = job.snapshot()
            standbys = set(change["coming"]) & set(snapshot.machines("standby"))
            joiners[:] = [one for one in snapshot.workers if one.machine in standbys]
        return bool(joiners)

    job.until(chosen, "a standby to be chosen", every=0.005)
    job.pause(dice.uniform(0.0, 1.0))
    joiner = dice.choice(joiners)
    job.kill(joiner.pid)
    text = f"killed {_name(worker)}, then its joiner {joiner.uid} on {joiner.machine}"
    return Damage(text, (worker.pid, joiner.pid))


# -- replaced ----------------------------------------------------------------------------------------------------------

_PHASES = ("rehearse", "prepare", "armed", "switch")


def _replace_until(job: RunningJob, dice: Random, leaver: str) -> tuple[str, list[str]]:
    """Replace a machine, up to a phase that is drawn; returns the phase and the machines that join."""
    id = job.replace(leaver)
    phase = dice.choice(_PHASES)
    joining: list[str] = []

    def reached() -> bool:
        change = job.view()["change"]
        if change is not None:
            joining[:] = change["coming"]
            return change["phase"] in _PHASES[_PHASES.index(phase) :]
        if job.asked(id)["done"]:
            raise NotPossible(f"the replacement was over before its phase {phase} was seen")
        return False

    job.until(reached, f"the phase {phase}", every=0.005)
    return phase, list(joining)


@_outside("replace", "a planned replacement")
def replace(job: RunningJob, dice: Random) -> Damage:
    leaver = dice.choice(job.snapshot().machines(ACTIVE))
    answer = job.answer(job.replace(leaver))
    if not answer["ok"]:
        return Damage(f"{leaver} was not replaced: {answer['text']}")
    return Damage(f"replaced {leaver}; {answer['text']}")


@_outside("replace-and-kill-leaver", "a planned replacement; the leaver dies on the way")
def replace_and_kill_leaver(job: RunningJob, dice: Random) -> Damage:
    snapshot = job.snapshot()
    leaver = pick_machines(snapshot, dice, reckless=job.reckless)[0]
    phase, _ = _replace_until(job, dice, leaver)
    pid = dice.choice(snapshot.on(leaver)).pid
    job.kill(pid)
    return Damage(f"killed {leaver} while it was being replaced, in its phase {phase}", (pid,))


@_outside("replace-and-kill-joiner", "a planned replacement; the joiner dies on the way")
def replace_and_kill_joiner(job: RunningJob, dice: Random) -> Damage:
    job.ready(2)
    leaver = dice.choice(job.snapshot().machines(ACTIVE))
    phase, joining = _replace_until(job, dice, leaver)
    snapshot = job.snapshot()
    victims = [worker for name in joining for worker in snapshot.on(name)]
    if not victims:
        raise NotPossible("the joiner was gone already")
    pid = dice.choice(victims).pid
    job.kill(pid)
    return Damage(f"killed {' '.join(joining)}, the joiner for {leaver}, in the phase {phase}", (pid,))


@_outside("replace-and-kill-stayer", "a planned replacement; a stayer dies on the way")
def replace_and_kill_stayer(job: RunningJob, dice: Random) -> Damage:
    job.ready(2)
    snapshot, victim = _worker(job, dice)
    leavers = [name for name in snapshot.machines(ACTIVE) if name != victim.machine]
    if not leavers:
        raise NotPossible("there is only one machine")
    leaver = dice.choice(leavers)
    phase, _ = _replace_until(job, dice, leaver)
    job.kill(victim.pid)
    return Damage(f"killed {_name(victim)} while {leaver} was being replaced, in the phase {phase}", (victim.pid,))


# -- inside workers and agents -----------------------------------------------------------------------------------------

_NEEDS = {"nan": "needs --check-gradients", "hang": "needs --step-limit"}
_FATAL = {"corrupt-line", "exit-1", "sys-exit", "raise-in-forward", "hang"}
"""Faults of which a worker dies: the controller must notice the loss."""
_MILD = {"delay-links", "throttle-links", "fill-checkpoint-disk", "leak-memory", "burn-cpu", "slow"}
_MILD |= {"drop-control", "duplicate-control", "delay-control", "corrupt-report"}
"""Faults of which no worker dies: they may strike the last copy of a role's state."""
_NOTICED_S = 2.0
"""Time after the end of its connection in which a machine is taken for gone, if it is."""


def _in_worker(name: str) -> Strike:
    def strike(job: RunningJob, dice: Random) -> Damage:
        worker = pick_worker(job.snapshot(), dice, reckless=job.reckless or name in _MILD)
        seconds = dice.uniform(1.0, 3.0)
        job.inject(worker.machine, name, uid=worker.uid, seconds=seconds)
        job.pause(0.0 if name in _FATAL else seconds)
        return Damage(f"{_name(worker)}, {seconds:.1f} s", (worker.pid,) if name in _FATAL else ())

    return strike


def _in_agent(name: str) -> Strike:
    def strike(job: RunningJob, dice: Random) -> Damage:
        machine = pick_machines(job.snapshot(), dice, reckless=job.reckless or name in _MILD)[0]
        seconds = dice.uniform(1.0, 3.0)
        job.inject(machine, name, seconds=seconds)
        job.pause(seconds + _NOTICED_S)
        return Damage(f"{machine}, {seconds:.1f} s")

    return strike


KINDS |= {
    name: FaultKind(name, "inside", summary, _in_worker(name), _NEEDS.get(name, ""))
    for name, summary in WORKER_FAULTS.items()
}
KINDS |= {name: FaultKind(name, "inside", summary, _in_agent(name)) for name, summary in AGENT_FAULTS.items()}
