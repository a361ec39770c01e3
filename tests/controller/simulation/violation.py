from __future__ import annotations


class Violation(AssertionError):
    """An invariant of the design does not hold."""
