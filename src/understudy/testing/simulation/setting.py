"""What a seed decides before a simulated job begins: its shape, its limits, and how much goes wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

from understudy.controller.server.spec import ControlSpec
from understudy.protocol.messages import WorkerSpec
from understudy.protocol.options import with_options
from understudy.protocol.settings import ReplacementSettings, Settings, StewardSettings

HEARTBEAT_S = 2.0
COLLECTIVE_S = 4.0
"""Seconds after which a vote that is not complete times out."""
STEP_LIMIT_S = 12.0
ANSWER_S = 2.0


@dataclass(frozen=True)
class Setting:
    """One job to simulate."""

    seed: int
    steps: int
    machines: int
    nproc: int
    copies: str
    """Whether all roles hold the same state (`all`), each the same as another one (`halves`), or each its own."""
    warm: int
    scarcity: str
    mask: str
    at_once: int
    first: tuple[int, ...]
    """Cells with which the job begins; empty: all."""
    records: bool
    rehearsals: int
    overlap: bool
    checkpoint_every: int
    copy_every: int
    generous: bool
    """Whether machines come when they are asked for."""
    blind: bool
    """Whether the script does not know which replica it is."""
    standbys: int
    malice: float
    """Probability that a phase of a change is disturbed."""
    vote_malice: float
    """Probability that a worker is hit just after a vote."""
    stalls: float
    """Probability that a thread stands still for a while before it takes a lock."""
    steward: StewardSettings
    repair: float
    """Seconds after which the steward expects a lost machine back; 0: never."""
    own: str
    """Whether each role also has a state of its own, which changes before its `vote` or `late`, after it; or not."""

    @property
    def roles(self) -> int:
        return self.machines * self.nproc

    def same(self, role: int) -> tuple[int, ...]:
        """The roles that hold the same state as this one, this one included."""
        half = self.roles // 2
        if self.copies == "all":
            return tuple(range(self.roles))
        if self.copies == "halves":
            return tuple(sorted((role, (role + half) % self.roles)))
        return (role,)

    @property
    def mesh(self) -> tuple[tuple[str, int], ...]:
        if self.copies == "all":
            return (("dp", self.roles),)
        if self.copies == "halves":
            return (("dp", 2), ("pp", self.roles // 2))
        return (("pp", self.roles),)

    def worker_spec(self) -> WorkerSpec:
        return WorkerSpec(
            uid="",
            machine="",
            slot=0,
            job="simulated",
            secret=b"secret",
            script=str(Path(__file__).with_name("model.py")),
            args=(),
            nproc=self.nproc,
            mesh=self.mesh,
            settings=with_options(
                replace(Settings(), replacement=ReplacementSettings(streams=1)),
                steps=self.steps,
                limit=COLLECTIVE_S,
                rehearsals=self.rehearsals,
                checkpoint="disk" if self.checkpoint_every else "",
                checkpoint_every=self.checkpoint_every,
                overlap=self.overlap,
                answer_limit=ANSWER_S,
                step_limit=STEP_LIMIT_S,
                copy_every=self.copy_every,
                recording_limit=1.0 if self.records else 0.0,
            ),
        )

    def control_spec(self) -> ControlSpec:
        settings = with_options(
            replace(Settings(), steward=self.steward),
            mask=self.mask,
            heartbeat=HEARTBEAT_S,
            answer_limit=ANSWER_S,
            limit=8.0,
            rehearsal_limit=8.0,
            patience=20.0,
            repair=self.repair,
            no_standby=self.scarcity,
            warm=self.warm,
            recording_limit=1.0 if self.records else 0.0,
            at_once=self.at_once,
            straggler_threshold=0.0,
        )
        return ControlSpec(
            job="simulated",
            secret=b"secret",
            machines=self.machines,
            nproc=self.nproc,
            mesh=self.mesh,
            ledger=":memory:",
            settings=settings,
            first=self.first,
        )


def setting_of(seed: int) -> Setting:
    """The job of a seed."""
    chance = random.Random(f"setting {seed}")
    machines, nproc = chance.randint(2, 4), chance.choice([1, 1, 2])
    copies = chance.choice(["all", "all", "all", "halves", "none"])
    if copies == "halves" and machines * nproc % 2:
        copies = "none"
    mask = chance.choice(["", "anywhere", "anywhere"])
    few: tuple[int, ...] = ()
    if mask and chance.random() < 0.4:
        if copies == "all":
            few = tuple(range(chance.randint(1, machines)))
        elif copies == "halves" and machines % 2 == 0:
            few = tuple(range(machines // 2))
    return Setting(
        seed=seed,
        steps=chance.choice([3, 6, 12, 30]),
        machines=machines,
        nproc=nproc,
        copies=copies,
        warm=chance.choice([0, 1, 1, 2]),
        scarcity=chance.choice(["wait", "wait", "wait", "stop"]),
        mask=mask,
        at_once=chance.choice([0, 0, 1, 2]),
        first=few,
        records=chance.random() < 0.5,
        rehearsals=chance.choice([1, 2]),
        overlap=chance.random() < 0.7,
        checkpoint_every=chance.choice([0, 0, 1, 2, 5]),
        copy_every=chance.choice([0, 0, 1, 3]),
        generous=chance.random() < 0.9,
        blind=chance.random() < 0.5,
        standbys=chance.randint(0, 5),
        malice=chance.choice([0.0, 0.2, 0.5]),
        vote_malice=chance.choice([0.0, 0.0, 0.0, 0.05]),
        stalls=chance.choice([0.0, 0.03, 0.1]),
        steward=_steward(chance),
        repair=chance.choice([0.0, 2.0]),
        own=chance.choice(["", "", "vote", "vote", "late"]),
    )


def _steward(chance: random.Random) -> StewardSettings:
    """Every other job has a steward that may do something."""
    if chance.random() < 0.5:
        return StewardSettings("off")
    return StewardSettings(
        mode=chance.choice(["tell", "act", "act"]),
        pool=chance.choice([None, 0, 1, 2]),
        cool_down=chance.choice([0.0, 3.0]),
        budget=chance.choice([0, 3]),
        looks=chance.choice([1, 3]),
        rest=chance.choice([0.0, 10.0]),
        replacements=chance.choice([1, 3]),
        arrival=chance.choice([10.0, 100.0]),
    )
