"""Understudy in a minute: train a small GPT, replace a machine live, kill the controller meanwhile, compare bits.

Two machines with two workers each train a GPT (two pipeline stages, two replicas). In the second run, a standby
replaces the second machine, and the controller is killed while that happens.

    make demo
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from understudy.launch.local import Ended, LocalJob
from understudy.launch.spec import make

STEPS, ASK_AT = 40, 8
MEANING = {
    "rehearse": "m2 runs the training function in a sandbox",
    "prepare": "m2 opens its links",
    "armed": "most of the state travels beside a step",
    "switch": "all workers swap links",
    "hand-over": "m2 receives the rest of the state and verifies it",
    "first step": "m2 trains; only now m1 is released",
}
Disturb = Callable[[LocalJob], Awaitable[dict[str, Any]]]


def settings(folder: Path, standbys: int) -> dict[str, Any]:
    return {
        "script": str(Path(__file__).with_name("gpt_3d.py")),
        "args": ["--steps", str(STEPS)],
        "machines": 2,
        "nproc": 2,
        "standbys": standbys,
        "mesh": "pp=2,dp=2,tp=1",
        "run_dir": str(folder),
    }


async def run(console: Console, folder: Path, disturb: Disturb | None = None) -> tuple[Ended, dict[str, Any]]:
    """Run one job to its end. Returns how it ended, and what `disturb` returned."""
    bar = Progress(TextColumn("  {task.description}"), BarColumn(), TextColumn("{task.fields[loss]}"), console=console)
    output: list[str] = []

    def view(job: dict[str, Any], machines: list[dict[str, Any]]) -> None:
        loss = job["values"].get("loss")
        text = "starting" if job["step"] < 0 else f"step {job['step']:2}"
        bar.update(task, completed=max(0, job["step"]), description=text, loss=f"loss {loss:.3f}" if loss else "")

    with bar:
        task = bar.add_task("starting", total=STEPS, loss="")
        async with LocalJob(make(settings(folder, 1 if disturb else 0)), on_line=output.append, on_view=view) as job:
            end = asyncio.ensure_future(job.wait())
            report = {} if disturb is None else await disturb(job)
            ended = await end
    if ended.status != "finished":
        console.print("\n".join(output[-20:]), markup=False)
        raise SystemExit(f"the job has {ended.status}: {ended.reason}")
    return ended, report


async def replace(job: LocalJob) -> dict[str, Any]:
    """Replace m1 in the middle of the run, and kill the controller meanwhile."""

    async def ask(method: str, path: str, body: object = None) -> Any:
        return await asyncio.to_thread(job.client.call, method, path, body)

    while (await ask("GET", "/job"))["step"] < ASK_AT:
        await asyncio.sleep(0.05)
    request = await ask("POST", "/replace", {"type": "replace", "machines": ["m1"]})
    assert job.controller is not None
    job.controller.kill()
    answer: dict[str, Any] = {"done": False}
    while not answer["done"]:
        answer = await ask("GET", f"/requests/{request['id']}?wait=5")
    return answer


def losses(folder: Path) -> dict[tuple[int, int], float]:
    """(role, step) → the loss that the role logged."""
    lines = [line for file in folder.glob("metrics-*.jsonl") for line in file.read_text().splitlines()]
    entries = [json.loads(line) for line in lines]
    return {(entry["role"], entry["step"]): entry["loss"] for entry in entries if "loss" in entry}


def main() -> int:
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory() as place:
        os.environ["UNDERSTUDY_HOME"] = place
        undisturbed, disturbed = Path(place) / "undisturbed", Path(place) / "disturbed"
        console.print("[bold]undisturbed[/]: m0 and m1 train")
        plain, _ = asyncio.run(run(console, undisturbed))
        console.print("[bold]disturbed[/]: m2 waits, then replaces m1; the controller is killed meanwhile")
        moved, answer = asyncio.run(run(console, disturbed, replace))
        if not answer["ok"]:
            console.print(f"[bold red]not replaced[/]: {answer['text']}")
            return 1
        for phase, seconds in answer["phases"].items():
            console.print(f"  {phase:<10} {seconds:7.3f} s   {MEANING.get(phase, '')}")
        steps = [json.loads(line)["seconds"] for line in (undisturbed / "metrics-m0.jsonl").read_text().splitlines()]
        usual = sorted(steps)[len(steps) // 2]
        console.print(f"  [bold]lost       {answer['lost']:7.3f} s[/]   of training; a step takes {usual:.3f} s")
        curve, again = losses(undisturbed), losses(disturbed)
        if plain.view["digests"] == moved.view["digests"] and curve == again and curve:
            console.print(f"[bold green]bit-identical[/]: final state of all roles, and {len(curve)} losses")
            return 0
        console.print("[bold red]the runs differ[/]")
        return 1


if __name__ == "__main__":
    sys.exit(main())
