"""Variables of a training loop that carry something from one step to the next, by the source alone. Pure.

A variable that every iteration assigns before it reads it (the loss, the batch) carries nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import msgspec

_SHOWING = {"print", "log", "debug", "info", "warning", "write", "set_postfix", "set_description", "add_scalar"}
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_APPLYING = {"()", "eval", "train", "to", "forward"}
"""Calls that leave a module as it is; `()` is a call of the module itself."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Use(msgspec.Struct, frozen=True):
    """How a loop uses a variable that it carries."""

    made: int = 0
    """The line before the loop that assigns it; 0: there is none."""
    changed: int = 0
    """The first line in the loop that assigns it or calls a method of it."""
    feeds: bool = False
    """Whether the loop reads it for more than to show it or to compute its own next value."""
    acts: bool = False
    """Whether a method of it is called for its effect alone, as in `schedule.step()`."""
    drawn: bool = False
    """Whether `next` is called on it, or it is iterated."""
    assigned: int = 0
    """The first line in the loop that assigns it; 0: there is none."""
    fetched: bool = False
    """Whether the loop assigns it values that do not come from its old one, as for the next batch."""
    applied: bool = False
    """Whether the loop only calls it, as in `teacher(inputs)`."""
    seeded: bool = False
    """Whether the loop seeds it."""
    given: bool = False
    """Whether it is an argument of the function that the loop does not assign: the caller has it, too."""


class Position(msgspec.Struct, frozen=True):
    """An iterator of a `for` loop around the boundary: the place in it is in no variable."""

    line: int
    call: str
    """The loop, as it is written."""
    data: str
    """What the loop goes through."""


def carried(source: str, first: int, line: int) -> dict[str, Use] | None:
    """The variables that a loop may read before it has assigned them in the same iteration.

    The loops are those around `line` in the function that begins at line `first` (0: in the module). None if there is
    no such loop.
    """
    scope, loops = _around(source, first, line)
    if scope is None or not loops:
        return None
    exposed: dict[str, int] = {}
    for loop in loops:
        bound = _assigned(loop.target) if isinstance(loop, ast.For | ast.AsyncFor) else set()
        if isinstance(loop, ast.While):
            _reads(loop.test, bound, exposed)
        _flow(loop.body, bound, exposed)
    outer = loops[0]
    parents = {child: parent for parent in ast.walk(outer) for child in ast.iter_child_nodes(parent)}
    found = {}
    for name in exposed:
        nodes = [node for node in ast.walk(outer) if isinstance(node, ast.Name) and node.id == name]
        read = {node: _use(node, parents) for node in nodes if isinstance(node.ctx, ast.Load)}
        uses = set(read.values())
        stores = [node for node in nodes if not isinstance(node.ctx, ast.Load)]
        calls = [_method(node, parents) for node in read]
        found[name] = Use(
            made=_made(scope, outer, name),
            changed=min((node.lineno for node in nodes if read.get(node) != "shown"), default=0),
            feeds="feeds" in uses or "drawn" in uses,
            acts="acts" in uses,
            drawn="drawn" in uses,
            assigned=min((node.lineno for node in stores), default=0),
            fetched=any(_is_fetched(node, parents) for node in stores),
            applied=not stores and all(call in _APPLYING for call in calls),
            seeded=any(call in ("manual_seed", "seed") for call in calls),
            given=not stores and name in _arguments(scope),
        )
    return found


def unmentioned(source: str, first: int, line: int, name: str) -> int:
    """The line that makes a variable which the loops around `line` do not mention; 0 if they do."""
    scope, loops = _around(source, first, line)
    if scope is None:
        return 0
    inside = {node.id for loop in loops[:1] for node in ast.walk(loop) if isinstance(node, ast.Name)}
    return 0 if name in inside else _made(scope, loops[0] if loops else None, name) or first


def positions(source: str, first: int, line: int) -> list[Position]:
    """The loops around a boundary that go through something else than steps, or also through something else."""
    scope, loops = _around(source, first, line)
    if scope is None:
        return []
    steps = {
        target.id
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign) and _has_steps(node.value, set())
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = []
    for loop in loops:
        if isinstance(loop, ast.While):
            continue
        read = {node.id for each in loop.body for node in ast.walk(each) if isinstance(node, ast.Name)}
        for part, target, counts in _beside_steps(loop.iter, loop.target, steps):
            if not counts or _assigned(target) & read:  # nothing is lost of a number that the loop ignores
                found.append(Position(loop.lineno, ast.unparse(loop.iter), ast.unparse(part)))
    return found


def reassigned_at(source: str, name: str) -> int:
    """The first line that assigns an attribute outside of `__init__`, or a global variable inside of a function; 0:
    there is none."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return 0
    head, dot, own = name.rpartition(".")
    found = []
    classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or function.name == "__init__":
            continue
        declared = {each for node in ast.walk(function) if isinstance(node, ast.Global) for each in node.names}
        for node in ast.walk(function):
            attribute = isinstance(node, ast.Attribute) and bool(dot) and node.attr == own
            if attribute and head in classes:  # an attribute of an object hides that of its class
                root = _root(node)
                attribute = isinstance(root, ast.Name) and root.id in (head, "cls")
            variable = isinstance(node, ast.Name) and node.id == name in declared
            if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
                found += [node.lineno] if attribute or variable else []
    return min(found, default=0)


def defined_at(source: str, name: str) -> int:
    """The first line that assigns this name in a module, or this attribute anywhere; 0 if there is none."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return 0
    head, dot, _ = name.partition(".")
    inside = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr == name.rpartition(".")[2]
    ]
    if dot and inside:
        return min(inside)
    top = [node.lineno for node in tree.body if head in _assigned(node)]
    return min(top, default=0)


def _function(tree: ast.AST, first: int) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            begin = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if begin == first:
                return node
    return None


_Loop = ast.For | ast.AsyncFor | ast.While


def _around(source: str, first: int, line: int) -> tuple[ast.AST | None, list[_Loop]]:
    """The function, and its loops around this line, the outermost first."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None, []
    scope = _function(tree, first) if first else tree
    nodes = [] if scope is None else ast.walk(scope)
    loops = [node for node in nodes if isinstance(node, _Loop) and node.lineno <= line <= (node.end_lineno or 0)]
    return scope, sorted(loops, key=lambda node: node.lineno)


def _has_steps(node: ast.AST, names: set[str]) -> bool:
    """Whether an expression contains the steps of the job: a call of `.steps(…)`, or one of these names."""
    return any(
        (isinstance(each, ast.Call) and _called(each) == "steps") or (isinstance(each, ast.Name) and each.id in names)
        for each in ast.walk(node)
    )


def _beside_steps(iterated: ast.expr, target: ast.expr, steps: set[str]) -> Iterator[tuple[ast.expr, ast.expr, bool]]:
    """The parts of what a loop goes through that are not the job's steps, each with its target and whether it only
    counts or goes through values that the script spells out."""
    called = _called(iterated) if isinstance(iterated, ast.Call) else ""
    targets = target.elts if isinstance(target, ast.Tuple | ast.List) else []
    if not _has_steps(iterated, steps):
        yield iterated, target, called in ("range", "count") or isinstance(iterated, ast.Tuple | ast.List)
    elif isinstance(iterated, ast.Call) and called == "zip" and len(targets) == len(iterated.args):
        for part, each in zip(iterated.args, targets, strict=True):
            yield from _beside_steps(part, each, steps)
    elif called == "enumerate" and len(targets) == 2:
        yield iterated, targets[0], True


def _assigned(node: ast.AST) -> set[str]:
    """Names that a statement or a target binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)}


def _made(scope: ast.AST, loop: ast.stmt | None, name: str) -> int:
    """The last line before the loop, if there is one, that binds the name."""
    before = [
        node.lineno
        for node in ast.walk(scope)
        if isinstance(node, ast.stmt)
        and not isinstance(node, ast.For | ast.While | ast.If | ast.With | ast.Try)
        and node is not scope
        and (loop is None or node.lineno < loop.lineno)
        and name in _assigned(node)
    ]
    return max(before, default=0)


# -- what is read before it is assigned --------------------------------------------------------------------------------


def _arguments(scope: ast.AST) -> set[str]:
    if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        return set()
    return {argument.arg for argument in [*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs]}


def _flow(body: Sequence[ast.stmt], bound: set[str], exposed: dict[str, int]) -> set[str]:
    """Follow statements in their order; returns the names bound afterwards. Inner loops count as run at least once."""
    for statement in body:
        bound = _step(statement, bound, exposed)
    return bound


def _step(node: ast.stmt, bound: set[str], exposed: dict[str, int]) -> set[str]:
    match node:
        case ast.Assign(targets=targets, value=value):
            _reads(value, bound, exposed)
            for target in targets:
                _reads(target, bound, exposed)
                bound = bound | _assigned(target)
        case ast.AugAssign(target=target, value=value):
            _reads(value, bound, exposed)
            if isinstance(target, ast.Name) and target.id not in bound:
                exposed.setdefault(target.id, target.lineno)
            _reads(target, bound, exposed)
            bound = bound | _assigned(target)
        case ast.For(target=target, iter=iterated, body=body, orelse=orelse):
            _reads(iterated, bound, exposed)
            bound = _flow(orelse, _flow(body, bound | _assigned(target), exposed), exposed)
        case ast.While(test=test, body=body, orelse=orelse):
            _reads(test, bound, exposed)
            bound = _flow(orelse, _flow(body, bound, exposed), exposed)
        case ast.With(items=items, body=body):
            for item in items:
                _reads(item.context_expr, bound, exposed)
                if item.optional_vars is not None:
                    bound = bound | _assigned(item.optional_vars)
            bound = _flow(body, bound, exposed)
        case ast.If(test=test, body=body, orelse=orelse):
            _reads(test, bound, exposed)
            bound = bound | _walrus(test)
            then, other = _flow(body, bound, exposed), _flow(orelse, bound, exposed)
            bound = other if _leaves(body) else then if _leaves(orelse) else then & other
        case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=last):
            after = _flow(orelse, _flow(body, bound, exposed), exposed)
            for handler in handlers:
                _flow(handler.body, bound | ({handler.name} if handler.name else set()), exposed)
            bound = _flow(last, after, exposed)
        case _:
            _reads(node, bound, exposed)
            bound = bound | _assigned(node)
    return bound | _walrus(node) if isinstance(node, ast.Assign | ast.Expr | ast.AugAssign) else bound


def _leaves(body: Sequence[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Continue | ast.Break | ast.Return | ast.Raise)


def _walrus(node: ast.AST) -> set[str]:
    return {each.target.id for each in ast.walk(node) if isinstance(each, ast.NamedExpr)}


def _reads(node: ast.AST, bound: set[str], exposed: dict[str, int]) -> None:
    """Add the names that an expression reads and that are not bound to `exposed`."""
    inner = set(bound) | _walrus(node)
    for each in ast.walk(node):
        if isinstance(each, _COMPREHENSIONS):
            for part in each.generators:
                inner |= _assigned(part.target)
        elif isinstance(each, _FUNCTIONS):
            inner |= {argument.arg for argument in [*each.args.posonlyargs, *each.args.args, *each.args.kwonlyargs]}
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load) and each.id not in inner:
            exposed.setdefault(each.id, each.lineno)


# -- what for ----------------------------------------------------------------------------------------------------------


def _use(node: ast.Name, parents: dict[ast.AST, ast.AST]) -> str:
    """How a loop uses one occurrence of a name: `shown`, `renewed`, `acts`, `drawn` or `feeds`."""
    child: ast.AST = node
    parent = parents.get(node)
    while parent is not None:
        if isinstance(parent, ast.Call):
            name = _called(parent)
            if child is not parent.func and name in _SHOWING:
                return "shown"
            if name == "next" and child in parent.args:
                return "drawn"
        if isinstance(parent, ast.For) and child is parent.iter:
            return "drawn" if child is node else "feeds"
        if isinstance(parent, ast.Expr):
            called = parent.value
            own = isinstance(called, ast.Call) and isinstance(called.func, ast.Attribute) and _root(called.func) is node
            return "acts" if own else "feeds"
        if isinstance(parent, ast.Assign | ast.AugAssign | ast.AnnAssign):
            return _use_in_assignment(node, parent)
        if isinstance(parent, ast.If) and child is parent.test:
            return "shown" if all(_shows(each) for each in [*parent.body, *parent.orelse]) else "feeds"
        child, parent = parent, parents.get(parent)
    return "feeds"


def _method(node: ast.Name, parents: dict[ast.AST, ast.AST]) -> str:
    """The method of a variable that is called here; `()` if the variable itself is called, empty if neither is."""
    parent = parents.get(node)
    if isinstance(parent, ast.Call) and parent.func is node:
        return "()"
    above = parents.get(parent) if isinstance(parent, ast.Attribute) else None
    return parent.attr if isinstance(parent, ast.Attribute) and isinstance(above, ast.Call) else ""


def _is_fetched(node: ast.Name, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether an assignment to the name does not read its old value."""
    statement: ast.AST | None = node
    while statement is not None and not isinstance(statement, ast.stmt):
        statement = parents.get(statement)
    if not isinstance(statement, ast.Assign):
        return False
    value = statement.value
    for target in statement.targets:  # of `old, new = new, fetch()` only the element that the name gets
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and node in target.elts:
            value = value.elts[target.elts.index(node)] if len(target.elts) == len(value.elts) else value
    names = {each.id for each in ast.walk(value) if isinstance(each, ast.Name)}
    return not isinstance(value, ast.Constant) and node.id not in names


def _use_in_assignment(node: ast.Name, statement: ast.Assign | ast.AugAssign | ast.AnnAssign) -> str:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    if any(node is each for target in targets for each in ast.walk(target)):
        return "renewed"  # something inside of it is assigned
    roots = {root.id if isinstance(root := _root(target), ast.Name) else "" for target in targets}
    return "renewed" if roots == {node.id} else "feeds"


def _root(node: ast.AST) -> ast.AST:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node


def _called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _shows(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return _called(statement.value) in _SHOWING
    return isinstance(statement, ast.Pass)
