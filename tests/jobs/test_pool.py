"""A pool of standbys: the steward asks for another one when a standby is used, without a request."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.jobs.running import RunningJob, run_job

pytestmark = [pytest.mark.job, pytest.mark.timeout(300)]


def test_a_standby_that_is_used_is_followed_by_another(tmp_path: Path) -> None:
    async def disturb(running: RunningJob) -> None:
        await running.standbys(1)
        await running.step(3)
        assert (await running.replace("m1"))["ok"]

        async def again() -> bool:
            return any(
                m["name"] == "m3" and m["state"] == "standby" and all(m["pids"]) for m in await running.machines()
            )

        await running.until(again, "another standby")
        await running.call("POST", "/stop")

    result = run_job(tmp_path, disturb, standbys=1, pool=1, cool_down=1.0)
    assert result.ended.status == "stopped", result.ended.reason
    told = [event["text"] for event in result.events if event["kind"] == "steward"]
    assert told == ["asks for 1 standby: 0 of 1 free"]
    assert [event["data"]["machine"] for event in result.events if event["kind"] == "released"] == ["m1"]


BRING = """\
#!/bin/sh
echo "$@" >> {folder}/calls
case $1 in request)
    for number in $(seq "$2"); do
        eval "nohup {python} -m understudy.cli.main join --name node-$$-$number --host 127.0.0.1 \\
            --run-dir {folder}/node-$$-$number --secret-file '$UNDERSTUDY_SECRET_FILE' \\
            '$UNDERSTUDY_URL' $UNDERSTUDY_SCRIPT" > {folder}/joined-$$ 2>&1 &
    done ;;
esac
"""


@pytest.mark.long
def test_a_command_brings_all_machines_that_are_not_started_here(tmp_path: Path) -> None:
    """The second machine that the job begins with, the standby, and another one when that is used."""
    script = tmp_path / "bring"
    script.write_text(BRING.format(folder=tmp_path, python=sys.executable))
    script.chmod(0o755)

    async def disturb(running: RunningJob) -> None:
        await running.standbys(1)
        (first,) = [m["name"] for m in await running.machines() if m["state"] == "active" and m["name"] != "m0"]
        assert (await running.replace(first))["ok"]
        await running.standbys(1)
        await running.call("POST", "/stop")

    result = run_job(tmp_path / "job", disturb, local=1, pool=1, cool_down=1.0, provider_command=str(script))
    assert result.ended.status == "stopped", result.ended.reason
    release, *requests = sorted((tmp_path / "calls").read_text().splitlines())
    assert requests == ["request 1"] * 3
    assert release.startswith("release node-")
