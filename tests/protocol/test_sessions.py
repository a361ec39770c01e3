from __future__ import annotations

from understudy.protocol.sessions import sign_of_life_s


def test_a_small_job_asks_for_signs_of_life_as_often_as_it_is_said() -> None:
    assert sign_of_life_s(4.0, 2) == sign_of_life_s(4.0, 1000) == 4.0


def test_in_a_large_job_words_may_wait_to_be_read() -> None:
    assert sign_of_life_s(4.0, 4000) == 16.0
