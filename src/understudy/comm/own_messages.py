"""Messages of a role to itself."""

from __future__ import annotations

import threading
from collections import defaultdict, deque

import torch

from .faults import Poison
from .links.pairs import Receive, Send


class OwnMessages:
    """Pairs a role's sends to itself with its receives, by tag. A send is done at once; its data is kept until it is
    received, or until the next generation."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: dict[int, deque[torch.Tensor]] = defaultdict(deque)
        self._waiting: dict[int, deque[Receive]] = defaultdict(deque)
        self._poison: Poison | None = None

    def post(self, job: Send | Receive, poison: Poison | None) -> None:
        with self._lock:
            self._follow(poison)
            if isinstance(job, Send):
                waiting = self._waiting[job.tag]
                if not waiting:
                    self._sent[job.tag].append(job.tensor.clone())
                data, receive = job.tensor, waiting.popleft() if waiting else None
                job.done.set()
            else:
                sent = self._sent[job.tag]
                if not sent:
                    self._waiting[job.tag].append(job)
                data, receive = (sent.popleft(), job) if sent else (job.tensor, None)
        if receive is not None:
            if receive.tensor.dtype == data.dtype and receive.tensor.numel() == data.numel():
                receive.tensor.copy_(data)
            receive.done.set()
        if poison is not None and poison.fault is not None:
            self._release()

    def _follow(self, poison: Poison | None) -> None:
        """Forget what was sent in another generation; let receives end with this one."""
        if poison is not self._poison:
            self._sent.clear()
            self._waiting.clear()
            self._poison = poison
            if poison is not None:
                poison.wakers.append(self._release)

    def _release(self) -> None:
        with self._lock:
            waiting = [job for jobs in self._waiting.values() for job in jobs]
            self._waiting.clear()
        for job in waiting:
            job.done.set()
