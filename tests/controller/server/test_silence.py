from __future__ import annotations

from understudy.controller.server.controller import lost_machines, silence_of


def lost(*silences: float) -> list[int]:
    """Which of these, that have been silent for so long, are gone: heartbeat 2 s, patience 600 s."""
    heard = {str(number): 1000.0 - silence for number, silence in enumerate(silences)}
    return [int(name) for name in lost_machines(heard, 1000.0, heartbeat=2.0, patience=600.0)]


def test_a_machine_that_is_silent_while_others_are_not_is_gone() -> None:
    assert lost(0.1, 1.9, 2.1) == [2]
    assert lost(3.0, 0.4, 700.0) == [0, 2]


def test_if_no_machine_is_heard_none_is_gone() -> None:
    assert lost(2.1, 2.4) == []
    assert lost(500.0, 20.0, 30.0) == []


def test_no_machine_is_gone_while_the_last_ones_fall_silent() -> None:
    """Beats do not come at the same moment."""
    assert lost(2.1, 1.7) == []


def test_but_not_for_ever() -> None:
    assert lost(601.0, 602.0) == [0, 1]


def test_one_alone_is_judged_by_itself() -> None:
    assert lost(1.9) == []
    assert lost(2.1) == [0]


def test_without_machines_none_is_gone() -> None:
    assert lost() == []
    assert silence_of({}, 1.0) == 0.0
