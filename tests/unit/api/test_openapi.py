"""The OpenAPI document: valid, committed, readable, and its examples are what it says."""

import re
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from fastapi.routing import APIRoute
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from service.app import create_app
from service.cli import DOCUMENT
from service.parameters import query_parameters
from service.settings import Settings

OPEN = {"/healthz", "/readyz"}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(Settings()).openapi()


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method.upper(), path, operation


def test_it_is_valid(document: dict[str, Any]) -> None:
    assert [str(error) for error in OpenAPIV31SpecValidator(document).iter_errors()] == []


def test_the_committed_one_is_what_the_routes_declare(document: dict[str, Any]) -> None:
    assert orjson.loads(DOCUMENT.read_bytes()) == document, "run `millrace openapi`"


def test_each_route_takes_the_query_parameters_of_its_operation(document: dict[str, Any]) -> None:
    routes = [
        route for route in create_app(Settings()).routes if isinstance(route, APIRoute) and route.include_in_schema
    ]
    known = {(method, route.path_format): query_parameters(route) for route in routes for method in route.methods}
    assert known == {
        (method, path): [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
        for method, path, operation in operations(document)
    }
    assert sum(map(len, known.values())) > 50


def test_operation_ids_are_readable_and_unique(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in ids)


def test_each_operation_says_what_it_does_belongs_somewhere_and_names_its_errors(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        where = f"{method} {path}"
        assert operation["description"], where
        assert operation["tags"], where
        responses = operation["responses"]
        if path not in OPEN:
            assert operation["security"] == [{"key": []}], where
            assert {"401", "403"} <= set(responses), where
        if "{" in path:
            assert {"404", "410"} & set(responses), where
        if "requestBody" in operation:
            assert {"415", "422", "413"} <= set(responses), where
        for status, response in responses.items():
            if status == "default" or (int(status) >= 400 and path not in OPEN):
                assert list(response["content"]) == ["application/problem+json"], f"{where} {status}"


def test_names_in_paths_end_before_the_colon_of_a_verb(document: dict[str, Any]) -> None:
    assert {"/v1/jobs/{job}:pause", "/v1/jobs:validate", "/v1/instances/{instance}/slots/{slot}:commit"} <= set(
        document["paths"]
    )


def examples(document: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    found = []
    for method, path, operation in operations(document):
        for kind, media in operation.get("requestBody", {}).get("content", {}).items():
            if "example" in media and kind == "application/json":
                found.append((f"{method} {path}", media["schema"], media["example"]))
    for name, schema in document["components"]["schemas"].items():
        found += [(name, schema, example) for example in schema.get("examples", [])]
    return found


def test_examples_are_what_their_schemas_ask_for(document: dict[str, Any]) -> None:
    checked = examples(document)
    assert len(checked) >= 6
    for where, schema, example in checked:
        validator = Draft202012Validator({**schema, "components": document["components"]})
        assert [error.message for error in validator.iter_errors(example)] == [], where


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


def test_a_generated_client_changes_what_it_is_given_and_nothing_else(document: dict[str, Any]) -> None:
    """A default would be sent, or be taken for what is there."""
    changes = [(path, each) for method, path, each in operations(document) if method == "PATCH"]
    assert {path for path, _ in changes} >= {"/v1/jobs/{job}", "/v1/streams/{stream}"}
    for path, operation in changes:
        assert list(defaults(document, operation["requestBody"], path)) == []


def test_each_field_of_a_job_says_what_it_is(document: dict[str, Any]) -> None:
    for name, field in document["components"]["schemas"]["JobSpec"]["properties"].items():
        assert field.get("description"), name


def test_what_people_read_names_nothing_that_only_the_code_knows(document: dict[str, Any]) -> None:
    text = orjson.dumps(document).decode()
    for word in ("contract.md", "semantics", "`service."):
        assert word not in text, word


def test_a_change_without_its_precondition_is_not_valid(document: dict[str, Any]) -> None:
    """428 is what it gets: clients that are made of this document send it."""
    found = [(path, operation) for _, path, operation in operations(document) if "428" in operation["responses"]]
    assert len(found) >= 2
    for path, operation in found:
        (tag,) = (each for each in operation["parameters"] if each["name"] == "If-Match")
        assert tag["required"], path
        assert tag["schema"]["type"] == "string"


def test_bounds_of_a_specification_are_in_the_document(document: dict[str, Any]) -> None:
    spec = {**document["components"]["schemas"]["JobSpec"], "components": document["components"]}
    job = {"name": "a", "source": "s"}
    assert Draft202012Validator(spec).is_valid(job | {"standby_replicas": 100})
    assert not Draft202012Validator(spec).is_valid(job | {"standby_replicas": 101})
