"""Links for state as slow, in proportion to it, as between machines that each have one of their own."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from understudy.comm.link import Link
from understudy.worker import giving

_SO_MAX_PACING_RATE = 47
"""Linux's number; Python has no name for it."""


def pace(rate: int) -> None:
    """From now on no connection over which this worker gives its state carries more than so many bytes a second."""
    plain = giving.Giver

    class Paced(plain):  # type: ignore[valid-type, misc]
        def __init__(self, links: Sequence[Link], *args: Any, **named: Any) -> None:
            super().__init__(links, *args, **named)
            for link in links:
                link.sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, rate)

    giving.Giver = Paced  # type: ignore[misc]
