from __future__ import annotations

import socket

import pytest

from understudy.launch.address import AddressError, check_host, everywhere, listen, loopback, parse, url


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1", "127.0.0.1", 0),
        ("10.0.0.1:7000", "10.0.0.1", 7000),
        ("node1:0", "node1", 0),
        ("::1", "::1", 0),
        ("[::1]", "::1", 0),
        ("[fe80::1]:80", "fe80::1", 80),
    ],
)
def test_an_address(text: str, host: str, port: int) -> None:
    assert parse(text) == (host, port)


@pytest.mark.parametrize("text", ["", ":80", "a:b", "a:65536", "a:-1", "[::1", "[::1]80", "[]:80", "a:²"])
def test_what_is_none(text: str) -> None:
    with pytest.raises(AddressError, match="is not of the form"):
        parse(text)


def test_kinds() -> None:
    assert [everywhere(host) for host in ("0.0.0.0", "::", "10.0.0.1", "node1")] == [True, True, False, False]
    assert [loopback(host) for host in ("127.0.0.1", "::1", "localhost", "10.0.0.1")] == [True, True, True, False]


def test_urls() -> None:
    assert url("10.0.0.1", 80) == "http://10.0.0.1:80"
    assert url("::1", 80) == "http://[::1]:80"


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(AddressError, match=rf"cannot listen at {host}: .*; give an address of this machine"):
        check_host(host)


@pytest.mark.parametrize("host", ["\x80", "localhost\x00b", "a\nb", "\udc80", "a..b", "x" * 70])
def test_no_host_has_such_a_name(host: str) -> None:
    with pytest.raises(AddressError, match=r"^cannot listen at [^\n]*: [^\n]*; give an address of this machine$"):
        listen(host)


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressError, match=f"cannot listen at 127.0.0.1:{port}: Address already in use"):
            listen("127.0.0.1", port)


def test_workers_cannot_be_everywhere() -> None:
    with pytest.raises(AddressError, match=r"host 0\.0\.0\.0 is no place others can come to"):
        check_host("0.0.0.0")
