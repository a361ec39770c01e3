"""Links for state as slow, in proportion to it, as between machines that each have one of their own."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from understudy.comm.links.link import Link
from understudy.testing.faults import SO_MAX_PACING_RATE
from understudy.worker.transfer.handover import Giver


def pace(rate: int) -> None:
    """From now on no connection over which this worker gives its state carries more than so many bytes a second."""
    plain = Giver.__init__

    def paced(giver: Giver, links: Sequence[Link], *args: Any, **named: Any) -> None:
        plain(giver, links, *args, **named)
        for link in links:
            link.sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate)

    Giver.__init__ = paced  # type: ignore[method-assign, assignment]
