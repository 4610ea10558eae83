"""A result <-> JSON: the whole object, in a versioned schema.

``type`` is the class name, ``version`` the schema version, "major.minor"; every other key is a field of the class,
documented there. ``derived`` adds properties computed from the fields, for readers. A reader accepts every minor
version of its major one: missing fields have their defaults, unknown ones are ignored. With an open batch the shapes
are those of a batch of 1, and ``batch_axes`` lists the axes that scale with the batch. Sizes are in bytes. The moments,
storages, calls, doubts and kernels of a memory log and the links of a graph are written by column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from ..data.codec import Codec, Schema
from ..data.errors import InputError
from ..data.json_text import parsed
from ..data.kernel_records import Kernel
from ..data.memory_records import Doubt, ModuleCall, Moment, StorageSpec
from ..data.records import Link
from ..data.units import describe

MAJOR, MINOR = 1, 7
"""The schema version: the minor is raised for a field that is added, the major for one that is changed or removed."""

VERSION = f"{MAJOR}.{MINOR}"

BY_COLUMN = (Moment, StorageSpec, ModuleCall, Doubt, Kernel, Link)

Result = TypeVar("Result")


def as_plain(value: Any, names: Mapping[str, Any], derived: tuple[str, ...]) -> dict[str, Any]:
    """Return a result as plain data. ``names`` resolves types in annotations, ``derived`` lists properties to add."""
    head = {"type": type(value).__name__, "version": VERSION}
    values = {name: getattr(value, name) for name in derived}
    return {**head, **Codec(BY_COLUMN, names).encode(value), "derived": values}


def from_text(kind: type[Result], text: str, names: Mapping[str, Any]) -> Result:
    """Parse a result from JSON. Raises :class:`InputError` for another type or major version, and contradictions."""
    try:
        data = parsed(text)
    except ValueError as error:
        raise InputError(f"the text is not valid JSON: {error}") from None
    name, version = (data.pop("type", None), data.pop("version", None)) if isinstance(data, dict) else (None, None)
    if name != kind.__name__ or str(version).partition(".")[0] != str(MAJOR):
        raise InputError(
            f"the JSON is of {describe(name)}, version {version}; "
            f"accepted: {kind.__name__}, {VERSION} or another {MAJOR}.x"
        )
    data.pop("derived", None)
    try:
        result: Result = Codec(BY_COLUMN, names, is_exact=version == VERSION).decode(kind, data)
    except RecursionError:
        raise InputError("the text is not valid JSON: it is nested too deeply") from None
    return result


def schema_of(kind: type, names: Mapping[str, Any]) -> Schema:
    """Return the JSON Schema of a result."""
    schema = Codec(BY_COLUMN, names).schema(kind)
    top = schema["$defs"][kind.__name__]
    head = {"type": {"const": kind.__name__}, "version": {"const": VERSION}, "derived": {"type": "object"}}
    named = {**top, "properties": {**head, **top["properties"]}, "required": ["type", "version", *top["required"]]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **named, "$defs": schema["$defs"]}
