"""The `fields` of a stream: name → `string|long|double|boolean|json`, `?` for nullable; other fields may be there.

Knows types of JSON members. Refuses to know formats and pointers. DuckDB finds the bad values (one pass of the
column, 2-5 M values/s, outside the GIL); only those are looked at one by one. It also takes members out, as columns.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping

import duckdb
import numpy as np
import pyarrow as pa

KINDS = ("string", "long", "double", "boolean", "json")
FIELD_KIND = re.compile(rf"({'|'.join(KINDS)})\??")

_WHOLE = ("BIGINT", "UBIGINT")
_TYPES = {
    "string": ("VARCHAR",),
    "long": _WHOLE,
    "double": (*_WHOLE, "DOUBLE"),
    "boolean": ("BOOLEAN",),
    "json": ("VARCHAR", *_WHOLE, "DOUBLE", "BOOLEAN", "OBJECT", "ARRAY"),
}
_WANTED = {
    "string": "a string",
    "long": "an integer of 64 bits",
    "double": "a number that a double holds",
    "boolean": "a boolean",
    "json": "given",
}
_MEMBERS = {  # SQL: a member that is of the right type, as it is in its column
    "string": "texts[{at}]",
    "long": "try_cast(texts[{at}] AS BIGINT)",
    "double": "if(isfinite(try_cast(texts[{at}] AS DOUBLE)), try_cast(texts[{at}] AS DOUBLE), NULL)",
    "boolean": "try_cast(texts[{at}] AS BOOLEAN)",
    "json": "CAST(parts[{at}] AS VARCHAR)",
}
COLUMN_TYPES = {  # Arrow's, by kind; JSON stays text
    "string": pa.utf8(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "json": pa.utf8(),
}

_SEEN = {"NULL": "null", "VARCHAR": "a string", "BOOLEAN": "a boolean", "OBJECT": "an object"}
_SEEN |= {"ARRAY": "an array", "DOUBLE": "a number", "BIGINT": "an integer", "UBIGINT": "an integer"}

_QUERY = """
SELECT row, types, good FROM (
    SELECT row, types, [{conditions}] AS good
    FROM (SELECT row, value, json_type(value, [{pointers}]) AS types FROM records)
) WHERE NOT list_bool_and(good) ORDER BY row LIMIT {limit}
"""

_COLUMNS = """
SELECT {columns} FROM (
    SELECT
        json_type(value) AS type, json_type(value, [{pointers}]) AS types,
        json_extract_string(value, [{pointers}]) AS texts, json_extract(value, [{pointers}]) AS parts
    FROM records
)
"""


def bad_fields(values: pa.Array, fields: Mapping[str, str], limit: int) -> Iterator[tuple[int, str, str]]:
    """(row, member of the record, what is wrong with it) for the first `limit` values that break a field.

    A null value is a value without any field.
    """
    pointers = ["", *(pointer_of(name) for name in fields)]
    conditions = ["coalesce(types[1], 'OBJECT') = 'OBJECT'"]
    conditions += [_condition(at, name, fields[name]) for at, name in enumerate(fields, 2)]
    query = _QUERY.format(conditions=", ".join(conditions), pointers=", ".join(map(_quoted, pointers)), limit=limit)
    with _database().cursor() as connection:
        connection.register("records", pa.table({"row": np.arange(len(values)), "value": values}))
        found = connection.execute(query).fetchall()
    for row, types, good in found:
        if not good[0]:
            yield row, "value", f"must be an object, not {_SEEN[types[0]]}"
            continue
        for at, kind in enumerate(fields.values(), 1):
            if not good[at]:
                yield row, "value" + pointers[at], _complaint(kind, types[at] if types else None)


def columns_of(values: pa.Array, fields: Mapping[str, str]) -> list[pa.Array]:
    """For each field the member of each value (utf8: JSON or null), as its COLUMN_TYPES; null where it is absent, null
    or of another kind.
    """
    pointers = ", ".join(_quoted(pointer_of(name)) for name in fields)
    columns = []
    for at, kind in enumerate(fields.values(), 1):
        base = kind.removesuffix("?")
        is_right = f"type = 'OBJECT' AND types[{at}] IN ({', '.join(map(_quoted, _TYPES[base]))})"
        columns.append(f"CASE WHEN {is_right} THEN {_MEMBERS[base].format(at=at)} END AS c{at}")
    with _database().cursor() as connection:
        connection.register("records", pa.table({"value": values}))
        found = connection.sql(_COLUMNS.format(columns=", ".join(columns), pointers=pointers)).to_arrow_table()
    kinds = [COLUMN_TYPES[kind.removesuffix("?")] for kind in fields.values()]
    return [column.combine_chunks().cast(kind) for column, kind in zip(found.columns, kinds, strict=True)]


def pointer_of(name: str) -> str:
    """The JSON pointer of a member of the value."""
    return "/" + name.replace("~", "~0").replace("/", "~1")


def _condition(at: int, name: str, kind: str) -> str:
    """SQL: whether the member whose type is types[at] is of a kind; never NULL."""
    base = kind.removesuffix("?")
    condition = f"types[{at}] IN ({', '.join(map(_quoted, _TYPES[base]))})"
    if base == "long":
        condition += f" AND try_cast(value->>{_quoted(pointer_of(name))} AS BIGINT) IS NOT NULL"
    if base == "double":
        condition += f" AND isfinite(try_cast(value->>{_quoted(pointer_of(name))} AS DOUBLE))"
    if kind.endswith("?"):
        condition = f"coalesce(types[{at}], 'NULL') = 'NULL' OR ({condition})"
    return f"coalesce({condition}, false)"


def _complaint(kind: str, seen: str | None) -> str:
    wanted = _WANTED[kind.removesuffix("?")] + (" or null" if kind.endswith("?") else "")
    if seen is None:
        return f"is missing: must be {wanted}"
    if seen in _TYPES[kind.removesuffix("?")]:  # of the type, and not within its range
        return f"must be {wanted}"
    return f"must be {wanted}, not {_SEEN[seen]}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@functools.cache
def _database() -> duckdb.DuckDBPyConnection:
    """One database in memory for the process, of which each call takes a cursor; it may not leave memory."""
    database = duckdb.connect(":memory:", config={"threads": 1, "memory_limit": "1GB", "temp_directory": ""})
    database.execute("SET enable_external_access = false")
    database.execute("SET lock_configuration = true")
    return database
