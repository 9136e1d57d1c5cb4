"""Requests and answers of routes: bodies in, prepared bytes out, entity tags, media types, path names.

Knows JSON and HTTP's conditional headers. Refuses to know what a body means. Sizes and content encodings are
settled before (`service.border`): what arrives here is decoded and within its limit.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import mimeparse
import msgspec
import orjson
from starlette.concurrency import run_in_threadpool
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response

from service.audit import entry_of
from service.documents import Model, as_json, as_model
from service.problems import ProblemError, refused

ETAG: Final[dict[str, Any]] = {
    "ETag": {
        "description": "The strong entity tag of what is shown, for `If-None-Match` and `If-Match`.",
        "required": True,
        "schema": {"type": "string"},
    }
}
LOCATION: Final[dict[str, Any]] = {
    "Location": {
        "description": "The path of what was made.",
        "required": True,
        "schema": {"type": "string", "format": "uri-reference"},
    }
}
UNCHANGED: Final[dict[int | str, dict[str, Any]]] = {
    304: {"description": "The caller has it already (`If-None-Match`)", "headers": ETAG}
}
AT_ONCE_BYTES = 64 << 10  # read on the event loop
Struct = TypeVar("Struct")


def with_tag(model: Any, **more: Any) -> dict[str, Any]:
    """What `responses=` says of an answer of this model that has an entity tag; `more` is said too."""
    return {"model": model, "headers": ETAG} | more


def storable(text: str) -> str:
    """A name or cursor as a database takes it: none takes U+0000. No name has U+FFFD, which stands for it, either."""
    return text.replace("\0", "\ufffd")


class _NameConvertor(StringConvertor):
    """A path part up to the colon of a verb: `/v1/jobs/{job:name}:pause`."""

    regex = "[^/:]+"

    def convert(self, value: str) -> str:
        return storable(value)


register_url_convertor("name", _NameConvertor())


async def read_json(request: Request) -> Any:
    """The body as JSON; 415 unless it says so, 400 when it is not."""
    body = await json_bytes(request)
    content = as_json(body) if len(body) <= AT_ONCE_BYTES else await run_in_threadpool(as_json, body)
    if (entry := entry_of(request)) is not None:
        entry.keep_body(content)
    return content


async def read_model(request: Request, model: type[Model]) -> Model:
    """The body as one of the API's models; 422 with a pointer for each fault."""
    return as_model(await read_json(request), model)


async def read_struct(request: Request, decoder: "msgspec.json.Decoder[Struct]") -> Struct:
    """The body as a msgspec struct: for the routes that slots call all the time."""
    body = await json_bytes(request)
    try:
        found = decoder.decode(body)
    except msgspec.DecodeError as error:
        raise _invalid(body, str(error)) from error
    as_json(body)  # which refuses names that stand twice
    return found


def _invalid(body: bytes, message: str) -> ProblemError:
    """msgspec reports the first fault it meets; that of a body which is no JSON further on is another."""
    try:
        msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        return ProblemError(400, "malformed_json", f"the body is not JSON: {error}")
    detail, _, path = message.replace(" - at `key` in `$", " as a name - at `$").partition(" - at `$")
    known = path.rstrip("`").partition("[...]")[0]  # which member of a dictionary it is, msgspec does not say
    pointer = known.replace("[", "/").replace("]", "").replace(".", "/")
    return refused("invalid_request", pointer, detail)


async def json_bytes(request: Request) -> bytes:
    """The body, which must be declared as JSON."""
    media_type = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        detail = f"the body must be application/json, not {media_type or 'undeclared'}"
        raise ProblemError(415, "unsupported_media_type", detail, headers={"Accept": "application/json"})
    return await request.body()


def answer(content: Any, status: int = 200, *, headers: Mapping[str, str] | None = None) -> Response:
    """JSON bytes."""
    return Response(orjson.dumps(content), status, headers=dict(headers or {}), media_type="application/json")


def tagged(request: Request, content: Any, version: str = "") -> Response:
    """A single resource with a strong entity tag, the digest of its bytes; 304 when the caller has them.

    `version` goes before the digest: what `If-Match` is held against where the bytes change by themselves.
    """
    body = orjson.dumps(content)
    digest = hashlib.blake2b(body, digest_size=12).hexdigest()
    tag = f'"{version}-{digest}"' if version else f'"{digest}"'
    known = [part.strip() for part in request.headers.get("If-None-Match", "").split(",")]
    if request.method == "GET" and (tag in known or "*" in known):
        return Response(status_code=304, headers={"ETag": tag})
    return Response(body, headers={"ETag": tag}, media_type="application/json")


def page(items: Sequence[Any], *, limit: int, cursor_of: str = "name") -> dict[str, Any]:
    """`{"items", "next"}` of `limit + 1` items read; the cursor is the last name given."""
    shown = list(items[:limit])
    return {"items": shown, "next": shown[-1][cursor_of] if len(items) > limit else None}


def accepts(request: Request, *offered: str) -> str:
    """The media type offered that the caller's `Accept` takes with the highest weight, the first of equals; 406 when
    none. A range that is no media range counts as if it were not there.
    """
    header = ",".join(request.headers.getlist("Accept")).lower()
    wanted = [part for part in header.split(",") if _is_range(part)] if header.strip() else ["*/*"]
    best = mimeparse.best_match(offered[::-1], ",".join(wanted)) if wanted else ""
    if not best:
        raise ProblemError(406, "not_acceptable", f"this is served as {', '.join(offered)}")
    return str(best)


def _is_range(part: str) -> bool:
    try:
        mimeparse.parse_media_range(part)
    except mimeparse.MimeTypeParseException:
        return False
    return True


def expected_etag(request: Request) -> str:
    """The entity tag of `If-Match`; 428 without one (a weak or starred one never matches: 412 later)."""
    header = request.headers.get("If-Match")
    if header is None:
        raise ProblemError(428, "precondition_required", "say which version you change: If-Match with its ETag")
    return header.strip().strip('"')
