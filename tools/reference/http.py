"""The controller's routes, with the bodies and answers of each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import msgspec

from understudy.controller.core.effects import Announcement
from understudy.controller.server import server
from understudy.controller.server.views import (
    ChangeView,
    CopiesView,
    JobView,
    MachineView,
    ReplicasView,
    RoleView,
    WaitingView,
)
from understudy.steward.stragglers import Straggler

from .sources import item, joined, told_attributes, tree_of

VIEWS: tuple[type[msgspec.Struct], ...] = (
    *(JobView, ChangeView, CopiesView, ReplicasView, WaitingView, Straggler),
    *(MachineView, RoleView, Announcement),
)
AGENTS = "/agent"
"""The route for agents, which the reference leaves out."""
INTRODUCTION = """\
Address and secret of a running job are `url` and `secret` in `~/.local/state/understudy/jobs/NAME-PID.json`, which only
you can read; `run` names the file when it starts, where machines may join from elsewhere. Every request carries the
secret as `Authorization: Bearer SECRET`. Without it the answer is 401. What cannot be understood is answered with 400
and `{"error": "…"}`. Bodies and answers are JSON. Agents have a WebSocket of their own at `/agent`
([protocol.md](protocol.md)).

What changes the job is a request with an id: `{"id": "…", "done": false}` until it is over, then also `ok`, `text` and
what belongs to the request, such as `phases` and `lost` of a replacement. `GET /requests/ID?wait=5` waits for that.

```
curl -H "Authorization: Bearer $SECRET" http://127.0.0.1:7000/job
curl -H "Authorization: Bearer $SECRET" -d '{"type": "replace", "machines": ["m1"]}' http://127.0.0.1:7000/replace
```"""


def section() -> str:
    parts = ["## Over HTTP: the controller", INTRODUCTION]
    for name, handler in routes():
        parts.append(f"### `{name}`\n\n{joined(handler.__doc__)}".rstrip())
        body = _body_of(handler)
        if body is not None and body.__struct_fields__:
            parts.append(f"Body{_type(body)}:\n\n{_fields(body)}")
    parts.append("### What is told")
    parts += [f"**{view.__name__}**{_says(view)}\n\n{_fields(view)}" for view in VIEWS]
    return "\n\n".join(parts)


def routes() -> Iterator[tuple[str, Any]]:
    """(method and path, handler) of all routes for operators."""
    surface = server.ControllerServer.__new__(server.ControllerServer)
    for route in surface.app().router.routes():
        path = route.resource.canonical if route.resource is not None else "?"
        if path != AGENTS and route.method != "HEAD":
            yield f"{route.method} {path}", route.handler


def _says(kind: type) -> str:
    """The class's docstring. A struct without one has its signature in `__doc__`, so the source is read."""
    text = joined(ast.get_docstring(tree_of(kind)))  # type: ignore[arg-type]
    return f": {text}" if text else ""


def _type(kind: type[msgspec.Struct]) -> str:
    tag = kind.__struct_config__.tag
    return f', with `"type": "{tag}"`' if tag else ""


def _body_of(handler: Any) -> type[msgspec.Struct] | None:
    """The struct in the handler's call of `_body(request, KIND)`."""
    for node in ast.walk(tree_of(handler)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_body":
            found: type[msgspec.Struct] = eval(ast.unparse(node.args[1]), handler.__func__.__globals__)
            return found
    return None


def _fields(kind: type[msgspec.Struct]) -> str:
    told = told_attributes(kind)
    lines = []
    for field in msgspec.structs.fields(kind):
        annotation = str(kind.__annotations__.get(field.name, field.type))
        if field.default is not msgspec.NODEFAULT:
            annotation += f" = {msgspec.json.encode(field.default).decode()}"
        elif field.default_factory is not msgspec.NODEFAULT:
            annotation += " = {}"
        lines.append(item(f"`{field.name}: {annotation}`", told.get(field.name, "")))
    return "\n".join(lines)
