from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from understudy.protocol.vote import NO_ROLE, WIDTH, Ballot, VoteOutcome, numbers_of, outcome_of

CURRENT = 4


@st.composite
def elections(draw: st.DrawFn) -> list[Ballot]:
    """One ballot for each role; often all alike, since that is where things happen."""
    roles = draw(st.integers(1, 6))
    steps = draw(st.sampled_from([st.just(7), st.integers(6, 8)]))
    generations = draw(st.sampled_from([st.just(CURRENT), st.just(CURRENT + 1), st.integers(CURRENT, CURRENT + 2)]))
    overs = draw(st.sampled_from([st.just(False), st.just(True), st.booleans()]))
    sound = draw(st.sampled_from([st.just(True), st.booleans()]))
    copied = st.integers(-1, 7)
    return [
        Ballot(role, draw(steps), draw(generations), draw(st.booleans()), draw(overs), draw(sound), draw(copied))
        for role in range(roles)
    ]


def counted(ballots: list[Ballot]) -> VoteOutcome:
    columns = zip(*(numbers_of(ballot) for ballot in ballots), strict=True)
    return outcome_of([min(column) for column in columns], CURRENT)


@given(elections())
def test_the_least_of_all_numbers_is_the_obvious_outcome(ballots: list[Ballot]) -> None:
    outcome = counted(ballots)
    overs, steps = {ballot.over for ballot in ballots}, {ballot.step for ballot in ballots}
    if len(overs) > 1:
        assert "all roles must run the same number of steps" in outcome.error
    elif len(steps) > 1:
        assert f"({min(steps)} to {max(steps)})" in outcome.error
    else:
        named = {ballot.generation for ballot in ballots}
        agreed = named.pop() if len(named) == 1 else CURRENT
        sound = all(ballot.sound for ballot in ballots)
        assert outcome == VoteOutcome(
            agreed if agreed > CURRENT and sound else None,
            any(ballot.stop for ballot in ballots),
            overs == {True},
            sound,
            min(ballot.copied for ballot in ballots),
        )
    if outcome.error:
        assert outcome == VoteOutcome(None, error=outcome.error)


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 50), st.booleans())
def test_an_error_names_the_role_that_left_and_the_role_that_goes_on(
    leaver: int, stayer: int, step: int, stop: bool
) -> None:
    if leaver == stayer:
        stayer += 1
    outcome = counted([Ballot(leaver, step, CURRENT, stop, over=True), Ballot(stayer, step, CURRENT, stop)])
    assert f"role {leaver} has left its training function after {step} steps" in outcome.error
    assert f"while role {stayer} goes on" in outcome.error


@given(elections())
def test_a_ballot_has_the_width_that_the_tensor_has(ballots: list[Ballot]) -> None:
    for ballot in ballots:
        numbers = numbers_of(ballot)
        assert len(numbers) == WIDTH
        assert all(abs(number) <= NO_ROLE for number in numbers)


@given(elections(), st.data())
def test_one_role_with_gradients_that_are_not_finite_is_enough(ballots: list[Ballot], data: st.DataObject) -> None:
    ballots = [msgspec.structs.replace(ballot, step=7, over=False) for ballot in ballots]
    bad = data.draw(st.sampled_from(range(len(ballots))))
    ballots[bad] = msgspec.structs.replace(ballots[bad], sound=False)
    outcome = counted(ballots)
    assert not outcome.sound
    assert outcome.generation is None  # no role switches in the middle of a step


@given(elections())
def test_the_outcome_names_no_copy_that_a_role_does_not_have(ballots: list[Ballot]) -> None:
    outcome = counted(ballots)
    assert outcome.error or all(ballot.copied >= outcome.copied for ballot in ballots)
