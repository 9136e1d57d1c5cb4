"""The OpenAPI document: what the routes declare, and the schemas of the bodies that they read themselves.

Knows OpenAPI. Refuses to know any resource: routes say `openapi_extra=takes(Model, example)`.
"""

import re
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, Final

import msgspec
import orjson
from fastapi import APIRouter, FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute

from service.api import schemas
from service.api.bodies import answer
from service.api.examples import example_of
from service.api.glossary import EXTENSIONS, MEANINGS
from service.api.schemas import Json
from service.problems import MEDIA_TYPE, ProblemView, declared

PREFIX: Final = "#/components/schemas/"
_REF: Final = PREFIX + "{model}"
_BODIES: dict[str, type[Any]] = {"ProblemView": ProblemView}
_UNIONS: dict[str, tuple[str, Any]] = {}
ASSETS: Final = "/docs/assets"
WORKER: Final = "worker"  # the tag of what is no business of people
_RETRY_AFTER: Final = {
    "Retry-After": {
        "description": "Seconds after which to try again.",
        "required": True,
        "schema": {"type": "integer", "format": "int32", "minimum": 0},
    }
}
TAGS: Final = [
    {"name": "streams", "description": "Named, partitioned, append-only logs of records: make, post, read."},
    {"name": "subscriptions", "description": "Readers whose positions the service keeps: pull, acknowledge."},
    {"name": "jobs", "description": "Operators over a stream: submit, watch, pause, stop, simulate."},
    {"name": "stores", "description": "The state of operators, looked up by key, by range, as a whole."},
    {"name": "groups", "description": "Who runs a job: tasks, owners, copies, and how they are given out."},
    {"name": "instances", "description": "Spark applications that run jobs."},
    {"name": "tokens", "description": "API keys and their roles."},
    {"name": "operations", "description": "Health, metrics and this document."},
]
WORKER_TAGS: Final = [
    {"name": WORKER, "description": "The protocol of instances and their slots: join, poll, commit, leave."},
]


def router_of(tag: str) -> APIRouter:
    """A router for routes under one of `TAGS`, whose operation ids are their functions' names."""
    return APIRouter(tags=[tag], generate_unique_id_function=lambda route: route.name)


def takes(
    body: type[Any],
    example: Mapping[str, Any] | None = None,
    *,
    other: type[Any] | None = None,
    is_required: bool = True,
) -> dict[str, Any]:
    """The `openapi_extra=` of a route that reads a JSON body of this pydantic model or msgspec struct, or the other."""
    bodies = [body] if other is None else [body, other]
    _BODIES.update({each.__name__: each for each in bodies})
    schemas = [{"$ref": _REF.format(model=each.__name__)} for each in bodies]
    content: dict[str, Any] = {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}
    if example is not None:
        content["example"] = dict(example)
    return {"requestBody": {"required": is_required, "content": {"application/json": content}}}


def answers(body: type[Any]) -> dict[int | str, dict[str, Any]]:
    """The part of `responses=` for an answer (200) that is this msgspec struct."""
    _BODIES[body.__name__] = body
    return {200: {"content": {"application/json": {"schema": {"$ref": _REF.format(model=body.__name__)}}}}}


def name_union(name: str, union: Any, description: str) -> None:
    """Have a union of types be a schema of this name, wherever it stands."""
    _UNIONS[name] = (description, union)


def document(app: FastAPI) -> Json:
    """The OpenAPI 3.1 document for people of the routes that the app has now."""
    return _made(
        [route for route in app.routes if not _is_for_workers(route)],
        TAGS,
        title="Millrace",
        summary="Stateful stream operators as a REST service, on Spark.",
        description="Post records to streams; submit jobs that filter, map, deduplicate and aggregate them (for ever, "
        "over windows and sessions) or hold updates back until they are final; read what comes out, exactly once; "
        "look up what the operators keep. Every error is an `application/problem+json` (RFC 9457) with a `code` and "
        "the `request_id`.",
    )


def worker_document(app: FastAPI) -> Json:
    """The same of the protocol between instances, their slots and the service."""
    return _made(
        [route for route in app.routes if _is_for_workers(route)],
        WORKER_TAGS,
        title="Millrace: the protocol of workers",
        summary="What instances and their slots say to the service.",
        description="Of one version of Millrace: an instance and the service understand each other one version apart. "
        "Fields that one end does not know are ignored. Every error is an `application/problem+json` (RFC 9457).",
    )


def _is_for_workers(route: BaseRoute) -> bool:
    return isinstance(route, APIRoute) and WORKER in route.tags


def _made(routes: list[BaseRoute], tags: list[dict[str, str]], **info: str) -> Json:
    made = get_openapi(
        version=version("millrace"),
        routes=routes,
        tags=tags,
        servers=[{"url": "/", "description": "The service that has this document."}],
        contact={"name": "Millrace"},
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        **info,  # type: ignore[arg-type]
    )
    operations = [operation for path in made["paths"].values() for operation in path.values()]
    for operation in operations:
        _declare_problems(operation["responses"])
        operation.setdefault("security", [])
    components = made.setdefault("components", {})
    components["schemas"] = _schemas(made["paths"], components.get("schemas", {}))
    for operation in operations:
        _finish(operation, components["schemas"])
    return _named(made)


def _schemas(paths: Json, of_routes: dict[str, Json]) -> dict[str, Json]:
    """The components: plain, with words, and no more than something refers to."""
    unions, members = _schemas_of_unions()
    found = members | of_routes | _schemas_of_bodies()
    for name, schema in found.items():
        _make_plain(schema, unions)
        owners = [name, EXTENSIONS[name]] if name in EXTENSIONS else [name]
        schemas.describe({name: schema}, [], MEANINGS)
        schemas.describe(schema.get("properties", {}), owners, MEANINGS)
    for path in paths.values():
        for operation in path.values():
            for schema in schemas.inline_schemas(operation):
                _make_plain(schema, unions)
    return schemas.reachable(found | unions, paths)


def _make_plain(schema: Json, unions: dict[str, Json]) -> None:
    def change(each: Json) -> None:
        schemas.make_plain(each)
        schemas.refer(each, unions, PREFIX)

    schemas.visit(schema, change)


def _finish(operation: Json, components: dict[str, Json]) -> None:
    """Words for parameters, headers that go with statuses and media types, an example of each good answer."""
    for parameter in operation.get("parameters", ()):
        parameter["schema"] = schemas.without_null(parameter["schema"])
        schemas.describe({parameter["name"]: parameter}, [operation["operationId"]], MEANINGS)
        if parameter["name"] == "If-Match":  # the routes read it, and answer its absence with 428: it is not valid
            parameter["required"] = True
    for status, response in operation["responses"].items():
        if status in {"429", "503"} and MEDIA_TYPE in response.get("content", {}):
            response["headers"] = _RETRY_AFTER | response.get("headers", {})
        if status < "300":
            _give_examples(response, components)
    _give_examples(operation.get("requestBody", {}), components)


def _give_examples(place: Json, components: dict[str, Json]) -> None:
    media = place.get("content", {}).get("application/json")
    if media is not None and "example" not in media:
        media["example"] = example_of(media["schema"], components)


def install(app: FastAPI) -> None:
    """Serve the documents and their pages, and make FastAPI believe that the one for people is its own."""
    app.openapi = _once(lambda: document(app))  # type: ignore[method-assign]
    of_workers = _once(lambda: worker_document(app))

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi_json() -> Response:
        return answer(app.openapi())

    @app.get("/openapi-worker.json", include_in_schema=False)
    async def openapi_worker_json() -> Response:
        return answer(of_workers())

    @app.get("/docs", include_in_schema=False)
    async def docs(_: Request) -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title="Millrace",
            swagger_js_url=f"{ASSETS}/swagger-ui-bundle.js",
            swagger_css_url=f"{ASSETS}/swagger-ui.css",
            swagger_favicon_url=f"{ASSETS}/favicon.png",
        )

    # The pages' own assets, from a package: they work where no content network is reached.
    app.mount(ASSETS, StaticFiles(packages=[("fastapi_offline", "static")]), name="docs-assets")


def _schemas_of_bodies() -> dict[str, Any]:
    models = [(body, "validation") for body in _BODIES.values() if issubclass(body, BaseModel)]
    structs = [body for body in _BODIES.values() if not issubclass(body, BaseModel)]
    _, described = models_json_schema(models, ref_template=_REF)  # type: ignore[arg-type]
    _, components = msgspec.json.schema_components(structs, ref_template=_REF.replace("{model}", "{name}"))
    found: dict[str, Json] = {**described.get("$defs", {}), **components}
    return found


def _schemas_of_unions() -> tuple[dict[str, Json], dict[str, Json]]:
    """Those of named unions, and of their members."""
    unions: dict[str, Json] = {}
    members: dict[str, Json] = {}
    for name, (description, union) in _UNIONS.items():
        schema = TypeAdapter(union).json_schema(ref_template=_REF)
        members |= schema.pop("$defs", {})
        schemas.visit(schema, schemas.make_plain)
        unions[name] = {"description": description, **schema}
    return unions, members


def _declare_problems(responses: dict[str, Any]) -> None:
    """Any other status is a problem as well; nothing of FastAPI's own errors is left."""
    if "HTTPValidationError" in str(responses.get("422", "")):
        del responses["422"]
    responses["default"] = {**declared(500)[500], "description": "Any other error"}


def _named(made: Json) -> Json:
    """Names and patterns for readers who know neither pydantic nor Rust: `TokenPage`, and `$` where `\\z` was."""
    text = orjson.dumps(made).replace(rb'\\z"', b'$"')
    named: Json = orjson.loads(re.sub(rb"\bPageView_(\w+?)View_(?=\W)", rb"\1Page", text))
    for name, schema in named.get("components", {}).get("schemas", {}).items():
        if schema.get("title", "").startswith("PageView["):
            schema["description"] = (
                f"One page of a list: {name.removesuffix('Page')} after {name.removesuffix('Page')}."
            )
    return named


def _once(make: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    made: list[dict[str, Any]] = []

    def get() -> dict[str, Any]:
        if not made:
            made.append(make())
        return made[0]

    return get
