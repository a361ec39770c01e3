"""What a check shows: a line for each run while it goes on, then the findings."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from understudy.protocol.mesh import Mesh, describe
from understudy.protocol.sentences import listed
from understudy.verify.script.causes import Cause
from understudy.verify.script.check import CheckProgress, CheckResult
from understudy.verify.script.findings import ScriptFinding, verdict
from understudy.verify.script.runs import Run

_SHOWN = 6
"""Causes of one finding."""
_EDGE = "          "


class CheckScreen:
    """A bar for the current run on a terminal, plain lines elsewhere."""

    def __init__(self, script: str, steps: int, *, stderr: bool, console: Console | None = None) -> None:
        self._console = console or Console(stderr=stderr, highlight=False)
        if not self._console.is_terminal:
            self._console.width = 10_000
        self._script, self._steps = script, steps
        self._live = self._console.is_terminal
        self.bar = Progress(
            TextColumn("{task.description:<18}"),
            BarColumn(),
            TextColumn("step {task.completed} of {task.total}  {task.fields[what]}"),
            console=self._console,
            transient=True,
            disable=not self._live,
        )
        self._task = self.bar.add_task("", total=steps, what="")
        self.progress = CheckProgress(say=self._say, step=self._step, begun=self._begun, ended=self._ended)

    def print(self, text: str | Text) -> None:
        self._console.print(text, markup=False, soft_wrap=not self._live)

    # -- while it goes on ----------------------------------------------------------------------------------------------

    def _begun(self, name: str) -> None:
        self.bar.reset(self._task, total=self._steps, description=name, what="starting")

    def _step(self, step: int) -> None:
        self.bar.update(self._task, completed=min(step, self._steps), what="")

    def _say(self, text: str) -> None:
        self.print(Text(f"  {text}", style="dim"))

    def _ended(self, run: Run) -> None:
        how = "" if run.whole else f"  {run.status}"
        self.print(f"{run.name:<18} {run.steps} steps  {run.seconds:5.1f} s{how}")
        if run.options:
            self._say(f"with {', '.join(run.options)}, beside the options of understudy run")

    # -- afterwards ----------------------------------------------------------------------------------------------------

    def show(self, result: CheckResult, mesh: Mesh) -> None:
        proven = [finding for finding in result.found if finding.proven]
        notes = [finding for finding in result.found if not finding.proven]
        shown: set[tuple[tuple[str, str], ...]] = set()
        for finding in proven:
            self._show(finding, shown)
        for note in notes:
            self._head("warning", "yellow", f"{note.place}: {note.sentence}" if note.place else note.sentence)
            self._more(note.evidence)
            self._more(note.advice, "→ ")
        self.print("")
        if proven:
            more = f", and {_many(len(notes), 'warning')}" if notes else ""
            what = "survive replacement" if len(result.runs) > 1 else "run"
            self.print(Text(f"{self._script} does not {what} as it is{more}", style="bold red"))
            return
        if verdict(result.found) == "unclear":
            self.print(Text(f"nothing is proven about {self._script}: the check was interrupted", style="bold yellow"))
            return
        done = [each for run in result.runs for each in run.disturbances]
        classes = "; ".join(
            describe(mesh, roles[0]) + (f" and {len(roles) - 1} more" if roles[1:] else "") for roles in result.classes
        )
        self.print(Text(f"{self._script} survives replacement", style="bold green"))
        kinds = {kind: sum(each.kind == kind for each in done) for kind in ("replace", "kill")}
        self.print(
            f"{_many(kinds['replace'], 'planned replacement')} and {_many(kinds['kill'], 'death')} of a machine in "
            f"{self._steps} steps: all bits of {_many(len(result.classes), 'role class', 'role classes')} are those "
            f"of an undisturbed run ({classes})"
        )

    def _show(self, finding: ScriptFinding, shown: set[tuple[tuple[str, str], ...]]) -> None:
        self._head("proven", "red", finding.sentence)
        if finding.disturbance:
            self._more(finding.disturbance)
        if finding.roles:
            self._more(listed(finding.roles, 3) + (f": {listed(finding.tensors, 3)}" if finding.tensors else ""))
        names = tuple((cause.place, cause.variable) for cause in finding.causes)
        if names and names in shown:
            self._more("for the same reasons")
            return
        shown.add(names)
        if len(finding.causes) > 1:
            self._more("likeliest first:")
        for cause in finding.causes[:_SHOWN]:
            self._cause(cause)
        if more := [f"{cause.variable} ({cause.place})" for cause in finding.causes[_SHOWN:]]:
            self._more(f"and {', '.join(more)}; see --json")
        self._more(finding.advice, "→ ")

    def _cause(self, cause: Cause) -> None:
        self._indented(Text().append(f"{cause.place}: ", style="bold").append(cause.sentence), len(_EDGE))
        self._more(cause.evidence, "  ")
        self._more(cause.advice, "  → ")

    def _head(self, word: str, style: str, text: str) -> None:
        self.print("")
        self.print(Text().append(f"{word:<{len(_EDGE)}}", style=f"bold {style}").append(text))

    def _more(self, text: str, before: str = "") -> None:
        if text:
            self._indented(Text(before.lstrip() + text), len(_EDGE) + len(before) - len(before.lstrip()))

    def _indented(self, text: Text, edge: int) -> None:
        """Indent all lines, also those that a narrow terminal breaks."""
        self._console.print(Padding(text, (0, 0, 0, edge), expand=False))


def _many(count: int, one: str, more: str = "") -> str:
    return f"{count} {one if count == 1 else more or one + 's'}"
