"""The OpenAPI documents as they are committed: tests/unit/api/test_openapi.py shows that the routes declare the same.

A service takes 1.5 s of CPU to make them, of which a test that reads one has no use.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parents[1] / "openapi"


def for_people() -> dict[str, Any]:
    """The document of the API."""
    return _read("openapi.json")


def for_workers() -> dict[str, Any]:
    """The document of the protocol between instances and the service."""
    return _read("worker.json")


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((_FOLDER / name).read_bytes())
    return found
