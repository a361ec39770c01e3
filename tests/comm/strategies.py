"""Rosters for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from understudy.protocol.roster import Roster, WorkerAddress


def seated(roster: Roster) -> set[str]:
    return {uid for uid in roster.seats if uid is not None}


@st.composite
def rosters(draw: st.DrawFn) -> Roster:
    """Up to 64 machines of one to four roles with interleaved numbers; some roles and whole machines are vacant."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=64))
    if draw(st.booleans()):
        sizes = [sizes[0]] * len(sizes)
    cells = [cell for cell, size in enumerate(sizes) for _ in range(size)]
    if draw(st.booleans()):
        cells = draw(st.permutations(cells))
    workers = [WorkerAddress(f"w{role}", f"m{cell}") for role, cell in enumerate(cells)]
    gone: set[int] = set()
    if draw(st.booleans()):
        gone = draw(st.sets(st.sampled_from(range(len(cells))), max_size=len(cells) - 1))
        empty = draw(st.sets(st.sampled_from(range(len(sizes))), max_size=len(sizes) - 1))
        wholly = {role for role, cell in enumerate(cells) if cell in empty}
        gone = wholly if len(gone | wholly) == len(cells) else gone | wholly
    return Roster.of(
        draw(st.integers(1, 9)),
        [(role, worker.uid) for role, worker in enumerate(workers) if role not in gone],
        [worker for role, worker in enumerate(workers) if role not in gone],
        roles=len(cells),
        cells=cells,
    )
