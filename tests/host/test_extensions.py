"""Extensions: imported by name, called with their context, and given the messages that are for them."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from understudy.host.extensions import Extensions
from understudy.protocol.messages import ExtensionMessage


def test_modules_are_imported_and_called(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[object] = []
    called: list[tuple[object, ...]] = []
    module = ModuleType("an_extension")

    def extend_worker(*context: object) -> object:
        called.append(context)
        return heard.append

    vars(module)["extend_worker"] = extend_worker
    monkeypatch.setitem(sys.modules, "an_extension", module)
    message = ExtensionMessage("ring", "m0", "w0")
    Extensions({"an_extension": "loud"}, "extend_worker", "worker", "line").hear(message)
    assert (called, heard) == ([("worker", "line", "loud")], [message])


def test_a_message_that_no_extension_takes_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "an_extension", ModuleType("an_extension"))
    Extensions({"an_extension": ""}, "extend_agent", "agent").hear(ExtensionMessage("ring", "m0"))
    assert "no extension of this process takes the message 'ring'" in caplog.text


def test_a_module_that_is_missing_is_an_error() -> None:
    with pytest.raises(ModuleNotFoundError):
        Extensions({"no_such_extension": ""}, "extend_worker")
