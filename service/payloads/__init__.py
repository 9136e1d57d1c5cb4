"""Bodies of records, in and out: bytes of three formats ⇄ one batch of records.

Knows the formats (JSON, NDJSON, Arrow IPC streams) and what a stream asks of each record. Refuses to know where a
body came from, which partition a key belongs to, and where the records go.

Whatever the format, a record means the same and the same rules are broken the same way: formats yield Columns,
`rules.judge` alone decides.
"""

from service.payloads.arrow_bodies import arrow_columns
from service.payloads.columns import Columns
from service.payloads.json_bodies import json_columns, ndjson_columns
from service.payloads.rules import Payload, Rules, judge
from service.streams.errors import InvalidRecords, Problem, UnsupportedMediaType

JSON = "application/json"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
MEDIA_TYPES = (JSON, NDJSON, ARROW)

__all__ = ["ARROW", "JSON", "MEDIA_TYPES", "NDJSON", "Payload", "Rules", "decode", "media_type_of"]


def media_type_of(content_type: str) -> str:
    """The format that a Content-Type names; UnsupportedMediaType for others, and for other charsets than UTF-8."""
    name, *parameters = (part.strip().lower() for part in content_type.split(";"))
    given = dict(part.partition("=")[::2] for part in parameters)
    charset = given.get("charset", "utf-8").strip(' "')
    if name not in MEDIA_TYPES or charset not in ("utf-8", "utf8", "us-ascii"):
        raise UnsupportedMediaType(content_type, MEDIA_TYPES)
    return name


def decode(media_type: str, body: bytes, rules: Rules) -> Payload:
    """The records of a body, in the order sent; InvalidRecords with a pointer for each bad one (at most 100)."""
    if not body:
        raise InvalidRecords([Problem("", "the body is empty")])
    columns = _columns(media_type, body, rules)
    if len(columns.value) == 0:
        raise InvalidRecords([Problem("", "there are no records")])
    return judge(columns, rules)


def _columns(media_type: str, body: bytes, rules: Rules) -> Columns:
    if media_type == NDJSON:
        return ndjson_columns(body)
    if media_type == ARROW:
        return arrow_columns(body, rules.max_bytes)
    return json_columns(body)
