"""Detects a link between two workers that is slower than other links and delays both workers.

One end cannot tell a slow link from a late peer. On a slow link, the sender has bytes to send while the receiver waits
for bytes: the detector measures the time in which both hold.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from statistics import median

from understudy.protocol.samples import Sample, Traffic
from understudy.protocol.settings import StragglerSettings

from .stragglers import Straggler, StragglerNews

Way = tuple[int, int]
"""From one role to another."""
_SLOW = 2.0
"""A link counts as slow if it is this many times slower than the median of the others."""


class _Record:
    def __init__(self, uids: tuple[str, str], window: int) -> None:
        self.uids = uids
        self.pace: deque[float] = deque(maxlen=window)
        """Bytes per second of each step."""
        self.held: deque[float] = deque(maxlen=window)
        """Share of each step in which both ends waited for the link."""
        self.told: Straggler | None = None
        self.fine = 0


class LinkDetector:
    """Detects slow links from the samples of successive steps."""

    def __init__(self, settings: StragglerSettings) -> None:
        self.settings = settings
        self._records: dict[Way, _Record] = {}

    @property
    def told(self) -> list[Straggler]:
        """Links that are slow at present."""
        return [record.told for record in self._records.values() if record.told is not None]

    def keep(self, workers: Mapping[int, str]) -> None:
        """Sets the worker of each role, and forgets links of all other workers."""
        for way, record in list(self._records.items()):
            if tuple(workers.get(role) for role in way) != record.uids:
                del self._records[way]

    def step(self, samples: Iterable[Sample], machines: Mapping[int, str]) -> list[StragglerNews]:
        """Adds one step of all roles. Returns what has changed."""
        good = {sample.uid: sample for sample in samples if sample.counts}
        touched = []
        for sender in good.values():
            for out in sender.traffic:
                receiver = good.get(out.peer)
                if out.sent and receiver is not None:
                    touched.append(self._add(sender, receiver, out))
        return [news for way in touched for news in self._judge(way, machines)]

    def _add(self, sender: Sample, receiver: Sample, out: Traffic) -> Way:
        way = (sender.role, receiver.role)
        record = self._records.get(way)
        if record is None or record.uids != (sender.uid, receiver.uid):
            record = self._records[way] = _Record((sender.uid, receiver.uid), self.settings.window)
        starved = next((back.starved for back in receiver.traffic if back.peer == sender.uid), 0.0)
        both = min(out.backed, starved)
        whole = sender.compute + (sender.waited or 0.0)
        record.pace.append(out.sent / max(out.pushing + both, 1e-9))
        record.held.append(both / whole)
        return way

    def _judge(self, way: Way, machines: Mapping[int, str]) -> list[StragglerNews]:
        record, settings = self._records[way], self.settings
        others = [median(each.pace) for other, each in self._records.items() if other != way and len(each.pace) > 1]
        if len(record.pace) < settings.window or not others:
            return []
        usual, pace = median(others), median(record.pace)
        below = sum(each < usual / _SLOW for each in record.pace)
        slow = below >= settings.persistence * settings.window and median(record.held) >= settings.threshold
        told = record.told
        if slow:
            record.fine = 0
            steps = below if told is None else told.steps + 1
            a, b = (machines.get(role, f"role {role}") for role in way)
            reason = f"link {a} → {b} {_speed(pace)}, others {_speed(usual)}, for {steps} steps"
            role = self._end(way)
            record.told = Straggler(role, "link", usual / pace, steps, reason, machines.get(role, ""))
            return [] if told is not None else [StragglerNews(record.told)]
        record.fine += 1
        if told is None or record.fine < settings.window:
            return []
        record.told = None
        return [StragglerNews(told, over=True)]

    def _end(self, way: Way) -> int:
        """The end to blame: the role with more slow links, else the sender."""
        slow = [other for other, record in self._records.items() if record.told is not None and other != way]
        counts = [sum(role in other for other in slow) for role in way]
        return way[1] if counts[1] > counts[0] else way[0]


def _speed(pace: float) -> str:
    return f"{pace / 1e9:.2g} GB/s" if pace >= 1e8 else f"{pace / 1e6:.2g} MB/s"
