from __future__ import annotations

import os
import time

import pytest

from understudy_bench.harness.memory import Resident, Sampler, WatchedProcess, resident_in

STATUS = ["Name:\tpython\n", "VmHWM:\t  900 kB\n", "RssAnon:\t 500 kB\n", "RssFile:\t 200 kB\n", "RssShmem:\t 100 kB\n"]


def test_the_kernels_words_are_understood() -> None:
    found = resident_in(STATUS)
    assert found == Resident(600 * 1024, 900 * 1024, 200 * 1024)
    assert found.own_peak == 700 * 1024


@pytest.mark.timeout(30)
def test_the_high_water_mark_sees_what_comes_and_goes_between_two_looks() -> None:
    mine = WatchedProcess("stayer", os.getpid())
    mine.reset()
    mine.sample(0.0)
    assert mine.last is not None
    before = mine.last.own_peak
    block = bytearray(64 << 20)
    del block
    mine.sample(1.0)
    assert mine.last.own_peak - before > 50 << 20
    assert mine.bytes[1] - mine.bytes[0] < 30 << 20


@pytest.mark.timeout(30)
def test_a_sampler_follows_a_process_and_does_not_mind_one_that_is_gone() -> None:
    mine, gone = WatchedProcess("stayer", os.getpid()), WatchedProcess("leaver", (1 << 22) + 1)
    with Sampler([mine, gone]) as sampler:
        late = time.monotonic() + 20
        while len(mine.times) < 3 and time.monotonic() < late:
            time.sleep(0.01)
        assert set(sampler.window()) == {os.getpid()}
    curve = mine.curve(mine.times[0], {"asked": mine.times[0]})
    assert curve["marks"] == {"asked": 0.0}
