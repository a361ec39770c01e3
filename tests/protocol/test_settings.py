"""The tree of settings: every option has one key, a flag that says so, and a default within its range."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.cli.main import build_parser
from understudy.protocol.durations import duration_text
from understudy.protocol.options import Option, SettingError, options, value_of, with_options
from understudy.protocol.settings import JobSpec, Settings

ALL = options(JobSpec)


@pytest.mark.parametrize("option", ALL.values(), ids=ALL.keys())
def test_a_default_is_in_range_and_of_its_type(option: Option) -> None:
    option.check(option.default)
    assert option.read(msgspec.to_builtins(option.default)) == option.default
    assert value_of(JobSpec(), option) == option.default


@pytest.mark.parametrize("option", ALL.values(), ids=ALL.keys())
def test_a_flag_says_what_the_declaration_says(option: Option) -> None:
    if option.flag:
        values = {bool: [], int: ["7"], float: ["7"]}.get(
            option.plain_type, [option.choices[0] if option.choices else "x"]
        )
        args = build_parser().parse_args(["run", option.flag, *values, "train.py"])
        given = getattr(args, option.key)
        assert given == option.read(given)
        assert option.help.startswith(option.declared.help)
        assert len(option.help) < 120


def test_every_key_is_there_once() -> None:
    def fields(tree: Any) -> int:
        return sum(1 for option in options(tree).values())

    parts = [getattr(Settings(), name) for name in Settings.__annotations__]
    assert fields(Settings) == sum(map(fields, parts))


@given(st.floats(0.001, 1e6))
def test_a_duration_is_read_as_text_or_number(seconds: float) -> None:
    patience = ALL["patience"]
    assert patience.read(seconds) == patience.read(duration_text(seconds)) == seconds


def test_options_change_by_their_keys_and_other_fields_stay() -> None:
    before = Settings()
    after = with_options(before, steward_looks=3, checkpoint="kept")
    assert (after.steward.looks, after.checkpoint.folder) == (3, "kept")
    assert after.steward.arrival == before.steward.arrival
    assert with_options(after, steward_looks=before.steward.looks, checkpoint="") == before
    with pytest.raises(SettingError, match="there is no setting looks"):
        with_options(before, looks=3)


def test_a_tree_survives_the_way_to_another_process() -> None:
    tree = with_options(Settings(), patience=5.0, mask="anywhere", extensions={"a.b": "c"})
    assert msgspec.json.decode(msgspec.json.encode(tree), type=Settings) == tree
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(tree), type=Settings) == tree
