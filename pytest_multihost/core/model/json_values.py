"""The converter between this package's values and JSON, driven by the type hints of dataclasses.

Any frozen dataclass can be written and read without code of its own::

    @message
    class Start:
        spec: WorldSpec
        ports: tuple[int, int]


    Message = Start | Stop

    header = to_json(Start(spec, (1, 2)))  # {"kind": "Start", "spec": {...}, "ports": [1, 2]}
    message = from_json(Message, header)  # Start(...): of a union, `kind` says which
    spec = from_json(WorldSpec, parse_json(text))

Types that a field may have, and their JSON:

* `None`, `bool`, `int` (of 64 bits), `float`, `str`, `Literal`: themselves
* dataclasses: an object of their fields, and of `kind` if they have a `kind: ClassVar` that is a
  string, as `@message` gives them; with `omits_defaults: ClassVar = True` only the fields that
  differ from their defaults. JSON omits a trailing underscore, as in `for_`. A dataclass with a
  class method `parse` is a text
* `range` of consecutive numbers: an array of its start and its stop
* `tuple` (of one type or of several), `frozenset`: an array; a set is sorted
* `Mapping` with texts as keys: an object; with other keys: an array of pairs
* unions of all these: the first that fits, in their order
* `bytes`: skipped; they travel beside the JSON, so the field needs a default
* dataclasses with `stays_in_memory: ClassVar = True`: skipped, so the field needs a default
* `Json`, `JsonObject`, `object` and `Any`: any JSON value, taken as it is

Reading is strict about types and missing fields, and reports where something is wrong. It accepts a
missing field that has a default, and unknown fields: another version may have added them. Values
from outside cannot make it raise anything but `JsonError`.

A class is analysed when it is first converted; after that a message takes a few microseconds.
"""

from __future__ import annotations

import collections.abc
import json
import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache, partial
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)
from typing import cast as typed

from pytest_multihost.core.model.errors import SettingError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
else:
    Json = object  # a recursive type cannot be resolved at run time, and is not looked into

JsonObject = Mapping[str, Json]

T = TypeVar("T")

_Convert = Callable[[object], object]

_PLAIN = (type(None), bool, int, float, str)
_OPAQUE = (object, Any)
_MAX_INT = 1 << 64
_UNINSPECTED = (*_PLAIN, *_OPAQUE, Mapping[str, object], Mapping[str, Any])
"""Types whose values are JSON already. They may be large, and are written as they are."""


class JsonError(ValueError):
    """A JSON value does not have the expected shape; the text gives the position and the reason."""


@dataclass_transform(frozen_default=True)
def message(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass whose `kind` in JSON is its name."""
    typed("Any", cls).kind = cls.__name__
    return dataclass(frozen=True, slots=True)(cls)


def parse_json(text: str | bytes) -> Json:
    """Return the value of a JSON text from any source.

    Raises:
        JsonError: It is not JSON, or nested too deep.
    """
    try:
        value: Json = json.loads(text)
    except (ValueError, RecursionError, MemoryError) as error:
        raise JsonError(f"not a JSON text: {error}") from error
    return value


_MAX_VALUES = 2_000_000
_MAX_DEPTH = 100


def has_many_values(text: bytes) -> bool:
    """Return whether a JSON text has more values than are read of foreign JSON."""
    return sum(map(text.count, (b",", b"[", b"{"))) > _MAX_VALUES


def parse_foreign(text: bytes, *, max_depth: int = _MAX_DEPTH) -> Json:
    """Return the value of a JSON text that another program may have written.

    Args:
        max_depth: How deep its values may be nested.

    Raises:
        JsonError: It is not JSON, or has too many values, too deep ones or too large numbers.
    """
    if has_many_values(text):  # before they take memory
        raise JsonError(f"it has more than {_MAX_VALUES} values")
    value = parse_json(text)
    level: list[Json] = [value]
    for _ in range(max_depth + 1):
        inner: list[Json] = []
        for each in level:
            if isinstance(each, dict):
                inner.extend(each.values())
            elif isinstance(each, list):
                inner.extend(each)
            elif type(each) is int and not -_MAX_INT < each < _MAX_INT:
                raise JsonError("a number is too large")
        if not inner:
            return value
        level = inner
    raise JsonError(f"its values are nested more than {max_depth} deep")


def finite(value: Json) -> Json:
    """Return a JSON value with NaN and infinity, which JSON does not have, as texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [finite(each) for each in value]
    return value


def to_json(value: DataclassInstance) -> dict[str, Json]:
    """Return a dataclass as a JSON object that `from_json` turns back into an equal value."""
    return typed("dict[str, Json]", _written(value))


@overload
def from_json(shape: type[T], value: object) -> T: ...


@overload
def from_json(shape: object, value: object) -> Any: ...  # noqa: ANN401 - mypy knows no type of a union


def from_json(shape: object, value: object) -> object:
    """Return a JSON value as `shape`: a dataclass, a union or another type.

    Raises:
        JsonError: The value does not have that shape.
    """
    return _known_reader(shape, get_args(shape))(value)


def build_converters(*unions: object) -> None:
    """Build readers and writers for the classes of unions now, so forked processes share them."""
    for union in unions:
        _known_reader(union, get_args(union))
        for cls in get_args(union):
            _writer(cls)


# Writing depends on the values' types.


def _written(value: object) -> object:
    if isinstance(value, _PLAIN):
        return value
    if is_dataclass(value):
        cls: type = type(value)
        return _writer(cls)(value)
    if isinstance(value, collections.abc.Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: _written(item) for key, item in value.items()}
        return [[_written(key), _written(item)] for key, item in value.items()]
    if isinstance(value, range):
        return [value.start, value.stop]
    if isinstance(value, tuple | list | frozenset):
        items = sorted(value) if isinstance(value, frozenset) else value
        return [_written(each) for each in items]
    return value


@cache
def _writer(cls: type) -> _Convert:
    if hasattr(cls, "parse"):
        return str
    tag = _tag(cls)
    head = {} if tag is None else {"kind": tag}
    omits_defaults = getattr(cls, "omits_defaults", False)
    parts = [
        (each.name, key, each.default if omits_defaults else MISSING, hint in _UNINSPECTED)
        for each, key, hint in _fields(cls)
    ]

    def write(value: object) -> dict[str, object]:
        data: dict[str, object] = dict(head)
        for name, key, default, is_json in parts:
            item = getattr(value, name)
            if default is MISSING or item != default:
                data[key] = item if is_json else _written(item)
        return data

    return write


# Reading depends on the type hints.


@cache
def _known_reader(hint: object, _args: tuple[object, ...]) -> _Convert:
    """Return the reader of a type, made once.

    Unions of the same types in another order are equal but are read differently, so the order of
    the arguments is a part of the key.
    """
    return _reader(hint)


def _reader(hint: object) -> _Convert:
    origin, args = get_origin(hint), get_args(hint)
    if hint in _OPAQUE:
        return lambda value: value
    if hint in _PLAIN:
        return partial(_read_plain, typed("type", hint))
    if origin is Literal:
        return partial(_read_literal, args)
    if is_dataclass(hint):
        return _reader_of_dataclass(typed("type", hint))
    if origin in {Union, types.UnionType}:
        return _reader_of_union(args)
    return _reader_of_collection(hint)


def _reader_of_collection(hint: object) -> _Convert:
    origin, args = get_origin(hint), get_args(hint)
    if hint is range:
        bounds = partial(_read_fixed, [_reader(int), _reader(int)])
        return lambda value: range(*typed("tuple[int, int]", bounds(value)))
    if origin is tuple and args[-1] is not Ellipsis:
        return partial(_read_fixed, [_reader(each) for each in args])
    if origin in {tuple, frozenset}:
        return partial(_read_sequence, origin, _reader(args[0]))
    if origin is collections.abc.Mapping:
        if args[0] is str:
            return partial(_read_object, _reader(args[1]))
        return partial(_read_pairs, partial(_read_fixed, [_reader(each) for each in args]))
    raise TypeError(f"no JSON form is known of {hint!r}")


def _read_plain(kind: type, value: object) -> object:
    if type(value) is int and not -_MAX_INT < value < _MAX_INT:
        raise JsonError("the number is too large")
    if type(value) is kind:
        return value
    if kind is float and type(value) is int:
        return float(value)
    raise _error("null" if kind is type(None) else kind.__name__, value)


def _read_literal(choices: Sequence[object], value: object) -> object:
    for each in choices:
        if value == each and type(value) is type(each):
            return each
    raise _error(f"one of {', '.join(map(repr, choices))}", value)


def _read_text(parse: _Convert, value: object) -> object:
    try:
        return parse(_read_plain(str, value))
    except SettingError as error:
        raise JsonError(str(error)) from None


def _read_sequence(kind: _Convert, item: _Convert, value: object) -> object:
    if not isinstance(value, list | tuple):
        raise _error("an array", value)
    return kind([_inside(item, each, index) for index, each in enumerate(value)])


def _read_fixed(items: Sequence[_Convert], value: object) -> tuple[object, ...]:
    if not isinstance(value, list | tuple) or len(value) != len(items):
        raise _error(f"an array of {len(items)}", value)
    return tuple(_inside(*each, index) for index, each in enumerate(zip(items, value, strict=True)))


def _read_object(item: _Convert, value: object) -> object:
    if not isinstance(value, dict):
        raise _error("an object", value)
    return {name: _inside(item, each, name) for name, each in value.items()}


def _read_pairs(pair: _Convert, value: object) -> object:
    # Without keys, their type is unknown to the writer.
    return {} if value == {} else _read_sequence(typed("_Convert", dict), pair, value)


@cache
def _reader_of_dataclass(cls: type) -> _Convert:
    if hasattr(cls, "parse"):
        return partial(_read_text, cls.parse)
    tag = _tag(cls)
    parts = [
        (each, key, _reader(hint), each.default is each.default_factory is MISSING)
        for each, key, hint in _fields(cls)
    ]

    def read(value: object) -> object:
        if not isinstance(value, dict):
            raise _error("an object", value)
        if tag is not None and value.get("kind") != tag:
            raise _error(f"kind {tag!r}", value.get("kind"))
        found = {}
        for each, key, reader, is_required in parts:
            if key in value:
                found[each.name] = _inside(reader, value[key], key)
            elif is_required:
                raise JsonError(f"{key} is missing")
        return cls(**found)

    return read


def _reader_of_union(args: Sequence[object]) -> _Convert:
    """Return a reader of one of several types; `kind` selects among dataclasses that have one."""
    tagged = {tag: _reader(each) for each in args if (tag := _tag(each)) is not None}
    readers = [_reader(each) for each in args if _tag(each) is None]

    def read(value: object) -> object:
        kind = value.get("kind") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind in tagged:
            return tagged[kind](value)
        problems = []
        for reader in readers:
            try:
                return reader(value)
            except JsonError as error:
                problems.append(str(error))
        kinds = [f"must be an object of kind {', '.join(map(repr, tagged))}"] if tagged else []
        raise JsonError("; ".join(problems + kinds))

    return read


def _inside(reader: _Convert, value: object, where: object) -> object:
    try:
        return reader(value)
    except JsonError as error:
        raise JsonError(f"{where}: {error}") from None


def _error(wanted: str, value: object) -> JsonError:
    text = repr(value) if isinstance(value, _PLAIN) else type(value).__name__
    return JsonError(f"must be {wanted}, not {text[:80]}")


def _fields(cls: type) -> list[tuple[Field[Any], str, object]]:
    """Return the fields of a dataclass that JSON has, each with its key and type."""
    hints = get_type_hints(cls)
    pairs = [(each, hints[each.name]) for each in fields(cls)]
    return [
        (each, each.name.removesuffix("_"), hint)
        for each, hint in pairs
        if hint is not bytes and not getattr(hint, "stays_in_memory", False)
    ]


def _tag(cls: object) -> str | None:
    """Return the `kind` of a class in a union; None if that is a field or missing."""
    tag = vars(cls).get("kind") if is_dataclass(cls) else None
    return tag if isinstance(tag, str) else None
