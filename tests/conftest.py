"""For all tests. Worker processes are forked from one that has already imported what the tests' scripts need."""

from __future__ import annotations

from multiprocessing import forkserver

import pytest
from hypothesis import settings

settings.register_profile("shared machine", deadline=None)  # tests have time limits of their own
settings.load_profile("shared machine")

FRAMEWORKS = [
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.testing",
]
"""They take seconds to import; a fork has them for nothing."""


@pytest.fixture
def frameworks() -> None:
    """Requested by tests with workers that use more of torch than its collectives."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Runs before the first worker starts, since the first one decides what is imported for all; and before the loop of
    pytest-xdist, which would replace this one."""
    wanted = any("frameworks" in getattr(item, "fixturenames", ()) for item in session.items)
    if wanted and not session.config.option.collectonly:
        from understudy.testing.local_workers import PRELOAD  # not in the process that only hands tests out

        forkserver.set_forkserver_preload(["pytest", *PRELOAD, *FRAMEWORKS])
        forkserver.ensure_running()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole jobs first: where files run side by side, the long ones must not come last."""
    items.sort(key=lambda item: item.get_closest_marker("job") is None)
