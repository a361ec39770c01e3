from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from understudy_bench.harness.bench import Progress, rounded
from understudy_bench.harness.job import entries_of
from understudy_bench.harness.memory import Memory, memory_in, memory_of
from understudy_bench.rehearsal import bench as rehearsal
from understudy_bench.rehearsal import first_step, promotion, recording, standby_memory
from understudy_bench.rehearsal.first_step import SKIPPED, STEADY, Contestant, Life, of, row_of
from understudy_bench.rehearsal.promotion import (
    MESHES,
    Mesh,
    Promoted,
    differing,
    how_taken,
    is_ready,
    kinds_of,
    stage_of,
)

KNOWN = {"process_at": 12.0, "begun_at": 20.0, "imported_at": 21.0, "entered_at": 21.5, "built_at": 23.0}
ANSWER = {"lost": 0.05, "phases": {"rehearse": 0.0, "prepare": 0.02, "armed": 0.3, "switch": 0.1, "hand-over": 0.04}}


def entry(step: int, took: float, graphs: float = 3, **more: float) -> dict[str, Any]:
    parts = {"forward": took / 4, "backward": took / 2, "update": took / 4, "processor": took / 2}
    return {"step": step, "role": 0, "seconds": took, "took": took, "graphs": graphs, **parts, **KNOWN, **more}


def joiner(first: float, usual: float = 0.2, **more: float) -> list[dict[str, Any]]:
    """Its steps, with slow ones where the leaver ends."""
    slow = [entry(41 + number, 9.0, **more) for number in range(SKIPPED)]
    steady = [entry(41 + SKIPPED + number, usual, **more) for number in range(STEADY)]
    return [*steady, *slow, entry(40, first, **more), entry(99, 9.0, **more)]


SHADOWS = {"shadow_1": 2.0, "shadow_2": 0.3, "shadow_3": 0.2}


def test_metrics_that_are_still_being_written_are_left_out() -> None:
    assert entries_of(['{"step": 1}\n', '{"step": 2}\n', '{"st']) == [{"step": 1}, {"step": 2}]


def test_the_first_step_is_compared_with_those_after_the_leaver_has_gone() -> None:
    row = rounded(row_of(joiner(0.22, **SHADOWS), ANSWER, 10.0))
    assert (row["first_s"], row["steady_s"], row["ratio"]) == (0.22, 0.2, 1.1)
    assert (row["forward_ratio"], row["processor_ratio"]) == (1.1, 1.1)
    assert (row["start_s"], row["import_s"], row["build_s"], row["shadow_s"]) == (2.0, 1.0, 1.5, [2.0, 0.3, 0.2])
    assert (row["links_s"], row["hand_over_s"], row["lost_s"], row["graphs_after"]) == (0.02, 0.04, 0.05, 0)


def test_graphs_that_are_compiled_after_the_switch_are_counted() -> None:
    entries = joiner(0.22, **SHADOWS)
    entries[-1]["graphs"] = 5
    assert row_of(entries, ANSWER, 10.0)["graphs_after"] == 2
    assert row_of(joiner(0.22), ANSWER, 10.0)["graphs_after"] == 3  # nothing was compiled before


def rows(**ratios: Sequence[float]) -> list[dict[str, Any]]:
    """`eager_rehearsed=(1.0, …)`."""
    found: list[dict[str, Any]] = []
    for name, values in ratios.items():
        model, how = name.split("_")
        shadows = SHADOWS if how == "rehearsed" else {}
        for value in values:
            seen = rounded(row_of(joiner(value, 1.0, **shadows), ANSWER, 10.0))
            found.append({"part": "first step", "model": model, "how": how, "round": "0", **seen})
    return found


ALL = rows(
    eager_rehearsed=(1.0, 1.05, 9.0),
    eager_cold=(3.0,),
    compiled_rehearsed=(1.1, 1.3),
    compiled_cold=(90.0, 110.0),
)


def test_checks_compare_medians() -> None:
    eager, compiled, cold_eager, cold_compiled, graphs = first_step.checks_of(ALL)
    assert (eager.name, eager.value, eager.ok) == ("first_step_eager", 1.05, True)
    assert (compiled.name, compiled.value, compiled.ok) == ("first_step_compiled", 1.2, False)
    assert (cold_eager.value, cold_compiled.value) == (3.0, 100.0)
    assert (graphs.name, graphs.value, graphs.ok) == ("graphs_after_switch", 0, True)
    of(ALL, "compiled", "rehearsed")[0]["graphs_after"] = 1  # type: ignore[index]
    assert not first_step.checks_of(ALL)[-1].ok


def test_the_summary_has_a_row_for_each_contestant() -> None:
    eager, cold, *_ = first_step.summary(ALL)
    assert (eager["model"], eager["how"], eager["round"], eager["ratio"]) == ("eager", "rehearsed", "all 3", 1.05)
    assert eager["ratio_spread"] == [pytest.approx(1.01), pytest.approx(7.41)]
    assert eager["shadow_s"] == [2.0, 0.3, 0.2]
    assert (cold["how"], cold["shadow_s"]) == ("cold", [])


def test_only_contestants_without_rehearsal_get_its_settings(tmp_path: Path) -> None:
    warm, cold = (Contestant("inductor", rehearses).settings(tmp_path) for rehearses in (True, False))
    assert (cold["rehearsals"], cold["warm"]) == (0, 0)
    assert "rehearsals" not in warm
    assert "--by-hand" in cold["args"]
    assert "--by-hand" not in warm["args"]
    assert {"--compile", "--cache"} <= {*warm["args"]}
    assert "--compile" not in Contestant("", True).settings(tmp_path)["args"]


ROSTER = [
    {"role": role, "twins": [role ^ 1], "places": {"pp": role // 2, "dp": role % 2, "tp": 0}} for role in range(4)
]


def test_a_standby_is_ready_when_it_has_rehearsed_every_kind_and_waits() -> None:
    kinds = kinds_of(ROSTER)
    assert kinds == {frozenset({0, 1}), frozenset({2, 3})}
    standby = {"state": "standby", "rehearsed": [0, 1], "rehearsal_seconds": {"1": 0.5, "2": 0.5}}
    assert is_ready(standby, kinds)
    assert not is_ready({**standby, "rehearsal_seconds": {"1": 0.5}}, kinds)
    assert not is_ready({**standby, "rehearsed": []}, kinds)
    assert not is_ready({**standby, "state": "active"}, kinds)
    assert how_taken([1], standby) == "at once"
    assert how_taken([1, 2], standby) == "entered again"
    assert stage_of({"pp": 1, "dp": 0, "tp": 1}) == "pp=1 tp=1"


LINKS = {"joiners": 0.02, "stayers": 0.03}


def death(how: str, full: float) -> dict[str, Any]:
    settled = {"at": 100.0 + full, "data": {"lost": full / 2, "phases": {"open": 0.12345}, "links": LINKS}}
    seen = promotion.row_of(100.0, settled, {"data": {"repeated": 1}})
    return {"part": "promotion", "mesh": "dp=2", "how": how, "roles": [1], **seen}


def test_deaths_are_summed_up_by_how_roles_were_taken() -> None:
    found = [death("at once", 1.0), death("entered again", 4.0), death("at once", 2.0)]
    assert (found[0]["phases"], found[0]["repeated"]) == ({"open": 0.123}, 1)
    once, again = promotion.summary(found)
    assert (once["joiners_links_s"], again["stayers_links_s"]) == (0.02, 0.03)
    assert (once["how"], once["round"], once["full_strength_s"], once["lost_s"]) == ("at once", "all 2", 1.5, 0.75)
    assert (again["how"], again["full_strength_spread"]) == ("entered again", [4.0, 4.0])


def test_every_role_must_end_as_if_undisturbed() -> None:
    assert differing({"0": "a", "1": "b"}, {"0": "a", "1": "b"}) == []
    wrong = differing({"0": "a", "1": "b"}, {"0": "a", "1": "c", "2": "d"})
    assert wrong == ["1", "2"]
    (good,) = promotion.checks_of({"dp=2": []}, [death("at once", 1.0)])
    (bad,) = promotion.checks_of({"dp=2": wrong}, [death("at once", 1.0)])
    assert (good.value, good.ok) == ("1 roles taken", True)
    assert (bad.value, bad.ok) == ("dp=2: role 1, dp=2: role 2", False)


TIMES = {"recorded": [[1.0, 1.0], [2.04, 2.04], [9.0, 9.0]], "unrecorded": [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]}


def test_recording_is_compared_pair_by_pair() -> None:
    assert recording.step_ratio(TIMES) == pytest.approx(1.02)
    *each, total = recording.step_rows(TIMES)
    assert [row["ratio"] for row in each] == [1.0, 1.02, 3.0]
    assert (total["round"], total["recorded_s"], total["ratio"]) == ("all 3", 2.04, 1.02)
    assert recording.size_row("gpt", [1_500_000, 77]) == {
        **{"part": "recording", "model": "gpt", "recordings": 2, "recorded_mb": [1.5, 0.0]}
    }


SMAPS = """55a-7ff ---p 00000000 00:00 0    [rollup]
Rss:              30 kB
Pss:              20 kB
Pss_Dirty:         9 kB
Private_Clean:     1 kB
Private_Dirty:     9 kB
THPeligible:       0
"""


def test_memory_is_what_the_kernel_says() -> None:
    assert memory_in(SMAPS.splitlines(keepends=True)) == Memory(10 * 1024, 30 * 1024)
    mine = memory_of(os.getpid())
    assert 0 < mine.own <= mine.resident


def test_a_standby_must_hold_no_more_than_the_leanest_that_trains() -> None:
    def held(megabytes: int) -> Memory:
        return Memory(megabytes * 900_000, megabytes * 1_000_000)

    lean = standby_memory.memory_row([held(110), held(100)], held(95), 0)
    fat = standby_memory.memory_row([held(110), held(100)], held(120), 1)
    assert (lean["ratio"], lean["parked_mb"], lean["training_mb"]) == (0.95, 95.0, [110.0, 100.0])
    off, parked = recording.check_of(TIMES), standby_memory.check_of([lean])
    assert (off.name, off.ok, parked.name, parked.ok) == ("recording_off", True, "parked_memory", True)
    assert not standby_memory.check_of([fat]).ok


@pytest.mark.parametrize("quick", [True, False])
def test_everything_is_measured(monkeypatch: pytest.MonkeyPatch, quick: bool) -> None:
    lives: list[tuple[str, str, int]] = []
    played: list[tuple[str, list[int]]] = []

    async def live(contestant: Contestant, folder: Path, replacements: int, done: Callable[[str], None]) -> Life:
        lives.append((contestant.name, contestant.how, replacements))
        shadows = SHADOWS if contestant.rehearses else {}
        seen = []
        for _ in range(replacements):
            seen.append(row_of(joiner(1.0, 1.0, **shadows), ANSWER, 10.0))
            done("")
        return Life(seen, [1000])

    async def weigh(folder: Path, times: int, done: Callable[[str], None]) -> list[dict[str, object]]:
        for _ in range(times):
            done("")
        held = Memory(1, 1)
        return [standby_memory.memory_row([held, held], held, number) for number in range(times)]

    async def promote(mesh: Mesh, folder: Path, cells: Sequence[int], done: Callable[[str], None]) -> Promoted:
        played.append((mesh.name, list(cells)))
        for _ in range(len(cells) + 1):
            done("")
        return Promoted([{**death("at once", 1.0), "mesh": mesh.name} for _ in cells], [], [5, 6])

    def step_times(folder: Path, blocks: int, done: Callable[[str], None]) -> dict[str, list[list[float]]]:
        for _ in range(2 * blocks):
            done("")
        return {system: [[1.0]] * blocks for system in recording.SYSTEMS}

    async def sizes_of(example: str, folder: Path) -> list[int]:
        await asyncio.sleep(0)
        return [7]

    monkeypatch.setattr(first_step, "live", live)
    monkeypatch.setattr(promotion, "promote", promote)
    monkeypatch.setattr(standby_memory, "weigh", weigh)
    monkeypatch.setattr(recording, "step_times", step_times)
    monkeypatch.setattr(recording, "sizes_of", sizes_of)
    progress = Progress("rehearsal", Console(file=io.StringIO()))
    done: list[str] = []
    monkeypatch.setattr(progress, "advance", done.append)
    result = rehearsal.measure(quick, progress)
    assert len(done) == progress.total
    assert all(check.ok for check in result.checks)
    assert [check.name for check in result.checks] == [
        *("first_step_eager", "first_step_compiled", "cold_eager", "cold_compiled", "graphs_after_switch"),
        *("bit_identical", "recording_off", "parked_memory"),
    ]
    turns = {(model, how) for model, how, _ in lives}
    assert turns == {(model, how) for model in ("eager", "compiled") for how in ("rehearsed", "cold")}
    counts = {turn: sum(many for *each, many in lives if tuple(each) == turn) for turn in turns}
    assert set(counts.values()) == {2 if quick else 6}
    assert played == ([(MESHES[0].name, [0, 2])] if quick else [(m.name, [*range(m.machines)]) for m in MESHES])
    assert {"first step", "promotion", "recording", "memory"} == {row["part"] for row in result.rows}
