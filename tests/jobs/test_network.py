"""Machines on hosts of their own, and what networks do: a host is cut off, hears nothing, is far away. Training goes on
every time, whoever was given up does no harm and comes back, and in the end every bit is as if nothing had been."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.hosts import FarHost, Hosts, Unavailable
from tests.jobs.joined import HEARTBEAT_S, Play, alive
from tests.jobs.stage import losses_in, perform
from understudy.verify.leftovers import enclosure

pytestmark = [pytest.mark.job, pytest.mark.timeout(300)]

FAR_S = 0.05


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    hosts = Hosts(3)
    try:
        hosts.__enter__()
    except Unavailable as error:
        pytest.skip(str(error))
    try:
        yield hosts
    finally:
        hosts.__exit__()
    assert hosts.remains() == []


def test_networks_do_what_they_do(tmp_path: Path, hosts: Hosts) -> None:
    with enclosure() as place:
        play = Play(tmp_path / "disturbed", hosts.address)
        try:
            view = _disturb(play, hosts)
        finally:
            play.close()
            left = [pid for number in range(3) for pid in hosts[number].processes()]
        assert left == []
        assert place.leftovers({}) == []
    steps = int(view["step"])
    undisturbed = perform(tmp_path / "undisturbed", steps=steps)
    losses, _ = losses_in(tmp_path / "disturbed")
    assert {step for _, step in losses} == set(range(steps))
    differing = {key: loss for key, loss in losses.items() if undisturbed.losses[key] != loss}
    assert not differing, f"losses differ from step {min(step for _, step in differing)} on"
    untold = undisturbed.losses.keys() - losses.keys()
    assert len(untold) <= 2, "who is cut off may not know that its last step counts, and nobody else tells its loss"
    assert view["digests"] == undisturbed.digests


def _disturb(play: Play, hosts: Hosts) -> dict[str, Any]:
    near, other, far = hosts[0], hosts[1], hosts[2]
    assert isinstance(far, FarHost)
    assert play.client.job()["reason"] == "waits for 2 more of 2 machines; here: none"
    play.join("m0", near.address, near.command())
    play.join("m1", other.address, other.command())
    play.until(lambda: play.step >= 1, "the first step")
    play.join("m2", far.address, far.command())
    play.is_refused("m3", far.address, far.command())
    play.waits("m2")

    workers = play.machine("m1")["pids"]
    other.cut()
    play.given_up("m1")
    play.plays("m2", 1)
    play.steps(3)
    assert alive(workers), "they cannot know yet"
    other.heal()
    play.waits("m1")
    assert not alive(workers)
    assert "m1 was given up; it comes back as a standby" in play.said("m1")

    usual = play.client.job()["seconds"]
    far.delay = FAR_S
    play.steps(5)
    assert play.machine("m2")["roles"] == [1], "a long way is no reason to give somebody up"
    assert play.client.job()["seconds"] > usual + FAR_S

    workers = play.machine("m0")["pids"]
    near.deafen()
    play.given_up("m0")
    play.plays("m1", 0)
    play.steps(3)
    far.delay = 0.0
    near.heal()
    play.waits("m0")
    assert not alive(workers)

    lost = play.texts("lost")
    hosts.mute()
    play.silence(2 * HEARTBEAT_S)
    made = play.written()
    play.until(lambda: play.written() > made, "a step without a controller")
    hosts.unmute()
    play.heard()
    play.steps(5)
    assert play.texts("lost") == lost, "it was the controller that heard nothing"

    play.steps(1)
    return play.end()
