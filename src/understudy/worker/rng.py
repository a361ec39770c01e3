"""Random numbers that depend only on the job's seed, the step and the role."""

from __future__ import annotations

import hashlib
import random

from understudy.device.cpu import local_device


def seed_everything(seed: int, *where: int) -> None:
    """Seed the global generators of torch, numpy and Python from these numbers alone."""
    digest = hashlib.blake2b(repr((seed, *where)).encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "little") >> 1
    local_device().seed(number)
    random.seed(number)
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(number & 0xFFFFFFFF)
