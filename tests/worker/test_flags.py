"""Live flags look at the present state, and what is evaluated too early in a rehearsal is noted with its line."""

from __future__ import annotations

import copy
import pickle

import pytest

from understudy.worker.flags import EarlyReadings, LiveFlag


class Standby:
    """The two flags of a job, before and after a promotion to the primary role."""

    def __init__(self) -> None:
        self.promoted = False
        self.readings = EarlyReadings()
        self.readings.begin()

    @property
    def is_primary(self) -> LiveFlag:
        return LiveFlag("job.is_primary", lambda: self.promoted, self.readings)

    @property
    def rehearsing(self) -> LiveFlag:
        return LiveFlag("job.rehearsing", lambda: not self.promoted, self.readings)

    def noted(self) -> list[tuple[str, bool, str]]:
        return [(each.flag, each.value, each.file) for each in self.readings.found]


@pytest.fixture
def job() -> Standby:
    return Standby()


def test_a_stored_flag_follows_a_promotion(job: Standby) -> None:
    flags = [
        job.is_primary,
        job.is_primary and not job.rehearsing,
        job.is_primary & ~job.rehearsing,
        job.is_primary | False,
        True & job.is_primary,
        job.rehearsing ^ True,
    ]
    assert job.noted() == []  # nothing has lost its flag
    assert [str(flag) for flag in flags] == ["False"] * 6
    job.promoted = True
    assert all(flags)


def test_an_evaluation_before_the_first_step_is_noted_with_its_line(job: Standby) -> None:
    if job.is_primary and not job.rehearsing:
        raise AssertionError
    code = "master = bool(flag)\nloud = not other\n"
    exec(compile(code, "/home/user/train.py", "exec"), {"flag": job.is_primary, "other": job.rehearsing})
    assert job.noted() == [
        ("job.is_primary", False, "test_flags.py"),
        ("job.is_primary", False, "train.py"),
        ("job.rehearsing", True, "train.py"),
    ]
    assert [each.line for each in job.readings.found][1:] == [1, 2]
    job.readings.watching = False
    bool(job.is_primary)
    assert len(job.noted()) == 3


@pytest.mark.parametrize("code", ["x = flag or 0", "x = flag == True", "x = int(flag)", "x = 1 if flag else 2"])
def test_what_makes_a_plain_value_is_noted(job: Standby, code: str) -> None:
    exec(compile(code, "/home/user/train.py", "exec"), {"flag": job.is_primary})
    assert job.noted() == [("job.is_primary", False, "train.py")]


def test_a_flag_compares_and_shows_as_its_value(job: Standby) -> None:
    flag = job.is_primary
    assert flag == False  # noqa: E712
    assert flag != True  # noqa: E712
    assert flag == ~job.rehearsing
    assert flag != "False"
    assert (f"{flag}", repr(flag), int(flag), ["no", "yes"][flag]) == ("False", "<job.is_primary: False now>", 0, "no")
    assert copy.deepcopy({"flag": flag})["flag"] is flag
    assert pickle.loads(pickle.dumps(flag)) is False
    with pytest.raises(TypeError, match=r"use bool\(job\.is_primary\)"):
        hash(flag)
    with pytest.raises(TypeError):
        flag & "text"  # type: ignore[operator]
