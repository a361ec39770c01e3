"""For all tests. Worker processes are forked from one that has already imported what the tests' scripts need."""

from __future__ import annotations

from multiprocessing import forkserver
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

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


SEEDS = "test_seeds.py::test_seeds["


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long ones first, since they must not come last where files run side by side: seeds, then whole jobs."""
    items.sort(key=lambda item: (SEEDS not in item.nodeid, item.get_closest_marker("job") is None))


def _scope_of(nodeid: str) -> str:
    return nodeid if SEEDS in nodeid else nodeid.split("::", 1)[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hands out the tests of a file together, and seeds chunk by chunk."""
    scheduler = LoadFileScheduling(config, log)
    scheduler._split_scope = _scope_of
    return scheduler
