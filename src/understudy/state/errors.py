"""The errors of a role's state."""

from __future__ import annotations


class StateError(Exception):
    """The state cannot be moved, or is not what it should be. Another attempt with the same objects fails as well."""


class StreamBroken(Exception):
    """A transfer of state ended early: a connection broke or it was stopped. The taker's state is incomplete."""
