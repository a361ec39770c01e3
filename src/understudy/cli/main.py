"""Entry point of the `understudy` command.

A command is a module of this package with `add_parser(subparsers)` and `run(args) -> int`, listed in `COMMANDS`.
`add_parser` must stay cheap, since every call of `understudy` runs it; what is heavy is imported in `run`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from understudy import __version__
from understudy.cli import bench, chaos, check, join, plan, rebalance, reproduce, run, scale, simulate, status
from understudy.cli.errors import UsageError
from understudy.cli.operate import Events, Report, Standby, Stop
from understudy.cli.replace import Drain, Replace

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

EXAMPLES = """\
examples:
  understudy run --machines 2 --standbys 1 examples/gpt_ddp.py
  understudy join --secret-file FILE --host ADDRESS URL SCRIPT      on another computer: one more machine
  understudy replace m1                               in another terminal, while it trains
  understudy scale --replicas 4                       more replicas, or fewer, of a job with --mask
  understudy check train.py                           does it survive replacement? what was forgotten?
  understudy plan --gpus 65536 --model-params 405B    what resilience buys on your cluster
  understudy bench --list                             which benchmarks there are
  understudy bench collectives --quick                a first impression in a minute
  understudy bench collectives --json result.json     the full run, kept as JSON
  understudy bench all                                all of them, with a report
  understudy reproduce spare                          a published table again, ours beside theirs
"""

INTERRUPTED = 130


class Command(Protocol):
    """The shape of a command module."""

    def add_parser(self, subparsers: Subparsers) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


COMMANDS: dict[str, Command] = {
    "run": run,
    "join": join,
    "status": status,
    "replace": Replace,
    "drain": Drain,
    "rebalance": rebalance,
    "standby": Standby,
    "scale": scale,
    "report": Report,
    "events": Events,
    "stop": Stop,
    "check": check,
    "chaos": chaos,
    "plan": plan,
    "simulate": simulate,
    "bench": bench,
    "reproduce": reproduce,
}


FORMER_NAMES = {"rehearse": "check"}
"""Commands that have been renamed; a former name works for one version."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="understudy",
        description="Train with PyTorch on machines that can be replaced while the job runs.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"understudy {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS.values():
        command.add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 2 for a mistake in the call, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and (name := FORMER_NAMES.get(words[0])) is not None:
        print(f"understudy {words[0]} is now called understudy {name}; the next version has only that", file=sys.stderr)
        words[0] = name
    args = build_parser().parse_args(words)
    try:
        return COMMANDS[args.command].run(args)
    except UsageError as error:
        print(f"understudy {args.command}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever read our answer has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print(f"understudy {args.command}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except RuntimeError as error:
        if type(error).__name__ != "ControllerError":
            raise
        print(f"understudy {args.command}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
