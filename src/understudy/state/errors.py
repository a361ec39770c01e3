"""The errors of a role's state."""

from __future__ import annotations


class StateError(Exception):
    """The state cannot be moved, or is not what it should be. Another attempt with the same objects fails as well."""


class StreamBroken(Exception):
    """A transfer of state failed: a connection broke, bytes were damaged, or it was stopped. The taker's state is
    incomplete; another attempt may succeed."""
