"""Lines of a script with a result that no joiner can repeat: the time, entropy, another role's rank. Pure."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import Literal

import msgspec

HintKind = Literal["clock", "entropy", "order", "rank", "uneven"]

_CLOCK = {
    *("time.time", "time.time_ns", "time.perf_counter", "time.perf_counter_ns", "time.monotonic", "time.process_time"),
    *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"),
}
_ENTROPY = {
    *("torch.seed", "torch.random.seed", "os.urandom", "os.getpid", "uuid.uuid1", "uuid.uuid4", "random.SystemRandom"),
    *("secrets.token_bytes", "secrets.token_hex", "secrets.randbits", "secrets.randbelow", "secrets.choice"),
}
_UNSEEDED = {
    *("random.Random", "random.seed"),
    *("numpy.random.default_rng", "numpy.random.RandomState", "numpy.random.seed"),
}
"""Calls that are seeded by entropy if they have no argument."""
_GLOBAL = ("random.", "numpy.random.")
"""Global generators, which the runtime seeds only from the first step on."""
_COLLECTIVES = {
    *("all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "all_gather_object", "gather"),
    *("scatter", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier"),
    *("broadcast_object_list", "gather_object", "scatter_object_list", "monitored_barrier"),
}
_SOME_ROLES = ("role", "rank", "is_primary", "places")
"""Words in a condition that not all roles meet."""
_RANKS = {"RANK", "LOCAL_RANK", "GROUP_RANK"}


class Hint(msgspec.Struct, frozen=True):
    """A line that may be the cause of a difference."""

    kind: HintKind
    line: int
    call: str
    """The expression, as it is written."""
    variable: str = ""
    """The variable to which the result is assigned; for a collective that only some roles call, the condition."""


def hints(source: str) -> list[Hint]:
    """All hints in a source, in the order of their lines."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    names = _imports(tree)
    stepping = _stepping(tree)
    top = {id(node) for statement in tree.body for node in _at_import(statement)}
    targets = {
        id(node): statement.targets[0].id
        for statement in ast.walk(tree)
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
        for node in ast.walk(statement.value)
    }
    sets = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _is_set(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = []
    for node in ast.walk(tree):
        kind = _kind(node, names, sets, top=id(node) in top, in_loop=id(node) in stepping)
        if kind is not None and isinstance(node, ast.expr):
            found.append(Hint(kind, node.lineno, ast.unparse(node), targets.get(id(node), "")))
        elif isinstance(node, ast.For | ast.comprehension) and _is_set(node.iter, sets):
            found.append(Hint("order", node.iter.lineno, f"for … in {ast.unparse(node.iter)}"))
    return sorted([*found, *_uneven(tree, names)], key=lambda hint: (hint.line, hint.call))


def _imports(tree: ast.AST) -> dict[str, str]:
    """Name in the script → full dotted name."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                head = alias.name.partition(".")[0]
                found[alias.asname or head] = alias.name if alias.asname else head
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def _dotted(node: ast.AST, names: dict[str, str]) -> str:
    """The full name of `np.random.seed`: numpy.random.seed; empty if its first part was not imported."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return ""
    return ".".join([names[node.id], *reversed(parts)])


def _kind(node: ast.AST, names: dict[str, str], sets: Collection[str], *, top: bool, in_loop: bool) -> HintKind | None:
    if isinstance(node, ast.Subscript) and _dotted(node.value, names) == "os.environ":
        return "rank" if top and _is_rank(node.slice) else None
    if not isinstance(node, ast.Call):
        return None
    name = _dotted(node.func, names)
    if name in ("os.environ.get", "os.getenv"):
        return "rank" if top and node.args and _is_rank(node.args[0]) else None
    if name in ("torch.distributed.get_rank", "torch.distributed.get_node_local_rank"):
        return "rank" if top else None
    if name in _CLOCK:
        return "clock"
    bare = not node.args and not node.keywords
    if name in _ENTROPY or (name in _UNSEEDED and bare):
        return "entropy"
    if isinstance(node.func, ast.Attribute) and node.func.attr == "seed" and bare:
        return "entropy"  # torch.Generator().seed()
    if name.startswith(_GLOBAL) and name not in _UNSEEDED and name.rpartition(".")[2].islower() and not in_loop:
        return "entropy"
    if isinstance(node.func, ast.Name):
        if node.func.id == "hash":
            return "order"
        if node.func.id in ("list", "tuple", "enumerate", "iter", "next") and node.args and _is_set(node.args[0], sets):
            return "order"
    return None


def _uneven(tree: ast.AST, names: dict[str, str]) -> Iterator[Hint]:
    """Collectives that only some roles call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and any(word in ast.unparse(node.test).lower() for word in _SOME_ROLES):
            for inner in (each for statement in node.body for each in ast.walk(statement)):
                if isinstance(inner, ast.Call):
                    module, _, name = _dotted(inner.func, names).rpartition(".")
                    if module == "torch.distributed" and name in _COLLECTIVES:
                        yield Hint("uneven", inner.lineno, ast.unparse(inner), ast.unparse(node.test))


def _is_rank(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value in _RANKS


def _is_set(node: ast.AST, names: Collection[str] = ()) -> bool:
    """Whether a node is a set; the order of a set of strings differs from process to process."""
    if isinstance(node, ast.Set | ast.SetComp) or (isinstance(node, ast.Name) and node.id in names):
        return True
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset")


def _at_import(statement: ast.stmt) -> list[ast.AST]:
    """All nodes that are executed when the module is imported; those inside functions are not."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    found: list[ast.AST] = [statement]
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.stmt):
            found += _at_import(child)
        elif not isinstance(child, ast.Lambda):
            found += list(ast.walk(child))
    return found


def _stepping(tree: ast.AST) -> set[int]:
    """Ids of all nodes inside a loop over steps, in which the runtime seeds the global generators."""
    return {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.For) and "steps" in ast.unparse(node.iter)
        for inner in ast.walk(node)
    }
