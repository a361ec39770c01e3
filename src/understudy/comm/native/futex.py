"""Sleeping on a word of shared memory until another process changes it (Linux)."""

from __future__ import annotations

import ctypes
import errno
import platform
import sys

_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
_WAIT, _WAKE, _ALL = 0, 1, 0x7FFFFFFF


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


def _number() -> int:
    number = _NUMBERS.get(platform.machine())
    if sys.platform != "linux" or number is None:
        raise OSError(f"no futex on {sys.platform}/{platform.machine()}; use --transport torch:gloo there")
    return number


_syscall = ctypes.CDLL(None, use_errno=True).syscall
_long, _pointer = ctypes.c_long, ctypes.c_void_p
_syscall.argtypes = (_long, _pointer, _long, _long, _pointer, _pointer, _long)
_syscall.restype = _long
_FUTEX = _number() if sys.platform == "linux" else 0

SLICE_S = 0.02
"""Seconds of the longest sleep: a bound on the delay of a lost wake-up."""
_slice = _Timespec(0, int(SLICE_S * 1e9))
_slice_address = ctypes.addressof(_slice)


def wait(address: int, seen: int) -> None:
    """Sleep while the 32-bit word holds `seen`, for one slice at most. May return early; callers loop."""
    if _syscall(_FUTEX, address, _WAIT, seen, _slice_address, None, 0) < 0:
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.ETIMEDOUT, errno.EINTR):
            raise OSError(code, "futex wait")


def wake(address: int) -> None:
    _syscall(_FUTEX, address, _WAKE, _ALL, None, None, 0)
