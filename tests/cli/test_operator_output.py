"""The output of the operator's commands, against a scripted controller."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from tests.cli.controller import JOB, MACHINES, ROSTER, SECRET, Fake, Shell
from understudy.cli.main import main
from understudy.controller.client import Client
from understudy.controller.core.effects import Announcement, AnnouncementKind
from understudy.controller.server.views import ChangeView, JobView, MachineView, RoleView
from understudy.launch.registry import Entry, enter
from understudy.steward.stragglers import Straggler

pytestmark = pytest.mark.usefixtures("apart")

UNKNOWN = "there is no machine m9; machines with roles: m0, m2"
WORDS = [
    ["status"],
    ["events"],
    ["replace", "m2"],
    ["drain", "m2"],
    ["standby", "add"],
    ["scale", "--replicas", "2"],
    ["standby", "remove", "m3"],
    ["stop"],
]
"""Every command that talks to a controller."""


# -- status ------------------------------------------------------------------------------------------------------------


def test_status(fake: Fake, shell: Shell) -> None:
    code, out, err = shell("status")
    assert (code, err) == (0, "")
    assert [line.rstrip() for line in out.splitlines()] == [
        "gpt: training  step 12  0.25 s a step  loss 2.5  generation 2",
        "machine  state                  roles                         replaced from  workers  failures",
        "m0       active                 0 (pp=0 dp=0), 1 (pp=0 dp=1)  live replica   w0 w1",
        "m1       gone: it was replaced",
        "m2       active                 2 (pp=1 dp=0), 3 (pp=1 dp=1)  nothing        w4 w5",
        "m3       standby                                                             w6 w7",
    ]


def test_status_shows_what_has_gone_wrong_and_what_a_standby_has_rehearsed(fake: Fake, shell: Shell) -> None:
    fake.machines = [
        MachineView(
            "m1", "quarantined", (), (), (), "2 failures", 2, ((1_000_061.5, "w1 died"), (1_000_070.0, "w4 died"))
        ),
        MachineView(
            "m3",
            "standby",
            (),
            ("w6",),
            (6,),
            failures=1,
            history=((1_000_065.0, "no heartbeat"),),
            rehearsed=(1,),
            rehearsal_seconds={1: 0.9, 0: 2.14},
        ),
    ]
    lines = [" ".join(line.split()) for line in shell("status")[1].splitlines()]
    assert "m1 quarantined: 2 failures 2" in lines
    assert "m3 standby, takes role 1 at once, has rehearsed role 0 in 2.1 s w6 1" in lines
    said = lines[lines.index("failures and faults, the latest last:") + 1 :]
    assert [line.split(" ", 1)[1] for line in said] == ["m1 w1 died", "m3 no heartbeat", "m1 w4 died"]


def test_status_has_a_line_for_each_straggler(fake: Fake, shell: Shell) -> None:
    slow = Straggler(3, "backward", 1.34, 20, "m2 role 3: backward 1.34x its class for 20 steps", "m2")
    fake.job = msgspec.structs.replace(fake.job, stragglers=(slow,))
    assert "straggler: m2 role 3: backward 1.34x its class for 20 steps" in shell("status")[1].splitlines()
    (found,) = shell.lines("status")
    assert found["stragglers"][0]["machine"] == "m2"


def test_status_before_the_first_step(fake: Fake, shell: Shell) -> None:
    fake.job = JobView("gpt", "forming", "", 0, -1, 0.0, {}, None, 0, {})
    fake.machines, fake.roster = [], []
    code, out, _ = shell("status")
    assert code == 0
    assert out.splitlines()[0].split() == ["gpt:", "forming", "generation", "0"]
    assert "step" not in out


def test_status_for_machines(fake: Fake, shell: Shell) -> None:
    fake.job = msgspec.structs.replace(JOB, change=ChangeView("replace", "armed", 3, ("m2",), ("m3",)))
    (found,) = shell.lines("status")
    machines, roster = found.pop("machines"), found.pop("roster")
    assert msgspec.convert(found, JobView) == fake.job
    assert msgspec.convert(machines, list[MachineView]) == MACHINES
    assert msgspec.convert(roster, list[RoleView]) == ROSTER


def test_status_shows_the_phase_of_a_change(fake: Fake, shell: Shell) -> None:
    fake.job = msgspec.structs.replace(JOB, change=ChangeView("replace", "armed", 3, ("m2",), ("m3",)))
    assert "[replace: armed]" in shell("status")[1]


def test_status_shows_any_reason_as_it_is(fake: Fake, shell: Shell) -> None:
    fake.machines = [MachineView("m1", "gone", (), (), (), "cannot open [/data]")]
    assert "gone: cannot open [/data]" in shell("status")[1]


def test_status_is_one_line_for_the_job_and_one_for_each_machine(fake: Fake, shell: Shell) -> None:
    """So that grep finds what belongs together."""
    fake.job = msgspec.structs.replace(JOB, values={"loss": 2.5, "lr": 3e-4, "grad_norm": 1.25, "tokens": 1e6})
    why = "nothing heard from its agent for 2 s, and its agent ended with exit code 1"
    fake.machines = [MachineView("m1", "gone", (), (), (), why)]
    lines = shell("status")[1].splitlines()
    assert len(lines) == 3
    assert "generation 2" in lines[0]
    assert why in lines[2]


# -- events ------------------------------------------------------------------------------------------------------------

HISTORY = [
    Announcement("machine", "m0 has come", 1_000_000.0, {"machine": "m0"}),
    Announcement("halt", "m1 is gone: no heartbeat", 1_000_061.5, {"halt": 1}),
    Announcement("finished", "finished after 40 steps", 1_000_100.0, {"step": 40}),
]


@pytest.mark.parametrize("follow", [[], ["--follow"]])
def test_events(fake: Fake, shell: Shell, follow: list[str]) -> None:
    fake.events = HISTORY
    code, out, err = shell("events", *follow)
    assert (code, err) == (0, "")
    clocks = [time.strftime("%H:%M:%S", time.localtime(event.at)) for event in HISTORY]
    assert out.splitlines() == [
        f"{clocks[0]}  machine    m0 has come",
        f"{clocks[1]}  halt       m1 is gone: no heartbeat",
        f"{clocks[2]}  finished   finished after 40 steps",
    ]


def test_events_for_machines(fake: Fake, shell: Shell) -> None:
    fake.events = HISTORY
    assert shell.lines("events") == msgspec.to_builtins(HISTORY)


def test_no_events(fake: Fake, shell: Shell) -> None:
    assert shell("events") == (0, "", "")


@pytest.mark.parametrize("end", ["finished", "stopped", "failed"])
def test_following_ends_with_the_job(fake: Fake, shell: Shell, end: AnnouncementKind) -> None:
    fake.events = [HISTORY[0], Announcement(end, "it is over", 1.0), Announcement("machine", "too late", 2.0)]
    code, out, _ = shell("events", "-f")
    assert code == 0
    assert out.splitlines()[-1].endswith("it is over")


def test_following_until_ctrl_c(fake: Fake, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def follow(self: Client) -> Iterator[dict[str, Any]]:
        yield from self.events()["events"]
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "follow", follow)
    fake.events = HISTORY[:2]
    code, out, err = shell("events", "--follow")
    assert (code, err) == (130, "understudy events: interrupted\n")
    assert out.count("\n") == 2


# -- replace and drain -------------------------------------------------------------------------------------------------


def phase(name: str, at: float, change: str = "r1") -> Announcement:
    return Announcement("phase", name, at, {"change": change, "generation": 3, "phase": name})


BEGUN = Announcement("change", "m2 → m3", 10.0, {"change": "r1"})
RELEASED = Announcement("released", "m2 is released", 14.75, {"change": "r1"})
SETTLED = Announcement("settled", "training lost 0.250 s", 14.75, {"change": "r1", "lost": 0.25})


def play_replacement(fake: Fake) -> None:
    fake.events = [Announcement("change", "of long ago", 1.0, {"change": "r1"})]
    fake.takes_its_time(BEGUN, phase("rehearse", 10.0), phase("rehearse", 11.0, change="another"))
    fake.takes_its_time(phase("prepare", 13.5), phase("armed", 13.625), Announcement("machine", "m7 has come", 13.7))
    fake.takes_its_time(phase("switch", 14.25), phase("hand-over", 14.25), phase("first step", 14.5))
    fake.says(True, "training lost 0.250 s", SETTLED, RELEASED, lost=0.25, bytes=1000)


def test_replace_shows_its_phases_and_what_it_cost(fake: Fake, shell: Shell) -> None:
    play_replacement(fake)
    code, out, err = shell("replace", "m2")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "m2 → m3",
        "  rehearse      3.500 s   the joiner enters the training function in the sandbox",
        "  prepare       0.125 s   workers open links while training continues",
        "  armed         0.625 s   all workers are ready; the next vote agrees",
        "  switch        0.000 s   the boundary: workers swap links",
        "  hand-over     0.250 s   the leaver sends the rest of its state, the joiner verifies all of it",
        "  first step    0.250 s   the joiner trains; the leaver waits until it has made a step",
        "  m2 is released",
        "training lost 0.250 s",
    ]
    assert fake.asked == [("POST", "/replace", {"type": "replace", "machines": ["m2"], "standbys": []})]


def test_replace_for_machines(fake: Fake, shell: Shell) -> None:
    play_replacement(fake)
    *events, answer = shell.lines("replace", "m2")
    assert [(event["kind"], event["text"]) for event in events] == [
        ("change", "m2 → m3"),
        ("phase", "rehearse"),
        ("phase", "prepare"),
        ("phase", "armed"),
        ("phase", "switch"),
        ("phase", "hand-over"),
        ("phase", "first step"),
        ("settled", "training lost 0.250 s"),
        ("released", "m2 is released"),
    ]
    assert (answer["id"], answer["done"], answer["ok"]) == ("r1", True, True)
    assert (answer["text"], answer["lost"], answer["bytes"]) == ("training lost 0.250 s", 0.25, 1000)


def test_several_machines_and_their_standbys(fake: Fake, shell: Shell) -> None:
    fake.says(True, "done")
    assert shell("replace", "m0", "m2", "--with", "m3", "m4")[0] == 0
    ((_, _, body),) = fake.asked
    assert (body["machines"], body["standbys"]) == (["m0", "m2"], ["m3", "m4"])


def test_a_second_attempt_is_shown(fake: Fake, shell: Shell) -> None:
    fake.takes_its_time(BEGUN, phase("rehearse", 10.0), phase("cancel", 11.0))
    fake.takes_its_time(Announcement("cancelled", "m3 is gone", 11.5, {"change": "r1"}))
    fake.takes_its_time(Announcement("change", "m2 → m4", 12.0, {"change": "r1"}), phase("rehearse", 12.0))
    fake.says(False, "m4 is gone: no heartbeat; training goes on as before")
    code, out, err = shell("replace", "m2")
    assert (code, err) == (1, "understudy: not replaced: m4 is gone: no heartbeat; training goes on as before\n")
    assert [line.split(" s ")[0] for line in out.splitlines()] == [
        "m2 → m3",
        "  rehearse      1.000",
        "  cancel        0.500",
        "m2 → m4",
    ]


def test_all_phases_are_shown_if_nothing_could_be_measured(fake: Fake, shell: Shell) -> None:
    """Early in a job; the director tells no `settled` then."""
    fake.takes_its_time(BEGUN, phase("rehearse", 10.0), phase("prepare", 11.0), phase("armed", 12.0))
    fake.takes_its_time(phase("switch", 13.0))
    fake.says(True, "done; what training lost by it could not be measured")
    assert "  switch " in shell("replace", "m2")[1]


@pytest.mark.parametrize(("span", "seconds"), [("90s", 90), ("30m", 1800), ("1.5h", 5400)])
def test_drain_sends_the_time(fake: Fake, shell: Shell, span: str, seconds: float) -> None:
    fake.says(True, "training lost 0.250 s")
    before = time.time()
    code, out, _ = shell("drain", "m2", "--by", span)
    assert (code, out) == (0, "training lost 0.250 s\n")
    ((method, path, body),) = fake.asked
    assert (method, path, body["machines"]) == ("POST", "/drain", ["m2"])
    assert before + seconds <= body["by"] <= time.time() + seconds


def test_drain_may_take_its_time(fake: Fake, shell: Shell) -> None:
    play_replacement(fake)
    code, out, _ = shell("drain", "m2")
    assert code == 0
    assert out.splitlines()[0] == "m2 → m3"
    assert fake.asked == [("POST", "/drain", {"machines": ["m2"], "by": None, "why": ""})]


def test_a_time_that_is_none_is_not_sent(fake: Fake, shell: Shell) -> None:
    code, out, err = shell("drain", "m2", "--by", "soon")
    assert (code, out) == (2, "")
    assert err.startswith("understudy drain: --by soon: write a time span such as 30m")
    assert fake.asked == []


@pytest.mark.parametrize("words", [["replace", "m9"], ["drain", "m9"]])
def test_a_machine_that_is_not_there(fake: Fake, shell: Shell, words: list[str]) -> None:
    fake.says(False, UNKNOWN)
    assert shell(*words) == (1, "", f"understudy: not replaced: {UNKNOWN}\n")
    fake.says(False, UNKNOWN)
    assert shell.lines(*words) == [{"id": "r1", "done": True, "ok": False, "text": UNKNOWN, "at": 15.0}]


# -- standby and stop --------------------------------------------------------------------------------------------------

ORDERS = [
    (["standby", "add"], ("POST", "/standbys", {"type": "add-standby", "count": 1})),
    (["standby", "add", "3"], ("POST", "/standbys", {"type": "add-standby", "count": 3})),
    (["standby", "remove", "m3"], ("DELETE", "/standbys/m3", None)),
    (["stop"], ("POST", "/stop", None)),
]


@pytest.mark.parametrize(("words", "asked"), ORDERS)
def test_an_order_that_is_taken(fake: Fake, shell: Shell, words: list[str], asked: tuple[str, str, Any]) -> None:
    fake.says(True, "as you say")
    assert shell(*words) == (0, "as you say\n", "")
    fake.says(True, "as you say")
    assert shell.lines(*words) == [{"id": "r1", "done": True, "ok": True, "text": "as you say", "at": 15.0}]
    assert fake.asked == [asked, asked]


@pytest.mark.parametrize(("words", "asked"), ORDERS)
def test_an_order_that_is_refused(fake: Fake, shell: Shell, words: list[str], asked: tuple[str, str, Any]) -> None:
    fake.says(False, "m3 is not a standby; standbys: none")
    assert shell(*words) == (1, "", "understudy: m3 is not a standby; standbys: none\n")
    fake.says(False, "no")
    code, out, err = shell(*words, "--json")
    assert (code, json.loads(out)["ok"], err) == (1, False, "")
    assert fake.asked == [asked, asked]


@pytest.mark.parametrize("name", ["m3#2", "m3?x", "m3/x", "m 3", "ü"])
def test_the_standby_that_is_named_is_asked_for_and_no_other(fake: Fake, shell: Shell, name: str) -> None:
    fake.says(False, f"{name} is not a standby; standbys: m3")
    assert shell("standby", "remove", name)[0] == 1
    assert fake.asked == [("DELETE", f"/standbys/{quote(name, safe='')}", None)]


@pytest.mark.parametrize(
    "words",
    [["replace"], ["drain"], ["standby"], ["standby", "remove"], ["standby", "add", "x"]],
)
def test_a_call_that_makes_no_sense(fake: Fake, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(words)
    assert raised.value.code == 2
    assert capsys.readouterr().err.startswith("usage: understudy ")
    assert fake.asked == []


# -- a controller that cannot be asked ---------------------------------------------------------------------------------

ids = " ".join


@pytest.mark.parametrize("words", WORDS, ids=ids)
@pytest.mark.parametrize("as_json", [False, True])
def test_the_wrong_secret(
    fake: Fake, shell: Shell, monkeypatch: pytest.MonkeyPatch, words: list[str], as_json: bool
) -> None:
    monkeypatch.setenv("UNDERSTUDY_SECRET", "wrong")
    code, out, err = shell(*words, "--controller", fake.url, *(["--json"] if as_json else []))
    assert (code, out) == (1, "")
    assert err == f"understudy {words[0]}: the job's secret is missing or wrong; send it as a bearer token\n"
    assert fake.asked == []


def test_a_controller_elsewhere(fake: Fake, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDERSTUDY_SECRET", SECRET)
    monkeypatch.setenv("UNDERSTUDY_HOME", "/nonexistent")
    code, out, _ = shell("status", "--controller", fake.url)
    assert code == 0
    assert out.startswith("gpt: training")


@pytest.mark.parametrize("words", WORDS, ids=ids)
def test_a_controller_that_is_away(shell: Shell, words: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    enter(Entry("gpt", url, SECRET, os.getpid(), "/runs/1"))
    code, out, err = shell(*words)
    assert (code, out) == (1, "")
    assert re.fullmatch(rf"understudy {words[0]}: the controller at {url} does not answer: .*\n", err)


@pytest.mark.parametrize("words", WORDS, ids=ids)
def test_no_job_runs(shell: Shell, words: list[str]) -> None:
    says = f"understudy {words[0]}: no job runs here; start one with understudy run, or give --controller\n"
    assert shell(*words) == (2, "", says)
    assert shell(*words, "--json") == (2, "", says)


def test_one_of_several_jobs(fake: Fake, shell: Shell) -> None:
    enter(Entry("other", "http://127.0.0.1:1", SECRET, os.getpid(), "/runs/2"))
    code, _, err = shell("stop")
    assert code == 2
    assert "several jobs run here: gpt" in err
    code, _, err = shell("stop", "--job", "gtp")
    assert code == 2
    assert "no job 'gtp' runs here; running: gpt" in err
    fake.says(True, "the job stops at its next step boundary")
    assert shell("stop", "--job", "gpt") == (0, "the job stops at its next step boundary\n", "")
