"""Any of torch's own backends beneath the same groups, rebuilt in the background for every generation."""

from __future__ import annotations


class TorchTransport:
    def __init__(self, backend: str) -> None:
        raise NotImplementedError
