"""What the outcomes of both contestants say, and the reasons for tests that pass with gloo only."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from .suite import CONTESTANTS, Contestant, Device, Outcome, TestResult

EXPECTATIONS = Path(__file__).with_name("expectations.toml")
MOST_REASONS = 10


@dataclass(frozen=True)
class Expectations:
    """`reasons`: why a test passes with gloo only. `quick`: the tests of the quick part."""

    reasons: Mapping[str, str]
    quick: tuple[str, ...]

    @classmethod
    def read(cls, file: Path = EXPECTATIONS) -> Expectations:
        with file.open("rb") as stream:
            found = tomllib.load(stream)
        expected = cls(found["reasons"], tuple(found["quick"]["tests"]))
        if len(expected.reasons) > MOST_REASONS:
            raise ValueError(f"{file}: {len(expected.reasons)} reasons, at most {MOST_REASONS} are allowed")
        return expected


@dataclass(frozen=True)
class Comparison:
    """The results of all tests with both contestants."""

    results: tuple[TestResult, ...]
    reasons: Mapping[str, str]

    @cached_property
    def outcomes(self) -> dict[str, dict[Contestant, TestResult]]:
        found: dict[str, dict[Contestant, TestResult]] = {}
        for result in self.results:
            found.setdefault(result.name, {})[result.contestant] = result
        return found

    def count(self, contestant: Contestant, device: Device, outcome: Outcome) -> int:
        counted = Counter((result.contestant, result.device, result.outcome) for result in self.results)
        return counted[contestant, device, outcome]

    def only(self, contestant: Contestant) -> list[str]:
        """The tests that pass with this contestant and not with the other."""
        (other,) = (each for each in CONTESTANTS if each != contestant)
        return [
            name
            for name, of in self.outcomes.items()
            if len(of) == len(CONTESTANTS) and of[contestant].outcome == "passed" and of[other].outcome != "passed"
        ]

    @property
    def unexplained(self) -> list[str]:
        """The tests that pass with gloo only, without a reason."""
        return [name for name in self.only("gloo") if name not in self.reasons]

    @property
    def outdated(self) -> list[str]:
        """The tests that have a reason, were run, and pass with Understudy."""
        return [
            name
            for name in self.reasons
            if name in self.outcomes and self.outcomes[name]["understudy"].outcome == "passed"
        ]

    @property
    def holds(self) -> bool:
        return not self.unexplained and not self.outdated

    def as_json(self, versions: Mapping[str, str]) -> dict[str, Any]:
        return {
            "versions": dict(versions),
            "holds": self.holds,
            "gloo_only": {name: self.reasons.get(name) for name in self.only("gloo")},
            "understudy_only": self.only("understudy"),
            "outdated_reasons": self.outdated,
            "results": [asdict(result) for result in self.results],
        }


def chosen(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Tests by their names, without `test_` if wanted. Raises ValueError for a name that the suite does not have."""
    known, found = set(known), []
    for name in names:
        full = name if name.startswith("test_") else f"test_{name}"
        if full not in known:
            raise ValueError(f"torch's suite has no test {full}; see --list")
        found.append(full)
    return found
