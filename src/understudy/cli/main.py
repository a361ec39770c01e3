"""Entry point of the `understudy` command.

A command is a pair of functions, `add_parser(subparsers)` and `run(args) -> int`, listed in `COMMANDS`. `add_parser`
must be cheap, since every call of `understudy` runs it; import heavy modules in `run`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from understudy import __version__
from understudy.cli import (
    bench,
    chaos,
    check,
    join,
    operate,
    plan,
    rebalance,
    replace,
    reproduce,
    run,
    simulate,
    status,
)
from understudy.cli.errors import UsageError

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

EXAMPLES = """\
examples:
  understudy run --machines 2 --standbys 1 examples/gpt_ddp.py
  understudy replace m1                               in another terminal, while it trains
  understudy join --secret-file FILE --host ADDRESS URL SCRIPT      on another computer: add a machine
  understudy scale --replicas 4                       change the number of replicas of a job with --mask
  understudy check train.py                           does it survive replacement? what was forgotten?
  understudy plan --gpus 65536 --model-params 405B    compare strategies for your cluster
  understudy bench --list                             list the benchmarks
  understudy reproduce spare                          compute a published table again

understudy COMMAND --help explains a command.
"""
INTERRUPTED = 130


class Command(NamedTuple):
    """A command of `understudy`."""

    add_parser: Callable[[Subparsers], None]
    run: Callable[[argparse.Namespace], int]


COMMANDS = {
    "run": Command(run.add_parser, run.run),
    "join": Command(join.add_parser, join.run),
    "status": Command(status.add_parser, status.run),
    "replace": Command(replace.add_replace_parser, replace.run_replace),
    "drain": Command(replace.add_drain_parser, replace.run_drain),
    "rebalance": Command(rebalance.add_parser, rebalance.run),
    "standby": Command(operate.add_standby_parser, operate.run_standby),
    "scale": Command(operate.add_scale_parser, operate.run_scale),
    "report": Command(operate.add_report_parser, operate.run_report),
    "events": Command(operate.add_events_parser, operate.run_events),
    "stop": Command(operate.add_stop_parser, operate.run_stop),
    "check": Command(check.add_parser, check.run),
    "chaos": Command(chaos.add_parser, chaos.run),
    "plan": Command(plan.add_parser, plan.run),
    "simulate": Command(simulate.add_parser, simulate.run),
    "bench": Command(bench.add_parser, bench.run),
    "reproduce": Command(reproduce.add_parser, reproduce.run),
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
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print(f"understudy {args.command}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except RuntimeError as error:
        from understudy.controller.client import ControllerError

        if not isinstance(error, ControllerError):
            raise
        print(f"understudy {args.command}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
