"""Every event of a worker's protocol is followed by a check of its invariants."""

from __future__ import annotations

from typing import Any

import pytest

from understudy.worker.protocol import WorkerProtocol


@pytest.fixture(autouse=True)
def _validated(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatch = WorkerProtocol._dispatch

    def validated(protocol: WorkerProtocol, *details: Any) -> Any:
        result = dispatch(protocol, *details)
        protocol.validate()
        return result

    monkeypatch.setattr(WorkerProtocol, "_dispatch", validated)
