"""Recordings of the first steps: which machines keep one, and which should, so that it outlives its machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from understudy.protocol.messages import Recorded

COPIES = 2
"""Number of machines that keep a recording, if there are as many."""

Place = tuple[str, str]
"""A machine and its agent's incarnation: the files that an agent keeps are gone with the agent."""


@dataclass
class KeptRecording:
    """One role's recording."""

    recorded: Recorded
    urls: dict[Place, str | None] = field(default_factory=dict)
    """Place → address of the recording there. None: the agent was asked to keep a copy and has not answered; empty: it
    could not get one."""


class Recordings:
    """Recordings by role. Entries are never removed: there are few roles, and places that are gone are skipped."""

    def __init__(self) -> None:
        self._kept: dict[int, KeptRecording] = {}
        self._uncertain: dict[int, None] = {}
        """Roles whose entry has changed since `to_copy` last looked."""
        self._staying: frozenset[Place] = frozenset()

    def __contains__(self, role: int) -> bool:
        """Whether a role has reported its recording, an empty one included."""
        return role in self._kept

    def __bool__(self) -> bool:
        """Whether any role has reported its recording."""
        return bool(self._kept)

    def made(self, place: Place, recorded: Recorded) -> None:
        """Keep that a role has recorded, or will not."""
        self._kept[recorded.role] = KeptRecording(recorded, {place: recorded.url})
        self._uncertain[recorded.role] = None

    def copied(self, place: Place, recorded: Recorded) -> None:
        """Keep the address of a copy that a machine was asked to make; an empty one if the machine could not."""
        kept = self._kept.get(recorded.role)
        if kept is not None and kept.recorded.digest == recorded.digest:
            kept.urls[place] = recorded.url
            self._uncertain[recorded.role] = None

    def found(self, role: int, is_there: Callable[[Place], bool], near: Place) -> Recorded | None:
        """A role's recording at a place that is still here: `near`, if it is kept there."""
        kept = self._kept.get(role)
        if kept is None:
            return None
        urls = {place: url for place, url in kept.urls.items() if url and is_there(place)}
        url = urls.get(near) or next(iter(urls.values()), "")
        return msgspec.structs.replace(kept.recorded, url=url) if url else None

    def to_copy(
        self, standbys: Sequence[Place], others: Sequence[Place], is_there: Callable[[Place], bool]
    ) -> list[tuple[Place, Recorded]]:
        """Places that should fetch a recording now, each with its source: standbys first, since they do not train. No
        place is asked twice for the same recording."""
        staying = frozenset((*standbys, *others))
        looked_at = list(self._kept) if staying != self._staying else list(self._uncertain)
        self._staying, self._uncertain = staying, {}
        orders: list[tuple[Place, Recorded]] = []
        for role in looked_at:
            kept = self._kept[role]
            source = self.found(role, is_there, ("", ""))
            lacking = COPIES - sum(url != "" and place in staying for place, url in kept.urls.items())
            if source is None or lacking <= 0:
                continue
            able: list[Place] = []
            for places in (standbys, others):  # begins elsewhere for each role: no machine keeps the recordings of all
                start = role % len(places) if places else 0
                able += [place for place in (*places[start:], *places[:start]) if place not in kept.urls]
            for place in able[:lacking]:
                kept.urls[place] = None
                orders.append((place, source))
        return orders
