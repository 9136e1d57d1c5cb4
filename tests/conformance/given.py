"""The cases: real output of Kafka Streams, and KIP-655's for deduplicate."""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "cases"
BATCH, LARGE_BATCH = 7, 97  # records; the larger cuts cases of more than LARGE records, which 7 would cut into 110
LARGE = 100
SHORT = 40  # records of a case that `make check` runs in batches; it runs others whole
BY_ONE = 4  # cases of each part, its shortest, that run in batches of one record, each 5 ms of CPU
FAMILIES = ("deduplicate", "hopping", "session", "sliding", "table", "tumbling")


def raw(family: str) -> bytes:
    """The file as it was given."""
    return gzip.decompress((FOLDER / f"{family}.jsonl.gz").read_bytes())


@cache
def load(family: str) -> list[dict[str, Any]]:
    """Its cases."""
    return [json.loads(line) for line in raw(family).splitlines()]


def each(cases: list[dict[str, Any]]) -> list[Any]:
    """Parameters (case) of each case; `make check` leaves out the large ones."""
    return [
        pytest.param(case, id=case["name"], marks=[pytest.mark.thorough] if len(case["records"]) > LARGE else [])
        for case in cases
    ]


def cut(cases: list[dict[str, Any]]) -> list[Any]:
    """Parameters (case, batch_records) of each case whole (None) and in batches; `make check` runs one of the two,
    and no large case.
    """
    by_one = _shortest(cases)
    found = []
    for case in cases:
        count = len(case["records"])
        batch = LARGE_BATCH if count > LARGE else BATCH
        quick = batch if batch < count <= SHORT else None
        for size in [None, *([batch] if batch < count else []), *([1] if case["name"] in by_one else [])]:
            found.append(_parameters(case, size, is_thorough=size != quick or count > LARGE))
    return found


def simulated(cases: list[dict[str, Any]]) -> list[Any]:
    """Parameters (case, batch_records) of each case whole, and in batches of 7 of one case of each part: what batches
    are to the operators is shown by `cut`, and how a simulation makes them by any case. `make check` runs none.
    """
    samples = {case["name"] for case in sample(max_records=LARGE).values()}
    ways = [(case, None) for case in cases] + [(case, BATCH) for case in cases if case["name"] in samples]
    return [_parameters(case, size, is_thorough=True) for case, size in ways]


def _parameters(case: dict[str, Any], size: int | None, *, is_thorough: bool) -> Any:
    marks = [pytest.mark.thorough] if is_thorough else []
    return pytest.param(case, size, id=f"{case['name']}-{size or 'whole'}", marks=marks)


def _shortest(cases: list[dict[str, Any]]) -> set[str]:
    """The names of the BY_ONE shortest cases of each part that have more than one record."""
    parts: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for case in sorted(cases, key=lambda case: len(case["records"])):
        if len(case["records"]) > 1:
            parts[_part(case)].append(case)
    return {case["name"] for part in parts.values() for case in part[:BY_ONE]}


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
        part = _part(case)
        if part not in chosen or _shows(case) > _shows(chosen[part]):
            chosen[part] = case
    return chosen


def _part(case: dict[str, Any]) -> str:
    return re.sub(r"-\d+$", "", case["name"])


def _shows(case: dict[str, Any]) -> int:
    dropped: int = case.get("dropped_total", len(case["records"]) - len(case["outputs"]))
    return len(case["outputs"]) * (dropped + 1)
