"""`python -m tools.reference`: writes docs/api.md."""

from __future__ import annotations

from pathlib import Path

from . import commands, http, python

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
HEAD = """\
# Reference

Made by `make docs` from the docstrings, the controller's routes and the argument parsers; a test compares.
What is not here is not public, and may change.

- [In a script](#in-a-script-understudy): `run`, `Job`, `Step`, `Shard`
- [Data by index](#data-by-index-understudydata): `Tokens`, `MapData`, `Sampler` and what belongs to them
- [In tests](#in-tests-understudytesting): local workers, a fake clock, faults
- [Over HTTP](#over-http-the-controller): what the controller answers
- [On the command line](#on-the-command-line-understudy): every command with its options"""


def page() -> str:
    return "\n\n".join([HEAD, python.section(), http.section(), commands.section()]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(Path.cwd())} is written" if PAGE.is_relative_to(Path.cwd()) else f"{PAGE} is written")
