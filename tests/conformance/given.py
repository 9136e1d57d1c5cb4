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


def promised(case: dict[str, Any]) -> list[dict[str, Any]]:
    """What Millrace gives for a case: its outputs, but of two finals for one window the last in place of the first.

    `suppress` until a sliding window closes is strict (semantics.md), so that a final is never followed by another.
    """
    outputs: list[dict[str, Any]] = case["outputs"]
    if case["job"]["operators"][-1].get("until") != "window_closes":
        return outputs
    return list({(output["key"], *output["window"].values()): output for output in outputs}.values())
