"""Replace a machine of a running DDP job between two steps, and end with the very same bits.

Four workers on two "machines" train a small GPT. A third machine rehearses, opens its connections while the others go
on, and takes the second machine's place at a step boundary. The run is compared with one that nobody disturbed.

    make demo
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

sys.path.insert(0, str(Path(__file__).parent))
from tiny_gpt import GPT, batch

from understudy.comm.roster import Roster
from understudy.comm.sandbox import Echo
from understudy.comm.torch_backend import install
from understudy.launch.troupe import Hand, Player, Troupe, first_roster

STEPS, ROLES = 40, 4
REHEARSALS, ASK_AT = 3, 12
"""Steps of rehearsal, and the step before which the operator asks for the replacement."""


@dataclass
class Story:
    """What one worker has to tell in the end."""

    losses: dict[int, float] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    fingerprint: str = ""
    phases: dict[str, float] = field(default_factory=dict)


class Trainer:
    """An ordinary DDP training; nothing in it knows about machines."""

    def __init__(self, role: int) -> None:
        torch.manual_seed(0)
        self.role = role
        self.model = DDP(GPT())
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=3e-3)

    def step(self, number: int) -> float:
        inputs, targets = batch(number, self.role)
        loss = F.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        self.optim.step()
        self.optim.zero_grad()
        return loss.item()

    def state(self) -> list[torch.Tensor]:
        """Everything that a newcomer needs: parameters and the optimizer's memory of them."""
        slots = [self.optim.state[p] for p in self.model.parameters()]
        return [*self.model.state_dict().values(), *(slot[name] for slot in slots for name in sorted(slot))]

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for tensor in self.state():
            digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()


def perform(player: Player) -> Story | None:
    """A worker that is there from the start."""
    player.enter(player.hear())
    fabric = player.fabric
    assert fabric.role is not None
    install(fabric, ROLES)
    return train(player, Trainer(fabric.role), 0, Story())


def understudy(player: Player, role: int) -> Story | None:
    """A worker that rehearses a role and takes it over."""
    fabric, story = player.fabric, Story()
    start = time.perf_counter()
    fabric.assume(role, Echo())
    install(fabric, ROLES)
    trainer = Trainer(role)
    for number in range(REHEARSALS):
        trainer.step(number)
    story.phases["rehearse"] = time.perf_counter() - start
    player.tell("rehearsed")
    roster: Roster = player.hear()
    start = time.perf_counter()
    fabric.prepare(roster).result()
    story.phases["prepare"] = time.perf_counter() - start
    fabric.switch(roster.generation)
    step = hand_over(trainer, 0)  # waits here until the others come to the same boundary
    return train(player, trainer, step, story)


def train(player: Player, trainer: Trainer, step: int, story: Story) -> Story | None:
    fabric = player.fabric
    while step < STEPS:
        start = time.perf_counter()
        story.losses[step] = trainer.step(step)
        story.seconds[step] = time.perf_counter() - start
        fabric.check()
        if trainer.role == 0:
            player.tell((step, story.losses[step], fabric.generation))
        step += 1
        if player.told():
            fabric.prepare(player.hear())  # phase one, in the background
        vote = torch.tensor(fabric.prepared)
        dist.all_reduce(vote, dist.ReduceOp.MIN)
        if vote.item() > fabric.generation:  # everybody is ready: phase two
            start = time.perf_counter()
            fabric.switch(int(vote.item()))
            story.phases["switch"] = time.perf_counter() - start
            if fabric.role is None:
                return None
            hand_over(trainer, step)
            story.phases["hand-over"] = time.perf_counter() - start
    story.fingerprint = trainer.fingerprint()
    return story


def hand_over(trainer: Trainer, step: int) -> int:
    """Role 0's place and state, for those who do not have it yet."""
    place = torch.tensor(step)
    dist.broadcast(place, 0)
    for tensor in trainer.state():
        dist.broadcast(tensor, 0)
    return int(place.item())


def run(console: Console, transport: str, replace: bool) -> list[Story]:
    with Troupe(transport=transport) as troupe:
        cast = [hand for machine in ("m0", "m1") for hand in troupe.hire(machine, 2, perform)]
        standbys: list[Hand] = []
        if replace:
            standbys = [troupe.hire("m2", 1, understudy, role)[0] for role in (2, 3)]
            for hand in standbys:
                hand.hear()
        roster = first_roster(cast)
        for hand in cast:
            hand.tell(roster)
        generation = 1
        for _ in range(STEPS):
            step, loss, now = cast[0].hear()
            if replace and step == ASK_AT - 1:
                roster = roster.successor({2: standbys[0].worker, 3: standbys[1].worker})
                for hand in [*cast, *standbys]:
                    hand.tell(roster)
                console.print(f"  step {step:3}  loss {loss:.4f}   [bold]asked: m1 → m2[/]")
            elif now != generation:
                generation = now
                console.print(f"  step {step:3}  loss {loss:.4f}   [bold green]m2 plays roles 2 and 3, m1 is gone[/]")
            elif step % 8 == 0 or step == STEPS - 1:
                console.print(f"  step {step:3}  loss {loss:.4f}")
        players = [*cast[:2], *standbys] if replace else cast
        stories = [hand.result() for hand in players]
        for hand in cast[2:] if replace else ():
            hand.result()
    return stories


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Replace a machine of a running DDP job; compare with an undisturbed run."
    )
    parser.add_argument("--transport", default="native", help="native (default), or torch:gloo")
    transport = parser.parse_args().transport
    console = Console(highlight=False)
    console.print("[bold]undisturbed[/]: roles 0, 1 on m0, roles 2, 3 on m1")
    plain = run(console, transport, replace=False)
    console.print("[bold]disturbed[/]: m2 rehearses as a standby, then replaces m1")
    moved = run(console, transport, replace=True)

    joiner, stayer = moved[2], moved[0]
    steady = sorted(stayer.seconds.values())[STEPS // 2]
    console.print(f"\n  rehearse    {joiner.phases['rehearse']:8.3f} s    before anybody waits for it")
    console.print(f"  prepare     {joiner.phases['prepare'] * 1e3:8.1f} ms   while the others train")
    console.print(f"  switch      {stayer.phases['switch'] * 1e6:8.0f} µs   at the boundary")
    console.print(
        f"  hand-over   {stayer.phases['hand-over'] * 1e3:8.1f} ms   switch and state, all that training lost"
    )
    console.print(f"  a step      {steady * 1e3:8.1f} ms\n")

    everybody = {story.fingerprint for story in [*plain, *moved]}
    curves = plain[0].losses == moved[0].losses and all(
        was.losses[step] == loss for was, now in zip(plain, moved, strict=True) for step, loss in now.losses.items()
    )
    if len(everybody) == 1 and curves:
        console.print(f"[bold green]bit-identical[/]: parameters, optimizer state and losses ({everybody.pop()[:16]})")
        return 0
    console.print("[bold red]the runs differ[/]")
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
