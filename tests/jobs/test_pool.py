"""A pool of standbys that is kept: who is used is followed by another one, without anybody asking."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.stage import Stage, perform

pytestmark = [pytest.mark.job, pytest.mark.timeout(300)]


def test_a_standby_that_is_used_is_followed_by_another(tmp_path: Path) -> None:
    async def direction(stage: Stage) -> None:
        await stage.standbys(1)
        await stage.step(3)
        assert (await stage.replace("m1"))["ok"]

        async def again() -> bool:
            return any(m["name"] == "m3" and m["state"] == "standby" and all(m["pids"]) for m in await stage.machines())

        await stage.until(again, "another standby")
        await stage.call("POST", "/stop")

    result = perform(tmp_path, direction, standbys=1, pool=1, cool_down=1.0)
    assert result.ended.status == "stopped", result.ended.reason
    told = [tale["text"] for tale in result.tales if tale["kind"] == "steward"]
    assert told == ["asks for 1 standby: 0 of 1 free"]
    assert [tale["data"]["machine"] for tale in result.tales if tale["kind"] == "released"] == ["m1"]
