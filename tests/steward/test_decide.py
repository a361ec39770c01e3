"""What the steward decides: each rule by itself, and that no history whatever brings it over its limits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.protocol.settings import HOUR, StewardSettings
from understudy.steward.decide import (
    Action,
    FreeStandby,
    Observed,
    ReleaseStandby,
    ReplaceSlow,
    RequestStandbys,
    StewardDecision,
    StewardMemory,
    Suspect,
    decide,
)

M3 = Suspect("m3", 1.34, "backward 1.34x its class")
READY = FreeStandby("m8", True, 0.0)
OTHER = FreeStandby("m9", True, 10.0)


def looks(
    count: int, rules: StewardSettings, memory: StewardMemory | None = None, begin: float = 1000.0, **seen: Any
) -> tuple[list[tuple[float, Action]], list[str], StewardMemory]:
    """So many looks at the same thing, a second apart: what was done when, what was said, and the memory."""
    done: list[tuple[float, Action]] = []
    said: list[str] = []
    memory = memory or StewardMemory()
    for number in range(count):
        at = begin + number
        found = decide(Observed(at, **{"training": True, **seen}), rules, memory)
        done += [(at, action) for action in found.actions]
        said += found.why_not
        memory = found.memory
    return done, said, memory


def actions(done: Iterable[tuple[float, Action]]) -> list[Action]:
    return [action for _, action in done]


# -- slow machines -----------------------------------------------------------------------------------------------------


def test_a_machine_that_stays_slow_is_replaced_once_and_the_reason_is_given() -> None:
    done, said, _ = looks(60, StewardSettings(looks=10), suspects=(M3,), standbys=(READY,))
    assert done == [(1009.0, ReplaceSlow("m3", "backward 1.34x its class, in 10 checks"))]
    assert said == []


def test_a_machine_that_is_slow_now_and_then_is_not() -> None:
    memory = StewardMemory()
    for at in range(200):
        suspects = (M3,) if at % 10 else ()
        found = decide(
            Observed(1.0 + at, True, suspects=suspects, standbys=(READY,)), StewardSettings(looks=10), memory
        )
        assert not found.actions
        memory = found.memory


def test_the_slowest_comes_first_and_one_at_a_time() -> None:
    worse = Suspect("m5", 2.0, "forward 2x its class")
    done, _, memory = looks(10, StewardSettings(looks=10), suspects=(M3, worse), standbys=(READY, OTHER))
    assert [action.machine for action in actions(done) if isinstance(action, ReplaceSlow)] == ["m5"]
    done, _, _ = looks(5, StewardSettings(looks=10), memory, 1010.0, suspects=(M3,), standbys=(OTHER,), busy=True)
    assert done == []
    done, _, _ = looks(1, StewardSettings(looks=10), memory, 1015.0, suspects=(M3,), standbys=(OTHER,))
    assert [action.machine for action in actions(done) if isinstance(action, ReplaceSlow)] == ["m3"]


def test_after_a_request_to_replace_it_a_machine_is_left_alone_for_a_while() -> None:
    rules = StewardSettings(looks=1, rest=600.0, replacements=100)
    done, _, _ = looks(1800, rules, suspects=(M3,), standbys=(READY,))
    assert [at for at, _ in done] == [1000.0, 1600.0, 2200.0]


def test_a_joiner_is_left_alone_for_a_while() -> None:
    rules = StewardSettings(looks=1, rest=600.0)
    fresh = msgspec.structs.replace(M3, since=900.0)
    done, said, _ = looks(600, rules, suspects=(fresh,), standbys=(READY,))
    assert [at for at, _ in done] == [1500.0]
    assert said == ["m3 is not replaced: it joined less than 10 min ago (backward 1.34x its class)"]


def test_not_more_than_so_many_in_an_hour() -> None:
    rules = StewardSettings(looks=1, replacements=2)
    suspects = tuple(Suspect(f"m{number}", 1.5, "slow") for number in range(5))
    done, said, _ = looks(int(HOUR) + 10, rules, suspects=suspects, standbys=(READY,))
    times = [at for at, _ in done]
    assert times == [1000.0, 1001.0, 1000.0 + HOUR, 1001.0 + HOUR]
    assert "m2 is not replaced: the limit is 2 slow machines an hour (slow)" in said


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        ({"standbys": ()}, "no standby is ready"),
        ({"standbys": (FreeStandby("m8", False, 0.0),)}, "no standby is ready"),
        ({"standbys": (READY,), "vacant": 1}, "the ready standbys are needed for a vacant replica"),
        (
            {"standbys": (READY,), "drains": 1},
            "the ready standbys are needed for a planned replacement",
        ),
    ],
)
def test_without_a_standby_to_spare_it_is_said_once_why_not(seen: dict[str, Any], why: str) -> None:
    done, said, memory = looks(100, StewardSettings(looks=5), suspects=(M3,), **seen)
    assert done == []
    assert said == [f"m3 is not replaced: {why} (backward 1.34x its class)"]
    done, said, _ = looks(
        1, StewardSettings(looks=5), memory, 1100.0, suspects=(M3,), **{**seen, "standbys": (READY, OTHER)}
    )
    assert [type(action) for action in actions(done)] == [ReplaceSlow]


def test_nothing_is_done_while_the_job_does_not_train_and_patience_begins_anew() -> None:
    rules = StewardSettings(looks=10, pool=2)
    _, _, memory = looks(9, StewardSettings(looks=10), suspects=(M3,), standbys=(READY,))
    done, said, memory = looks(50, rules, memory, 1100.0, training=False, suspects=(M3,))
    assert (done, said) == ([], [])
    done, _, _ = looks(9, StewardSettings(looks=10), memory, 1200.0, suspects=(M3,), standbys=(READY,))
    assert done == []


def test_off_means_off_for_slow_machines_but_the_pool_is_kept() -> None:
    done, _, _ = looks(20, StewardSettings("off", pool=1, looks=1), suspects=(M3,), standbys=(READY, OTHER))
    assert done == []
    done, _, _ = looks(1, StewardSettings("off", pool=1), standbys=())
    assert actions(done) == [RequestStandbys(1, "0 of 1 free")]


# -- the pool ----------------------------------------------------------------------------------------------------------


def test_without_a_pool_no_standby_is_asked_for_or_released() -> None:
    done, _, _ = looks(200, StewardSettings(), standbys=())
    assert done == []
    done, _, _ = looks(200, StewardSettings(), standbys=(READY, OTHER))
    assert done == []


def test_what_is_missing_is_asked_for_at_once_and_again_after_the_cool_down() -> None:
    rules = StewardSettings(pool=3, cool_down=30.0)
    found = decide(Observed(1000.0, True, standbys=(READY,)), rules, StewardMemory())
    assert found.actions == (RequestStandbys(2, "1 of 3 free"),)
    asked = (1000.0, 1000.0)
    assert not looks(100, rules, begin=1001.0, standbys=(READY,), expected=2, requests=asked)[0]
    done, _, _ = looks(100, rules, begin=1001.0, standbys=(READY,), expected=1, requests=asked)
    assert done[0] == (1030.0, RequestStandbys(1, "1 of 3 free, 1 expected"))


def test_a_standby_that_does_not_come_in_time_is_asked_for_again() -> None:
    rules = StewardSettings(pool=1, arrival=900.0)
    done, _, _ = looks(1000, rules, begin=1001.0, expected=1, requests=(1000.0,))
    assert done[0][0] == 1900.0


def test_a_machine_that_comes_back_by_itself_is_waited_for() -> None:
    rules = StewardSettings(pool=1, returning=17.0)
    done, _, _ = looks(20, rules, begin=1000.0, lost=(1000.0,))
    assert done[0][0] == 1017.0


def test_planned_replacements_that_wait_need_standbys_of_their_own() -> None:
    found = decide(Observed(1000.0, True, standbys=(READY,), drains=2), StewardSettings(pool=1), StewardMemory())
    assert found.actions == (RequestStandbys(2, "1 of 3 free"),)


def test_the_budget_counts_what_others_have_asked_for_and_is_said_once() -> None:
    rules = StewardSettings(pool=5, budget=4, cool_down=0.0)
    found = decide(Observed(5000.0, True, requests=(1000.0, 2000.0, 4000.0)), rules, StewardMemory())
    assert found.actions == (RequestStandbys(2, "0 of 5 free"),)
    done, said, _ = looks(50, rules, begin=5001.0, requests=(2000.0, 4000.0, 5000.0, 5000.0), expected=0)
    assert done == []
    assert said == ["no standby is requested, although 0 of 5 are free: the budget is 4 machines an hour"]


def test_what_is_too_many_for_long_is_released_the_coldest_and_newest_first() -> None:
    standbys = (READY, FreeStandby("m9", False, 5.0), FreeStandby("m7", True, 50.0), FreeStandby("m6", False, 3.0))
    rules = StewardSettings(pool=1, cool_down=30.0)
    done, _, memory = looks(60, rules, standbys=standbys)
    assert done == [(1031.0, ReleaseStandby("m9", "4 standbys for 31 s, 1 needed"))]
    done, _, _ = looks(60, rules, memory, 1060.0, standbys=(READY, FreeStandby("m7", True, 50.0)))
    assert [(at, action.machine) for at, action in done if isinstance(action, ReleaseStandby)] == [
        (1062.0, "m7"),
        (1093.0, "m7"),
    ]


@pytest.mark.parametrize("seen", [{"busy": True}, {"vacant": 1}, {"drains": 1}])
def test_no_standby_that_may_be_needed_is_released(seen: dict[str, Any]) -> None:
    assert not looks(200, StewardSettings(pool=1), standbys=(READY, OTHER), **seen)[0]


# -- whatever happens --------------------------------------------------------------------------------------------------

NAMES = [f"m{number}" for number in range(6)]
RULES = st.builds(
    StewardSettings,
    mode=st.sampled_from(["off", "tell", "act"]),
    pool=st.none() | st.integers(0, 3),
    cool_down=st.sampled_from([0.0, 5.0, 30.0]),
    budget=st.integers(0, 4),
    looks=st.integers(1, 5),
    rest=st.sampled_from([0.0, 20.0, 600.0, 5000.0]),
    replacements=st.integers(0, 3),
    returning=st.sampled_from([0.0, 10.0]),
    arrival=st.sampled_from([10.0, 900.0]),
)
SEEN = st.builds(
    Observed,
    at=st.just(0.0),
    training=st.sampled_from([True, True, True, False]),
    busy=st.sampled_from([False, False, True]),
    standbys=st.lists(
        st.builds(FreeStandby, st.sampled_from(["s0", "s1", "s2", "s3"]), st.booleans(), st.floats(0, 100)),
        max_size=4,
        unique_by=lambda standby: standby.machine,
    ).map(tuple),
    expected=st.integers(0, 3),
    vacant=st.sampled_from([0, 0, 1, 2]),
    suspects=st.lists(
        st.builds(Suspect, st.sampled_from(NAMES), st.floats(1.1, 3.0), st.just("slow"), st.sampled_from([0.0, 50.0])),
        max_size=3,
        unique_by=lambda suspect: suspect.machine,
    ).map(tuple),
    drains=st.integers(0, 4),
    lost=st.lists(st.floats(0, 1e4), max_size=2).map(tuple),
)
STEPS = st.lists(st.tuples(SEEN, st.sampled_from([0.0, 1.0, 1.0, 7.0, 100.0, 1500.0]), st.integers(0, 2)), max_size=60)


@settings(max_examples=150, deadline=None)
@given(RULES, STEPS)
def test_no_history_brings_it_over_its_limits(rules: StewardSettings, steps: list[tuple[Observed, float, int]]) -> None:
    memory, at = StewardMemory(), 0.0
    requests: list[float] = []
    replaced: list[tuple[float, str]] = []
    for seen, passed, foreign in steps:
        at += passed
        requests += [at] * foreign  # an operator, or a failure without a standby
        observed = msgspec.structs.replace(seen, at=at, requests=tuple(requests))
        found = decide(observed, rules, memory)
        _within_limits(rules, observed, found, replaced)
        again = decide(observed, rules, found.memory)
        assert (again.actions, again.memory) == ((), found.memory), "the same look twice"
        for action in found.actions:
            if isinstance(action, RequestStandbys):
                requests += [at] * action.count
            elif isinstance(action, ReplaceSlow):
                replaced.append((at, action.machine))
        memory = found.memory


def _within_limits(
    rules: StewardSettings, seen: Observed, found: StewardDecision, replaced: list[tuple[float, str]]
) -> None:
    at = seen.at
    assert seen.training or not found.actions
    kinds = [type(action) for action in found.actions]
    assert len(set(kinds)) == len(kinds)
    assert not {RequestStandbys, ReleaseStandby} <= set(kinds)
    for action in found.actions:
        assert action.why
        if isinstance(action, ReplaceSlow):
            ready = sum(standby.warm for standby in seen.standbys)
            assert rules.mode != "off"
            assert not seen.busy
            assert sum(at - when < HOUR for when, _ in replaced) < rules.replacements
            assert not any(machine == action.machine and at - when < rules.rest for when, machine in replaced)
            assert ready >= 1
            assert ready >= 2 or not (seen.vacant or seen.drains)
        elif isinstance(action, RequestStandbys):
            assert rules.pool is not None
            assert action.count >= 1
            lately = sum(at - when < HOUR for when in seen.requests)
            assert not rules.budget or lately + action.count <= rules.budget
            assert all(at - when >= rules.cool_down for when in seen.requests)
        else:
            assert rules.pool is not None
            assert len(seen.standbys) > rules.pool
            assert action.machine in {standby.machine for standby in seen.standbys}


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 4),
    st.integers(0, 8),
    st.sampled_from([1.0, 5.0, 40.0]),
    st.lists(st.integers(0, 400), max_size=4),
    st.sampled_from([0, 1, 3]),
)
def test_the_pool_settles_and_does_not_swing(pool: int, begin: int, takes: float, uses: list[int], budget: int) -> None:
    """All requests are met. The steward requests machines only after a standby is used, and never releases a machine
    that it has requested."""
    rules = StewardSettings(pool=pool, cool_down=10.0, budget=budget)
    free = {f"s{number}": 0.0 for number in range(begin)}
    coming: list[float] = []
    requests: list[float] = []
    acted: list[tuple[int, Action]] = []
    memory, made = StewardMemory(), begin
    for second in range(1, 600):
        for when in [when for when in coming if when <= second]:
            coming.remove(when)
            free[f"s{made}"] = when
            made += 1
        for _ in range(uses.count(second)):
            free.pop(min(free, default=""), None)
        standbys = tuple(FreeStandby(name, True, since) for name, since in free.items())
        seen = Observed(float(second), True, standbys=standbys, expected=len(coming), requests=tuple(requests))
        found = decide(seen, rules, memory)
        memory = found.memory
        for action in found.actions:
            acted.append((second, action))
            if isinstance(action, RequestStandbys):
                coming += [second + takes] * action.count
                requests += [float(second)] * action.count
            elif isinstance(action, ReleaseStandby):
                del free[action.machine]
    kinds = [type(action) for _, action in acted]
    if RequestStandbys in kinds:
        assert ReleaseStandby not in kinds[kinds.index(RequestStandbys) :], "what was asked for is let go"
    asked = sum(action.count for _, action in acted if isinstance(action, RequestStandbys))
    if not budget:
        assert len(free) == pool
        assert asked <= max(0, pool - begin) + len(uses)
    else:
        assert asked <= budget
