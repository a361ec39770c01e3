"""The log of this package is shown once, and the root logger is the script's."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from understudy.host.logs import show_log


@pytest.fixture(autouse=True)
def loggers() -> Iterator[None]:
    """Restore the loggers of this process."""
    kept = [(logger, [*logger.handlers], logger.level) for logger in (logging.getLogger(), ours())]
    yield
    for logger, handlers, level in kept:
        logger.handlers[:] = handlers
        logger.setLevel(level)
    ours().propagate = True


def ours() -> logging.Logger:
    return logging.getLogger("understudy")


def test_the_root_logger_is_left_to_the_script(capfd: pytest.CaptureFixture[str]) -> None:
    logging.getLogger().handlers.clear()
    show_log()
    logging.basicConfig(level=logging.INFO, format="script: %(message)s")
    logging.info("a line")
    logging.getLogger("understudy.comm").warning("careful")
    logging.getLogger("understudy.comm").info("a detail")
    logging.getLogger("a library").info("a note")
    assert capfd.readouterr().err.splitlines() == ["script: a line", "understudy: careful", "script: a note"]


def test_a_second_call_takes_the_place_of_the_first(capfd: pytest.CaptureFixture[str]) -> None:
    show_log()
    show_log(logging.INFO, "w1: %(message)s")
    ours().info("hello")
    assert capfd.readouterr().err == "w1: hello\n"


FORKED = """
import logging, os
from understudy.host.logs import show_log
show_log(format="the agent: %(message)s")
if os.fork() == 0:
    show_log()
    logging.getLogger("understudy.worker").warning("from the worker")
    logging.basicConfig(format="script: %(message)s")
    logging.warning("from the script")
    os._exit(0)
os.wait()
logging.getLogger("understudy").warning("goes on")
"""


def test_a_fork_does_not_write_lines_twice() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60)
    lines = ["understudy: from the worker", "script: from the script", "the agent: goes on"]
    assert (done.returncode, done.stderr.splitlines()) == (0, lines)
