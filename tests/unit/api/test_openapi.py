"""The OpenAPI documents, of people and of workers: valid, committed, readable, and their examples are what they say."""

import re
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from service.api.document import worker_document
from service.api.glossary import EXTENSIONS, MEANINGS
from service.api.schemas import inline_schemas, references
from service.app import create_app
from service.cli import DOCUMENT, as_written
from service.parameters import query_parameters
from service.payloads import ARROW
from service.settings import Settings

OPEN = {"/healthz", "/readyz"}
# Of these nobody can say what is in them: values of records, texts of people and installed functions.
ANY_JSON = {
    "AuditEntryView/change",
    "JsonValue",
    "RecordView/value",
    "EntryView/value",
    "SimulatedEntryView/value",
    "WindowFinalView/value",
    "ExplainedOutputView/value",
    "SimulatedOutputView/value",
    "POST /v1/streams/{stream}/records/records/*/value",
    "JobToRun/spec",
    "JobToRun/topology",
}


@pytest.fixture(scope="module")
def served() -> FastAPI:
    return create_app(Settings())


@pytest.fixture(scope="module", params=["people", "workers"])
def document(request: pytest.FixtureRequest, served: FastAPI) -> dict[str, Any]:
    """Each of the two."""
    return served.openapi() if request.param == "people" else worker_document(served)


@pytest.fixture(scope="module")
def public(served: FastAPI) -> dict[str, Any]:
    """The one for people."""
    return served.openapi()


@pytest.fixture(scope="module")
def whole(served: FastAPI, public: dict[str, Any]) -> dict[str, Any]:
    """The operations and schemas of both."""
    of_workers = worker_document(served)
    return {
        "paths": public["paths"] | of_workers["paths"],
        "components": {"schemas": public["components"]["schemas"] | of_workers["components"]["schemas"]},
    }


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method.upper(), path, operation


def test_it_is_valid(document: dict[str, Any]) -> None:
    assert [str(error) for error in OpenAPIV31SpecValidator(document).iter_errors()] == []


def test_the_committed_ones_are_what_the_routes_declare_as_the_command_writes_it(served: FastAPI) -> None:
    for path, declared in (DOCUMENT, served.openapi()), (DOCUMENT.with_name("worker.json"), worker_document(served)):
        committed = path.read_bytes()
        assert orjson.loads(committed) == declared, "run `make openapi`"
        assert committed == as_written(declared), "run `make openapi`"


def test_each_route_takes_the_query_parameters_of_its_operation(whole: dict[str, Any]) -> None:
    routes = [
        route for route in create_app(Settings()).routes if isinstance(route, APIRoute) and route.include_in_schema
    ]
    known = {(method, route.path_format): query_parameters(route) for route in routes for method in route.methods}
    assert known == {
        (method, path): [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
        for method, path, operation in operations(whole)
    }
    assert sum(map(len, known.values())) > 50


def test_operation_ids_are_readable_and_unique(whole: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(whole)]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in ids)


def test_each_operation_says_what_it_does_belongs_somewhere_and_names_its_errors(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        where = f"{method} {path}"
        assert operation["description"], where
        assert operation["tags"], where
        responses = operation["responses"]
        assert operation["security"] == ([] if path in OPEN else [{"key": []}]), where
        if path not in OPEN:
            assert {"401", "403"} <= set(responses), where
        if "{" in path:
            assert {"404", "410"} & set(responses), where
        if "requestBody" in operation:
            assert {"415", "422", "413"} <= set(responses), where
        for status, response in responses.items():
            if status == "default" or (int(status) >= 400 and path not in OPEN):
                assert list(response["content"]) == ["application/problem+json"], f"{where} {status}"


def test_names_in_paths_end_before_the_colon_of_a_verb(whole: dict[str, Any]) -> None:
    assert {"/v1/jobs/{job}:pause", "/v1/jobs:validate", "/v1/instances/{instance}/slots/{slot}:commit"} <= set(
        whole["paths"]
    )


def test_what_workers_say_is_no_business_of_people(served: FastAPI, public: dict[str, Any]) -> None:
    of_workers = worker_document(served)
    assert not set(public["paths"]) & set(of_workers["paths"])
    assert {operation["tags"][0] for _, _, operation in operations(of_workers)} == {"worker"}
    assert [path for path in public["paths"] if "/slots" in path or ":join" in path] == []
    assert [each["name"] for each in public["tags"] if each["name"] == "worker"] == []


def test_every_schema_is_used_and_named_after_no_place_in_the_code(document: dict[str, Any]) -> None:
    """A name that two classes share would be told apart by their modules; reading and writing, by a suffix."""
    names = set(document["components"]["schemas"])
    assert set(references(document)) == names
    assert [name for name in names if not re.fullmatch(r"[A-Z][A-Za-z0-9]+", name)] == []
    assert [name for name in names if re.search(r"Input$|Output$|PageView", name)] == []


def test_every_member_and_parameter_says_what_it_is(document: dict[str, Any]) -> None:
    silent = [name for name, schema in document["components"]["schemas"].items() if not schema.get("description")]
    for name, schema in all_schemas(document):
        silent += [
            f"{name}/{each}" for each, field in schema.get("properties", {}).items() if "description" not in field
        ]
    for method, path, operation in operations(document):
        places = [*operation.get("parameters", ()), *headers_of(operation)]
        silent += [f"{method} {path} {each.get('name')}" for each in places if not each.get("description")]
    assert silent == []


def test_each_word_of_the_glossary_is_used(whole: dict[str, Any]) -> None:
    schemas = whole["components"]["schemas"]
    members = {f"{name}.{each}" for name, schema in schemas.items() for each in schema.get("properties", {})}
    for _, _, operation in operations(whole):
        members |= {f"{operation['operationId']}.{each['name']}" for each in operation.get("parameters", ())}
    names = {member.partition(".")[2] for member in members}
    assert sorted(set(MEANINGS) - members - names - set(schemas)) == []
    assert set(EXTENSIONS) | set(EXTENSIONS.values()) <= set(schemas)


def test_objects_say_what_is_in_them(document: dict[str, Any]) -> None:
    """A schema that admits anything is one of those few of which nobody can say more."""
    free = [name for name, schema in all_schemas(document) if is_free(schema)]
    assert set(free) <= ANY_JSON


def test_numbers_and_times_say_their_format(document: dict[str, Any]) -> None:
    for name, schema in all_schemas(document):
        if schema.get("type") in ("integer", ["integer", "null"]):
            assert schema["format"] in {"int32", "int64"}, name
            bounds = [schema[bound] for bound in ("minimum", "maximum") if bound in schema]
            assert all(isinstance(bound, int) and -(2**63) <= bound < 2**63 for bound in bounds), name
            assert not {"exclusiveMinimum", "exclusiveMaximum"} & set(schema), name
        if re.search(r"View/(\w+_at|at|since|lease_until)$", name) and not name.endswith("/closes_at"):
            assert schema["format"] == "date-time", name


def test_null_stands_in_the_list_of_types_or_beside_what_has_a_name(document: dict[str, Any]) -> None:
    for name, schema in all_schemas(document):
        others = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
        if len(others) < len(schema.get("anyOf", ())):
            assert len(others) > 1 or "$ref" in others[0], name
        assert "title" not in schema, name  # generators would make it the name of a class, twice
    for method, path, operation in operations(document):
        for parameter in operation.get("parameters", ()):
            assert "null" not in str(parameter["schema"]), f"{method} {path} {parameter['name']}"


def test_unions_that_a_member_tells_apart_have_a_name(public: dict[str, Any]) -> None:
    schemas = public["components"]["schemas"]
    found = {name: schema["discriminator"] for name, schema in schemas.items() if "discriminator" in schema}
    assert set(found) == {"Operator", "Window", "DistinctWindow"}
    for name, discriminator in found.items():
        assert {each["$ref"] for each in schemas[name]["oneOf"]} == set(discriminator["mapping"].values())
        for value, reference in discriminator["mapping"].items():
            member = schemas[reference.rpartition("/")[2]]
            assert discriminator["propertyName"] in member["required"]
            assert member["properties"][discriminator["propertyName"]]["const"] == value
    assert "discriminator" not in str([schema.get("properties") for schema in schemas.values()])
    assert {"Source", "Sink", "Start"} <= set(schemas)


def test_headers_of_answers_are_declared(public: dict[str, Any]) -> None:
    for method, path, operation in operations(public):
        responses, where = operation["responses"], f"{method} {path}"
        if "304" in responses or "412" in responses:
            assert "ETag" in responses["200"]["headers"], where
        if "201" in responses:
            assert responses["201"]["headers"]["Location"]["required"], where
        for status in {"429", "503"} & set(responses):
            is_problem = "application/problem+json" in responses[status]["content"]
            assert is_problem == ("Retry-After" in responses[status].get("headers", {})), where
        if ARROW in responses.get("200", {}).get("content", {}):
            assert any(name.startswith("Millrace-") for name in responses["200"]["headers"]), where


def test_each_operation_shows_a_good_answer(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        good = [response for status, response in operation["responses"].items() if status < "300"]
        assert good, f"{method} {path}"
        for response in good:
            shown = [media for media in response.get("content", {}).values() if "example" in media]
            assert shown or "content" not in response, f"{method} {path}"


def examples(document: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    found = []
    for method, path, operation in operations(document):
        for place in (operation.get("requestBody", {}), *operation["responses"].values()):
            for media in place.get("content", {}).values():
                if "example" in media:
                    found.append((f"{method} {path}", media["schema"], media["example"]))
    for name, schema in document["components"]["schemas"].items():
        found += [(name, schema, example) for example in schema.get("examples", [])]
    return found


def test_examples_are_what_their_schemas_ask_for(document: dict[str, Any]) -> None:
    checked = examples(document)
    assert len(checked) >= len(list(operations(document)))
    for where, schema, example in checked:
        validator = Draft202012Validator({**schema, "components": document["components"]})
        assert [error.message for error in validator.iter_errors(example)] == [], where


def all_schemas(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each schema of the components and of operations, with its place."""
    for name, schema in document["components"]["schemas"].items():
        yield from within(schema, name)
    for method, path, operation in operations(document):
        for schema in inline_schemas(operation):
            yield from within(schema, f"{method} {path}")


def within(schema: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(schema, dict):
        return
    yield where, schema
    for keyword in "properties", "patternProperties":
        for name, each in schema.get(keyword, {}).items():
            yield from within(each, f"{where}/{name}")
    for keyword in "anyOf", "oneOf", "allOf", "prefixItems":
        for each in schema.get(keyword, ()):
            yield from within(each, where)
    for keyword in "items", "additionalProperties":
        if keyword == "additionalProperties" or "prefixItems" not in schema:
            yield from within(schema.get(keyword), f"{where}/*")


def is_free(schema: dict[str, Any]) -> bool:
    says = set(schema) - {"description", "default", "title"}
    is_open = not {"properties", "patternProperties"} & says and not isinstance(
        schema.get("additionalProperties"), dict
    )
    return not says or schema.get("additionalProperties") is True or (schema.get("type") == "object" and is_open)


def headers_of(operation: dict[str, Any]) -> list[dict[str, Any]]:
    return [header for each in operation["responses"].values() for header in each.get("headers", {}).values()]


def defaults(document: dict[str, Any], schema: Any, where: str) -> Iterator[str]:
    """Where in a schema, and in those that it refers to, a default stands."""
    if isinstance(schema, list):
        schema = dict(enumerate(schema))
    if not isinstance(schema, dict):
        return
    if "default" in schema:
        yield where
    if "$ref" in schema:
        yield from defaults(document, document["components"]["schemas"][schema["$ref"].rpartition("/")[2]], where)
    for name, each in schema.items():
        yield from defaults(document, each, f"{where}/{name}")


def test_a_generated_client_changes_what_it_is_given_and_nothing_else(public: dict[str, Any]) -> None:
    """A default would be sent, or be taken for what is there."""
    changes = [(path, each) for method, path, each in operations(public) if method == "PATCH"]
    assert {path for path, _ in changes} >= {"/v1/jobs/{job}", "/v1/streams/{stream}"}
    for path, operation in changes:
        assert list(defaults(public, operation["requestBody"], path)) == []


def test_each_field_of_a_job_says_what_it_is(public: dict[str, Any]) -> None:
    for name, field in public["components"]["schemas"]["JobSpec"]["properties"].items():
        assert field.get("description"), name


def test_what_people_read_names_nothing_that_only_the_code_knows(document: dict[str, Any]) -> None:
    text = orjson.dumps(document).decode()
    for word in ("contract.md", "semantics", "`service."):
        assert word not in text, word


def test_a_change_without_its_precondition_is_not_valid(public: dict[str, Any]) -> None:
    """428 is what it gets: clients that are made of this document send it."""
    found = [(path, operation) for _, path, operation in operations(public) if "428" in operation["responses"]]
    assert len(found) >= 2
    for path, operation in found:
        (tag,) = (each for each in operation["parameters"] if each["name"] == "If-Match")
        assert tag["required"], path
        assert tag["schema"]["type"] == "string"


def test_bounds_of_a_specification_are_in_the_document(public: dict[str, Any]) -> None:
    spec = {**public["components"]["schemas"]["JobSpec"], "components": public["components"]}
    job = {"name": "a", "source": "s"}
    assert Draft202012Validator(spec).is_valid(job | {"standby_replicas": 100})
    assert not Draft202012Validator(spec).is_valid(job | {"standby_replicas": 101})


def test_functions_and_time_limits_are_whole(public: dict[str, Any]) -> None:
    """What a specification lacks is found before it is sent."""
    spec = Draft202012Validator({"$ref": "#/components/schemas/Operator", "components": public["components"]})
    function = {"op": "aggregate", "name": "a"}
    for given, is_valid in (
        ({"fn": "count"}, True),
        ({"fn": "count", "of": "timestamp"}, False),
        ({"fn": "sum"}, False),
        ({"fn": "sum", "of": "timestamp"}, True),
        ({"fn": "sum", "of": "timestamp", "aggregator": "mine"}, False),
        ({"fn": "custom"}, False),
        ({"fn": "custom", "aggregator": "mine"}, True),
    ):
        assert spec.is_valid(function | {"aggregates": {"x": given}}) == is_valid, given
    suppress = {"op": "suppress", "name": "s", "until": "time_limit"}
    assert not spec.is_valid(suppress)
    assert spec.is_valid(suppress | {"time_limit_ms": 5})
    assert not spec.is_valid(suppress | {"until": "window_closes", "time_limit_ms": 5})


def test_dictionaries_take_no_other_names_and_say_what_is_in_them(public: dict[str, Any]) -> None:
    """Generators know `additionalProperties` alone; what else is in a dictionary, their clients would not send."""
    assert "patternProperties" not in str(public["components"])
    for model, member, good, bad in (
        ("StreamRequest", "fields", {"id": "string"}, {"": "string"}),
        ("ChangeRequest", "renames", {"a": "b"}, {"A": "b"}),
        ("JobChange", "buffers", {"a": {"max_records": 1}}, {"A": {}}),
        ("StartOffsets", "offsets", {"0": 1}, {"00": 1}),
        ("StartOffsets", "offsets", {"clicks": {"0": 1}}, {"clicks": {"x": 1}}),
    ):
        schema = public["components"]["schemas"][model]["properties"][member]
        validator = Draft202012Validator({**schema, "components": public["components"]})
        assert validator.is_valid(good), (model, member)
        assert not validator.is_valid(bad), (model, member)
