"""The one converter between our values and JSON, driven by the type hints of dataclasses.

Any frozen dataclass can be written and read without code of its own::

    @dataclass(frozen=True, slots=True)
    class Start:
        kind: ClassVar = "start"
        spec: WorldSpec
        ports: tuple[int, int]


    Message = Start | Stop

    header = to_json(Start(spec, (1, 2)))  # {"kind": "start", "spec": {...}, "ports": [1, 2]}
    message = from_json(Message, header)  # Start(...): of a union, `kind` says which
    spec = from_json(WorldSpec, parse_json(text))

Types that a field may have, and what they become:

* `None`, `bool`, `int`, `float`, `str`, `Literal`: themselves
* dataclasses: an object of their fields; with a `kind: ClassVar` that is a text, also that. A
  trailing underscore, as in `for_`, is left out in JSON
* `tuple` (of one type or of several), `frozenset`: an array; a set is sorted
* `Mapping` with texts as keys: an object; with other keys: an array of pairs
* unions of all these: the first that fits, in their order
* `bytes`: left out; they travel beside the JSON, so the field needs a default
* `Json`, `JsonObject`, `object` and `Any`: any JSON value, taken as it is

Reading is strict about types and missing fields, and says where something is wrong. It does not
mind a missing field that has a default, nor fields that it does not know: another version may have
added them. Values from outside cannot make it raise anything but `JsonError`.

A class is analysed when it is first converted; after that a message takes a few microseconds.
"""

from __future__ import annotations

import collections.abc
import json
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache, partial
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)
from typing import cast as typed

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
else:
    Json = object  # a recursive type cannot be resolved at run time, and is not looked into

JsonObject = Mapping[str, Json]

T = TypeVar("T")

_Write = Callable[[Any], object]
_Read = Callable[[object], Any]

_PLAIN = (type(None), bool, int, float, str)
_OPAQUE = (object, Any)


class JsonError(ValueError):
    """A JSON value that does not have the shape it should have; says where and why."""


def parse_json(text: str | bytes) -> Json:
    """Return the value of a JSON text that may come from anybody.

    Raises:
        JsonError: It is none, or nested too deep.
    """
    try:
        value: Json = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise JsonError(f"not a JSON text: {error}") from error
    return value


def to_json(value: DataclassInstance) -> dict[str, Json]:
    """Return a dataclass as a JSON object that `from_json` turns back into an equal value."""
    return typed("dict[str, Json]", _writer_of_class(type(value))(value))


@overload
def from_json(shape: type[T], value: object) -> T: ...


@overload
def from_json(shape: object, value: object) -> Any: ...  # noqa: ANN401 - mypy knows no type of a union


def from_json(shape: object, value: object) -> object:
    """Return a JSON value as what `shape` says: a dataclass, or a union or another type.

    Raises:
        JsonError: The value does not have that shape.
    """
    return _reader(shape)(value)


# Writing. A writer that is None means that the value is JSON as it is.


def _written(writer: _Write | None, value: object) -> object:
    return value if writer is None else writer(value)


@cache
def _writer_of_class(cls: type) -> _Write:
    tag = _tag(cls)
    head = {} if tag is None else {"kind": tag}
    parts = [(name, _key(name), _writer(hint)) for name, hint in _hints(cls).items()]

    def write(value: object) -> dict[str, object]:
        data: dict[str, object] = dict(head)
        for name, key, writer in parts:
            item = getattr(value, name)
            data[key] = item if writer is None else writer(item)
        return data

    return write


@cache
def _writer(hint: object) -> _Write | None:
    origin, args = get_origin(hint), get_args(hint)
    if hint in _PLAIN or hint in _OPAQUE or origin is Literal:
        return None
    if is_dataclass(hint):
        return _writer_of_class(typed("type", hint))
    if _is_union(origin):
        return _write_any if any(_writer(each) for each in args) else None
    if origin is tuple and args[-1] is not Ellipsis:
        writers = [_writer(each) for each in args]
        return lambda value: [_written(w, each) for w, each in zip(writers, value, strict=True)]
    if origin in {tuple, frozenset}:
        item = _writer(args[0])
        order: Any = sorted if origin is frozenset else list
        return lambda value: [_written(item, each) for each in order(value)]
    if origin is collections.abc.Mapping:
        key, item = map(_writer, args)
        return partial(_write_object, item) if args[0] is str else partial(_write_pairs, key, item)
    raise TypeError(f"no JSON form is known of {hint!r}")


def _write_object(item: _Write | None, value: Mapping[str, object]) -> object:
    return {name: _written(item, each) for name, each in value.items()}


def _write_pairs(key: _Write | None, item: _Write | None, value: Mapping[object, object]) -> object:
    return [[_written(key, name), _written(item, each)] for name, each in value.items()]


def _write_any(value: object) -> object:
    """Write one alternative of a union by what it is."""
    if is_dataclass(value):
        cls: type = type(value)
        return _writer_of_class(cls)(value)
    if isinstance(value, tuple | frozenset):
        return [_write_any(each) for each in value]
    return value


# Reading.


@cache
def _reader(hint: object) -> _Read:
    origin, args = get_origin(hint), get_args(hint)
    if hint in _OPAQUE:
        return lambda value: value
    if hint in _PLAIN:
        return partial(_read_plain, typed("type", hint))
    if origin is Literal:
        return partial(_read_literal, args)
    if is_dataclass(hint):
        return _reader_of_class(typed("type", hint))
    if _is_union(origin):
        return _reader_of_union(args)
    if origin is tuple and args[-1] is not Ellipsis:
        return partial(_read_fixed, [_reader(each) for each in args])
    if origin in {tuple, frozenset}:
        return partial(_read_sequence, origin, _reader(args[0]))
    if origin is collections.abc.Mapping and args[0] is str:
        return partial(_read_mapping, _reader(args[1]))
    if origin is collections.abc.Mapping:
        return partial(_read_pairs, [_reader(each) for each in args])
    raise TypeError(f"no JSON form is known of {hint!r}")


def _read_plain(kind: type, value: object) -> object:
    if type(value) is kind:
        return value
    if kind is float and type(value) is int:
        return _to_float(value)
    raise _error("null" if kind is type(None) else kind.__name__, value)


def _to_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise JsonError("the number is too large") from error


def _read_literal(choices: Sequence[object], value: object) -> object:
    for each in choices:
        if value == each and type(value) is type(each):
            return each
    raise _error(f"one of {', '.join(map(repr, choices))}", value)


def _read_sequence(kind: Callable[[list[Any]], Any], item: _Read, value: object) -> object:
    return kind([_inside(item, each, index) for index, each in enumerate(_array(value))])


def _read_fixed(items: Sequence[_Read], value: object) -> object:
    array = _array(value)
    if len(array) != len(items):
        raise _error(f"an array of {len(items)}", value)
    return tuple(_inside(*each, index) for index, each in enumerate(zip(items, array, strict=True)))


def _read_mapping(item: _Read, value: object) -> object:
    return {name: _inside(item, each, name) for name, each in _object(value).items()}


def _read_pairs(readers: Sequence[_Read], value: object) -> object:
    pairs = (_read_fixed(readers, each) for each in _array(value))
    return dict(typed("tuple[Any, Any]", each) for each in pairs)


@cache
def _reader_of_class(cls: type) -> _Read:
    hints, tag = _hints(cls), _tag(cls)
    parts = [
        (each.name, _key(each.name), _reader(hints[each.name]), _is_required(each))
        for each in fields(cls)
        if each.name in hints
    ]

    def read(value: object) -> object:
        data = _object(value)
        if tag is not None and data.get("kind") != tag:
            raise _error(f"kind {tag!r}", data.get("kind"))
        found = {}
        for name, key, reader, is_required in parts:
            if key in data:
                found[name] = _inside(reader, data[key], key)
            elif is_required:
                raise JsonError(f"{key} is missing")
        return cls(**found)

    return read


def _reader_of_union(args: Sequence[object]) -> _Read:
    """Return a reader of one of several types; objects with a `kind` are found by that."""
    tagged = {tag: _reader(each) for each in args if (tag := _tag(each)) is not None}
    readers = [_reader(each) for each in args if _tag(each) is None]

    def read(value: object) -> object:
        if tagged and isinstance(value, dict):
            kind = value.get("kind")
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


def _inside(reader: _Read, value: object, where: object) -> object:
    try:
        return reader(value)
    except JsonError as error:
        raise JsonError(f"{where}: {error}") from None


def _array(value: object) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    raise _error("an array", value)


def _object(value: object) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return value
    raise _error("an object", value)


def _error(wanted: str, value: object) -> JsonError:
    text = repr(value) if isinstance(value, _PLAIN) else type(value).__name__
    return JsonError(f"must be {wanted}, not {text[:80]}")


# Classes.


def _hints(cls: type) -> dict[str, object]:
    hints = get_type_hints(cls)
    return {each.name: hints[each.name] for each in fields(cls) if hints[each.name] is not bytes}


def _tag(cls: object) -> str | None:
    """Return what `kind` says of a class in a union; None where it is a field, or not there."""
    tag = vars(cls).get("kind") if is_dataclass(cls) else None
    return tag if isinstance(tag, str) else None


def _key(name: str) -> str:
    return name.removesuffix("_")


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _is_union(origin: object) -> bool:
    return origin in {Union, types.UnionType}
