"""A whole rehearsal: which runs are made, in what order, and what they have shown together."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from understudy.launch.spec import JobSpec

from .compare import Book, first_divergence
from .findings import Finding, Show, findings, unclear
from .perform import Watcher, perform
from .runs import Disturbance, Run, classes_of, machines_of, plan, rounds


class Outcome(msgspec.Struct, frozen=True):
    """What there is to tell."""

    classes: list[tuple[int, ...]]
    runs: list[Run]
    found: list[Finding]


async def rehearse(spec: JobSpec, folder: Path, watcher: Watcher, *, within: float) -> Outcome:
    """Undisturbed; then disturbed, as much in one run as there is room for. Where that differs, undisturbed once more,
    to know whether it does so by itself; and what a run left unclear is disturbed alone."""
    assert spec.steps is not None

    async def made(name: str, *disturbances: Disturbance) -> Run:
        return await perform(spec, name, folder, watcher, disturbances=disturbances, within=within)

    calm = await made("undisturbed")
    again: Run | None = None
    disturbed: list[Run] = []
    classes = classes_of(calm.observations)
    if calm.whole and calm.steps >= spec.steps:
        truth = Book(calm.observations)
        wanted = plan(classes, machines_of(calm.observations))
        for number, some in enumerate(rounds(wanted, spec.steps), 1):
            run = await made(f"disturbed {number}", *some)
            disturbed.append(run)
            if _by_itself(truth, run):
                break
        else:
            if any(_bad(truth, run) for run in disturbed):
                again = await made("undisturbed again")
            if again is not None and not _bad(truth, again):
                alone = [each for run in disturbed for each in unclear(calm, run)]
                for number, each in enumerate(alone, len(disturbed) + 1):
                    disturbed.append(await made(f"disturbed {number}", each))
    show = Show(spec.dimensions, spec.steps, calm, again, tuple(disturbed), _sources(spec, calm))
    runs = [calm, *disturbed, *([again] if again is not None else [])]
    return Outcome(classes, runs, findings(show))


def _bad(truth: Book, run: Run) -> bool:
    return not run.whole or first_divergence(truth, run.observations) is not None


def _by_itself(truth: Book, run: Run) -> bool:
    """Whether a run differs before anything has happened to it."""
    return (
        first_divergence(truth, [observation for observation in run.observations if observation.disturbances == 0])
        is not None
    )


def _sources(spec: JobSpec, calm: Run) -> dict[str, str]:
    files = {str(Path(spec.script).resolve()): None} | {file: None for each in calm.observations for file in each.files}
    found = {}
    for file in files:
        with suppress(OSError, UnicodeDecodeError):
            found[file] = Path(file).read_text()
    return found
