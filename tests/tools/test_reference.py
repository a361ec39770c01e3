"""The committed reference matches the sources."""

from __future__ import annotations

import pytest

from tools.reference.__main__ import PAGE, page
from tools.reference.http import routes
from tools.reference.sources import told_attributes


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs` and commit docs/api.md"


def test_every_route_says_what_it_does() -> None:
    assert not [name for name, handler in routes() if not handler.__doc__]


class Told:
    """A class."""

    size: int
    """In bytes."""
    silent: int

    def __init__(self) -> None:
        self.name = "x"
        """What it is
        called."""
        self._own = 1
        """Private."""


def test_sentences_below_attributes_are_found() -> None:
    assert told_attributes(Told) == {"size": "In bytes.", "name": "What it is called."}


@pytest.mark.parametrize("words", ["understudy.run(", "job.steps", "GET /job", "POST /replace", "understudy drain"])
def test_the_page_has_all_of_it(words: str) -> None:
    assert words in page()
