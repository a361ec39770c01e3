"""`understudy scale` against a scripted controller."""

from __future__ import annotations

import msgspec
import pytest

from tests.cli.controller import JOB, Fake, Shell
from understudy.controller.server.views import ChangeView, ReplicasView

pytestmark = pytest.mark.usefixtures("apart")


def test_what_is_asked(fake: Fake, shell: Shell) -> None:
    fake.says(True, "2 of 4 replicas train; 2 more as soon as machines are ready")
    code, out, err = shell("scale", "--replicas", "4")
    assert (code, out, err) == (0, "2 of 4 replicas train; 2 more as soon as machines are ready\n", "")
    fake.says(True, "good")
    shell("scale", "--replicas", "2", "--without", "m1", "m2", "--keep")
    assert fake.asked == [
        ("POST", "/scale", {"replicas": 4, "without": [], "keep": False}),
        ("POST", "/scale", {"replicas": 2, "without": ["m1", "m2"], "keep": True}),
    ]


def test_what_is_refused(fake: Fake, shell: Shell) -> None:
    fake.says(False, "0 replicas cannot train")
    assert shell("scale", "--replicas", "0") == (1, "", "understudy: 0 replicas cannot train\n")
    fake.says(False, "0 replicas cannot train")
    assert shell.lines("scale", "--replicas", "0")[0]["ok"] is False


def test_waiting_until_it_is_so(fake: Fake, shell: Shell) -> None:
    fake.job = msgspec.structs.replace(JOB, replicas=ReplicasView(4, 4, 4))
    fake.says(True, "soon")
    assert shell("scale", "--replicas", "4", "--wait", "9") == (0, "4 of 4 replicas train\n", "")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"status": "failed"}, "the job is failed"),
        ({"replicas": ReplicasView(2, 4, 3)}, "a later request wants 3 replicas"),
        (
            {"change": ChangeView("shrink", "armed", 3, ("m2",), ())},
            "4 replicas do not train after 0.5 s; the request stands, see understudy status",
        ),
    ],
)
def test_waiting_in_vain(fake: Fake, shell: Shell, change: dict[str, object], said: str) -> None:
    fake.job = msgspec.structs.replace(JOB, **{"replicas": ReplicasView(4, 4, 4), **change})
    fake.says(True, "soon")
    assert shell("scale", "--replicas", "4", "--wait", "500ms") == (1, "", f"understudy: {said}\n")


def test_a_time_that_is_none(fake: Fake, shell: Shell) -> None:
    code, _, err = shell("scale", "--replicas", "4", "--wait=-3")
    assert (code, fake.asked) == (2, [])
    assert "--wait: '-3' is not a time span" in err


def test_status_says_how_many(fake: Fake, shell: Shell) -> None:
    fake.job = msgspec.structs.replace(JOB, replicas=ReplicasView(2, 4, 4), wanted=2, vacant=(2, 3))
    lines = shell("status")[1].splitlines()
    assert lines[1:3] == [
        "masked: roles 2, 3 vacant; the other replicas compute their share of the data",
        "replicas 2 of 4 (target 4); 2 machines wanted",
    ]
    fake.job = msgspec.structs.replace(JOB, replicas=ReplicasView(4, 4, 4))
    assert "replicas" not in shell("status")[1]
