"""Options: a field of a dataclass declares flag, TOML key, type, unit, default, help text and range at once.

A tree of settings is a frozen dataclass of options and further trees. Each option has a key of its own in the whole
tree, which is also its flag and its key in TOML; `with_options` changes options by their keys.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from .durations import DurationError, duration_text, parse_duration

T = TypeVar("T")
_OPTION = "option"
_UNITS = {"s": "seconds", "MB": "megabytes"}


class SettingError(ValueError):
    """A setting that cannot be used; the message names it, its value and what to write instead."""


@dataclass(frozen=True, kw_only=True)
class _Declared:
    """What the declaration of an option says beside its name, type and default."""

    help: str
    key: str = ""
    flag: str | None = None
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    positive: bool = False
    write: str = ""
    default_text: str | None = None
    metavar: str = ""
    path: bool = False
    group: str = ""


def option(default: T, **declared: Any) -> T:
    """A field that is an option. `help` is required; the other keywords are:

    key: the flat key, if not the field's name. flag: the flag, if not made of the key; "" for none.
    unit: "s" for a duration, which may be written as `2s` or `5m`; "MB", or a word.
    minimum, maximum, positive: the range; positive means greater than 0.
    write: what to write instead of a value that is out of range or not one of the choices.
    default_text: what the help says of the default; "" for nothing. metavar: the value's name in the help.
    path: whether the value is a path, relative to the TOML file that names it. group: its title in the help.
    """
    metadata = {_OPTION: _Declared(**declared)}
    if isinstance(default, dict):
        return cast(T, dataclasses.field(default_factory=lambda: dict(default), metadata=metadata))
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Option:
    """One option, as its declaration describes it."""

    name: str
    """Of the field."""
    within: tuple[str, ...]
    """Names of the sub-trees that lead to the field."""
    type: Any
    default: Any
    declared: _Declared

    @property
    def key(self) -> str:
        return self.declared.key or self.name

    @property
    def flag(self) -> str:
        """Empty if the option has none."""
        return f"--{self.key.replace('_', '-')}" if self.declared.flag is None else self.declared.flag

    @property
    def group(self) -> str:
        return self.declared.group or (self.within[-1] if self.within else "")

    @property
    def choices(self) -> tuple[str, ...]:
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def plain_type(self) -> Any:
        """The type without None."""
        kinds = [kind for kind in get_args(self.type) if kind is not NoneType]
        return kinds[0] if NoneType in get_args(self.type) else self.type

    @property
    def metavar(self) -> str | None:
        if self.choices:
            return "|".join(self.choices)
        if self.declared.metavar or self.plain_type is str:
            return self.declared.metavar or None
        return {"s": "SPAN", "MB": "MB"}.get(self.declared.unit, "N" if self.plain_type is int else "X")

    @property
    def help(self) -> str:
        """One line, with the default."""
        text = self.declared.default_text
        if text is None and self.default not in (None, "", False):
            text = f"default {self._said(self.default)}"
        elif text is None and self.plain_type is int and self.default is not None:
            text = f"default {self.default}"
        elif text:
            text = f"default: {text}"
        return f"{self.declared.help} ({text})" if text else self.declared.help

    def _said(self, value: Any) -> Any:
        if self.declared.unit == "s":
            return duration_text(value)
        return f"{value:g}" if isinstance(value, float) else value

    def read(self, raw: object) -> Any:
        """The value from the command line, TOML or JSON. Raises SettingError for another type."""
        import msgspec  # the command line asks for help texts much more often than for values

        if self.choices and raw not in self.choices:
            raise SettingError(f"{self.key} is {raw!r}; write {self.declared.write or ', '.join(self.choices)}")
        try:
            if self.declared.unit == "s" and isinstance(raw, str):
                return parse_duration(raw)
            return msgspec.convert(raw, self.type)
        except DurationError as error:
            raise SettingError(f"{self.key}: {error}") from None
        except msgspec.ValidationError as error:
            text, _, place = str(error).partition(" - at `$")
            raise SettingError(f"{self.key}{place.removesuffix('`')}: {text}") from None

    def check(self, value: Any) -> None:
        """Raises SettingError if the value is out of range."""
        declared, unit = self.declared, _UNITS.get(self.declared.unit, "")
        low, high = declared.minimum, declared.maximum
        if value is None or (low is None and not declared.positive):
            return
        least = value > 0 if low is None else value >= low
        if least and (high is None or value <= high):
            return
        if high is not None and low is not None:
            allowed = f"it must be from {low:g} to {high:g}"
        else:
            allowed = "it must be more than 0" if low is None else f"it must be at least {low:g}"
        allowed = f"write {declared.write}" if declared.write else f"{allowed} {unit}".rstrip()
        raise SettingError(f"{self.key} is {value}; {allowed}")


def options(tree: Any) -> dict[str, Option]:
    """All options of a tree, or of a class of trees, by key."""
    return {option.key: option for option in _walk(tree, ())}


def _walk(tree: Any, within: tuple[str, ...]) -> Iterator[Option]:
    types = get_type_hints(tree if isinstance(tree, type) else type(tree))
    for field in dataclasses.fields(tree):
        if dataclasses.is_dataclass(types[field.name]):
            yield from _walk(types[field.name], (*within, field.name))
        elif (declared := field.metadata.get(_OPTION)) is not None:
            default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            yield Option(field.name, within, types[field.name], default, declared)


def value_of(tree: Any, option: Option) -> Any:
    for name in option.within:
        tree = getattr(tree, name)
    return getattr(tree, option.name)


def with_options(tree: T, **values: Any) -> T:
    """The same tree, with other values of the options that have these keys."""
    unknown = values.keys() - options(tree).keys()
    if unknown:
        raise SettingError(f"there is no setting {', '.join(sorted(unknown))}")
    return cast(T, _changed(tree, values))


def flags_beside(tree: Any, values: Mapping[str, Any]) -> tuple[str, ...]:
    """The values, by key, that the tree has not, as they are written on the command line."""
    known = options(tree)
    changed = [known[key] for key, value in values.items() if value != value_of(tree, known[key])]
    return tuple(f"{option.flag} {option._said(values[option.key])}" for option in changed if option.flag)


def _changed(tree: Any, values: Mapping[str, Any]) -> Any:
    changes = {}
    for field in dataclasses.fields(tree):
        old, declared = getattr(tree, field.name), field.metadata.get(_OPTION)
        if dataclasses.is_dataclass(old):
            changes[field.name] = _changed(old, values)
        elif declared is not None and (key := declared.key or field.name) in values:
            changes[field.name] = values[key]
    return dataclasses.replace(tree, **changes)
