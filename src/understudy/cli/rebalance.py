"""`understudy rebalance`: move roles to other machines while training goes on."""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from understudy.cli import connection
from understudy.cli.command import Subparsers, UsageError, add_command
from understudy.cli.replace import request
from understudy.cli.status import roles_text
from understudy.controller.client import Client
from understudy.steward.rebalance import ImpossibleMoves, check, spread_over_racks, transitions

DESCRIPTION = """\
Move roles of a running job to other machines. All roles of a machine move together: name any of them. Targets are
standbys, or machines that the plan itself frees. A freed machine becomes a standby, so that machines can also trade
places. The moves are made in as few transitions as possible, one after the other, each at one step boundary; training
does not stop. An impossible plan is refused before anything moves.
"""
EPILOG = """\
examples:
  understudy rebalance plan.toml --dry-run       print the transitions, and move nothing
  understudy rebalance plan.toml
  understudy rebalance --spread rack             put equal state into different racks, with the fewest moves

plan.toml:                                       the same as JSON: {"moves": {"0": "m4", "3": "m5"}}
  [moves]
  0 = "m4"        # role 0, and all other roles of its machine, to m4
  3 = "m5"

Machines get labels when they join: understudy join --label rack=r7, or run --label m0:rack=r1.
"""


class JobLayout:
    """Which machine has which roles, and which machines are free.

    A cell is all roles of one machine; its first role stands for it.
    """

    def __init__(self, machines: Sequence[Mapping[str, Any]], roster: Sequence[Mapping[str, Any]]) -> None:
        self.machines = {machine["name"]: machine for machine in machines if machine["state"] != "gone"}
        self.free = [name for name, machine in self.machines.items() if machine["state"] == "standby"]
        self.cell_of: dict[int, int] = {}
        """Role → its cell."""
        self.where: dict[int, str] = {}
        """Cell → machine."""
        self.twins = {entry["role"]: entry["twins"] for entry in roster}
        self.vacant = [entry["role"] for entry in roster if entry["machine"] is None]
        for name in dict.fromkeys(entry["machine"] for entry in roster if entry["machine"] is not None):
            roles = [entry["role"] for entry in roster if entry["machine"] == name]
            self.where[roles[0]] = name
            self.cell_of.update(dict.fromkeys(roles, roles[0]))

    def roles_of(self, cell: int) -> list[int]:
        return [role for role, of in self.cell_of.items() if of == cell]

    def kinds(self) -> list[list[int]]:
        """Groups of cells with equal state, role by role."""
        kinds: list[list[int]] = []
        for cell in self.where:
            for kind in kinds:
                pairs = zip(self.roles_of(kind[0]), self.roles_of(cell), strict=False)
                if all(other in self.twins.get(role, ()) for role, other in pairs):
                    kind.append(cell)
                    break
            else:
                kinds.append([cell])
        return kinds


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "rebalance", run, "move roles to other machines", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("plan", nargs="?", type=Path, metavar="PLAN", help="TOML or JSON file that maps roles to machines")
    add("--spread", metavar="LABEL", help="instead of a plan: keep equal state apart by this label of machines")
    add("--dry-run", action="store_true", help="print what would be done, and do nothing")
    connection.add_options(parser)


def run(args: argparse.Namespace) -> int:
    if (args.plan is None) == (args.spread is None):
        raise UsageError("give either a plan file or --spread LABEL")
    moves = None if args.plan is None else read(args.plan)
    client = connection.connect(args)
    layout = JobLayout(client.call("GET", "/machines"), client.call("GET", "/roster"))
    try:
        wanted = spread_plan(layout, args.spread) if moves is None else places(layout, moves)
        steps = transitions(layout.where, check(layout.where, wanted, layout.free), layout.free)
    except ImpossibleMoves as error:
        raise UsageError(str(error)) from None
    return carry_out(client, layout, steps, as_json=args.json, dry=args.dry_run)


def read(path: Path) -> dict[int, str]:
    """Read a plan: role → machine."""
    try:
        text = path.read_text()
        found = json.loads(text, object_pairs_hook=_once) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise UsageError(f'{path} is not valid {kind}: {error}; name each role once, as in 0 = "m4"') from None
    moves = found.get("moves") if isinstance(found, dict) else None
    if not isinstance(moves, dict) or set(found) != {"moves"}:
        raise UsageError(f'{path}: write one table, [moves], with lines such as 0 = "m4"')
    plan: dict[int, str] = {}
    for key, machine in moves.items():
        if not (key.isascii() and key.isdigit()):
            raise UsageError(f"{path}: {key!r} is not a role; roles are numbers from 0 on")
        if not isinstance(machine, str) or not machine:
            raise UsageError(f'{path}: role {key} is to move to {machine!r}; write the name of a machine, such as "m4"')
        if int(key) in plan:
            raise UsageError(f"{path}: role {int(key)} is named twice")
        plan[int(key)] = machine
    return plan


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a key that JSON has twice: the parser would forget the first value."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key} is named twice")
        found[key] = value
    return found


def places(layout: JobLayout, moves: Mapping[int, str]) -> dict[int, str]:
    """The plan by cell: cell → machine."""
    wanted: dict[int, str] = {}
    named: dict[int, int] = {}
    for role, machine in moves.items():
        if role in layout.vacant:
            raise ImpossibleMoves(f"role {role} is vacant; wait until it is refilled")
        if role not in layout.cell_of:
            raise ImpossibleMoves(f"there is no role {role}; roles are 0 to {len(layout.twins) - 1}")
        if machine not in layout.machines:
            raise ImpossibleMoves(f"there is no machine {machine}; machines: {', '.join(layout.machines) or 'none'}")
        cell = layout.cell_of[role]
        if cell in named:
            both = f"roles {named[cell]} and {role} are both on {layout.where[cell]}"
            raise ImpossibleMoves(f"{both}, and move together; name one of them")
        named[cell], wanted[cell] = role, machine
    return wanted


def spread_plan(layout: JobLayout, label: str) -> dict[int, str]:
    racks = {name: machine["labels"][label] for name, machine in layout.machines.items() if label in machine["labels"]}
    if not racks:
        raise ImpossibleMoves(f"no machine has a label {label}; give them some with: understudy join --label {label}=…")
    if layout.vacant:
        raise ImpossibleMoves(f"role {layout.vacant[0]} is vacant; wait until it is refilled")
    return spread_over_racks(layout.where, layout.kinds(), racks, layout.free)


def carry_out(client: Client, layout: JobLayout, steps: list[dict[int, str]], *, as_json: bool, dry: bool) -> int:
    """Make one transition after the other. If one fails, those before it stay. Returns the exit code."""
    if not steps:
        print(json.dumps({"transitions": []}) if as_json else "nothing to do: all roles are where they should be")
        return 0
    plan = _moves(layout, steps)
    if as_json:
        print(json.dumps({"transitions": plan}), flush=True)
    for number, moves in enumerate(plan, 1):
        if not as_json:
            said = ", ".join(f"{roles_text(move['roles'])}: {move['from']} → {move['to']}" for move in moves)
            print(f"transition {number} of {len(plan)}: {said}", flush=True)
        if dry:
            continue
        leavers, joiners = [move["from"] for move in moves], [move["to"] for move in moves]
        body = {"type": "replace", "machines": leavers, "standbys": joiners, "keep": True, "why": "rebalancing"}
        if request(client, body, as_json=as_json):
            if number > 1 and not as_json:
                done = f"transitions 1 to {number - 1} are done; the same command does the rest"
                print(f"understudy: {done}", file=sys.stderr)
            return 1
    return 0


def _moves(layout: JobLayout, steps: list[dict[int, str]]) -> list[list[dict[str, Any]]]:
    """Of each transition, the roles that move, from which machine and to which."""
    at, found = dict(layout.where), []
    for step in steps:
        cells = sorted(step.items())
        found.append([{"roles": layout.roles_of(cell), "from": at[cell], "to": name} for cell, name in cells])
        at.update(step)
    return found
