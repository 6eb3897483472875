"""The JSON Schema of a row, derived from the dataclasses; `row.schema.json` beside this file is its text."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dgemma.bench.row import CONVERGENCE, SCHEMA, Row, Sample

FILE = Path(__file__).with_name("row.schema.json")
_PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}


def schema() -> dict[str, Any]:
    """The schema of one row."""
    found = _object(Row)
    found["properties"]["schema"] = {"const": SCHEMA}
    never = {name: {"type": "null"} for name in CONVERGENCE}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dgemma benchmark row",
        **found,
        "if": {"properties": {"weights": {"const": "random"}}},
        "then": {"properties": never},
    }


def text() -> str:
    """The schema as the file holds it."""
    return json.dumps(schema(), indent=2) + "\n"


def _object(kind: type[Row] | type[Sample]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    names = [each.name for each in fields(kind)]
    properties = {name: _type(hints[name]) for name in names}
    return {"type": "object", "additionalProperties": False, "required": names, "properties": properties}


def _type(hint: Any) -> dict[str, Any]:
    if hint is Sample:
        return _object(Sample)
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return {"type": [_PLAIN[each] for each in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return {"type": "array", "items": _type(arguments[0])}
    assert origin is Mapping, hint
    return {"type": "object"} if arguments[1] is Any else {"type": "object", "additionalProperties": {"type": "number"}}


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
