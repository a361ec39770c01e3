"""Faults that need nothing of the job: signals to its processes, and requests to its controller."""

from __future__ import annotations

import signal
import time
from random import Random

from .kinds import Wound, kind
from .scene import Scene
from .victims import Company, Passed, Worker, a_standby, a_worker, some_machines

_PHASES = ("rehearse", "prepare", "armed", "switch")


def _worker(scene: Scene, dice: Random) -> tuple[Company, Worker]:
    company = scene.company()
    return company, a_worker(company, dice, reckless=scene.reckless)


def _machine(scene: Scene, dice: Random) -> tuple[Company, str]:
    company = scene.company()
    return company, some_machines(company, dice, reckless=scene.reckless)[0]


def _pids(company: Company, *machines: str) -> tuple[int, ...]:
    return tuple(worker.pid for machine in machines for worker in company.on(machine))


def _name(worker: Worker) -> str:
    return f"role {worker.role} ({worker.uid} on {worker.machine})"


@kind("kill-worker", "outside", "SIGKILL to a worker that plays")
def kill_worker(scene: Scene, dice: Random) -> Wound:
    _, worker = _worker(scene, dice)
    scene.kill(worker.pid)
    return Wound(f"killed {_name(worker)}", (worker.pid,))


@kind("kill-two-workers", "outside", "SIGKILL to two workers at the same time")
def kill_two_workers(scene: Scene, dice: Random) -> Wound:
    scene.ready(2)
    company, one = _worker(scene, dice)
    two = a_worker(company, dice, reckless=scene.reckless, also={one.uid})
    scene.kill(one.pid, two.pid)
    return Wound(f"killed {_name(one)} and {_name(two)}", (one.pid, two.pid))


@kind("kill-agent", "outside", "SIGKILL to a machine's agent; its workers follow it")
def kill_agent(scene: Scene, dice: Random) -> Wound:
    company, machine = _machine(scene, dice)
    scene.kill(scene.agent(company, machine))
    return Wound(f"killed the agent of {machine}", _pids(company, machine))


@kind("kill-machine", "outside", "SIGKILL to an agent and all its workers at once")
def kill_machine(scene: Scene, dice: Random) -> Wound:
    company, machine = _machine(scene, dice)
    pids = _pids(company, machine)
    scene.kill(scene.agent(company, machine), *pids)
    return Wound(f"killed {machine}", pids)


@kind("kill-two-machines", "outside", "the same to two machines")
def kill_two_machines(scene: Scene, dice: Random) -> Wound:
    some_machines(scene.company(), Random(0), 2, reckless=scene.reckless)
    scene.ready(2)
    company = scene.company()
    machines = some_machines(company, dice, 2, reckless=scene.reckless)
    pids = _pids(company, *machines)
    scene.kill(*(scene.agent(company, machine) for machine in machines), *pids)
    return Wound(f"killed {' and '.join(machines)}", pids)


@kind("kill-forkserver", "outside", "SIGKILL to the process that starts a machine's workers; they follow it")
def kill_fork_server(scene: Scene, dice: Random) -> Wound:
    company, machine = _machine(scene, dice)
    scene.kill(scene.fork_server(company, machine))
    return Wound(f"killed the fork server of {machine}", _pids(company, machine))


@kind("kill-standby", "outside", "SIGKILL to a worker of a standby")
def kill_standby(scene: Scene, dice: Random) -> Wound:
    company = scene.company()
    machine = a_standby(company, dice)
    victim = dice.choice(company.on(machine))
    scene.kill(victim.pid)
    return Wound(f"killed {victim.uid} on the standby {machine}", (victim.pid,))


@kind("kill-standby-agent", "outside", "SIGKILL to the agent of a standby")
def kill_standby_agent(scene: Scene, dice: Random) -> Wound:
    company = scene.company()
    machine = a_standby(company, dice)
    scene.kill(scene.agent(company, machine))
    return Wound(f"killed the agent of the standby {machine}", _pids(company, machine))


@kind("kill-controller", "outside", "SIGKILL to the controller")
def kill_controller(scene: Scene, dice: Random) -> Wound:
    scene.kill(scene.controller())
    return Wound("killed the controller")


@kind("kill-worker-and-controller", "outside", "SIGKILL to a worker and, a moment later, to the controller")
def kill_worker_and_controller(scene: Scene, dice: Random) -> Wound:
    _, worker = _worker(scene, dice)
    controller = scene.controller()
    scene.kill(worker.pid)
    scene.pause(dice.uniform(0.0, 0.5))
    scene.kill(controller)
    return Wound(f"killed {_name(worker)} and the controller", (worker.pid,))


@kind("kill-during-recovery", "outside", "SIGKILL to a worker, and to a second one while the job recovers")
def kill_during_recovery(scene: Scene, dice: Random) -> Wound:
    scene.ready(2)
    company, one = _worker(scene, dice)
    two = a_worker(company, dice, reckless=scene.reckless, also={one.uid})
    scene.kill(one.pid)
    scene.pause(dice.uniform(0.0, 2.0))
    now = {worker.uid for worker in scene.company().cast()}
    if two.uid not in now:
        return Wound(f"killed {_name(one)}; {_name(two)} left before its turn", (one.pid,))
    scene.kill(two.pid)
    return Wound(f"killed {_name(one)}, then {_name(two)}", (one.pid, two.pid))


@kind("kill-joiner-in-recovery", "outside", "SIGKILL to a worker, and to the standby that takes its place")
def kill_joiner_in_recovery(scene: Scene, dice: Random) -> Wound:
    scene.ready(2)
    _, worker = _worker(scene, dice)
    scene.kill(worker.pid)
    joiners: list[Worker] = []

    def comes() -> bool:
        change = scene.job()["change"]
        if change is not None:
            company = scene.company()
            standbys = set(change["coming"]) & set(company.machines("standby"))
            joiners[:] = [one for one in company.workers if one.machine in standbys]
        return bool(joiners)

    scene.until(comes, "a standby to be chosen", every=0.005)
    scene.pause(dice.uniform(0.0, 1.0))
    joiner = dice.choice(joiners)
    scene.kill(joiner.pid)
    text = f"killed {_name(worker)}, then {joiner.uid} on {joiner.machine} that came for it"
    return Wound(text, (worker.pid, joiner.pid))


@kind("stop-worker", "outside", "SIGSTOP to a worker, for good")
def stop_worker(scene: Scene, dice: Random) -> Wound:
    _, worker = _worker(scene, dice)
    scene.signal(signal.SIGSTOP, [worker.pid])
    return Wound(f"stopped {_name(worker)} for good", (worker.pid,))


@kind("stop-agent", "outside", "SIGSTOP to an agent, for good; its workers go on")
def stop_agent(scene: Scene, dice: Random) -> Wound:
    company, machine = _machine(scene, dice)
    scene.signal(signal.SIGSTOP, [scene.agent(company, machine)])
    return Wound(f"stopped the agent of {machine} for good", _pids(company, machine))


@kind("stop-machine", "outside", "SIGSTOP to an agent and all its workers, for good")
def stop_machine(scene: Scene, dice: Random) -> Wound:
    company, machine = _machine(scene, dice)
    pids = _pids(company, machine)
    scene.signal(signal.SIGSTOP, [scene.agent(company, machine), *pids])
    return Wound(f"stopped {machine} for good", pids)


@kind("pause-worker", "outside", "SIGSTOP to a worker, SIGCONT after 1 to 3 s")
def pause_worker(scene: Scene, dice: Random) -> Wound:
    _, worker = _worker(scene, dice)
    seconds = dice.uniform(1.0, 3.0)
    with scene.frozen(worker.pid):
        scene.pause(seconds)
    return Wound(f"paused {_name(worker)} for {seconds:.1f} s")


@kind("pause-agent", "outside", "SIGSTOP to an agent, SIGCONT after 1 to 4 s: sometimes too late")
def pause_agent(scene: Scene, dice: Random) -> Wound:
    company, machine = _machine(scene, dice)
    seconds = dice.uniform(1.0, 4.0)
    with scene.frozen(scene.agent(company, machine)):
        scene.pause(seconds)
    return Wound(f"paused the agent of {machine} for {seconds:.1f} s")


@kind("pause-machine", "outside", "SIGSTOP to an agent and its workers, SIGCONT after 3 to 5 s: it has been replaced")
def pause_machine(scene: Scene, dice: Random) -> Wound:
    company, machine = _machine(scene, dice)
    seconds = dice.uniform(3.0, 5.0)
    with scene.frozen(scene.agent(company, machine), *_pids(company, machine)):
        scene.pause(seconds)
    return Wound(f"paused {machine} for {seconds:.1f} s")


@kind("pause-controller", "outside", "SIGSTOP to the controller, SIGCONT after 1 to 5 s")
def pause_controller(scene: Scene, dice: Random) -> Wound:
    seconds = dice.uniform(1.0, 5.0)
    with scene.frozen(scene.controller()):
        scene.pause(seconds)
    return Wound(f"paused the controller for {seconds:.1f} s")


@kind("slow-worker", "outside", "a worker that gets the CPU one tenth of the time, for 2 to 4 s")
def slow_worker(scene: Scene, dice: Random) -> Wound:
    _, worker = _worker(scene, dice)
    seconds = dice.uniform(2.0, 4.0)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with scene.frozen(worker.pid):
            scene.pause(0.09)
        scene.pause(0.01)
    return Wound(f"slowed {_name(worker)} for {seconds:.1f} s")


@kind("replace", "outside", "a planned replacement")
def replace(scene: Scene, dice: Random) -> Wound:
    leaver, id = _replace(scene, dice)
    answer = scene.answer(id)
    if not answer["ok"]:
        return Wound(f"{leaver} was not replaced: {answer['text']}")
    return Wound(f"replaced {leaver}; {answer['text']}")


def _replace(scene: Scene, dice: Random) -> tuple[str, str]:
    company = scene.company()
    leaver = dice.choice(company.machines("active"))
    return leaver, scene.ask("/replace", type="replace", machines=[leaver])


def _until_phase(scene: Scene, dice: Random, id: str) -> tuple[str, list[str]]:
    """Wait until a replacement is in some phase; that and who comes."""
    phase = dice.choice(_PHASES)
    found: list[str] = []

    def there() -> bool:
        change = scene.job()["change"]
        if change is not None:
            found[:] = change["coming"]
            return change["phase"] in _PHASES[_PHASES.index(phase) :]
        if scene.asked(id)["done"]:
            raise Passed(f"the replacement was over before its phase {phase} was seen")
        return False

    scene.until(there, f"the phase {phase}", every=0.005)
    return phase, list(found)


@kind("replace-and-kill-leaver", "outside", "a planned replacement whose leaver dies on the way")
def replace_and_kill_leaver(scene: Scene, dice: Random) -> Wound:
    company = scene.company()
    leaver = some_machines(company, dice, reckless=scene.reckless)[0]
    id = scene.ask("/replace", type="replace", machines=[leaver])
    phase, _ = _until_phase(scene, dice, id)
    pid = dice.choice(company.on(leaver)).pid
    scene.kill(pid)
    return Wound(f"killed {leaver} while it was being replaced, in its phase {phase}", (pid,))


@kind("replace-and-kill-joiner", "outside", "a planned replacement whose newcomer dies on the way")
def replace_and_kill_joiner(scene: Scene, dice: Random) -> Wound:
    scene.ready(2)
    leaver, id = _replace(scene, dice)
    phase, coming = _until_phase(scene, dice, id)
    company = scene.company()
    victims = [worker for name in coming for worker in company.on(name)]
    if not victims:
        raise Passed("the newcomer was gone already")
    pid = dice.choice(victims).pid
    scene.kill(pid)
    return Wound(f"killed {' '.join(coming)} that came for {leaver}, in the phase {phase}", (pid,))


@kind("replace-and-kill-stayer", "outside", "a planned replacement in which somebody else dies")
def replace_and_kill_stayer(scene: Scene, dice: Random) -> Wound:
    scene.ready(2)
    company, victim = _worker(scene, dice)
    leavers = [name for name in company.machines("active") if name != victim.machine]
    if not leavers:
        raise Passed("there is only one machine")
    leaver = dice.choice(leavers)
    id = scene.ask("/replace", type="replace", machines=[leaver])
    phase, _ = _until_phase(scene, dice, id)
    scene.kill(victim.pid)
    return Wound(f"killed {_name(victim)} while {leaver} was being replaced, in the phase {phase}", (victim.pid,))
