"""Hosts of their own in one computer: network namespaces at a bridge, and cables that a test can damage."""

from __future__ import annotations

import fcntl
import heapq
import os
import selectors
import shutil
import struct
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

_TUNSETIFF = 0x400454CA
_TAP_WITHOUT_HEADER = 0x0002 | 0x1000
_NOTHING_FITS = ("tbf", "rate", "8kbit", "burst", "1", "limit", "1")
"""A queue that drops every packet larger than one byte."""


class Unavailable(RuntimeError):
    """Why there can be no hosts here."""


def ip(*words: str) -> str:
    return _run("ip", *words)


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=20)
    if done.returncode:
        raise Unavailable(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class Host:
    """A network namespace with one cable to the bridge. Frames are lost, never refused: no connection is reset."""

    def __init__(self, hosts: Hosts, number: int) -> None:
        self.space = f"{hosts.prefix}-{number}"
        self.address = f"{hosts.net}.{number + 10}"
        self._port, self._own = f"{hosts.prefix}p{number}", f"{hosts.prefix}h{number}"

    def open(self, bridge: str) -> None:
        ip("netns", "add", self.space)
        self._lay()
        ip("link", "set", self._own, "netns", self.space)
        ip("-n", self.space, "addr", "add", f"{self.address}/24", "dev", self._own)
        ip("-n", self.space, "link", "set", "lo", "up")
        ip("-n", self.space, "link", "set", self._own, "up")
        ip("link", "set", self._port, "master", bridge, "up")

    def _lay(self) -> None:
        ip("link", "add", self._port, "type", "veth", "peer", "name", self._own)

    def cut(self) -> None:
        ip("link", "set", self._port, "down")

    def deafen(self) -> None:
        """What it sends arrives; nothing comes to it."""
        _run("tc", "qdisc", "add", "dev", self._port, "root", *_NOTHING_FITS)

    def heal(self) -> None:
        ip("link", "set", self._port, "up")
        with suppress(Unavailable):
            _run("tc", "qdisc", "del", "dev", self._port, "root")

    def command(self, *words: str) -> list[str]:
        """To run there."""
        return ["ip", "netns", "exec", self.space, *words]

    def processes(self) -> list[int]:
        return [int(pid) for pid in ip("netns", "pids", self.space).split()]

    def close(self) -> None:
        with suppress(Unavailable):
            ip("link", "del", self._port)
        with suppress(Unavailable):
            ip("netns", "del", self.space)


class FarHost(Host):
    """A host at the end of a long cable: its frames go by way of this process, which lets them wait."""

    delay = 0.0
    """Seconds, each way."""

    def _lay(self) -> None:
        self._ends = [_tap(self._port), _tap(self._own)]
        self._stop, self._stopped = os.pipe()
        self._relay = threading.Thread(target=self._carry, daemon=True)
        self._relay.start()

    def _carry(self) -> None:
        under_way: list[tuple[float, int, int, bytes]] = []
        count = 0
        with selectors.DefaultSelector() as ready:
            for fd in (*self._ends, self._stop):
                ready.register(fd, selectors.EVENT_READ)
            while True:
                left = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
                for key, _ in ready.select(left):
                    if key.fd == self._stop:
                        return
                    with suppress(OSError):
                        to = self._ends[key.fd == self._ends[0]]
                        count += 1
                        frame = os.read(key.fd, 1 << 16)
                        heapq.heappush(under_way, (time.monotonic() + self.delay, count, to, frame))
                while under_way and under_way[0][0] <= time.monotonic():
                    _, _, to, frame = heapq.heappop(under_way)
                    with suppress(OSError):
                        os.write(to, frame)

    def close(self) -> None:
        if hasattr(self, "_relay"):
            os.close(self._stopped)
            self._relay.join(10)
            for fd in (*self._ends, self._stop):
                os.close(fd)
        super().close()


def _tap(name: str) -> int:
    """An interface that is gone when this is closed."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP_WITHOUT_HEADER))
    except OSError:
        os.close(fd)
        raise
    return fd


class Hosts:
    """All of them, and what joins them; nothing is left afterwards. The last one is far away."""

    def __init__(self, count: int) -> None:
        self.prefix = f"us{os.getpid()}"[-9:]
        self.net = f"10.213.{os.getpid() % 251}"
        self.address = f"{self.net}.1"
        self._bridge = f"{self.prefix}br"
        self._all = [(FarHost if number == count - 1 else Host)(self, number) for number in range(count)]

    def __getitem__(self, number: int) -> Host:
        return self._all[number]

    def __enter__(self) -> Hosts:
        if os.geteuid():
            raise Unavailable("only root can make network namespaces")
        for tool in ("ip", "tc"):
            if shutil.which(tool) is None:
                raise Unavailable(f"there is no command {tool}")
        try:
            ip("link", "add", self._bridge, "type", "bridge")
            ip("addr", "add", f"{self.address}/24", "dev", self._bridge)
            ip("link", "set", self._bridge, "up")
            for host in self._all:
                host.open(self._bridge)
            self[0].deafen()  # the kernel has what this needs
            self[0].heal()
        except (Unavailable, OSError) as error:
            self.__exit__()
            raise Unavailable(str(error)) from None
        return self

    def __exit__(self, *exc: object) -> None:
        for host in self._all:
            host.close()
        with suppress(Unavailable):
            ip("link", "del", self._bridge)

    def mute(self) -> None:
        """Nothing that this side of the bridge sends arrives; the hosts reach each other."""
        _run("tc", "qdisc", "add", "dev", self._bridge, "root", *_NOTHING_FITS)

    def unmute(self) -> None:
        _run("tc", "qdisc", "del", "dev", self._bridge, "root")

    def remains(self) -> list[str]:
        links = [line for line in ip("-o", "link").splitlines() if self.prefix in line]
        spaces = [line for line in ip("netns", "list").splitlines() if self.prefix in line]
        return links + spaces + [str(path) for path in Path("/run/netns").glob(f"{self.prefix}*")]
