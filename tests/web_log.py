"""The 9,999 real web requests of `tests/data/access-log.ndjson.gz`; its README names their origin."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent / "data" / "access-log.ndjson.gz"


def requests() -> list[dict[str, Any]]:
    """All requests as records (key, value, timestamp in ms), in the order of the log."""
    with gzip.open(PATH, "rt") as lines:
        records = [json.loads(line) for line in lines]
    assert len(records) == 9_999
    return records
