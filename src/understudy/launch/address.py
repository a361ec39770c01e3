"""Addresses at which processes listen."""

from __future__ import annotations

import ipaddress
import os
import socket


class AddressError(ValueError):
    """An address that cannot be used; the message says why and what to write instead."""


def parse(text: str) -> tuple[str, int]:
    """Host and port of `HOST`, `HOST:PORT` or `[HOST]:PORT`; port 0 is any free port."""
    host, port = text, ""
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise AddressError(f"{text!r} is not of the form [HOST]:PORT")
        port = port[1:]
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if not host or (port and not (port.isdecimal() and int(port) < 1 << 16)):
        raise AddressError(f"{text!r} is not of the form HOST or HOST:PORT")
    return host, int(port or 0)


def everywhere(host: str) -> bool:
    """Whether this stands for all addresses of a machine, to which no other machine can connect."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def loopback(host: str) -> bool:
    """Whether only this computer can reach this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int = 0) -> socket.socket:
    if not host.isprintable():
        raise AddressError(f"cannot listen at {host!r}: no host has such a name; give an address of this machine")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        [*_, place], *_ = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
        return socket.create_server(place, family=family)
    except (OSError, UnicodeError) as error:
        where = f"{host}:{port}" if port else host
        number = getattr(error, "errno", None)
        why = os.strerror(number) if number and number > 0 else getattr(error, "strerror", None) or error
        raise AddressError(f"cannot listen at {where}: {why}; give an address of this machine") from None


def check_host(host: str) -> None:
    """Raises AddressError if workers cannot listen at this address, or others cannot connect to it."""
    if everywhere(host):
        raise AddressError(f"host {host} is no place others can come to; give one address of this machine")
    listen(host).close()


def url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
