"""What can go wrong with a role's state."""

from __future__ import annotations


class StateError(Exception):
    """This state cannot be moved, or is not what it should be. Trying again with the same objects will not help."""


class StreamBroken(Exception):
    """The state did not get across: a connection ended or somebody asked to stop. What has arrived is incomplete."""
