"""The public names of `understudy.testing`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from understudy import testing


def test_every_public_name_is_there() -> None:
    for name in testing.__all__:
        assert getattr(testing, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = testing.Nothing


def test_faults_are_loaded_without_torch() -> None:
    code = "import sys, understudy.testing.faults; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
