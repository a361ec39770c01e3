"""Where the log of this package goes."""

from __future__ import annotations

import logging

FORMAT = "understudy: %(message)s"


def show_log(level: int = logging.WARNING, format: str = FORMAT) -> None:
    """Write the log of this package, and nothing else, to standard error. The root logger is left to the script, whose
    `logging.basicConfig` works as in any process. In a fork, this takes the place of what the forked process had."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(format))
    ours = logging.getLogger("understudy")
    ours.handlers[:] = [handler]
    ours.propagate = False  # handlers of the script would write each line once more
    ours.setLevel(level)
