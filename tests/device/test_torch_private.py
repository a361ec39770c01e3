"""Private names of torch are in one module. The sources are parsed, never imported."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from understudy.device import torch_private

PACKAGE = Path(__file__).parents[2] / "src" / "understudy"
HOME = PACKAGE / "device" / "torch_private.py"


OTHERS = {"_response"}
"""Private names of other packages: aiohttp's, to cut a connection in a test."""


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


@cache
def trees() -> dict[Path, ast.Module]:
    return {file: ast.parse(file.read_text(encoding="utf-8")) for file in sorted(PACKAGE.rglob("*.py"))}


def defined(tree: ast.Module) -> set[str]:
    """Private names that a module gives to its own functions, classes, variables and attributes."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                found.add(name)
    return {name for name in found if private(name)}


def modules(tree: ast.Module) -> dict[str, str]:
    """The full names of what a module imports, by the names under which it uses them."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                found |= {alias.asname: alias.name} if alias.asname else {top: top}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def named_by(tree: ast.Module) -> set[str]:
    """Private names of torch in the one module that may have them: in its code and in the paths that it looks up."""
    own = defined(tree)
    found = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    found |= {part for text in texts if " " not in text for part in text.split(".")}
    return {name for name in found if private(name)} - own


def offences(tree: ast.Module, ours: set[str], torchs: set[str]) -> Iterator[str]:
    """Private names of torch in a module: by import, as an attribute, or in a text.

    An attribute is torch's if it belongs to something imported from torch, if it is among `torchs`, or if no module of
    the package defines it and it belongs to nothing imported. Modules without torch have no such objects."""
    known = modules(tree)
    if not any(path.startswith("torch") for path in known.values()):
        torchs, ours = set(), ours | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                paths = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), level=0, names=names):
                paths = [f"{module}.{alias.name}" for alias in names]
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(value=value, attr=attr) if private(attr):
                root = value
                while isinstance(root, ast.Attribute | ast.Call | ast.Subscript):
                    root = root.func if isinstance(root, ast.Call) else root.value
                origin = known.get(root.id, "") if isinstance(root, ast.Name) else ""
                theirs = attr in torchs or (not origin and attr not in ours)
                paths = [f"torch.{attr}"] if theirs or origin.partition(".")[0] == "torch" else []
            case ast.Constant(value=str(text)) if " " not in text and "\n" not in text:
                paths = [text] if text in torchs or text.startswith("torch.") else []
                paths = [f"torch.{text}" if text in torchs else text for text in paths]
            case _:
                continue
        for path in paths:
            if path.partition(".")[0] == "torch" and any(private(part) for part in path.split(".")):
                yield f"{getattr(node, 'lineno', 0)}: {path}"


def test_private_names_of_torch_are_in_one_module() -> None:
    ours = OTHERS.union(*(defined(tree) for file, tree in trees().items() if file != HOME))
    torchs = named_by(trees()[HOME])
    assert {"_current_graph_task_id", "_version", "_plugins", "_NormBase", "_num_yielded"} <= torchs
    found = [
        f"{file.relative_to(PACKAGE)}:{offence}"
        for file, tree in trees().items()
        if file != HOME
        for offence in offences(tree, ours, torchs)
    ]
    assert not found, "name these in device/torch_private.py:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "import torch._dynamo",
        "from torch._C import _distributed_c10d",
        "from torch.nn.modules.batchnorm import _NormBase",
        "import torch\ntorch._foreach_norm([])",
        "import torch.distributed as dist\ndist.Backend._plugins",
        "import torch.distributed as dist\nkinds = dist.distributed_c10d._world.pg_map['x']",
        "from torch.utils.data import DataLoader\nDataLoader._index_sampler",
        "import torch\ndef f(tensor):\n    return tensor._version",
        "import torch\ndef f(scaler):\n    scaler.inner()._per_optimizer_states.clear()",
        "import torch\ndef f(loader):\n    return getattr(loader, '_num_yielded')",
        "import torch\nname = 'torch.distributed._functional_collectives'",
    ],
)
def test_a_private_name_is_found(source: str) -> None:
    found = list(offences(ast.parse(source), {"_mine"}, {"_num_yielded", "_version"}))
    assert len(found) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos._exit(0)",
        "class A:\n    def f(self, other):\n        return self._version, other._mine",
        "import torch.distributed as dist\ndist.get_rank()",
        "_version = 1\nprint(_version)",
        "from .group import _helper",
        "text = 'the graph of torch._dynamo, in words'",
    ],
)
def test_other_names_are_not_reported(source: str) -> None:
    assert not list(offences(ast.parse(source), {"_mine"}, {"_num_yielded", "_version"}))


def test_a_name_that_torch_lacks_is_named_with_the_way_out() -> None:
    with pytest.raises(
        ImportError, match=r"has no torch\._C\._no_such_name; Understudy runs with torch 2\.13 to 2\.15"
    ):
        torch_private.needed("torch._C", "_no_such_name")


def test_a_module_that_torch_lacks_is_named_too() -> None:
    with pytest.raises(ImportError, match=r"has no torch\._no_such_module\.name; Understudy"):
        torch_private.needed("torch._no_such_module", "name")


def test_caches_that_know_groups_by_name_can_be_emptied() -> None:
    importlib.import_module("torch.distributed.tensor")
    torch_private.forget_groups()


def test_names_are_found_at_any_depth() -> None:
    assert torch_private.needed("torch.nn.modules.batchnorm", "_NormBase") is torch_private.NormBase
    assert torch_private.needed("torch._C._distributed_c10d", "Backend") is torch_private.CppBackend


def test_the_range_of_versions_is_that_of_the_package() -> None:
    lines = (PACKAGE.parents[1] / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    (bound,) = [line.strip(' ",') for line in lines if '"torch>=' in line]
    first, last = torch_private.VERSIONS.split(" to ")
    major, minor = last.split(".")
    assert bound == f"torch>={first},<{major}.{int(minor) + 1}"


def test_versions_and_bases_of_tensors() -> None:
    tensor = torch.zeros(4)
    before = torch_private.version(tensor)
    tensor[:2].add_(1)
    assert torch_private.version(tensor) > before
    assert torch_private.base(tensor[:2]) is tensor
    assert torch_private.base(tensor) is None


def test_the_module_imports_nothing_that_takes_long() -> None:
    """Workers import it when they start."""
    code = (
        "import sys, torch, torch.distributed; before = set(sys.modules); import understudy.device.torch_private; "
        "print(*(name for name in set(sys.modules) - before if name.startswith('torch.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
