"""Shapes of JSON Schema, of which the schemas of mesh's files are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Schema: TypeAlias = dict[str, object]

TEXT: Schema = {"type": "string", "minLength": 1}
FLAG: Schema = {"type": "boolean"}
NOTHING: Schema = {"type": "null"}
SCALAR: Schema = {"type": ["string", "number", "boolean"]}
SECONDS: Schema = {"type": "number", "minimum": 0}


def about(text: str, shape: Schema) -> Schema:
    """Return a shape with the text that an editor shows for it."""
    return {"description": text, **shape}


def matching(pattern: str) -> Schema:
    """Return the shape of texts that a pattern matches as a whole."""
    return {"type": "string", "pattern": f"^(?:{pattern})$"}


def any_of(*shapes: Schema) -> Schema:
    return {"anyOf": list(shapes)}


def items(shape: Schema, *, least: int = 0) -> Schema:
    """Return the shape of a list."""
    return {"type": "array", "items": shape, **({"minItems": least} if least else {})}


def texts() -> Schema:
    return any_of(items(TEXT), NOTHING)


def keyed(keys: Sequence[str], shapes: Mapping[str, Schema], required: Sequence[str] = ()) -> Schema:
    """Return the shape of a mapping with these keys and no others. Raises KeyError for a key without a shape."""
    made: Schema = {
        "type": "object",
        "additionalProperties": False,
        "properties": {key: shapes[key] for key in keys},
    }
    return {**made, "required": list(required)} if required else made
