"""Every situation has one verdict, with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import get_args

import pytest

from understudy.controller.core.judgement import Act, Situation, judge
from understudy.controller.core.state import OVER, JobStatus

FLAGS = ("dead", "trusted", "founding", "seated", "needed", "planned", "switching", "standby")


def situations(status: str = "", **known: bool) -> Iterator[Situation]:
    """All of them, or those of which so much is known."""
    for each in [status] if status else JobStatus:
        for values in product([False, True], repeat=len(FLAGS)):
            flags = dict(zip(FLAGS, values, strict=True))
            if all(flags[flag] == value for flag, value in known.items()):
                yield Situation(each, **flags)


def acts(status: str = "", **known: bool) -> set[str]:
    return {judge(situation).act for situation in situations(status, **known)}


def test_every_situation_has_a_verdict_with_a_reason() -> None:
    verdicts = [judge(situation) for situation in situations()]
    assert len(verdicts) == 8 * 2**8
    assert {verdict.act for verdict in verdicts} == set(get_args(Act))
    assert all(verdict.reason and verdict.reason == verdict.reason.strip() for verdict in verdicts)


def test_the_reason_tells_the_act() -> None:
    """Two different acts never have the same reason."""
    told: dict[str, set[str]] = {}
    for verdict in map(judge, situations()):
        told.setdefault(verdict.reason, set()).add(verdict.act)
    assert all(len(found) == 1 for found in told.values())


@pytest.mark.parametrize("status", OVER)
def test_nothing_is_done_when_the_job_is_over(status: str) -> None:
    assert acts(status) == {"nothing"}


@pytest.mark.parametrize("status", ["forming", "training", "recovering"])
def test_the_death_of_a_worker_with_a_role_always_halts_training(status: str) -> None:
    assert acts(status, dead=True, seated=True, founding=False) == {"halt"}


@pytest.mark.parametrize("status", ["halting", "closing"])
def test_another_death_is_only_noted_when_all_are_about_to_report(status: str) -> None:
    assert acts(status, dead=True, founding=False) == {"note"}


def test_only_a_planned_change_before_the_switch_is_cancelled() -> None:
    for situation in situations():
        if judge(situation).act == "cancel":
            assert situation.dead
            assert situation.needed
            assert situation.planned
            assert not situation.switching
            assert not situation.seated


def test_a_change_that_cannot_be_given_up_halts() -> None:
    assert acts("training", dead=True, founding=False, needed=True, switching=True) == {"halt"}
    assert acts("recovering", dead=True, founding=False, needed=True, planned=False) == {"halt"}


@pytest.mark.parametrize("status", ["forming", "training", "recovering"])
def test_the_death_of_an_idle_standby_changes_nothing(status: str) -> None:
    assert acts(status, dead=True, founding=False, seated=False, needed=False) == {"nothing"}


def test_a_job_fails_only_before_its_start_and_without_a_standby() -> None:
    for situation in situations():
        if judge(situation).act == "fail":
            assert situation.founding
            assert situation.dead
            assert not situation.standby
    assert acts("forming", dead=True, founding=True, standby=False) == {"fail"}
    assert acts("forming", dead=True, founding=True, standby=True) == {"note"}


@pytest.mark.parametrize("status", [status for status in JobStatus if status not in OVER])
def test_a_live_machine_that_is_not_trusted_is_always_ended(status: str) -> None:
    assert acts(status, dead=False, trusted=False) == {"end"}


@pytest.mark.parametrize("status", [status for status in JobStatus if status not in OVER])
def test_a_live_trusted_machine_is_replaced_by_plan_if_it_has_a_role(status: str) -> None:
    assert acts(status, dead=False, trusted=True, seated=True) == {"replace"}
    assert acts(status, dead=False, trusted=True, seated=False) == {"nothing"}


def test_trust_does_not_matter_among_the_dead() -> None:
    for situation in situations(dead=True, trusted=True):
        fields = {flag: getattr(situation, flag) for flag in FLAGS}
        assert judge(situation) == judge(Situation(situation.status, **{**fields, "trusted": False}))
