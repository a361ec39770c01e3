"""A client of the controller, for commands and launchers."""

from __future__ import annotations

import http.client
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import msgspec

from understudy.protocol.provisioning import ProvisioningPage


class ControllerError(RuntimeError):
    """The controller does not answer, or refuses the request; the message says which."""

    def __init__(self, text: str, *, status: int = 0, hopeless: bool = False) -> None:
        super().__init__(text)
        self.status = status
        """The HTTP status of the answer; 0 if the controller has not answered."""
        self.hopeless = hopeless
        """Whether there is no such host."""

    @property
    def silent(self) -> bool:
        """Whether the controller has not answered at all."""
        return not self.status


class Client:
    """Blocking, one request at a time. A request is repeated for `patience` seconds while the controller is away."""

    def __init__(self, url: str, secret: str, *, patience: float = 5.0) -> None:
        self.url, self._secret, self._patience = url.rstrip("/"), secret, patience

    def call(self, method: str, path: str, body: object = None, *, limit: float = 10.0) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._secret}", "Content-Type": "application/json"}
        deadline = time.monotonic() + self._patience
        while True:
            try:
                request = urllib.request.Request(self.url + path, data, headers, method=method)
                with urllib.request.urlopen(request, timeout=limit) as response:
                    return json.load(response)
            except urllib.error.HTTPError as error:
                raise ControllerError(_reason(error), status=error.code) from None
            except (OSError, ValueError, http.client.HTTPException) as error:
                cause = getattr(error, "reason", error)
                nowhere = isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME
                if nowhere or time.monotonic() > deadline:
                    why = f"the controller at {self.url} does not answer: {getattr(cause, 'strerror', None) or cause}"
                    raise ControllerError(why, hopeless=nowhere) from None
                time.sleep(0.1)

    def job(self) -> Any:
        return self.call("GET", "/job")

    def answer(self, id: str, wait: float = 0.0) -> Any:
        return self.call("GET", f"/requests/{id}?wait={wait}", limit=wait + 10)

    def events(self, after: int = 0, wait: float = 0.0) -> Any:
        return self.call("GET", f"/events?after={after}&wait={wait}", limit=wait + 10)

    def provision(self, after: int = 0, wait: float = 0.0) -> ProvisioningPage:
        """Requests for machines that follow the first `after`."""
        answer = self.call("GET", f"/provision?after={after}&wait={wait}", limit=wait + 10)
        return msgspec.convert(answer, ProvisioningPage)

    def follow(self, after: int = 0) -> Iterator[dict[str, Any]]:
        """Events as they happen, without end."""
        while True:
            page = self.events(after, wait=20.0)
            yield from page["events"]
            after = page["next"]


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError, OSError):
        return f"the controller answered {error.code} {error.reason}"
