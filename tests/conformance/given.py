"""The cases: real output of Kafka Streams, and KIP-655's for deduplicate."""

from __future__ import annotations

import gzip
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "cases"
SIZES = [1, 7, 1000]
BY_ONE_MAX = 40  # records of a case that is run one by one, 5 ms each: five cases or more of each part
FAMILIES = ("deduplicate", "hopping", "session", "sliding", "table", "tumbling")


def raw(family: str) -> bytes:
    """The file as it was given."""
    return gzip.decompress((FOLDER / f"{family}.jsonl.gz").read_bytes())


@cache
def load(family: str) -> list[dict[str, Any]]:
    """Its cases."""
    return [json.loads(line) for line in raw(family).splitlines()]


def cut(cases: list[dict[str, Any]], sizes: list[int], *, quick: int | None = None) -> list[Any]:
    """Parameters (case, batch_records) of each case whole (None) and in batches of those sizes that cut it.

    `make check` runs each case once, in batches of `quick` records; without it, none.
    """
    found = []
    for case in cases:
        count = len(case["records"])
        ways = [None, *(size for size in sizes if size < count and (size > 1 or count <= BY_ONE_MAX))]
        thorough = set(ways) if quick is None else set(ways) - {quick if quick in ways else None}
        for size in ways:
            marks = [pytest.mark.thorough] if size in thorough else []
            found.append(pytest.param(case, size, id=f"{case['name']}-{size or 'whole'}", marks=marks))
    return found


def simulated(cases: list[dict[str, Any]]) -> list[Any]:
    """Parameters (case, batch_records) of each case whole, and in batches of 7 of one case of each part: what batches
    are to the operators is shown by `cut`, and how a simulation makes them by any case.
    """
    samples = {case["name"] for case in sample(max_records=100).values()}
    return [way for case in cases for way in cut([case], [7] if case["name"] in samples else [])]


def promised(case: dict[str, Any]) -> list[dict[str, Any]]:
    """What Millrace gives for a case: its outputs, but of two finals for one window the last in place of the first.

    `suppress` until a sliding window closes is strict (semantics.md), so that a final is never followed by another.
    """
    outputs: list[dict[str, Any]] = case["outputs"]
    if case["job"]["operators"][-1].get("until") != "window_closes":
        return outputs
    return list({(output["key"], *output["window"].values()): output for output in outputs}.values())


@cache
def sample(max_records: int) -> dict[str, dict[str, Any]]:
    """Of each of the families' parts (`session-updates`, `session-on-close`, …) the case of at most so many records
    that shows most: outputs, and records that are dropped.
    """
    chosen: dict[str, dict[str, Any]] = {}
    for case in (case for family in FAMILIES for case in load(family) if len(case["records"]) <= max_records):
        part = re.sub(r"-\d+$", "", case["name"])
        if part not in chosen or _shows(case) > _shows(chosen[part]):
            chosen[part] = case
    return chosen


def _shows(case: dict[str, Any]) -> int:
    dropped: int = case.get("dropped_total", len(case["records"]) - len(case["outputs"]))
    return len(case["outputs"]) * (dropped + 1)
