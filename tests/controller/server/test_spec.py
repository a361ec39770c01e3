"""Which machines fit a job, and what those that do not are told."""

from __future__ import annotations

import msgspec
import pytest

from understudy.controller.server.spec import objection
from understudy.protocol.frames import Facts

JOB = Facts("0.1.0", "2.13.0", "3.11", "abc", ("--lr", "1"), (("pp", 2), ("dp", 2)), 2)


def test_the_same_fits_and_without_facts_of_the_job_all_do() -> None:
    assert objection("m4", msgspec.structs.replace(JOB), JOB) == ""
    assert objection("m4", None, None) == ""
    assert objection("m4", JOB, None) == ""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"torch": "2.12.0"}, "has torch 2.12.0 and the job runs 2.13.0; install the same version there"),
        ({"torch": ""}, "has no torch and the job runs 2.13.0; install the same version there"),
        ({"understudy": "0.2.0"}, "has understudy 0.2.0 and the job runs 0.1.0; install the same version there"),
        ({"python": "3.12"}, "has Python 3.12 and the job runs 3.11; install the same version there"),
        ({"script": "x"}, "has another script (digest x, the job's abc); copy the job's script there"),
        ({"args": ()}, "gives the script no arguments and the job gives it --lr 1; give it the same"),
        ({"args": ("a b",)}, "gives the script 'a b' and the job gives it --lr 1; give it the same"),
        ({"mesh": (("dp", 4),)}, "is set up for the mesh dp=4 and the job has pp=2,dp=2; give it the same"),
        ({"nproc": 4}, "has 4 workers and the job 2 per machine; start it with as many"),
    ],
)
def test_what_differs_is_said_with_the_way_out(change: dict[str, object], says: str) -> None:
    assert objection("m4", msgspec.structs.replace(JOB, **change), JOB) == f"m4 {says}"


def test_every_fact_counts() -> None:
    """Whatever else is asked for in future is compared, too."""
    for name in Facts.__struct_fields__:
        assert objection("m4", msgspec.structs.replace(JOB, **{name: ()}), JOB), name


def test_several_differences_are_all_said() -> None:
    text = objection("m4", msgspec.structs.replace(JOB, torch="2.12.0", nproc=4), JOB)
    assert text.startswith("m4 has torch 2.12.0 ")
    assert "; it also has 4 workers" in text


def test_an_agent_that_says_nothing_is_none_of_ours() -> None:
    assert "install understudy 0.1.0 there" in objection("m4", None, JOB)
