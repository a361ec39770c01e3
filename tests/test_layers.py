"""Imports only go down the layers. The sources are parsed, never imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

SRC = Path(__file__).parents[1] / "src"

LAYERS = (
    "cli",
    "verify",
    "testing",
    "launch",
    "controller",
    "agent",
    "worker",
    "state",
    "comm",
    "data",
    "device",
    "planning",
    "steward",
    "masking",
    "protocol",
    "host",
)
"""Top to bottom."""
MAY_USE_TESTING = ("verify", "testing")
"""Production code never imports `understudy.testing`; `verify` tests jobs and asks for its faults."""

APART = ("controller", "agent", "worker")
"""These run in processes of their own and never import one another: what they share is `protocol`."""

WITHOUT_TORCH = (
    "controller",
    "planning",
    "steward",
    "masking",
    "protocol",
    "host",
    "comm/topology.py",
)
WITHOUT_IO = (
    "controller/core",
    "planning",
    "steward",
    "masking",
    "protocol",
)
WITH_IO = ("planning/simgrid/engine.py",)
IO_MODULES = ("socket", "asyncio", "subprocess")


def imports(source: str, file: PurePosixPath) -> Iterator[tuple[int, str]]:
    """(line, full dotted name) of everything that `file` (relative to src) imports, at any depth of the code."""
    package = file.parent.parts
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, *filter(None, [node.module]))
            for alias in node.names:
                yield node.lineno, ".".join((*module, alias.name))


def offences(source: str, file: PurePosixPath) -> list[str]:
    """What `file` (relative to src, such as understudy/comm/ring.py) imports although it must not, with the reason."""
    inside = file.relative_to("understudy")
    layer = inside.parts[0] if len(inside.parts) > 1 else None
    if layer is None:
        return [] if inside.name in ("__init__.py", "__main__.py") else [f"{file}: belongs to no layer"]
    if layer not in LAYERS:
        return [f"{file}: {layer} is not a layer"]

    def is_under(places: tuple[str, ...]) -> bool:
        return any(inside.is_relative_to(place) for place in places)

    found = []
    for line, name in imports(source, file):
        top, _, rest = name.partition(".")
        if name.startswith("understudy.testing") and layer not in MAY_USE_TESTING:
            found.append(f"{file}:{line}: {layer} imports {name}, which is for tests")
            continue
        if top == "understudy" and layer != "cli":
            other = rest.partition(".")[0]
            if other not in LAYERS:
                found.append(f"{file}:{line}: {layer} imports the surface ({name})")
            elif layer in APART and other in APART and other != layer:
                found.append(f"{file}:{line}: {layer} imports {other} ({name}); share it in protocol")
            elif LAYERS.index(other) < LAYERS.index(layer):
                found.append(f"{file}:{line}: {layer} imports {name} from above")
        elif top == "understudy_bench" and layer != "cli":
            found.append(f"{file}:{line}: {layer} imports a benchmark ({name})")
        elif top == "torch" and is_under(WITHOUT_TORCH):
            found.append(f"{file}:{line}: {inside} must not know torch ({name})")
        elif top in IO_MODULES and is_under(WITHOUT_IO) and not is_under(WITH_IO):
            found.append(f"{file}:{line}: {layer} does no I/O ({name})")
    return found


def test_imports_only_go_down() -> None:
    files = sorted(SRC.glob("understudy/**/*.py"))
    assert SRC / "understudy/__init__.py" in files
    found = [
        offence
        for file in files
        for offence in offences(file.read_text(encoding="utf-8"), PurePosixPath(file.relative_to(SRC).as_posix()))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("file", "source", "reason"),
    [
        ("comm/ring.py", "from understudy.worker.job import Job", "from above"),
        ("controller/server/server.py", "from understudy.agent.agent import Agent", "share it in protocol"),
        ("agent/agent.py", "from understudy.worker.job import Job", "share it in protocol"),
        ("comm/ring.py", "import understudy.cli", "from above"),
        ("comm/ring.py", "from understudy import worker", "from above"),
        ("comm/ring.py", "from ..worker import job", "from above"),
        ("comm/__init__.py", "from ..worker import job", "from above"),
        ("comm/rings/two.py", "from ...worker import job", "from above"),
        ("comm/ring.py", "def f():\n    from understudy.state import manifest", "from above"),
        ("worker/job.py", "from understudy import run", "the surface"),
        ("worker/job.py", "import understudy", "the surface"),
        ("worker/job.py", "from .. import run", "the surface"),
        ("comm/ring.py", "import understudy_bench.harness.bench", "a benchmark"),
        ("controller/machine.py", "import torch", "torch"),
        ("masking/order.py", "from torch.distributed import ProcessGroup", "torch"),
        ("protocol/roster.py", "import torch.distributed as dist", "torch"),
        ("comm/topology.py", "from torch import Tensor", "torch"),
        ("masking/order.py", "import socket", "no I/O"),
        ("planning/plan.py", "from asyncio import Queue", "no I/O"),
        ("planning/plan.py", "import subprocess", "no I/O"),
        ("planning/simgrid/prepare.py", "import subprocess", "no I/O"),
        ("planning/plan.py", "from understudy.comm.fabric import Fabric", "from above"),
        ("launch/local.py", "from understudy.testing.faults import WORKER_FAULTS", "for tests"),
        ("cli/run.py", "from understudy import testing", "for tests"),
        ("controller/server/server.py", "from understudy.agent.spec import UNFIT", "share it in protocol"),
        ("agent/agent.py", "from understudy.worker.entry import main", "share it in protocol"),
        ("helpers/text.py", "", "not a layer"),
        ("helpers.py", "", "no layer"),
    ],
)
def test_an_offence_is_found(file: str, source: str, reason: str) -> None:
    (offence,) = offences(source, PurePosixPath("understudy") / file)
    assert reason in offence


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("__init__.py", "from understudy.worker.job import Job"),
        ("cli/main.py", "from understudy import __version__\nimport understudy_bench.harness\nimport torch"),
        ("cli/main.py", "from understudy.launch import local"),
        ("verify/chaos/faults.py", "from understudy.testing.faults import WORKER_FAULTS"),
        ("worker/job.py", "from understudy.comm.group import Group\nimport torch"),
        ("worker/job.py", "from understudy.worker import vote\nfrom . import undo\nfrom .vote import ballot"),
        ("comm/ring.py", "import socket\nimport torch\nfrom .roster import Roster"),
        ("comm/links/wire.py", "import socket"),
        ("controller/server/server.py", "import asyncio\nfrom understudy.protocol.roster import Roster"),
        ("planning/plan.py", "import torchlike_name\nimport math"),
        (
            "planning/simgrid/engine.py",
            "import subprocess\nimport simgrid\nfrom understudy.planning.simulation.jump import simulate",
        ),
    ],
)
def test_what_is_allowed_is_not_reported(file: str, source: str) -> None:
    assert offences(source, PurePosixPath("understudy") / file) == []
