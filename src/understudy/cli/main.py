"""Entry point of the `understudy` command.

Each module of `COMMANDS` has a function `add_parser(subparsers)`, which adds one or more commands. It must be cheap,
since every call of `understudy` runs it; import heavy modules when a command runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

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
from understudy.cli.command import UsageError
from understudy.controller.client import ControllerError

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
COMMANDS = (run, join, status, replace, rebalance, operate, check, chaos, plan, simulate, bench, reproduce)
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
    for command in COMMANDS:
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
        code: int = args.run(args)
        return code
    except UsageError as error:
        print(f"understudy {args.command}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print(f"understudy {args.command}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except ControllerError as error:
        print(f"understudy {args.command}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
