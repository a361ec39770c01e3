"""`python -m tests.steward.campaign SEEDS`: how often noise is taken for a straggler, and how soon one is seen."""

from __future__ import annotations

import sys
from collections import Counter

from tests.steward.noise import Noise, SimulatedWorkers, Slow, alarms
from tests.steward.test_stragglers import CROWDS

STEPS = 500
SINCE = 60


def false_alarms(seeds: range) -> Counter[str]:
    """By crowd."""
    found: Counter[str] = Counter()
    for seed in seeds:
        found.update(name for name, workers in CROWDS.items() if alarms(workers.watched(seed, STEPS)))
    return found


def delays(workers: SimulatedWorkers, seeds: range) -> tuple[list[int], Counter[str]]:
    """In how many steps each was found, in order, and what was said of it."""
    found, said = [], Counter[str]()
    for seed in seeds:
        told = alarms(workers.watched(seed, SINCE + 200))
        found.append(told[0][0] - SINCE + 1 if told else 1 << 20)
        said[told[0][1].finding.part if told else "nothing"] += 1
        said["wrong"] += sum(step < SINCE or news.finding.role != 1 for step, news in told)
    return sorted(found), said


def main(seeds: range) -> None:
    for roles in (3, 4, 8):
        for spread in (0.02, 0.04):
            for factor in (1.2, 1.12):
                slow = Slow(1, factor, since=SINCE)
                found, said = delays(SimulatedWorkers(roles, Noise(spread=spread), (slow,)), seeds)
                at = [found[int(share * (len(found) - 1))] for share in (0.1, 0.5, 0.9, 1.0)]
                print(f"{roles} roles, spread {spread}, {factor} times: 10/50/90/100 % {at} {dict(said)}", flush=True)
    wrong = false_alarms(seeds)
    print(f"false alarms in {len(seeds)} runs of {STEPS} steps of each of {', '.join(CROWDS)}: {dict(wrong) or 'none'}")


if __name__ == "__main__":
    main(range(int(sys.argv[1])))
