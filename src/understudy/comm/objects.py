"""Collectives of Python objects in a rehearsal.

torch exchanges sizes, allocates memory of these sizes, and exchanges pickles. Made-up sizes and made-up pickles are of
no use, so in a rehearsal each of these functions is one operation: the sandbox answers it with whole objects.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
from typing import Any

import torch.distributed as dist

from .endpoint import Endpoint
from .group import RoleGroup
from .sandbox import Sandbox, Unanswered

_INT = 8
"""Bytes of a size."""

Arguments = dict[str, Any]


def _copy(thing: object) -> Any:
    """The object as another role gets it."""
    return pickle.loads(pickle.dumps(thing))


def _sizes(results: Sequence[bytes]) -> list[int]:
    data = b"".join(results)
    return [int.from_bytes(data[at : at + _INT], "little", signed=True) for at in range(0, len(data), _INT)]


def _cut(payload: bytes, sizes: Sequence[int]) -> list[Any]:
    """The objects whose pickles, of these sizes, follow one another."""
    stream = io.BytesIO(payload)
    return [pickle.loads(stream.read(size)) for size in sizes]


def _root(end: Endpoint, given: Arguments, role: str) -> bool:
    """Whether this role is the one that the argument `src` or `dst` names."""
    rank, within = given.get(role), given.get(f"group_{role}")
    if within is None:
        within = end.key.roles.index(rank or 0)
    return bool(within == end.rank)


def _unanswered(name: str, end: Endpoint) -> Unanswered:
    return Unanswered(
        f"{name} in group {end.name}: the objects of the other roles are not known in this rehearsal, because no "
        "recording of the job's first steps has them; let --recording-limit be large enough for one, and call "
        f"{name} on all roles of the group alike, before the first step or in every step"
    )


def _all_gather(sandbox: Sandbox, end: Endpoint, given: Arguments) -> None:
    found = sandbox.recorded(end, ("all_gather", "all_gather"))
    own = given["obj"]
    for rank in range(end.size):
        given["object_list"][rank] = _copy(own) if found is None else pickle.loads(found[1][rank])


def _gather(sandbox: Sandbox, end: Endpoint, given: Arguments) -> None:
    found = sandbox.recorded(end, ("all_gather", "gather"))
    if _root(end, given, "dst"):
        known = found[1] if found is not None else ()  # nothing if the role that recorded was not the root
        for rank in range(end.size):
            given["object_gather_list"][rank] = pickle.loads(known[rank]) if known else _copy(given["obj"])


def _broadcast(sandbox: Sandbox, end: Endpoint, given: Arguments) -> None:
    found, things = sandbox.recorded(end, ("broadcast", "broadcast")), given["object_list"]
    if _root(end, given, "src"):
        return
    sizes = [] if found is None else _sizes(found[0])
    if found is None or len(sizes) != len(things):
        raise _unanswered("broadcast_object_list", end)
    things[:] = _cut(found[1][0], sizes)


def _scatter(sandbox: Sandbox, end: Endpoint, given: Arguments) -> None:
    found, out = sandbox.recorded(end, ("broadcast", "scatter", "scatter")), given["scatter_object_output_list"]
    if _root(end, given, "src"):
        out[0] = _copy(given["scatter_object_input_list"][end.rank])
    elif found is None:
        raise _unanswered("scatter_object_list", end)
    else:
        out[0] = pickle.loads(found[1][0])


def _receive(sandbox: Sandbox, end: Endpoint, given: Arguments) -> int:
    within, things = given.get("group_src"), given["object_list"]
    if within is None:
        within = end.key.roles.index(given["src"])
    found = sandbox.recorded(end, ("recv", "recv"), within)
    sizes = [] if found is None else _sizes(found[0])
    if found is None or len(sizes) != len(things):
        raise _unanswered("recv_object_list", end)
    things[:] = _cut(found[1][0], sizes)
    return end.key.roles[within]


def _send(sandbox: Sandbox, end: Endpoint, given: Arguments) -> None:
    pass


_ANSWERS: dict[str, Callable[[Sandbox, Endpoint, Arguments], int | None]] = {
    "all_gather_object": _all_gather,
    "gather_object": _gather,
    "broadcast_object_list": _broadcast,
    "scatter_object_list": _scatter,
    "send_object_list": _send,
    "recv_object_list": _receive,
}


def _answered(real: Callable[..., Any], answer: Callable[[Sandbox, Endpoint, Arguments], int | None]) -> Any:
    parameters = signature(real)

    @wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = parameters.bind(*args, **kwargs).arguments
        group = given.get("group") or dist.group.WORLD
        sandbox = group.endpoint.sandbox if isinstance(group, RoleGroup) else None
        if sandbox is None:
            return real(*args, **kwargs)
        assert isinstance(group, RoleGroup)
        return answer(sandbox, group.endpoint, given)

    call.answered = True  # type: ignore[attr-defined]
    return call


def answer_objects() -> None:
    """Let sandboxes answer torch's collectives of objects, which are torch's own outside of rehearsals. Code that has
    imported one of these functions by its name before keeps torch's."""
    for name, answer in _ANSWERS.items():
        real = getattr(dist.distributed_c10d, name)
        if not hasattr(real, "answered"):
            for module in (dist, dist.distributed_c10d):
                setattr(module, name, _answered(real, answer))
