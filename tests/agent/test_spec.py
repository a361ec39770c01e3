from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from understudy import __version__
from understudy.agent.spec import facts_of
from understudy.protocol.messages import WorkerSpec


def spec(script: Path) -> WorkerSpec:
    return WorkerSpec("", "m0", 0, "gpt", b"", str(script), ("--lr", "1"), 2, (("dp", 4),))


def test_facts_are_those_of_this_machine(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("a")
    facts = facts_of(spec(script))
    assert torch.__version__.startswith(facts.torch.partition("+")[0])
    assert (facts.understudy, facts.python) == (__version__, ".".join(map(str, sys.version_info[:2])))
    assert (facts.args, facts.mesh, facts.nproc) == (("--lr", "1"), (("dp", 4),), 2)


def test_the_script_counts_by_its_content(tmp_path: Path) -> None:
    a, b = tmp_path / "a.py", tmp_path / "b.py"
    a.write_text("x = 1")
    b.write_text("x = 1")
    assert facts_of(spec(a)) == facts_of(spec(b))
    b.write_text("x = 2")
    assert facts_of(spec(a)) != facts_of(spec(b))


def test_the_version_of_torch_is_known_without_importing_torch() -> None:
    modules = "understudy.agent.spec, understudy.controller.server.server, understudy.launch.join, understudy.cli.main"
    code = f"import {modules}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
