"""The converter to and from JSON: what is written is read back equal, and nothing else is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pytest

from pytest_multihost.core.model.json_values import (
    Json,
    JsonError,
    JsonObject,
    from_json,
    parse_json,
    to_json,
)


@dataclass(frozen=True, slots=True)
class Part:
    """A dataclass within others."""

    name: str
    size: float = 0.0


@dataclass(frozen=True, slots=True)
class Opened:
    """One alternative of a union."""

    kind: ClassVar = "opened"
    path: str


@dataclass(frozen=True, slots=True)
class Closed:
    """Another one, with a field that Python reserves the name of."""

    kind: ClassVar = "closed"
    for_: int = 0


Message = Opened | Closed


@dataclass(frozen=True, slots=True)
class Everything:
    """A field of each type that can be converted."""

    count: int
    pair: tuple[int, str]
    parts: tuple[Part, ...]
    chosen: frozenset[int]
    by_name: Mapping[str, Part]
    by_key: Mapping[tuple[int, ...], str]
    by_number: Mapping[int, bool]
    message: Message
    color: Literal["red", "blue", 3] = "red"
    some: Part | None = None
    ranks: tuple[int, ...] | str = "all"
    anything: Json = None
    details: JsonObject = field(default_factory=dict)


FULL = Everything(
    count=1,
    pair=(1, "x"),
    parts=(Part("a", 1.5), Part("b")),
    chosen=frozenset({3, 1, 2}),
    by_name={"c": Part("c")},
    by_key={(1, 2): "y"},
    by_number={7: True},
    message=Closed(for_=3),
    color=3,
    some=Part("d"),
    ranks=(0, 1),
    anything=[{"deep": [None]}],
    details={"k": [1, 2]},
)
FEW = Everything(0, (0, ""), (), frozenset(), {}, {}, {}, Opened("/p"))


@pytest.mark.parametrize("value", [FULL, FEW])
def test_what_is_written_is_read_back_equal(value: Everything) -> None:
    """Through a JSON text."""
    assert from_json(Everything, parse_json(json.dumps(to_json(value)))) == value


def test_what_is_written_is_what_a_reader_expects() -> None:
    """Sets are sorted, keys that are no texts become pairs, `for_` is `for`."""
    data = to_json(FULL)
    assert data["chosen"] == [1, 2, 3]
    assert data["by_key"] == [[[1, 2], "y"]]
    assert data["message"] == {"kind": "closed", "for": 3}


@pytest.mark.parametrize(
    ("data", "message"),
    [({"kind": "opened", "path": "/p"}, Opened("/p")), ({"kind": "closed"}, Closed())],
)
def test_of_a_union_the_kind_says_which(data: dict[str, Any], message: Message) -> None:
    """And what another version has added is ignored."""
    assert from_json(Message, {**data, "added": 1}) == message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"count": "1"}, "count: must be int, not '1'"),
        ({"count": True}, "count: must be int, not True"),
        ({"count": 1.0}, "count: must be int, not 1.0"),
        ({"count": 1 << 64}, "count: the number is too large"),
        ({"pair": [1]}, "pair: must be an array of 2"),
        ({"pair": [1, 2]}, "pair: 1: must be str, not 2"),
        ({"parts": {}}, "parts: must be an array, not dict"),
        ({"parts": [{"name": "a"}, {}]}, "parts: 1: name is missing"),
        ({"parts": [{"name": "a", "size": 10**400}]}, "parts: 0: size: the number is too large"),
        ({"chosen": [[]]}, "chosen: 0: must be int, not list"),
        ({"by_name": {"a": 1}}, "by_name: a: must be an object, not 1"),
        ({"by_name": []}, "by_name: must be an object, not list"),
        ({"by_key": [[[1], 2, 3]]}, "by_key: 0: must be an array of 2"),
        ({"by_key": [[1, "a"]]}, "by_key: 0: 0: must be an array, not 1"),
        ({"message": {"kind": "lost"}}, "message: must be an object of kind 'opened', 'closed'"),
        ({"message": {"kind": []}}, "message: must be an object of kind"),
        ({"message": None}, "message: must be an object of kind"),
        ({"color": "green"}, "color: must be one of 'red', 'blue', 3, not 'green'"),
        ({"color": 3.0}, "color: must be one of"),
        ({"some": []}, "some: must be an object, not list; must be null, not list"),
        ({"ranks": None}, "ranks: must be an array, not None; must be str, not None"),
    ],
)
def test_another_shape_is_an_error_that_says_where(changes: dict[str, Any], words: str) -> None:
    """Nothing is guessed or converted, but a whole number where a float is wanted."""
    data = {**to_json(FULL), **changes}
    with pytest.raises(JsonError) as raised:
        from_json(Everything, data)
    assert str(raised.value).startswith(words)


def test_a_missing_field_without_a_default_is_an_error() -> None:
    """And one with a default is not."""
    data = to_json(FEW)
    for name in ("color", "some", "ranks", "anything", "details"):
        del data[name]
    assert from_json(Everything, data) == FEW
    del data["count"]
    with pytest.raises(JsonError, match="count is missing"):
        from_json(Everything, data)


@pytest.mark.parametrize("text", [b"{", b"\xff", "[" * 100_000, "9" * 5000, "nothing"])
def test_a_text_that_is_not_json_is_an_error_and_nothing_worse(text: str | bytes) -> None:
    """It may come from anybody: nested too deep, in no encoding, with a number without end."""
    with pytest.raises(JsonError, match="not a JSON text"):
        parse_json(text)


@pytest.mark.parametrize("hint", [set[int], list[int], bytes, complex])
def test_a_type_without_a_json_form_is_refused(hint: object) -> None:
    """That is a mistake of ours, and not of who has written the value."""
    with pytest.raises(TypeError, match="no JSON form is known"):
        from_json(hint, [])


def test_a_union_is_read_in_its_own_order() -> None:
    """Python calls unions of the same types equal, whatever their order."""
    assert type(from_json(int | float, 1)) is int
    assert type(from_json(float | int, 1)) is float
