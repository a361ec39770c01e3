"""Extensions: modules that a job names, and that its workers and agents import when they start.

The runtime has no test code of its own: fault points (`understudy.testing.faults`) and the check of a script
(`understudy.verify.script.observer`) come in through this door, and so may a user's own module. A job that names no
extension runs none. A module that is named but cannot be imported ends the process: an extension is never left out
quietly.

An extension is a module with one or both of these functions:

    def extend_worker(worker: WorkerRuntime, connection: AgentConnection, argument: str) -> Handler | None: ...
    def extend_agent(agent: Agent, argument: str) -> Handler | None: ...

`argument` is the text that the job gives with the module's name. A function may change the object that it gets, and
may return a handler for messages that operators send to the process with `POST /extensions`.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

log = logging.getLogger("understudy.extensions")

Handler = Callable[[Any], None]
"""Called with an `ExtensionMessage`."""


class Extensions:
    """The extensions of one process."""

    def __init__(self, modules: Mapping[str, str], hook: str, *context: Any) -> None:
        """Import `modules` (name → argument) and call the function named `hook` of each with `context`."""
        self._handlers: list[Handler] = []
        for name, argument in modules.items():
            extend = getattr(importlib.import_module(name), hook, None)
            if extend is not None and (handler := extend(*context, argument)) is not None:
                self._handlers.append(handler)

    def hear(self, message: Any) -> None:
        """Hand a message to the handlers of all extensions."""
        if not self._handlers:
            log.warning("no extension of this process takes the message %r", message.kind)
        for handler in self._handlers:
            handler(message)
