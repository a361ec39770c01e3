"""For tests of the simulation."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """Without warnings of interrupted generations, and with cheap garbage collections, which workers ask for."""
    logging.disable(logging.CRITICAL)
    gc.freeze()
    yield
    gc.unfreeze()
    logging.disable(logging.NOTSET)
