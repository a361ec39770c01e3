"""Tracked things outside of DDP, and state that each role has of its own: a lost role continues from a live replica."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.jobs.running import RunningJob, run_job, same_bits
from tests.jobs.test_scripts import PREAMBLE

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]

SCRIPT = PREAMBLE + dedent(
    """
    class Sampler:  # each role has its own order of the data
        def __init__(self, role):
            self.numbers, self.drawn = torch.Generator().manual_seed(role), 0

        def draw(self):
            self.drawn += 1
            return torch.rand(16, 32, generator=self.numbers)

        def state_dict(self):
            return {"numbers": self.numbers.get_state(), "drawn": self.drawn}

        def load_state_dict(self, state):
            self.numbers.set_state(state["numbers"])
            self.drawn = state["drawn"]

    class Averaged:  # by hand, as many scripts do; only role 0 does it if PRIMARY_ONLY
        def __init__(self, model):
            self.values = [p.detach().clone() for p in model.parameters()]

        def update(self, model):
            for value, p in zip(self.values, model.parameters()):
                value.lerp_(p.detach(), 0.1)

        def state_dict(self):
            return {"values": self.values}

        def load_state_dict(self, state):
            self.values = state["values"]

    def train(job):
        torch.manual_seed(job.seed)
        inner = nn.Sequential(nn.Linear(32, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh(), nn.Linear(WIDTH, 8))
        ema, sampler = Averaged(inner), Sampler(job.role)
        model = DDP(inner, process_group=job.mesh["dp"].get_group())
        optim = AdamW(model.parameters(), lr=1e-2)
        job.track(model=model, optim=optim, ema=ema, sampler=sampler)
        for step in job.steps(FOREVER):
            with step:
                pause(job)
                loss = model(sampler.draw()).square().mean()
                loss.backward()
                job.log(loss=loss)
                if not PRIMARY_ONLY or job.role == 0:
                    ema.update(inner)
                optim.step()
                optim.zero_grad()

    understudy.run(train)
    """
)


def _said(running: RunningJob) -> list[str]:
    return [str(event["text"]) for event in running.events if event["kind"] == "redundancy"]


async def _all_replaceable(running: RunningJob) -> None:
    async def there() -> bool:
        roster = await running.call("GET", "/roster")
        return all(entry["source"] == "live replica" for entry in roster)

    await running.until(there, "that every role can be replaced from a live replica")


def test_each_role_is_killed_in_turn(tmp_path: Path) -> None:
    """An average outside of DDP, batch norm and a sampler of each role: nothing is kept in copies or checkpoints."""

    async def disturb(running: RunningJob) -> None:
        await running.standbys(2)
        for number, machine in enumerate(("m1", "m0")):
            await _all_replaceable(running)
            await running.step(5 + 6 * number)
            await running.kill_worker(machine)
        await running.step(20)
        decided = [event["data"]["source"] for event in running.events if event["kind"] == "decided"]
        assert decided == ["replica", "replica"]
        assert any("sampler differs between role 0 and role 1" in said for said in _said(running)), _said(running)

    script = SCRIPT.replace("PRIMARY_ONLY", "False").replace("WIDTH", "64")
    same_bits(tmp_path, disturb, script=script, standbys=2)


def test_what_only_the_primary_updates_is_named(tmp_path: Path) -> None:
    """It is too large to be exchanged with every vote: the job says at its start which role has no live copy."""

    async def disturb(running: RunningJob) -> None:
        async def named() -> bool:
            return any("ema differs between role 0 and role 1 from step 1 on" in said for said in _said(running))

        await running.until(named, "that the difference is named")
        roster = await running.call("GET", "/roster")
        assert [entry["source"] for entry in roster] == ["nothing", "nothing"]

    script = SCRIPT.replace("PRIMARY_ONLY", "True").replace("WIDTH", "8192")
    result = run_job(tmp_path, disturb, script=script, steps=12)
    assert result.ended.status == "finished"
