"""`python -m tools.recording`: record the replacement of a machine and the death of a worker as
docs/images/session.svg."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .session import LIMIT_S, Terminal, panes
from .svg import drawn

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "images" / "session.svg"
COLUMNS = 112
MARKS = {
    "final state": "bold green",
    "killed by signal": "red",
    "training lost": "bold",
    "→": "cyan",
    " has role": "cyan",
}
UNDERSTUDY = (sys.executable, "-m", "understudy.cli.main")


class Session:
    """Two terminals on one job."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "LICENSE", folder)
        path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
        self.env = {**os.environ, "UNDERSTUDY_HOME": str(folder / "home"), "PYTHONPATH": path}
        self.job = Terminal("the job", 15, COLUMNS, folder, self.env)
        self.operator = Terminal("another terminal", 11, COLUMNS, folder, self.env)
        self.script = ["examples/gpt_ddp.py", "--steps", str(steps)]

    def understudy(self, terminal: Terminal, *words: str) -> None:
        terminal.begin([*UNDERSTUDY, *words], f"understudy {' '.join(words)}")

    def machines(self) -> list[dict[str, Any]]:
        command = [*UNDERSTUDY, "status", "--json"]
        said = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=LIMIT_S)
        found: list[dict[str, Any]] = json.loads(said.stdout)["machines"]
        return found

    def standbys_ready(self, count: int) -> None:
        deadline = time.monotonic() + LIMIT_S
        while sum(bool(machine["rehearsed"]) for machine in self.machines()) < count:
            if time.monotonic() > deadline:
                raise SystemExit(f"{count} standbys were not ready within {LIMIT_S:g} s")
            time.sleep(0.2)

    def record(self) -> None:
        """Replace m1 and kill a worker of m0; then run the same job undisturbed, and compare the final states."""
        self.understudy(self.job, "run", "--plain", "--machines", "2", "--standbys", "2", *self.script)
        self.job.until("step    5")
        self.standbys_ready(2)
        self.understudy(self.operator, "replace", "m1")
        if self.operator.end():
            raise SystemExit(f"nothing was replaced:\n{self.operator.text}")
        (victim,) = [machine["pids"][0] for machine in self.machines() if machine["name"] == "m0"]
        self.operator.begin(["kill", "-9", str(victim)], f"kill -9 {victim}   # the worker on m0")
        self.operator.end()
        if self.job.end():
            raise SystemExit(f"the job has failed:\n{self.job.text}")
        undisturbed = ["understudy", "run", "--plain", "--machines", "2", *self.script]
        words = [*UNDERSTUDY, *undisturbed[1:]]
        self.operator.begin(
            ["sh", "-c", f"{' '.join(words)} | tail -1"], f"{' '.join(undisturbed)} | tail -1   # undisturbed"
        )
        self.operator.end()
        final = [line for line in (self.job.text + self.operator.text).splitlines() if "final state" in line]
        if len(final) != 2 or final[0].strip() != final[1].strip():
            raise SystemExit(f"the two runs do not end alike: {final}")

    def close(self) -> None:
        for terminal in (self.operator, self.job):
            terminal.kill()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.recording", description=__doc__)
    parser.add_argument("--steps", type=int, default=80, help="steps of the job, more on a fast computer (default 80)")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as place:
        session = Session(Path(place).resolve(), args.steps)
        try:
            session.record()
        finally:
            session.close()
        picture = drawn(panes([session.job, session.operator], MARKS), COLUMNS)
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture, encoding="utf-8")
    print(f"{PICTURE.name}: {len(picture) / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
