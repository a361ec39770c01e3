"""`understudy status`: the step, the machines and the requests of a running job."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.text import Text

from understudy.cli import connection, output
from understudy.cli.command import Subparsers, add_command

DESCRIPTION = """\
Show a job's step, the roles of each machine, the roles that each standby can take at once, waiting requests, and the
failures of each machine.
"""
EXAMPLES = """\
examples:
  understudy status
  understudy status --job gpt --json
"""
HISTORY = 20
"""Lines of history that are shown; --json has all."""


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "status", run, "show a running job", DESCRIPTION, EXAMPLES)
    connection.add_options(parser)


def run(args: argparse.Namespace) -> int:
    client = connection.connect(args)
    job, machines = client.job(), client.call("GET", "/machines")
    roster = client.call("GET", "/roster")
    if args.json:
        print(json.dumps({**job, "machines": machines, "roster": roster}))
    else:
        show(job, machines, roster)
    return 0


def show(job: dict[str, Any], machines: list[dict[str, Any]], roster: list[dict[str, Any]]) -> None:
    console = output.console(1 << 16)  # one line per machine, also in a pipe
    console.print(headline(job))
    if job["reason"]:
        console.print(job["reason"])
    if vacant := job.get("vacant"):
        console.print(f"masked: {roles_text(vacant)} vacant; the other replicas compute their share of the data")
    if (count := job.get("replicas")) is not None and not count["live"] == count["most"] == count["target"]:
        wanted = f"; {job['wanted']} machines wanted" if job["wanted"] else ""
        console.print(f"replicas {count['live']} of {count['most']} (target {count['target']}){wanted}")
    if (copies := job.get("copies")) is not None:
        console.print(
            f"copies in memory: of step {copies['step']}, {copies['bytes'] / 1e6:.3g} MB a role, made in "
            f"{copies['seconds']:.2g} s, for {copies['waited']:.2g} s of which training waited"
        )
    for straggler in job.get("stragglers", ()):
        console.print(f"straggler: {straggler['reason']}")
    places = {entry["role"]: " ".join(f"{name}={at}" for name, at in entry["places"].items()) for entry in roster}
    waiting(console.print, job.get("queue", ()))
    labelled = any(machine.get("labels") for machine in machines)
    titles = ("machine", "state", "roles", "replaced from", "workers", "failures", *(["labels"] if labelled else []))
    sources = {entry["role"]: entry.get("source", "") for entry in roster}
    table = output.table(*titles, right=False)
    for machine in machines:
        roles = ", ".join(f"{role} ({places.get(role, '')})" for role in machine["roles"])
        state = machine["state"] + (f": {machine['why']}" if machine["why"] else "")
        state += readiness(machine, len(roster))
        if machine.get("goes") is not None:
            state += f", goes at {clock(machine['goes'])}"
        failures = str(machine["failures"]) if machine["failures"] else ""
        labels = " ".join(f"{key}={value}" for key, value in sorted(machine.get("labels", {}).items()))
        source = ", ".join(sorted({sources[role] for role in machine["roles"] if sources.get(role)}))
        cells = [machine["name"], state, roles, source, " ".join(machine["workers"]), failures]
        table.add_row(*map(Text, [*cells, labels] if labelled else cells))
    console.print(table)
    past = [(at, machine["name"], what) for machine in machines for at, what in machine["history"]]
    if past:
        console.print("\nfailures and faults, the latest last:")
    for at, name, what in sorted(past)[-HISTORY:]:
        console.print(f"  {clock(at)}  {name}  {what}")


def waiting(say: Callable[[str], None], queue: Sequence[dict[str, Any]]) -> None:
    """Print the machines that are to be replaced, in their order."""
    for entry in queue:
        by = f" by {clock(entry['by'])}" if entry["by"] is not None else ""
        why = f" ({entry['why']})" if entry["why"] else ""
        say(f"to be replaced{by}: {', '.join(entry['machines'])}{why}: {entry['state']}")


def readiness(machine: dict[str, Any], roles: int) -> str:
    """Which roles a standby can take at once, and which after a rehearsal."""
    at_once = machine["rehearsed"]
    said = f", takes {'every role' if len(at_once) == roles else roles_text(at_once)} at once" if at_once else ""
    later = {int(role): seconds for role, seconds in machine["rehearsal_seconds"].items() if int(role) not in at_once}
    if later and len(at_once) < roles:
        said += f", has rehearsed {roles_text(sorted(later))} in {max(later.values()):.2g} s"
    return said


def clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def roles_text(roles: list[int]) -> str:
    """`role 3`, `roles 1, 2`."""
    return ("role " if len(roles) == 1 else "roles ") + ", ".join(map(str, roles))


def headline(job: dict[str, Any]) -> str:
    """One line about the job."""
    values = "  ".join(f"{name} {value:.4g}" for name, value in job["values"].items())
    pace = f"  {job['seconds']:.3g} s a step" if job["seconds"] else ""
    step = f"  step {job['step']}" if job["step"] >= 0 else ""
    moving = "" if (change := job["change"]) is None else f"  [{change['kind']}: {change['phase']}]"
    return f"{job['job']}: {job['status']}{step}{pace}  {values}  generation {job['generation']}{moving}".rstrip()
