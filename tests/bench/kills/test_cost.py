from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from understudy_bench.harness.marks import Mark, MarkReader, gaps
from understudy_bench.kills.cost import ALONE, NEVER, Outage, degraded, outage, recomputed
from understudy_bench.scripts.marks import Marks

DEATH = 20.6


def steps(place: int, pid: int, first: int, ends: list[float], length: float = 1.0) -> list[Mark]:
    """Steps that end at these times, each begun a while before."""
    marks = []
    for number, end in enumerate(ends, first):
        marks += [Mark(place, pid, "begin", number, end - length), Mark(place, pid, "end", number, end)]
    return marks


def undisturbed(place: int, pid: int) -> list[Mark]:
    """Steps 0 to 20 of one second each; 21 is begun."""
    return [*steps(place, pid, 0, [float(end) for end in range(21)]), Mark(place, pid, "begin", 21, 20.01)]


def ordered(*parts: list[Mark]) -> list[Mark]:
    return sorted((mark for part in parts for mark in part), key=lambda mark: mark.at)


def seen(*parts: list[Mark]) -> Outage:
    found = outage(ordered(undisturbed(0, 100), undisturbed(1, 101), *parts), 1, DEATH)
    assert found is not None
    return found


def test_survivors_repeat_the_step_in_flight() -> None:
    found = seen(steps(0, 100, 21, [22.4, 23.4]), steps(1, 102, 21, [22.5, 23.5]))
    assert asdict(found) == {
        "step_s": pytest.approx(1.0),
        "stall_s": pytest.approx(0.8),
        "full_strength_s": pytest.approx(1.9),
        "new_step_s": pytest.approx(1.8),
        "repeated": 1,
        "dropped": 0,
        "restarted": False,
    }


def test_a_step_that_ends_in_spite_of_the_death_is_not_the_one_that_counts() -> None:
    kept = [Mark(0, 100, "end", 21, 21.0)]
    found = seen(kept, steps(0, 100, 22, [25.0, 26.0]), steps(1, 102, 22, [25.0, 26.0]))
    assert found.stall_s == pytest.approx(3.4)
    assert found.new_step_s == pytest.approx(4.4)
    assert found.repeated == 0


def test_a_step_that_is_longer_than_the_repeated_one_does_not_count() -> None:
    slow = [Mark(0, 100, "end", 21, 21.4)]
    again = [Mark(0, 100, "begin", 22, 21.41), Mark(0, 100, "begin", 22, 21.6), Mark(0, 100, "end", 22, 22.7)]
    found = seen(slow, again, steps(0, 100, 23, [23.7]), steps(1, 102, 22, [22.7, 23.7]))
    assert found.stall_s == pytest.approx(1.1)
    assert found.repeated == 0


def test_one_that_was_begun_again_counts_however_long_the_next_is() -> None:
    again = [Mark(0, 100, "begin", 21, 20.7), Mark(0, 100, "end", 21, 21.7)]
    found = seen(again, steps(0, 100, 22, [24.0, 25.0]), steps(1, 102, 21, [21.7, 24.0]))
    assert found.stall_s == pytest.approx(0.1)
    assert found.repeated == 1


def test_all_workers_begin_again_at_the_checkpoint() -> None:
    again = [30.0, 31.0, 32.0, 33.0]
    found = seen(steps(0, 110, 19, again), steps(1, 111, 19, again))
    assert found.stall_s == pytest.approx(8.4)
    assert found.full_strength_s == pytest.approx(9.4)
    assert found.new_step_s == pytest.approx(11.4)  # 19 and 20 were done before
    assert (found.repeated, found.restarted) == (3, True)


def test_survivors_go_on_alone_and_give_up_the_step_in_flight() -> None:
    dropped = [Mark(0, 100, "drop", 21, 21.5)]
    alone = [Mark(0, 100, "end", 22 + number, 22.5 + number, full=False) for number in range(6)]
    healing = [Mark(1, 102, "end", 0, 25.0, full=False), Mark(1, 102, "end", 1, 26.0)]
    found = seen(dropped, alone, healing)
    assert found.stall_s == pytest.approx(0.9)
    assert found.full_strength_s == pytest.approx(5.4)  # the replica that only heals does not take part
    assert (found.repeated, found.dropped, found.restarted) == (0, 1, False)


def test_the_cost_is_unknown_before_the_place_takes_part_again() -> None:
    marks = ordered(undisturbed(0, 100), undisturbed(1, 101), steps(0, 100, 21, [22.4, 23.4]))
    assert outage(marks, 1, DEATH) is None
    late_word = [Mark(1, 101, "end", 21, DEATH + 1e-4)]  # the kill came a moment after its time was noted
    assert outage(ordered(marks, late_word), 1, DEATH) is None


def test_nothing_is_said_before_something_new_was_done() -> None:
    again = [30.0, 31.0]
    marks = ordered(undisturbed(0, 100), undisturbed(1, 101), steps(0, 110, 19, again), steps(1, 111, 19, again))
    assert outage(marks, 1, DEATH) is None


def test_after_a_restart_from_the_beginning_there_is_no_new_step() -> None:
    known = undisturbed(0, 100), [Mark(0, 100, "end", 1000, 20.5)], undisturbed(1, 101)
    again = [30.0 + number for number in range(NEVER + 2)]
    found = outage(ordered(*known, steps(0, 110, 0, again), steps(1, 111, 0, again)), 1, DEATH)
    assert found is not None
    assert (found.new_step_s, found.restarted) == (None, True)


def test_a_survivor_that_was_itself_started_anew_may_count_from_zero() -> None:
    earlier = [Mark(0, 99, "begin", 900, -1.0), Mark(0, 99, "end", 900, -0.5), Mark(0, 99, "begin", 22, -0.4)]
    found = seen(earlier, [Mark(0, 100, "drop", 21, 21.0)], steps(0, 100, 22, [22.4, 23.4]), steps(1, 102, 0, [25.0]))
    assert found.new_step_s == pytest.approx(1.8)
    assert (found.repeated, found.dropped) == (0, 1)


def test_of_several_survivors_the_one_that_lost_most_counts() -> None:
    marks = ordered(
        *(undisturbed(place, 100 + place) for place in range(3)),
        *(steps(0, 100, 21, [22.0, 23.0]), steps(2, 102, 21, [22.4, 23.4]), steps(1, 103, 21, [22.4, 23.4])),
    )
    found = outage(marks, 1, DEATH)
    assert found is not None
    assert found.stall_s == pytest.approx(0.8)


def test_what_a_script_writes_is_what_is_watched(tmp_path: Path) -> None:
    marks, watch = Marks(str(tmp_path), 1), MarkReader(tmp_path)
    assert watch.look() == []
    marks.begin(7)
    marks.drop(7)
    marks.begin(8)
    marks.shard(2)
    marks.begin(8)
    marks.shard(2)
    marks.end(8, full=False)
    assert [(mark.place, mark.kind, mark.step) for mark in watch.look()] == [
        (1, "begin", 7),
        (1, "drop", 7),
        (1, "begin", 8),
        (1, "begin", 8),
        (1, "end", 8),
    ]
    assert [mark.shards for mark in watch.ends(1)] == [(2, 2)]
    assert [mark.full for mark in watch.ends(1)] == [False]
    assert watch.ends(0) == []
    assert watch.process_of(1) == watch.marks[0].pid
    marks.end(9)
    assert len(watch.look()) == 6


def test_a_line_that_is_still_being_written_is_read_later(tmp_path: Path) -> None:
    watch, file = MarkReader(tmp_path), tmp_path / "0-1.jsonl"
    line = '{"place": 0, "pid": 1, "kind": "end", "step": 3, "at": 1.5, "full": true}\n'
    file.write_text(line + line[:20])
    assert len(watch.look()) == 1
    file.write_text(line + line)
    assert watch.look() == [Mark(0, 1, "end", 3, 1.5)] * 2


def test_without_a_folder_nothing_is_written() -> None:
    Marks("", 0).end(1)


def test_gaps() -> None:
    assert gaps([1.0, 2.5, 3.0]) == [1.5, 0.5]
    assert gaps([1.0]) == []


def working(place: int, pid: int, first: int, ends: list[float], shards: tuple[int, ...]) -> list[Mark]:
    return [Mark(place, pid, "end", number, end, shards=shards) for number, end in enumerate(ends, first)]


def before() -> list[Mark]:
    """Three replicas with two micro-shards each, in steps of one second."""
    ends = [float(end) for end in range(21)]
    return [mark for place in range(3) for mark in working(place, place, 0, ends, (2 * place, 2 * place + 1))]


def without(count: int = ALONE + 5, length: float = 1.5) -> list[Mark]:
    """The second dies in step 21, which is late, and the others compute three each."""
    ends = [22.0 + length * number for number in range(count)]
    return [*working(0, 0, 21, ends, (0, 1, 2)), *working(2, 2, 21, ends, (4, 5, 3))]


def test_speed_without_the_dead_one() -> None:
    assert degraded(ordered(before(), without()), 1, DEATH) == pytest.approx(1 / 1.5)
    assert degraded(ordered(before(), without(ALONE // 2 + 1)), 1, DEATH) == pytest.approx(1 / 1.5)
    assert degraded(ordered(before(), without(ALONE // 2)), 1, DEATH) is None
    assert degraded(ordered(before(), without(1)), 1, DEATH) is None


def test_survivors_that_compute_less_are_slower_though_their_steps_are_not() -> None:
    ends = [22.0 + number for number in range(ALONE)]
    less = [*working(0, 0, 21, ends, (0, 1)), *working(2, 2, 21, ends, (4, 5))]
    assert degraded(ordered(before(), less), 1, DEATH) == pytest.approx(2 / 3)


def test_steps_in_which_all_take_part_again_are_not_without_the_dead_one() -> None:
    assert degraded(ordered(before(), without(), working(1, 9, 24, [25.1], (2, 3))), 1, DEATH) is None


def test_restarted_survivors_did_not_continue() -> None:
    restarted = [Mark(mark.place, 9, "end", mark.step, mark.at, shards=mark.shards) for mark in without()]
    assert degraded(ordered(before(), restarted), 1, DEATH) is None


def test_what_survivors_keep_is_not_recomputed() -> None:
    assert recomputed(ordered(before(), without()), 1, DEATH) == 0


def test_what_an_interrupted_step_had_is_recomputed() -> None:
    again = [*working(0, 0, 21, [22.0], (0, 0, 1)), *working(2, 2, 21, [22.0], (4, 5, 4, 5))]
    assert recomputed(ordered(before(), again), 1, DEATH) == 3


def test_what_one_survivor_had_and_another_computes_is_recomputed() -> None:
    again = [*working(0, 0, 21, [22.0], (0, 1, 3)), *working(2, 2, 21, [22.0], (4, 5, 3))]
    assert recomputed(ordered(before(), again), 1, DEATH) == 1


def test_steps_since_the_checkpoint_are_recomputed() -> None:
    again = [*working(0, 7, 19, [30.0, 31.0, 32.0], (0, 1)), *working(2, 8, 19, [30.0, 31.0, 32.0], (4, 5))]
    assert recomputed(ordered(before(), again), 1, DEATH) == 8


def test_a_step_in_which_survivors_stand_in_is_the_one_that_counts_however_long_the_next_is() -> None:
    slow = [*working(0, 0, 21, [21.9, 24.5, 26.0], (0, 1, 2)), *working(2, 2, 21, [21.9, 24.5, 26.0], (4, 5, 3))]
    found = outage(ordered(before(), slow, working(1, 9, 22, [24.5], (2, 3))), 1, DEATH)
    assert found is not None
    assert found.stall_s == pytest.approx(0.3)
