"""Requests for machines: what the controller wants of the source of machines, numbered in the order of the requests.

`GET /provision?after=N&wait=S` returns the items that follow the first N, and waits up to S for the first of them.
"""

from __future__ import annotations

import msgspec


class StartMachines(msgspec.Struct, frozen=True, tag="start-machines"):
    """More machines are wanted, as standbys."""

    count: int
    at: float = 0.0
    """Seconds since the epoch."""


class ReleaseMachine(msgspec.Struct, frozen=True, tag="release-machine"):
    """A machine is not needed any more; its agent has been dismissed."""

    machine: str
    at: float = 0.0


Provisioning = StartMachines | ReleaseMachine


class ProvisioningPage(msgspec.Struct, frozen=True):
    """Some of the items. The first item has the number 1."""

    next: int
    """The number of the last item so far: `after` of the next request."""
    items: tuple[Provisioning, ...] = ()
