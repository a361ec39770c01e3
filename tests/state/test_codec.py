"""Values to bytes and back, and bytes that no giver ever sent."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict, namedtuple
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from understudy.state.codec import decode, encode
from understudy.state.errors import StateError

numbers = st.integers() | st.integers(min_value=-(1 << 200), max_value=1 << 200)
atoms = (
    st.none()
    | st.booleans()
    | numbers
    | st.floats()
    | st.complex_numbers()
    | st.text(st.characters())
    | st.text(st.characters(categories=["Cs", "Lu"]))
    | st.binary()
)
keys = st.recursive(
    atoms.filter(lambda value: value == value),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
values = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.dictionaries(keys, inner).map(OrderedDict)
        | st.sets(keys)
    ),
    max_leaves=25,
)


def same(a: Any, b: Any) -> bool:
    """Equal in type, value, order and sign of zero; a nan equals a nan."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    return bool(a == b)


@given(values)
def test_a_value_comes_back_as_it_was(value: object) -> None:
    assert same(decode(encode(value, "value")), value)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, bool),
        (1, int),
        (1.0, float),
        (-0.0, float),
        (float("nan"), float),
        (1 << 128, int),
        (-(1 << 63) - 1, int),
        ((1, [2, (3,)]), tuple),
        (OrderedDict(b=1, a=2), OrderedDict),
        (Counter([3, 3, 5]), Counter),
        (torch.Size([2, 3]), torch.Size),
        (torch.bfloat16, torch.dtype),
        (torch.device("cuda", 1), torch.device),
        (np.float64(0.1), np.float64),
        (np.int8(-3), np.int8),
        (np.bool_(True), np.bool_),
        (np.datetime64("2026-01-01", "s"), np.datetime64),
    ],
)
def test_types_are_kept(value: object, kind: type) -> None:
    result = decode(encode([value], "value"))[0]
    assert type(result) is kind
    assert same(result, value)


def test_some_types_become_simpler() -> None:
    assert decode(encode(defaultdict(list, {"a": [1]}), "value")) == {"a": [1]}
    assert decode(encode(np.str_(""), "value")) == ""
    assert decode(encode(np.bytes_(b"\0"), "value")) == b"\0"


TENSORS = [
    torch.randn(3, 4),
    torch.randn(3, 4).to(torch.bfloat16),
    torch.randn(2, 3).to(torch.float8_e4m3fn),
    torch.randn(5, dtype=torch.complex64),
    torch.randn(5, dtype=torch.complex64).conj(),
    torch.tensor([True, False]),
    torch.tensor(7),
    torch.empty(0, 3),
    torch.arange(12).view(3, 4).t(),
    torch.arange(3).expand(4, 3),
    torch.ones(1).expand(8)[:1],
    torch.tensor([float("nan"), float("inf"), -0.0]),
    torch.Generator().manual_seed(3).get_state(),
    nn.Parameter(torch.ones(2)),
]


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda t: f"{t.dtype}{list(t.shape)}")
def test_a_tensor_comes_back_bit_by_bit(tensor: torch.Tensor) -> None:
    result = decode(encode({"t": tensor}, "value"))["t"]
    assert result.dtype == tensor.dtype
    assert result.shape == tensor.shape
    plain = tensor.detach().resolve_conj().clone(memory_format=torch.contiguous_format)
    assert torch.equal(result.reshape(-1).view(torch.uint8), plain.reshape(-1).view(torch.uint8))
    result.zero_()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3).T,
        np.array(2.5),
        np.zeros((0, 2), dtype=">i2"),
        np.array(["a", "bcd"]),
        np.array(["2026-01-01"], dtype="M8[D]"),
        np.array([True]),
        np.array([1j], dtype=np.complex64),
    ],
    ids=lambda a: str(a.dtype),
)
def test_an_array_comes_back_bit_by_bit(array: np.ndarray[Any, Any]) -> None:
    result = decode(encode(array, "value"))
    assert result.dtype == array.dtype
    np.testing.assert_array_equal(result, array)


def test_generators_continue_from_the_same_state() -> None:
    source = np.random.default_rng(3)
    source.random(5)
    taken = np.random.default_rng(4)
    taken.bit_generator.state = decode(encode(source.bit_generator.state, "sampler"))
    assert taken.random() == source.random()


def test_equal_values_give_equal_bytes() -> None:
    words = [f"word {n}" for n in range(50)]
    assert encode(set(words), "value") == encode({*words[::-1]}, "value")
    assert encode({"a": 1, "b": 2}, "value") != encode({"b": 2, "a": 1}, "value")
    first, second = ({"x": {"a": 1, "b": 2}, "y": 0}, {"y": 0, "x": {"b": 2, "a": 1}})
    assert encode(first, "value", sort_keys=True) == encode(second, "value", sort_keys=True)


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"lr_lambdas": [same]}, "scheduler.lr_lambdas[0]: a function cannot be moved safely; let state_dict()"),
        ({"a b": {3: (1, Path("x"))}}, "scheduler['a b'][3][1]: a PosixPath cannot be moved safely"),
        ([object()], "scheduler[0]: an object cannot"),
        ({"s": {frozenset({Path("x")})}}, "scheduler.s{…}{…}: a PosixPath"),
        ({"p": Point(1, 2)}, "scheduler.p: a Point cannot"),
        ({"a": np.array([object()])}, "scheduler.a: a numpy array of object cannot"),
        ({"t": torch.empty(2, device="meta")}, "scheduler.t: a tensor on the meta device"),
        ({"t": torch.eye(2).to_sparse()}, "scheduler.t: a Tensor (torch.sparse_coo) cannot"),
        ({Path("x"): 1}, "scheduler[PosixPath('x')]: a PosixPath cannot"),
    ],
)
def test_what_cannot_move_is_named(value: object, message: str) -> None:
    with pytest.raises(StateError) as error:
        encode(value, "scheduler")
    assert str(error.value).startswith(message)


def test_what_contains_itself_is_named() -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(StateError, match="levels deep, or it contains itself"):
        encode(value, "loader")


RICH = encode(
    {
        "ints": [1, -1, 1 << 90, 2.5, 1j],
        "tensor": torch.arange(5),
        "array": np.arange(4.0).reshape(2, 2),
        "scalar": np.float32(2),
        "sets": ({1, 2}, frozenset("ab")),
        "size": torch.Size([1]),
        "torch": (torch.float16, torch.device("cpu")),
        "text": "é\ud800",
        "counter": Counter("aab"),
    },
    "value",
)


def never_fails_otherwise(data: bytes) -> None:
    with suppress(StateError):
        decode(data)


@given(st.binary())
def test_random_bytes_are_a_state_error(data: bytes) -> None:
    never_fails_otherwise(data)


@settings(max_examples=500)
@given(st.lists(st.tuples(st.integers(0, len(RICH) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_mutated_bytes_are_a_state_error(changes: list[tuple[int, int]]) -> None:
    data = bytearray(RICH)
    for place, byte in changes:
        data[place] = byte
    never_fails_otherwise(bytes(data))


@given(st.recursive(atoms | st.integers(0, 16), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_well_formed_nonsense_is_a_state_error(nonsense: object) -> None:
    with suppress(NotImplementedError, TypeError, UnicodeEncodeError, OverflowError):  # where it is not MessagePack
        data = msgspec.msgpack.encode(nonsense)
        never_fails_otherwise(data)


def test_every_truncation_is_a_state_error() -> None:
    for length in range(len(RICH)):
        with pytest.raises(StateError):
            decode(RICH[:length])
    with pytest.raises(StateError):
        decode(RICH + b"\0")


@pytest.mark.parametrize(
    "data",
    [
        b"\xdd\xff\xff\xff\xff\x00",  # a list of four thousand million
        b"\xc6\xff\xff\xff\xff\x00",
        b"\x92\x00" * 100_000,
        msgspec.msgpack.encode([11, "float32", [1 << 40], b"abcd"]),
        msgspec.msgpack.encode([11, "float32", [(1 << 64) - 1, 0], b""]),
        msgspec.msgpack.encode([11, "float32", [-1, -1], b"abcd"]),
        msgspec.msgpack.encode([11, "float32", [1] * 65, b"abcd"]),
        msgspec.msgpack.encode([11, "quint8", [True], b"a"]),
        msgspec.msgpack.encode([12, "|O", [1], b"a" * 8]),
        msgspec.msgpack.encode([12, "<U0", [1 << 40], b""]),
        msgspec.msgpack.encode([12, "<U999999999", [1], b"abcd"]),
        msgspec.msgpack.encode([4, 1]),
        msgspec.msgpack.encode([4, [0], 1]),
        msgspec.msgpack.encode([2, [0]]),
        msgspec.msgpack.encode([15, "no device"]),
        msgspec.msgpack.encode([True]),
        msgspec.msgpack.encode([]),
        msgspec.msgpack.encode({"a": 1}),
        b"\xd6\xff\x00\x00\x00\x00",  # a time
    ],
    ids=range(19),
)
def test_hostile_bytes_are_a_state_error(data: bytes) -> None:
    with pytest.raises(StateError):
        decode(data)
