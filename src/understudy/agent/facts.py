"""What a machine runs, found without importing it."""

from __future__ import annotations

import hashlib
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from understudy.protocol.frames import Facts
from understudy.protocol.messages import WorkerSpec


def facts_of(spec: WorkerSpec) -> Facts:
    """What workers that are started here, with this interpreter, would be."""
    return Facts(
        _version("understudy"),
        _version("torch"),
        f"{sys.version_info.major}.{sys.version_info.minor}",
        hashlib.blake2b(Path(spec.script).read_bytes(), digest_size=6).hexdigest(),
        spec.args,
        spec.mesh,
        spec.nproc,
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
