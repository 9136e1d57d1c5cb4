"""Moments of the catalog (epoch ms) as people read them."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field

Moment = Annotated[str, Field(json_schema_extra={"format": "date-time"})]  # RFC 3339


def moment(ms: int) -> str:
    """RFC 3339, in UTC, to the millisecond."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
