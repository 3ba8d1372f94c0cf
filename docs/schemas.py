"""Make the JSON schemas of verdict.json and sweep.json from the classes that are written to them.

Texts that are only written, such as the summary of a diagnosis, are added by hand below. Fields may
be added to either file at any time, so no object forbids others.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pytest_multihost.core.model.verdict import Diagnosis, Divergence, Verdict
from pytest_multihost.extensions.sweep.result import SweepResult

FOLDER = Path(__file__).resolve().parent / "schema"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
OBJECT: Schema = {"type": ["object", "null"]}


class Schemas:
    """Collects the schemas of classes, each of which stands once under its name."""

    def __init__(self) -> None:
        """Know no class yet."""
        self.definitions: dict[str, Schema] = {}

    def of(self, shape: object) -> Schema:
        """Return the schema of a type.

        Raises:
            TypeError: JSON has no such type.
        """
        origin, args = typing.get_origin(shape), typing.get_args(shape)
        if dataclasses.is_dataclass(shape) and isinstance(shape, type):
            return dict(TEXT) if hasattr(shape, "parse") else self._reference(shape)
        if shape in _PLAIN:
            return dict(_PLAIN[shape])
        if origin is Literal:
            return {"enum": list(args)}
        if origin in (typing.Union, types.UnionType):
            return _either([self.of(each) for each in args])
        if origin is tuple and args[-1:] == (Ellipsis,):
            return {"type": "array", "items": self.of(args[0])}
        if origin is tuple:
            items = [self.of(each) for each in args]
            return {"type": "array", "prefixItems": items, "minItems": len(args)}
        if origin is not None and issubclass(origin, collections.abc.Mapping):
            return {"type": "object", "additionalProperties": self.of(args[1])}
        if origin is not None and issubclass(origin, collections.abc.Collection):
            return {"type": "array", "items": self.of(args[0])}
        if isinstance(shape, typing.TypeVar | typing.ForwardRef) or shape is Any or shape is object:
            return {}
        return {}  # a value of JSON, whatever it is

    def _reference(self, cls: type) -> Schema:
        if cls.__name__ not in self.definitions:
            self.definitions[cls.__name__] = {}
            self.definitions[cls.__name__] = self.object_of(cls)
        return {"$ref": f"#/$defs/{cls.__name__}"}

    def object_of(self, cls: type, **more: Schema) -> Schema:
        """Return the schema of a class, with fields that only the file has."""
        hints = typing.get_type_hints(cls)
        omits = bool(getattr(cls, "omits_defaults", False))
        named = {
            each.name.rstrip("_"): each
            for each in dataclasses.fields(cls)
            if not getattr(hints[each.name], "stays_in_memory", False)
        }
        required = [name for name, each in named.items() if not (omits and _has_default(each))]
        properties = {name: self.of(hints[each.name]) for name, each in named.items()}
        return {"type": "object", "properties": {**properties, **more}, "required": required}


_PLAIN: Mapping[object, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
}


def _has_default(each: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return each.default is not missing or each.default_factory is not missing


def _either(shapes: list[Schema]) -> Schema:
    kinds = [each.get("type") for each in shapes if set(each) == {"type"}]
    if len(kinds) == len(shapes):
        return {"type": kinds}
    return {"anyOf": shapes}


def verdict_schema() -> Schema:
    """Return the schema of verdict.json."""
    found = Schemas()
    top = found.object_of(Verdict, hazards=OBJECT, wrong=OBJECT, simulated=OBJECT)
    del top["properties"]["analyses"]
    top["required"] = [each for each in top["required"] if each not in ("analyses", "compact")]
    diagnosis = found.object_of(Diagnosis, summary=TEXT)
    _replace(diagnosis, "headline", "summary")
    divergence = found.object_of(Divergence)
    _replace(divergence, "lead")
    evidence = found.definitions["Evidence"]
    evidence["properties"]["claim"] = TEXT
    evidence["required"].append("claim")
    found.definitions["Divergence"] = divergence
    found.definitions["Diagnosis"] = diagnosis
    found.definitions.pop("Span", None)
    top["properties"]["diagnosis"] = {"anyOf": [{"$ref": "#/$defs/Diagnosis"}, {"type": "null"}]}
    return _document("verdict", top, found.definitions)


def sweep_schema() -> Schema:
    """Return the schema of sweep.json."""
    found = Schemas()
    top = found.object_of(SweepResult, survives=TEXT)
    top["required"].append("survives")
    _add(found.definitions["DisturbedRun"], done=TEXT, text=TEXT)
    weakness = found.definitions["Weakness"]
    _add(weakness, text=TEXT, rating_text=TEXT, seen_in=TEXT, replay=TEXT)
    _add(weakness, confirmed={"type": ["boolean", "null"]}, mending={"type": "object"})
    return _document("sweep", top, found.definitions)


def _replace(schema: Schema, field: str, *added: str) -> None:
    """Replace a field that is not written by fields that are."""
    del schema["properties"][field]
    schema["required"] = [each for each in schema["required"] if each != field] + list(added)


def _add(schema: Schema, **fields: Schema) -> None:
    """Add fields that are always written."""
    schema["properties"].update(fields)
    schema["required"].extend(fields)


def _document(name: str, top: Schema, definitions: Mapping[str, Schema]) -> Schema:
    used = dict(sorted(definitions.items()))
    return {"$schema": DIALECT, "title": f"{name}.json", **top, "$defs": used}


FILES = {"verdict.schema.json": verdict_schema, "sweep.schema.json": sweep_schema}


def text_of(schema: Schema) -> str:
    """Return a schema as the text of its file."""
    return json.dumps(schema, indent=1) + "\n"


def write() -> None:
    """Write both files."""
    FOLDER.mkdir(exist_ok=True)
    for name, make in FILES.items():
        (FOLDER / name).write_text(text_of(make()), encoding="utf-8")
