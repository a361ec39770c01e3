"""Habits of public training scripts: one machine is replaced and the primary is killed, and the bits are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.jobs.running import Result, RunningJob, run_job, same_bits

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]

HOISTED = """
import random, time, numpy, torch, understudy
from pathlib import Path
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

HERE = Path(__file__).parent

class Batches:
    '''Fetches the next batch while the present one is computed. The position is that of the batch in use.'''

    def __init__(self):
        self.used, self.ahead = 0, None

    def take(self):
        batch = self.make(self.used) if self.ahead is None else self.ahead
        self.used, self.ahead = self.used + 1, None
        return batch

    def prefetch(self):
        self.ahead = self.make(self.used)

    def make(self, number):
        return torch.rand(32, 16, generator=torch.Generator().manual_seed(number))

    def state_dict(self):
        return {"used": self.used}

    def load_state_dict(self, state):
        self.used, self.ahead = state["used"], None

def train(job):
    master = job.is_primary and not job.rehearsing
    torch.manual_seed(job.seed)
    model = DDP(nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.Linear(32, 4)))
    optim = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    batches, noise = Batches(), torch.Generator().manual_seed(7)
    jitter, order = numpy.random.default_rng(8), random.Random(9)
    job.track(model=model, optim=optim, scaler=scaler, batches=batches, noise=noise, jitter=jitter, order=order)
    job.same_over("dp")  # all of it, the position included
    for step in job.steps(100_000):
        if step.index % 3 == 0 and master:
            with torch.no_grad():
                value = float(model.module(torch.randn(8, 16)).pow(2).mean())
            with (HERE / "evaluated").open("a") as out:
                print(step.index, value, file=out)
        batch = batches.take() * float(jitter.uniform(0.9, 1.1))
        with step:
            lines = order.sample(range(32), 32)
            shards = list(step.shards(2))
            for shard in shards:
                model.require_backward_grad_sync = shard is shards[-1]
                mine = batch[lines[shard.number :: shard.count]] + 0.1 * torch.randn(8, 16, generator=noise)
                loss = model(mine).pow(2).mean() * shard.weight
                scaler.scale(loss).backward()
                if shard is shards[0]:
                    batches.prefetch()
            scaler.step(optim)
            scaler.update()
            optim.zero_grad(set_to_none=True)
            job.log(loss=loss)
        if not job.rehearsing and not (HERE / "hurry").exists():
            time.sleep(0.1)  # the test is not done with the job yet
understudy.run(train)
"""

STEPS = 60
EPOCHS = (
    f"STEPS = {STEPS}"
    + """
import time, torch, understudy
import torch.distributed as dist
from pathlib import Path
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import MultiStepLR, ReduceLROnPlateau
from torch.utils.data import DistributedSampler

PER_EPOCH = 4

class Patience:
    '''Stops training after this many evaluations in a row that bring nothing.'''

    def __init__(self, patience):
        self.patience, self.best, self.bad, self.seen = patience, float("inf"), 0, 0

    def see(self, loss):
        self.bad = 0 if loss < self.best - 0.5 else self.bad + 1
        self.best, self.seen = min(self.best, loss), self.seen + 1

    @property
    def over(self):
        return self.bad >= self.patience

    def state_dict(self):
        return {"best": self.best, "bad": self.bad, "seen": self.seen}

    def load_state_dict(self, state):
        self.best, self.bad, self.seen = state["best"], state["bad"], state["seen"]

def train(job):
    torch.manual_seed(job.seed)
    data = torch.rand(64, 16, generator=torch.Generator().manual_seed(0))
    model = DDP(nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.Linear(32, 4)))
    optim = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    by_epoch, plateau = MultiStepLR(optim, [2, 5, 9], 0.7), ReduceLROnPlateau(optim, patience=1, threshold=0.5)
    patience = Patience(STEPS // PER_EPOCH - 3)
    job.track(model=model, optim=optim, by_epoch=by_epoch, plateau=plateau, patience=patience)
    job.same_over("dp")
    sampler = DistributedSampler(data, shuffle=True, seed=job.seed)
    shuffled, lines = -1, []
    for step in job.steps(10 * STEPS):
        epoch, position = divmod(step.index, PER_EPOCH)
        if shuffled != epoch:
            sampler.set_epoch(epoch)
            shuffled, lines = epoch, list(sampler)
        with step:
            if position == 0 and epoch:
                with torch.no_grad():
                    mean = model.module(data[job.role :: dist.get_world_size()]).pow(2).mean()
                    mean += 0.01 * torch.rand(())
                dist.all_reduce(mean)
                by_epoch.step()
                plateau.step(float(mean))
                patience.see(float(mean))
            loss = model(data[lines[position * 8 : position * 8 + 8]]).pow(2).mean()
            loss.backward()
            optim.step()
            optim.zero_grad()
            job.log(loss=loss)
        if patience.over:
            break
        if not job.rehearsing and not Path(__file__).with_name("hurry").exists():
            time.sleep(min(3.0, 0.1 * STEPS / (STEPS - step.index)))  # the later, the longer
    if job.is_primary:
        torch.save(model.module.state_dict(), Path(__file__).with_name("model.pt"))
understudy.run(train)
"""
)


IMAGES = """
import os, sys, time, torch, understudy
import torch.distributed as dist
from pathlib import Path
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

HERE = Path(__file__).parent

class Loader:
    '''Batches of one epoch after the other, made by two processes. Knows its place.'''

    def __init__(self, data):
        self.data, self.sampler, self.epoch, self.used, self.ahead = data, DistributedSampler(data), 0, 0, None

    def next(self):
        if self.ahead is None:
            self.sampler.set_epoch(self.epoch)
            rest = list(self.sampler)[4 * self.used :]
            own = torch.Generator().manual_seed(self.epoch)  # leaves the global one alone
            self.ahead = iter(DataLoader(self.data, 4, sampler=rest, num_workers=2, generator=own))
        batch = next(self.ahead)
        self.used += 1
        if 4 * self.used == len(self.sampler):
            self.epoch, self.used, self.ahead = self.epoch + 1, 0, None
        return batch

    def state_dict(self):
        return {"epoch": self.epoch, "used": self.used}

    def load_state_dict(self, state):
        self.epoch, self.used, self.ahead = state["epoch"], state["used"], None

class Best:
    def __init__(self):
        self.share, self.bad = 0.0, 0

    def see(self, share):
        self.bad = 0 if share > self.share else self.bad + 1
        self.share = max(self.share, share)
        return not self.bad

    def state_dict(self):
        return vars(self)

    def load_state_dict(self, state):
        vars(self).update(state)

def train(job):
    folder = HERE / "outputs" / sys.argv[1]  # the same for all workers, whenever they begin
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    torch.manual_seed(job.seed)
    numbers = torch.Generator().manual_seed(0)
    pictures, kinds = torch.rand(48, 1, 4, 4, generator=numbers), torch.randint(0, 3, (48,), generator=numbers)
    bulk = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.1), nn.Flatten())
    model = DDP(nn.Sequential(bulk, nn.Linear(16, 3)))
    average = AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optim = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    schedule, scaler = torch.optim.lr_scheduler.StepLR(optim, 2, 0.8), torch.amp.GradScaler("cpu", growth_interval=3)
    loader, best = Loader(TensorDataset(pictures[:32], kinds[:32])), Best()
    job.track(model=model, optim=optim, average=average, schedule=schedule, scaler=scaler, loader=loader, best=best)
    for step in job.steps(100_000):
        with step:
            if step.index and not loader.used:
                schedule.step()
                average.eval()
                mine = slice(32 + job.role, 48, dist.get_world_size())
                with torch.no_grad():
                    right = (average(pictures[mine]).argmax(1) == kinds[mine]).float().sum()
                dist.all_reduce(right)
                if best.see(float(right) / 16) and job.is_primary:
                    torch.save(average.state_dict(), "best.tmp")
                    os.replace("best.tmp", "best.pt")
            inputs, wanted = loader.next()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(inputs).float(), wanted)
            scaler.scale(loss).backward()
            scaler.unscale_(optim)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optim)
            scaler.update()
            optim.zero_grad()
            average.update_parameters(model.module)
            job.log(loss=loss)
        if best.bad >= 1000:
            break
        if not job.rehearsing and not (HERE / "hurry").exists():
            time.sleep(0.1)  # the test is not done with the job yet
understudy.run(train)
"""

SHARDED = """
import time, torch, understudy
import torch.distributed.checkpoint as dcp
from pathlib import Path
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

HERE = Path(__file__).parent

def train(job):
    torch.manual_seed(job.seed)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 4))
    for part in (model[0], model[3], model):
        fully_shard(part, mesh=job.mesh["dp"])
    optim = torch.optim.AdamW(model.parameters(), lr=1e-2)
    warm = torch.optim.lr_scheduler.LambdaLR(optim, lambda number: min(1.0, (number + 1) / 10))
    job.track(model=model, optim=optim, warm=warm)
    for step in job.steps(100_000):
        if step.index % 5 == 4:
            weights, moments = get_state_dict(model, optim)
            dcp.save({"weights": weights, "moments": moments}, checkpoint_id=HERE / f"saved-{step.index}")
        with step:
            loss = model(torch.rand(16, 8)).square().mean()
            loss.backward()
            optim.step()
            optim.zero_grad()
            warm.step()
            job.log(loss=loss)
        if not job.rehearsing and not (HERE / "hurry").exists():
            time.sleep(0.1)  # the test is not done with the job yet
    weights, moments = get_state_dict(model, optim)
    kept = [weights["0.weight"].to_local().clone(), model[0].weight.to_local().clone()]
    dcp.save({"weights": weights, "moments": moments}, checkpoint_id=HERE / "saved")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    dcp.load({"weights": weights, "moments": moments}, checkpoint_id=HERE / "saved")
    set_state_dict(model, optim, model_state_dict=weights, optim_state_dict=moments)
    assert torch.equal(model[0].weight.to_local(), kept[1]) and torch.equal(*kept)
understudy.run(train)
"""

GROWING = """
import time, torch, understudy
from pathlib import Path
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

def train(job):
    torch.manual_seed(job.seed)
    body, head = nn.Linear(8, 8), nn.Linear(8, 1)
    model = DDP(nn.Sequential(body, head))
    optim = torch.optim.AdamW(head.parameters(), lr=1e-2)
    job.track(model=model, optim=optim)
    for step in job.steps(100_000):
        with step:
            if step.index == 4:
                optim.add_param_group({"params": list(body.parameters()), "lr": 1e-3})
            model(torch.rand(4, 8)).square().mean().backward()
            optim.step()
            optim.zero_grad()
        if not job.rehearsing and not Path(__file__).with_name("hurry").exists():
            time.sleep(0.1)  # the test is not done with the job yet
understudy.run(train)
"""


async def replace_then_kill(running: RunningJob) -> None:
    """One machine is replaced, then the primary is killed; the standby that takes its role has rehearsed."""
    await running.standbys(2)
    await running.step(4)
    answer = await running.replace("m1")
    assert answer["ok"], answer
    await running.kill_worker("m0")

    async def recovered() -> bool:
        return any(event["kind"] == "settled" for event in running.events[killed:])

    killed = len(running.events)
    await running.until(recovered, "the first step of the joiner")
    await running.step(int((await running.call("GET", "/job"))["step"]) + 5)


async def replace_then_kill_each_role(running: RunningJob) -> None:
    """One machine is replaced, then each role is killed in turn, if another machine holds its state."""
    await running.standbys(2)
    await running.step(4)
    answer = await running.replace("m1")
    assert answer["ok"], answer
    for role in (1, 0):
        await running.step(int((await running.call("GET", "/job"))["step"]) + 3)
        await running.standbys(1)

        async def has_a_source() -> bool:
            return all(entry["source"] != "nothing" for entry in await running.call("GET", "/roster"))

        await running.until(has_a_source, "that each role can be replaced")
        (machine,) = [known["name"] for known in await running.machines() if role in known["roles"]]
        before = len(running.events)
        await running.kill_worker(machine)

        async def decided(before: int = before) -> bool:
            return any(event["kind"] == "decided" for event in running.events[before:])

        await running.until(decided, f"a standby for role {role}")
    await running.step(int((await running.call("GET", "/job"))["step"]) + 5)


def evaluations(folder: Path) -> dict[int, float]:
    """By step. A repeated step is evaluated again, with the same result."""
    found: dict[int, float] = {}
    for line in (folder / "evaluated").read_text().splitlines():
        step, value = line.split()
        assert found.setdefault(int(step), float(value)) == float(value)
    return found


def test_hoisted_flags_and_random_numbers_between_steps(tmp_path: Path) -> None:
    """As nanoGPT has them: the primary is found once before the loop, and evaluates with random numbers of its own;
    the next batch is fetched ahead, gradients are accumulated, and the scaler is disabled."""
    same_bits(tmp_path, replace_then_kill, script=HOISTED, standbys=2)
    disturbed, undisturbed = (evaluations(tmp_path / name) for name in ("disturbed", "undisturbed"))
    assert len(undisturbed) >= 4
    assert disturbed.items() >= undisturbed.items()
    assert len(disturbed) - len(undisturbed) <= 1  # the job may stop after an evaluation


def test_epochs_and_early_stopping(tmp_path: Path) -> None:
    """Schedule, sampler and evaluation go by epochs. All roles leave the loop after the same step."""

    def end(name: str, **how: Any) -> Result:
        found = run_job(tmp_path / name, script=EPOCHS, **how)
        assert found.ended.status == "finished", found.ended.reason
        assert found.ended.view["step"] <= STEPS
        assert (tmp_path / name / "model.pt").exists()
        return found

    undisturbed, disturbed = end("undisturbed", standbys=0), end("disturbed", disturb=replace_then_kill, standbys=2)
    assert disturbed.ended.view["step"] == undisturbed.ended.view["step"]
    assert disturbed.losses.items() <= undisturbed.losses.items()
    assert disturbed.digests == undisturbed.digests


def test_a_flag_that_is_evaluated_before_the_first_step_is_announced(tmp_path: Path) -> None:
    script = HOISTED.replace("    master = job.is_primary and not job.rehearsing", "    master = bool(job.is_primary)")

    async def announced(running: RunningJob) -> None:
        async def there() -> bool:
            return any(event["kind"] == "rehearsal" for event in running.events)

        await running.until(there, "the end of the rehearsal")
        await running.call("POST", "/stop")

    found = run_job(tmp_path, announced, script=script, standbys=1)
    primary = [event["text"] for event in found.events if event["kind"] == "primary"]
    assert primary == ["role 0 is the primary role: job.is_primary is true there"]
    (early,) = [event for event in found.events if event["kind"] == "rehearsal"]
    line = script.splitlines().index("    master = bool(job.is_primary)") + 1
    assert early["data"] == {"flag": "job.is_primary", "value": False, "file": "train.py", "line": line} | {
        "uid": early["data"]["uid"]
    }
    assert f"train.py line {line} evaluates job.is_primary before the first step" in early["text"]


def test_a_death_during_a_collective_between_steps_is_noticed(tmp_path: Path) -> None:
    """The tail of a loop body is not repeated: the joiner begins with the next step."""
    script = HOISTED.replace(
        "        if not job.rehearsing and not (HERE",
        """        if step.index == 5 and job.role == 1 and not job.rehearsing and not (HERE / "died").exists():
            (HERE / "died").touch()
            os.kill(os.getpid(), 9)
        dist.all_reduce(torch.ones(3))
        if not job.rehearsing and not (HERE""",
    ).replace("import random,", "import os, random, torch.distributed as dist,")

    async def later(running: RunningJob) -> None:
        await running.step(9)
        await running.call("POST", "/stop")

    found = run_job(tmp_path, later, script=script, standbys=1)
    assert found.ended.status == "stopped", found.ended.reason
    said = "role 0: a worker was lost during collectives after step 5, outside of `with step:`"
    assert (tmp_path / "run" / "log.txt").read_text().count(said) == 1


def test_epochs_with_loader_processes_an_average_and_a_dated_folder(tmp_path: Path) -> None:
    """As image classifiers have them, with relative paths in a folder that all workers agree on."""
    same_bits(tmp_path, replace_then_kill_each_role, script=IMAGES, standbys=3, args=["2026-01-31_09-30"])
    (folder,) = (tmp_path / "disturbed" / "outputs").iterdir()
    assert [file.name for file in folder.iterdir()] == ["best.pt"]


def test_distributed_checkpoints_in_the_script(tmp_path: Path) -> None:
    """FSDP2 without replicas: a joiner gets its part from a copy in memory."""
    same_bits(tmp_path, replace_then_kill_each_role, script=SHARDED, standbys=3, copy_every=1)
    assert (tmp_path / "disturbed" / "saved" / ".metadata").exists()


def test_a_group_of_parameters_that_is_added_in_a_step(tmp_path: Path) -> None:
    """No joiner has it: the replacement is refused with the reason, and training goes on."""

    async def refused(running: RunningJob) -> None:
        await running.step(6)
        answer = await running.replace("m1")
        assert not answer["ok"]
        said = [event["text"] for event in running.events if event["kind"] == "rehearsal"]
        assert any("make all groups before job.steps" in text for text in said), said
        await running.step(int((await running.call("GET", "/job"))["step"]) + 2)
        await running.call("POST", "/stop")

    found = run_job(tmp_path, refused, script=GROWING, standbys=1)
    assert found.ended.status == "stopped", found.ended.reason
