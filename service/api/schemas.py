"""JSON Schemas as generators of clients take them: null in the list of types, formats of numbers, names for unions,
words for every member.

Knows OpenAPI 3.1. Refuses to know any schema by name: words come from `service.api.glossary`, names from routes.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

Json = dict[str, Any]

NULL: Final = {"type": "null"}
INT32: Final = (-(2**31), 2**31 - 1)
INT64: Final = (-(2**63), 2**63 - 1)
_ONE: Final = ("additionalProperties", "items", "not", "propertyNames", "contains", "if", "then", "else")
_SEVERAL: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED: Final = ("properties", "patternProperties")
_TYPES: Final[dict[type, str]] = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def inline_schemas(operation: Json) -> Iterator[Json]:
    """The schemas of an operation that are no components: of parameters, bodies, answers and their headers."""
    for parameter in operation.get("parameters", ()):
        yield parameter["schema"]
    places = [operation.get("requestBody", {}), *operation["responses"].values()]
    for place in places:
        for header in place.get("headers", {}).values():
            yield header["schema"]
        for media in place.get("content", {}).values():
            if "schema" in media:
                yield media["schema"]


def visit(schema: Json, change: Callable[[Json], None]) -> None:
    """Call `change` with each schema in this one, innermost first, and at last with this one."""
    for child in _children(schema):
        visit(child, change)
    change(schema)


def _children(schema: Json) -> Iterator[Json]:
    found = [schema[keyword] for keyword in _ONE if keyword in schema]
    for keyword in _SEVERAL:
        found += schema.get(keyword, ())
    for keyword in _NAMED:
        found += schema.get(keyword, {}).values()
    yield from (child for child in found if isinstance(child, dict))


def make_plain(schema: Json) -> None:
    """What generators stumble over, said otherwise: titles of members (they would become names of classes), integers
    without a format, bounds that no int64 holds, dictionaries by a pattern of their names, enumerations without a type,
    and `anyOf` for nothing but null.
    """
    schema.pop("title", None)
    if "prefixItems" in schema:
        schema["items"] = schema.get("items") or {}  # `maxItems` says where it ends; linters ask for a schema here
    if len(schema.get("patternProperties", {})) == 1 and "properties" not in schema:
        _give_names(schema)
    _give_type(schema)
    if schema.get("type") in ("integer", ["integer", "null"]):
        _give_format(schema)
    options = schema.get("anyOf", [])
    others = [option for option in options if option != NULL]
    if len(others) < len(options):
        _take_null(schema, others)


def _give_names(schema: Json) -> None:
    """A pattern of names alone admits others; and generators know dictionaries by `additionalProperties`."""
    [(pattern, value)] = schema.pop("patternProperties").items()
    schema |= {"additionalProperties": value, "propertyNames": {"pattern": pattern}}


def _give_type(schema: Json) -> None:
    if "type" in schema or not ("const" in schema or "enum" in schema):
        return
    kinds = {_TYPES[type(value)] for value in schema.get("enum", [schema.get("const")])}
    schema["type"] = kinds.pop() if len(kinds) == 1 else sorted(kinds)


def _give_format(schema: Json) -> None:
    for keyword in {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"} & set(schema):
        schema[keyword] = int(schema[keyword])  # FastAPI makes some of them floating-point numbers, which round up
    if "exclusiveMaximum" in schema:
        schema["maximum"] = min(schema.get("maximum", INT64[1]), schema.pop("exclusiveMaximum") - 1)
    if "maximum" in schema:
        schema["maximum"] = min(schema["maximum"], INT64[1])
    if "exclusiveMinimum" in schema:
        schema["minimum"] = max(schema.get("minimum", INT64[0]), schema.pop("exclusiveMinimum") + 1)
    is_small = schema.get("minimum", INT64[0]) >= INT32[0] and schema.get("maximum", INT64[1]) <= INT32[1]
    schema.setdefault("format", "int32" if is_small else "int64")


def _take_null(schema: Json, others: list[Json]) -> None:
    """Null beside one plain type goes into its list of types; beside a reference or a union it stays where it is."""
    if len(others) != 1 or not isinstance(others[0].get("type"), str):
        schema["anyOf"] = [*others, dict(NULL)]
        return
    del schema["anyOf"]
    for keyword, value in others[0].items():
        schema.setdefault(keyword, value)
    schema["type"] = [others[0]["type"], "null"]
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]
    if "enum" in schema:
        schema["enum"] = [*schema["enum"], None]


def without_null(schema: Json) -> Json:
    """The schema of a parameter, which is there or not, and never null."""
    plain = {keyword: value for keyword, value in schema.items() if (keyword, value) != ("default", None)}
    if isinstance(plain.get("type"), list):
        [plain["type"]] = [kind for kind in plain["type"] if kind != "null"]
    if None in plain.get("enum", ()):
        plain["enum"] = [value for value in plain["enum"] if value is not None]
    options = [option for option in plain.get("anyOf", ()) if option != NULL]
    if len(options) == 1:
        del plain["anyOf"]
        plain = options[0] | plain
    return plain


def refer(schema: Json, named: Mapping[str, Json], prefix: str) -> None:
    """Put a reference in the place of a schema that has a name; what else it says stays beside."""
    for name, known in named.items():
        parts = {keyword: schema[keyword] for keyword in known if keyword in schema and keyword != "description"}
        if parts == {keyword: value for keyword, value in known.items() if keyword != "description"}:
            for keyword in parts:
                del schema[keyword]
            schema["$ref"] = prefix + name


def describe(members: Mapping[str, Json], owners: list[str], meanings: Mapping[str, str]) -> None:
    """Give each member without a description that of the first owner who has one for it, else that of its name."""
    for name, member in members.items():
        keys = [*(f"{owner}.{name}" for owner in owners), name]
        meaning = next((meanings[key] for key in keys if key in meanings), None)
        if "description" not in member and meaning is not None:
            member["description"] = meaning


def references(node: Any) -> Iterator[str]:
    """The names of the components that something refers to."""
    if isinstance(node, dict):
        reference = node.get("$ref")
        if isinstance(reference, str):
            yield reference.rpartition("/")[2]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def reachable(schemas: Mapping[str, Json], start: Any) -> dict[str, Json]:
    """Those schemas that something refers to, directly or through others, by name."""
    found: dict[str, Json] = {}
    waiting = list(references(start))
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = schemas[name]
            waiting += references(schemas[name])
    return dict(sorted(found.items()))
