"""Run an example with a pause after each step, so that standbys find time to rehearse on the same cores.

paced.py SECONDS EXAMPLE [the example's options]
"""

from __future__ import annotations

import runpy
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import understudy

pause, example = float(sys.argv[1]), Path(sys.argv[2])
run = understudy.run


def slowly(train: Callable[[understudy.Job], object]) -> None:
    def with_pauses(job: understudy.Job) -> None:
        steps = job.steps

        def paused(count: int | None = None) -> Iterator[understudy.Step]:
            for step in steps(count):
                yield step
                if not job.rehearsing:
                    time.sleep(pause)

        job.steps = paused  # type: ignore[method-assign]
        train(job)

    run(with_pauses)


if __name__ == "__main__":
    understudy.run = slowly
    sys.argv[:] = [str(example), *sys.argv[3:]]
    sys.path.insert(0, str(example.parent))
    runpy.run_path(str(example), run_name="__main__")
