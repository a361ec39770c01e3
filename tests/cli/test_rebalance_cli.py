"""`understudy rebalance`, `drain` of several machines, and what `status` says of waiting requests."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from tests.cli.controller import JOB, Fake, Shell
from understudy.controller.server.views import MachineView, RoleView, WaitingView

PLAYING = ["m0", "m0", "m1", "m1"]
"""The machine of each role; replicas are 0 and 2, 1 and 3."""


@pytest.fixture(autouse=True)
def _stage(fake: Fake) -> None:
    labels = {"m0": "r1", "m1": "r1", "m2": "r1", "m3": "r2"}
    fake.machines = [
        MachineView("m0", "active", (0, 1), ("w0", "w1"), (1, 2)),
        MachineView("m1", "active", (2, 3), ("w2", "w3"), (3, 4)),
        MachineView("m2", "standby", (), ("w4", "w5"), (5, 6)),
        MachineView("m3", "standby", (), ("w6", "w7"), (7, 8)),
        MachineView("m4", "gone", (), (), (), "it was replaced"),
    ]
    fake.machines = [msgspec.structs.replace(m, labels={"rack": labels.get(m.name, "r1")}) for m in fake.machines]
    fake.roster = [
        RoleView(role, {"dp": role // 2, "tp": role % 2}, f"w{role}", machine, (role % 2, role % 2 + 2))
        for role, machine in enumerate(PLAYING)
    ]


def plan(folder: Path, text: str, name: str = "plan.toml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_a_plan_is_shown(fake: Fake, shell: Shell, tmp_path: Path) -> None:
    code, out, err = shell("rebalance", "--dry-run", plan(tmp_path, '[moves]\n1 = "m2"\n2 = "m0"\n'))
    assert (code, err, fake.asked) == (0, "", [])
    assert out.splitlines() == [
        "transition 1 of 2: roles 0, 1: m0 → m2",
        "transition 2 of 2: roles 2, 3: m1 → m0",
    ]


def test_a_plan_is_carried_out(fake: Fake, shell: Shell, tmp_path: Path) -> None:
    fake.says(True, "training lost 0.250 s")
    fake.says(True, "training lost 0.125 s")
    code, out, _ = shell("rebalance", plan(tmp_path, '{"moves": {"0": "m2", "3": "m0"}}', "plan.json"))
    assert code == 0
    assert out.splitlines()[1::2] == ["training lost 0.250 s", "training lost 0.125 s"]
    common = {"type": "replace", "keep": True, "why": "rebalancing"}
    assert [body for _, _, body in fake.asked] == [
        {**common, "machines": ["m0"], "standbys": ["m2"]},
        {**common, "machines": ["m1"], "standbys": ["m0"]},
    ]


def test_what_is_done_stays_done(fake: Fake, shell: Shell, tmp_path: Path) -> None:
    fake.says(True, "training lost 0.250 s")
    fake.says(False, "standby m0 is gone; ask for another one")
    code, _, err = shell("rebalance", plan(tmp_path, '[moves]\n0 = "m2"\n3 = "m0"\n'))
    assert code == 1
    assert "not replaced: standby m0 is gone" in err
    assert "transitions 1 to 1 are done; the same command does the rest" in err


def test_as_json(fake: Fake, shell: Shell, tmp_path: Path) -> None:
    (line,) = shell.lines("rebalance", "--dry-run", plan(tmp_path, '[moves]\n0 = "m3"\n'))
    assert line == {"transitions": [[{"roles": [0, 1], "from": "m0", "to": "m3"}]]}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[moves]\n0 = "m2"\n1 = "m3"', "roles 0 and 1 are both on m0, and move together; name one of them"),
        ('[moves]\n0 = "m2"\n0 = "m3"', "; name each role once"),
        ('[moves]\n0 = "m2"\n00 = "m3"', "role 0 is named twice"),
        ('[moves]\n9 = "m2"', "there is no role 9; roles are 0 to 3"),
        ('[moves]\n0 = "m9"', "there is no machine m9; machines: m0, m1, m2, m3"),
        ('[moves]\n0 = "m4"', "there is no machine m4"),
        ('[moves]\n0 = "m1"', "m1 has roles and is not freed by this plan"),
        ('[moves]\n0 = "m2"\n2 = "m2"', "m2 is the target of two moves"),
        ("[moves]\n0 = 2", "role 0 is to move to 2; write the name of a machine"),
        ('[moves]\na = "m2"', "'a' is not a role; roles are numbers from 0 on"),
        ("moves = 3", "write one table, [moves]"),
        ('[moves]\n0 = "m2"\n[more]', "write one table, [moves]"),
        ("[moves", "is not valid TOML"),
    ],
)
def test_what_cannot_be_done_is_refused(fake: Fake, shell: Shell, tmp_path: Path, text: str, says: str) -> None:
    code, out, err = shell("rebalance", plan(tmp_path, text))
    assert (code, out, fake.asked) == (2, "", [])
    assert says in err


def test_json_that_names_a_role_twice(fake: Fake, shell: Shell, tmp_path: Path) -> None:
    code, _, err = shell("rebalance", plan(tmp_path, '{"moves": {"0": "m2", "0": "m3"}}', "plan.json"))
    assert (code, fake.asked) == (2, [])
    assert "is not valid JSON: 0 is named twice" in err


def test_a_file_that_is_not_there(shell: Shell, tmp_path: Path) -> None:
    code, _, err = shell("rebalance", str(tmp_path / "none.toml"))
    assert code == 2
    assert err.endswith("none.toml: No such file or directory\n")


def test_nothing_to_do(fake: Fake, shell: Shell, tmp_path: Path) -> None:
    said = "nothing to do: all roles are where they should be\n"
    assert shell("rebalance", plan(tmp_path, '[moves]\n0 = "m0"\n')) == (0, said, "")
    assert fake.asked == []


def test_a_rebalance_without_a_plan_or_a_label_is_refused(shell: Shell) -> None:
    assert shell("rebalance")[0] == 2


def test_replicas_are_spread_over_racks(fake: Fake, shell: Shell) -> None:
    code, out, _ = shell("rebalance", "--spread", "rack", "--dry-run")
    assert code == 0
    assert out.splitlines() == ["transition 1 of 1: roles 2, 3: m1 → m3"]


def test_a_label_that_no_machine_has(fake: Fake, shell: Shell) -> None:
    code, _, err = shell("rebalance", "--spread", "room")
    assert code == 2
    assert "no machine has a label room; give them some with: understudy join --label room=…" in err


def test_a_vacant_role(fake: Fake, shell: Shell, tmp_path: Path) -> None:
    fake.roster[2:] = [msgspec.structs.replace(role, machine=None, worker=None) for role in fake.roster[2:]]
    code, _, err = shell("rebalance", plan(tmp_path, '[moves]\n3 = "m2"\n'))
    assert code == 2
    assert "role 3 is vacant; wait until it is refilled" in err


# -- drain and status --------------------------------------------------------------------------------------------------


def test_several_machines_with_a_reason(fake: Fake, shell: Shell) -> None:
    fake.says(True, "2 of 2 turns done, training lost 0.500 s")
    assert shell("drain", "m0", "m1", "--why", "new firmware")[0] == 0
    body = {"machines": ["m0", "m1"], "by": None, "why": "new firmware"}
    assert fake.asked == [("POST", "/drain", body)]


def test_a_drain_is_taken_back(fake: Fake, shell: Shell) -> None:
    fake.says(True, "m0 stays")
    fake.says(False, "m1 is being replaced already; that cannot be taken back")
    code, out, err = shell("drain", "--cancel", "m0", "m1")
    assert (code, out) == (1, "m0 stays\n")
    assert "m1 is being replaced already" in err
    assert [words[:2] for words in fake.asked] == [("DELETE", "/drain/m0"), ("DELETE", "/drain/m1")]


def test_taking_back_needs_no_time(fake: Fake, shell: Shell) -> None:
    assert shell("drain", "--cancel", "m0", "--by", "30m")[0] == 2
    assert fake.asked == []


def test_status_shows_waiting_requests_and_labels(fake: Fake, shell: Shell) -> None:
    by = time.mktime((2026, 3, 1, 18, 0, 0, 0, 0, -1))
    queue = (
        WaitingView("r1", ("m0",), None, "", "under way: prepare"),
        WaitingView("r2", ("m1", "m2"), by, "new firmware", "waits for a standby"),
    )
    fake.job = msgspec.structs.replace(JOB, queue=queue)
    fake.machines = [msgspec.structs.replace(machine, goes=by) for machine in fake.machines[:1]]
    lines = [" ".join(line.split()) for line in shell("status")[1].splitlines()]
    assert "to be replaced: m0: under way: prepare" in lines
    assert "to be replaced by 18:00:00: m1, m2 (new firmware): waits for a standby" in lines
    assert lines[-1].startswith("m0 active, goes at 18:00:00 0 (dp=0 tp=0), 1 (dp=0 tp=1) w0 w1")
    assert lines[-1].endswith("rack=r1")
