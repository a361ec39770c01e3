"""Fixtures for tests of several workers in one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.comm.helpers import Ensemble


@pytest.fixture
def ensemble() -> Iterator[Ensemble]:
    with Ensemble() as ensemble:
        yield ensemble
