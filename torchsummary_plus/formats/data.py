"""A table -> CSV or pandas: plain numbers. A result <-> JSON, lossless and in a versioned schema, by type hints.

``type`` is the class name, ``version`` the schema version, "major.minor"; every other key is a field of the class,
documented there. ``derived`` adds properties computed from the fields, for readers. A reader accepts every minor
version of its major one: missing fields have their defaults, unknown ones are ignored. With an open batch the shapes
are those of a batch of 1, and ``batch_axes`` lists the axes that scale with the batch. Sizes are in bytes.

Dataclasses and mappings become objects, tuples become arrays. A tuple of a type in ``BY_COLUMN`` becomes one object
with an array per field. Within a union of dataclasses, the keys of the object determine the class.
A result that was read is shown once, which fails where its figures contradict one another.
"""

from __future__ import annotations

import csv
import io
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from ..data.errors import InputError, SummaryError, need_extra
from ..data.memory_records import Doubt, Kernel, ModuleCall, Moment, StorageSpec
from ..data.records import Link
from ..data.units import describe
from ..data.untrusted_files import parsed
from .table import Table, Value

if TYPE_CHECKING:
    import pandas as pd

DTYPES = {"": "string", "%": "Float64", "ratio": "Float64", "ms": "Float64"}
"""pandas dtypes by unit; counts and bytes are Int64."""

NO_TEXT, REPLACEMENT = re.compile(r"[\0\ud800-\udfff]"), "\ufffd"
"""Characters not allowed in CSV (NUL ends the field for some readers, surrogates have no encoding), and theirs."""

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What text begins with that spreadsheets run as a formula (owasp.org/www-community/attacks/CSV_Injection)."""


def csv_text(table: Table) -> str:
    """Return a table's rows as CSV (RFC 4180), headed by the field names; missing values are empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow(map(_plain_text, [table.label_name, "path", "level", *(field.name for field in table.fields)]))
    for row in table.rows:
        writer.writerow(map(_plain_text, [row.label, row.path, row.level, *(cell.value for cell in row.cells)]))
    return file.getvalue()


def _plain_text(value: Value) -> Value:
    """Return text as spreadsheets and encodings take it: no formula, with an apostrophe in front, and no surrogate."""
    if not isinstance(value, str):
        return value
    text = NO_TEXT.sub(REPLACEMENT, value)
    return f"'{text}" if text.startswith(FORMULA) else text


def data_frame(table: Table) -> pd.DataFrame:
    """Return a table's rows as a DataFrame; shapes are tuples, and rows of modules have a column for their type."""
    pandas = need_extra("pandas", "pandas")
    columns = {table.label_name: pandas.array([row.label for row in table.rows], "string")}
    if any(row.type for row in table.rows):
        columns["type"] = pandas.array([row.type for row in table.rows], "string")
    columns["path"] = pandas.array([row.path for row in table.rows], "string")
    columns["level"] = pandas.array([row.level for row in table.rows], "Int64")
    for place, field in enumerate(table.fields):
        cells = [row.cells[place] for row in table.rows]
        if any(cell.data is not None for cell in cells):
            columns[field.name] = pandas.Series([cell.data for cell in cells], dtype=object)
        else:  # A column of estimates has counts, and perhaps a time.
            values = [cell.value for cell in cells]
            is_whole = not any(isinstance(value, float) for value in values)
            columns[field.name] = pandas.array(values, DTYPES.get(field.unit, "Int64" if is_whole else "Float64"))
    return pandas.DataFrame(columns)


Schema = dict[str, Any]

UNIONS = (Union, types.UnionType)

MOST_INT = 1 << 63

PRIMITIVES: dict[type, Schema] = {
    bool: {"type": "boolean"}, int: {"type": "integer"}, float: {"type": "number"}, str: {"type": "string"},
    type(None): {"type": "null"},
}  # fmt: skip

MAJOR, MINOR = 1, 7
"""The schema version: the minor is raised for a field that is added, the major for one that is changed or removed."""

VERSION = f"{MAJOR}.{MINOR}"

BY_COLUMN = (Moment, StorageSpec, ModuleCall, Doubt, Kernel, Link)

Result = TypeVar("Result")


class Way(NamedTuple):
    """How values of a type are encoded and decoded, and their schema; ``plain`` if they are JSON values already."""

    out: Callable[[Any], Any]
    back: Callable[[Any], Any]
    schema: Schema
    plain: bool = False


class Codec:
    """Encodes and decodes dataclasses.

    Unless it ``is_exact``, missing fields get their defaults, and unknown ones are ignored. Decoding raises
    :class:`InputError` for data that do not match a type. ``definitions`` has the JSON Schemas (draft 2020-12) of the
    dataclasses, which other schemas refer to.
    """

    def __init__(self, is_exact: bool = True) -> None:
        self.is_exact = is_exact
        self.ways: dict[Any, Way] = {}
        self.definitions: dict[str, Schema] = {}

    def way(self, kind: Any) -> Way:
        """Return how values of a type are encoded and decoded, cached."""
        if kind not in self.ways:
            self.ways[kind] = self._way(kind)
        return self.ways[kind]

    def _way(self, kind: Any) -> Way:
        origin, inner = get_origin(kind), get_args(kind)
        if kind in PRIMITIVES:
            return Way(lambda value: value, partial(_primitive, kind), PRIMITIVES[kind], plain=True)
        if is_dataclass(kind) and isinstance(kind, type):
            return self._dataclass(kind)
        if origin is tuple:
            return self._tuple(inner)
        if origin in UNIONS:
            return self._union(inner)
        if origin is Mapping:
            return self._mapping(inner[1])
        raise TypeError(f"cannot encode {kind} as JSON")

    def _hints(self, kind: type) -> dict[str, Any]:
        """Return the types of a dataclass's fields, in order."""
        known = get_type_hints(kind)
        return {field.name: known[field.name] for field in fields(kind)}

    def _read(self, kind: type, data: Any, ways: Mapping[str, Way]) -> dict[str, Any]:
        """Return the fields of an object, or its columns."""
        least = ways.keys() if self.is_exact else _needed(kind)
        if not isinstance(data, dict) or not data.keys() >= least or (self.is_exact and len(data) > len(ways)):
            raise InputError(f"{describe(data)} is not a {kind.__name__}; its fields: {', '.join(ways)}")
        return {name: way.back(data[name]) for name, way in ways.items() if name in data}

    def _dataclass(self, kind: type) -> Way:
        reference = {"$ref": f"#/$defs/{kind.__name__}"}
        self.ways[kind] = Way(lambda value: out(value), lambda data: back(data), reference)  # For recursive types.
        self.definitions[kind.__name__] = {}  # In order, before those that it refers to.
        ways = {name: self.way(hint) for name, hint in self._hints(kind).items()}
        self.definitions[kind.__name__] = _object(ways)

        def out(value: Any) -> dict[str, Any]:
            return {name: way.out(getattr(value, name)) for name, way in ways.items()}

        def back(data: Any) -> Any:
            value: Any = kind(**self._read(kind, data, ways))
            if hasattr(kind, "_check"):
                value._check()
            return value

        return Way(out, back, reference)

    def _tuple(self, inner: tuple[Any, ...]) -> Way:
        if inner[1:] == (...,):
            return self._columns(inner[0]) if inner[0] in BY_COLUMN else self._many(self.way(inner[0]))
        ways = [self.way(kind) for kind in inner]
        is_plain = all(way.plain for way in ways)
        items = [way.schema for way in ways]

        def out(values: Any) -> list[Any]:
            return list(values) if is_plain else [way.out(value) for way, value in zip(ways, values)]

        def back(data: Any) -> tuple[Any, ...]:
            if len(_array(data)) != len(ways):
                raise InputError(f"{describe(data)} does not have {len(ways)} items")
            return tuple([way.back(item) for way, item in zip(ways, data)])

        return Way(out, back, {"type": "array", "prefixItems": items, "minItems": len(items), "items": False})

    def _many(self, way: Way) -> Way:
        outs = list if way.plain else lambda values: [way.out(value) for value in values]
        schema = {"type": "array", "items": way.schema}
        return Way(outs, lambda data: tuple([way.back(item) for item in _array(data)]), schema)

    def _columns(self, kind: type) -> Way:
        ways = {name: self._many(self.way(hint)) for name, hint in self._hints(kind).items()}

        def out(values: Any) -> dict[str, Any]:
            return {name: way.out([getattr(value, name) for value in values]) for name, way in ways.items()}

        def back(data: Any) -> tuple[Any, ...]:
            columns = self._read(kind, data, ways)
            if len(set(map(len, columns.values()))) > 1:
                raise InputError(f"the columns of {kind.__name__} differ in length")
            return tuple([kind(**dict(zip(columns, values))) for values in zip(*columns.values())])

        return Way(out, back, _object(ways))

    def _union(self, inner: tuple[Any, ...]) -> Way:
        ways = {get_origin(kind) or kind: self.way(kind) for kind in inner}
        classes = [kind for kind in inner if is_dataclass(kind) and isinstance(kind, type)]

        def back(data: Any) -> Any:
            kind = tuple if type(data) is list else type(data)
            if kind is dict and classes:  # The first class of which no field is missing.
                kind = next((each for each in classes if data.keys() >= _needed(each)), classes[0])
            if kind not in ways:
                raise InputError(f"{describe(data)} is not one of {', '.join(way.__name__ for way in ways)}")
            return ways[kind].back(data)

        schema = {"anyOf": [way.schema for way in ways.values()]}
        return Way(lambda value: ways[type(value)].out(value), back, schema, all(way.plain for way in ways.values()))

    def _mapping(self, inner: Any) -> Way:
        way = self.way(inner)

        def back(data: Any) -> dict[str, Any]:
            if not isinstance(data, dict):
                raise InputError(f"{describe(data)} is not an object")
            return {name: way.back(item) for name, item in data.items()}

        schema = {"type": "object", "additionalProperties": way.schema}
        return Way(lambda values: {name: way.out(value) for name, value in values.items()}, back, schema)


@cache
def _needed(kind: type) -> frozenset[str]:
    """Return the names of the fields without defaults."""
    return frozenset(item.name for item in fields(kind) if item.default is MISSING and item.default_factory is MISSING)


def _primitive(kind: type, data: Any) -> Any:
    if type(data) is not kind:
        raise InputError(f"{describe(data)} is not of type {kind.__name__}")
    if isinstance(data, int) and not -MOST_INT < data < MOST_INT:
        raise InputError(f"{describe(data)} has more than 64 bits")
    return data


def _array(data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise InputError(f"{describe(data)} is not an array")
    return data


def _object(ways: Mapping[str, Way]) -> Schema:
    properties = {name: way.schema for name, way in ways.items()}
    return {"type": "object", "properties": properties, "required": list(ways), "additionalProperties": False}


def as_plain(value: Any, derived: tuple[str, ...]) -> dict[str, Any]:
    """Return a result as plain data; ``derived`` lists properties to add."""
    values = {name: getattr(value, name) for name in derived}
    plain = Codec().way(type(value)).out(value)
    return {"type": type(value).__name__, "version": VERSION, **plain, "derived": values}


def from_text(kind: type[Result], text: str) -> Result:
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
        result: Result = Codec(is_exact=version == VERSION).way(kind).back(data)
    except RecursionError:
        raise InputError("the text is not valid JSON: it is nested too deeply") from None
    except SummaryError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise InputError(f"the {kind.__name__} contradicts itself and cannot be shown: {why}") from error
    return result


def schema_of(kind: type) -> Schema:
    """Return the JSON Schema of a result."""
    codec = Codec()
    codec.way(kind)
    top = codec.definitions[kind.__name__]
    head = {"type": {"const": kind.__name__}, "version": {"const": VERSION}, "derived": {"type": "object"}}
    named = {**top, "properties": {**head, **top["properties"]}, "required": ["type", "version", *top["required"]]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **named, "$defs": codec.definitions}
