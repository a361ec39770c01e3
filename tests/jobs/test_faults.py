"""A process dies at an exact point of a planned replacement, at every point in turn, in one long job. Training always
continues, and the job ends with the bits of an undisturbed one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.running import Result, RunningJob, run_job

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]

STEPS = 900
"""More than the deaths take. Between two steps is a pause, as long as the test has something to do."""

SCRIPT = """
import functools, os, signal, sys, time, torch, understudy
from pathlib import Path
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from understudy.comm.network import NetworkFabric
from understudy.worker.transfer.handover import Giver, Taker
from understudy.protocol.messages import Prepare
from understudy.worker.protocol import WorkerProtocol
from understudy.worker.runtime import WorkerRuntime
from understudy.worker.transfer.transfers import StateTransfers

HERE = Path(__file__).parent
STEPS = int(sys.argv[1])

def strike(point):
    # the file contains the pid of the victim; if it is empty, this process dies
    try:
        victim = (HERE / point).read_text()
        (HERE / point).unlink()
    except FileNotFoundError:
        return
    os.kill(int(victim or os.getpid()), signal.SIGKILL)

def on(owner, name, point, when=lambda *args: True):
    original = getattr(owner, name)
    @functools.wraps(original)
    def watched(*args, **kwargs):
        if when(*args):
            strike(point)
        return original(*args, **kwargs)
    setattr(owner, name, watched)

def stays(part, proposal):
    return proposal is not None and not (proposal.direct or proposal.gives(part.uid) or proposal.takes(part.uid))

def prepares(stays):
    def is_it(protocol, message):
        if not isinstance(message, Prepare):
            return False
        gives = any(move.giver.uid == protocol.uid for move in message.moves)
        takes = any(move.taker.uid == protocol.uid for move in message.moves)
        return not (gives or takes) if stays else gives
    return is_it

on(NetworkFabric, "expect_state", "joiner prepares")
on(Taker, "_take", "joiner takes goods")
on(Taker, "_update", "joiner takes gradients")
on(Taker, "_last", "joiner takes the last")
on(WorkerRuntime, "_switch", "joiner switches", lambda runtime, generation: runtime.transfers._arrival is not None)
on(WorkerProtocol, "hear", "leaver prepares", prepares(stays=False))
on(Giver, "offer", "leaver offers")
on(StateTransfers, "offered", "leaver votes")
on(Giver, "update", "leaver gives gradients")
on(Giver, "finish", "leaver finishes")
on(WorkerProtocol, "gave", "leaver has given")
on(WorkerProtocol, "hear", "stayer prepares", prepares(stays=True))
on(WorkerProtocol, "ballot", "stayer votes", lambda part: stays(part, part.proposal))
on(WorkerRuntime, "_switch", "stayer switches", lambda one, generation: stays(one.protocol, one.protocol.proposal))

def train(job):
    torch.manual_seed(1)
    model = DDP(nn.Sequential(nn.Linear(64, 128), nn.Dropout(0.1), nn.Linear(128, 8)))
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3)
    job.track(model=model, optim=optim)
    joiner = bool(job.rehearsing)
    for step in job.steps():
        with step:
            if job.rehearsing:
                strike("joiner rehearses")
            numbers = torch.Generator().manual_seed(1000 * step.index + job.role)
            loss = model(torch.rand(16, 64, generator=numbers)).pow(2).mean()
            if joiner and not job.rehearsing:
                strike("joiner computes")
            loss.backward()
            optim.step()
            if joiner and not job.rehearsing:
                strike("joiner has stepped")
            optim.zero_grad()
            job.log(loss=loss)
        joiner = joiner and bool(job.rehearsing)
        if not job.rehearsing and not (HERE / "hurry").exists():
            time.sleep(min(5.0, 0.1 * STEPS / (STEPS - step.index)))  # the later, the longer: the end is never reached

understudy.run(train)
"""

POINTS = {
    "some": (*("joiner takes goods", "joiner has stepped", "leaver finishes", "stayer votes"),),
    "joiner": (
        *("joiner rehearses", "joiner prepares", "joiner takes goods", "joiner takes gradients"),
        *("joiner takes the last", "joiner switches", "joiner computes", "joiner has stepped"),
    ),
    "leaver": (
        *("leaver prepares", "leaver offers", "leaver votes", "leaver gives gradients", "leaver finishes"),
        "leaver has given",
    ),
    "stayer": ("stayer prepares", "stayer votes", "stayer switches"),
    "controller": ("joiner rehearses", "joiner prepares", "joiner takes goods", "leaver finishes", "joiner computes"),
}
PARTIES = [pytest.param(party, marks=[] if party == "some" else pytest.mark.long) for party in POINTS]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNDERSTUDY_HOME", str(tmp_path_factory.mktemp("home")))
        return run_job(tmp_path_factory.mktemp("undisturbed"), script=SCRIPT, steps=STEPS, args=(str(STEPS),))


async def _die(running: RunningJob, folder: Path, point: str, *, victim: int | None = None) -> None:
    """Have a machine replaced while two standbys wait; the victim dies at the point."""
    waiting = sum(machine["state"] == "standby" for machine in await running.machines())
    if waiting < 3:  # one of them can start beside
        await running.call("POST", "/standbys", {"type": "add-standby", "count": 3 - waiting})
    await running.standbys(2)
    (folder / point).write_text(str(victim or ""))
    active = [entry["machine"] for entry in await running.call("GET", "/roster")]
    leaver = active[len(point) % len(active)]
    answer = await running.replace(leaver)
    story = "\n".join(f"{event['kind']}: {event['text']}" for event in running.events[-40:])
    assert answer["ok"], f"{point}: {answer['text']}\n{story}"
    assert not (folder / point).exists(), f"no process came to {point}"

    async def goes_on() -> bool:
        job = await running.call("GET", "/job")
        return job["status"] == "training" and job["change"] is None

    await running.until(goes_on, f"training after the death: {point}")
    step = (await running.call("GET", "/job"))["step"]
    await running.step(step + 2)
    active = [entry["machine"] for entry in await running.call("GET", "/roster")]
    assert leaver not in active, f"{leaver} was to be replaced ({point})"


@pytest.mark.parametrize("party", PARTIES)
def test_a_job_survives_a_death_at_every_point_of_a_replacement(
    party: str, tmp_path: Path, undisturbed: Result
) -> None:
    folder = tmp_path / "job"

    async def disturb(running: RunningJob) -> None:
        await running.step(2)
        for point in POINTS[party]:
            controller = running.job.controller
            victim = controller.pid if party == "controller" and controller is not None else None
            await _die(running, folder, point, victim=victim)

    result = run_job(folder, disturb, script=SCRIPT, steps=STEPS, args=(str(STEPS),), standbys=3, warm=0)
    assert result.ended.status == "finished", result.ended.reason
    assert result.digests == undisturbed.digests
    assert result.losses.items() <= undisturbed.losses.items()
    assert {step for _, step in result.losses} == set(range(STEPS))
