"""The cases: real output of Kafka Streams, and KIP-655's for deduplicate."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "cases"
FAMILIES = ("deduplicate", "hopping", "session", "sliding", "table", "tumbling")


def raw(family: str) -> bytes:
    """The file as it was given."""
    return gzip.decompress((FOLDER / f"{family}.jsonl.gz").read_bytes())


def load(family: str) -> list[dict[str, Any]]:
    """Its cases."""
    return [json.loads(line) for line in raw(family).splitlines()]
