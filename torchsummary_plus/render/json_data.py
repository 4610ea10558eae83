"""A result <-> JSON: the whole object, by a schema that has a version.

``type`` is the name of the class, ``version`` that of the schema, and every other name a field of the class, documented
there; ``derived`` has, for readers, some of what the fields tell. Shapes are those of a batch of 1 where the batch is
open, and ``batch_axes`` are those that grow with it. Bytes are bytes. Moments, storages, calls and doubts of a memory
log are written by column.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from ..codec import Codec, Schema
from ..errors import InputError
from ..memory_records import Doubt, ModuleCall, Moment, StorageSpec
from ..units import describe

VERSION = 1
"""Of the schema: another one wherever a field is added, changed or taken away."""

BY_COLUMN = (Moment, StorageSpec, ModuleCall, Doubt)

Result = TypeVar("Result")


def as_plain(value: Any, names: Mapping[str, Any], derived: tuple[str, ...]) -> dict[str, Any]:
    """A result as plain data. ``names`` are types that its annotations name, ``derived`` are properties of it."""
    head = {"type": type(value).__name__, "version": VERSION}
    told = {name: getattr(value, name) for name in derived}
    return {**head, **Codec(BY_COLUMN, names).encode(value), "derived": told}


def from_text(kind: type[Result], text: str, names: Mapping[str, Any]) -> Result:
    """The result that a JSON text was made of. Raises :class:`InputError` where it is of another type or version."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise InputError(f"the text is no JSON: {error}") from None
    head = (data.pop("type", None), data.pop("version", None)) if isinstance(data, dict) else (None, None)
    if head != (kind.__name__, VERSION):
        raise InputError(f"the JSON is of {describe(head[0])}, version {head[1]}; accepted: {kind.__name__}, {VERSION}")
    data.pop("derived", None)
    result: Result = Codec(BY_COLUMN, names).decode(kind, data)
    return result


def schema_of(kind: type, names: Mapping[str, Any]) -> Schema:
    """The JSON Schema of a result."""
    schema = Codec(BY_COLUMN, names).schema(kind)
    top = schema["$defs"][kind.__name__]
    head = {"type": {"const": kind.__name__}, "version": {"const": VERSION}, "derived": {"type": "object"}}
    named = {**top, "properties": {**head, **top["properties"]}, "required": ["type", "version", *top["required"]]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **named, "$defs": schema["$defs"]}
