"""Machines on hosts of their own, and what networks do: a host is cut off, hears nothing, is far away. Training
continues every time, a machine that was given up does no harm and comes back, and the job ends with the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.hosts import FarHost, Hosts, Unavailable
from tests.jobs.joined import HEARTBEAT_S, JoinedJob, alive
from tests.jobs.running import losses_in, run_job
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
        joined = JoinedJob(tmp_path / "disturbed", hosts.address)
        try:
            view = _disturb(joined, hosts)
        finally:
            joined.close()
            left = [pid for number in range(3) for pid in hosts[number].processes()]
        assert left == []
        assert place.leftovers({}) == []
    steps = int(view["step"])
    undisturbed = run_job(tmp_path / "undisturbed", steps=steps)
    losses, _ = losses_in(tmp_path / "disturbed")
    assert {step for _, step in losses} == set(range(steps))
    differing = {key: loss for key, loss in losses.items() if undisturbed.losses[key] != loss}
    assert not differing, f"losses differ from step {min(step for _, step in differing)} on"
    untold = undisturbed.losses.keys() - losses.keys()
    assert len(untold) <= 2, "a worker that is cut off may not know that its last step counts"
    assert view["digests"] == undisturbed.digests


def _disturb(joined: JoinedJob, hosts: Hosts) -> dict[str, Any]:
    near, other, far = hosts[0], hosts[1], hosts[2]
    assert isinstance(far, FarHost)
    assert joined.client.job()["reason"] == "waits for 2 more of 2 machines; here: none"
    joined.join("m0", near.address, near.command())
    joined.join("m1", other.address, other.command())
    joined.until(lambda: joined.step >= 1, "the first step")
    joined.join("m2", far.address, far.command())
    joined.is_refused("m3", far.address, far.command())
    joined.waits("m2")

    workers = joined.machine("m1")["pids"]
    other.cut()
    joined.given_up("m1")
    joined.has_role("m2", 1)
    joined.steps(3)
    assert alive(workers), "they cannot know yet"
    other.heal()
    joined.waits("m1")
    assert not alive(workers)
    assert "m1 was given up; it comes back as a standby" in joined.said("m1")

    usual = joined.client.job()["seconds"]
    far.delay = FAR_S
    joined.steps(5)
    assert joined.machine("m2")["roles"] == [1], "a long way is no reason to give a machine up"
    assert joined.client.job()["seconds"] > usual + FAR_S

    workers = joined.machine("m0")["pids"]
    near.deafen()
    joined.given_up("m0")
    joined.has_role("m1", 0)
    joined.steps(3)
    far.delay = 0.0
    near.heal()
    joined.waits("m0")
    assert not alive(workers)

    lost = joined.texts("lost")
    hosts.mute()
    joined.silence(2 * HEARTBEAT_S)
    made = joined.written()
    joined.until(lambda: joined.written() > made, "a step without a controller")
    hosts.unmute()
    joined.heard()
    joined.steps(5)
    assert joined.texts("lost") == lost, "it was the controller that heard nothing"

    joined.steps(1)
    return joined.end()
