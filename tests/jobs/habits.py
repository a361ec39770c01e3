"""Scripts with habits of real training code: epochs, early stopping, an average of the weights, a batch fetched ahead.

`FORGETFUL_HABITS` keeps all of it in variables; `REMEMBERED` computes it from the step or tracks it.
"""

from __future__ import annotations

HEAD = """\
import copy, os, random, time
import torch, understudy
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

def parts(job):
    torch.manual_seed(job.seed)
    model = DDP(torch.nn.Linear(4, 4), process_group=job.mesh["dp"].get_group())
    return model, torch.optim.SGD(model.parameters(), lr=0.1)

def learn(loss, optim):
    loss.backward()
    optim.step()
    optim.zero_grad()

"""
_EMA = """
DATA = torch.arange(400.0).reshape(100, 4) / 400

class Ema:
    def __init__(self, model):
        self.shadow = {name: each.detach().clone() for name, each in model.named_parameters()}

    @torch.no_grad()
    def update(self, model):
        for name, each in model.named_parameters():
            self.shadow[name].lerp_(each, 0.1)

    def state_dict(self):
        return self.shadow

    def load_state_dict(self, state):
        self.shadow = state
"""
FORGETFUL_HABITS = (
    HEAD
    + _EMA.partition("    def state_dict")[0]
    + """
def noise(number):
    return torch.sin(torch.arange(4.0) + number)

def train(job):
    model, optim = parts(job)
    data = TensorDataset(DATA)
    count, mine = job.replicas
    sampler = DistributedSampler(data, count, mine)
    loader = DataLoader(data, 2, sampler=sampler)
    job.track(model=model, optim=optim)
    schedule = torch.optim.lr_scheduler.StepLR(optim, 2, 0.9)
    rare = torch.optim.lr_scheduler.StepLR(optim, 100, 0.9)
    ema = Ema(model.module)
    mean, scaler = AveragedModel(model.module), torch.amp.GradScaler("cpu")
    best, bad = float("inf"), 0
    ahead = noise(0)
    steps = job.steps(1000)
    for epoch in range(1000):
        sampler.set_epoch(epoch)
        for (batch,) in loader:
            step = next(steps, None)
            if step is None:
                return
            with step:
                extra, ahead = ahead, noise(step.index + 1)
                loss = model(batch + extra).pow(2).mean()
                scaler.scale(loss).backward()
                scaler.step(optim)
                scaler.update()
                optim.zero_grad()
            ema.update(model.module)
            mean.update_parameters(model.module)
            if step.index == 500:
                rare.step()
        schedule.step()
        if loss.item() < best:
            best, bad = loss.item(), 0
        else:
            bad += 1
        if bad > 50:
            return

understudy.run(train)
"""
)
REMEMBERED = (
    HEAD
    + _EMA
    + """
EPOCH = 5

class Stopper:
    def __init__(self):
        self.best, self.bad = float("inf"), 0

    def see(self, loss):
        self.best, self.bad = (loss, 0) if loss < self.best else (self.best, self.bad + 1)

    def state_dict(self):
        return vars(self)

    def load_state_dict(self, state):
        vars(self).update(state)

def batch_of(job, index):
    count, mine = job.replicas
    epoch, place = divmod(index, EPOCH)
    order = torch.randperm(len(DATA), generator=torch.Generator().manual_seed(epoch))
    return DATA[order[mine::count][2 * place : 2 * place + 2]]

def train(job):
    model, optim = parts(job)
    schedule = torch.optim.lr_scheduler.StepLR(optim, 2, 0.9)
    ema, stopper = Ema(model.module), Stopper()
    teacher = torch.nn.Linear(4, 4).requires_grad_(False)
    job.track(model=model, optim=optim, schedule=schedule, ema=ema, stopper=stopper)
    job.same_over("dp")
    for step in job.steps(1000):
        with step:
            batch = batch_of(job, step.index)
            loss = model(batch + teacher(batch)).pow(2).mean()
            learn(loss, optim)
            ema.update(model.module)
            if step.index % EPOCH == EPOCH - 1:
                schedule.step()
                total = loss.detach().clone()
                dist.all_reduce(total)
                stopper.see(total.item())
                if stopper.bad > 50:
                    return

understudy.run(train)
"""
)
LONELY = (
    HEAD
    + """
def train(job):
    torch.manual_seed(job.seed + job.role)
    model = torch.nn.Linear(4, 4)
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    job.track(model=model, optim=optim)
    for step in job.steps(1000):
        with step:
            learn(model(torch.ones(1, 4)).pow(2).mean(), optim)

understudy.run(train)
"""
)
"""No role holds the state of another one."""
