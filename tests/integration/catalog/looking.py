"""Looks into a catalog, and changes what no function of the catalog would: clocks and leases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, create_engine


@contextmanager
def engine_of(url: str) -> Iterator[Engine]:
    """An engine of its own on the test's database."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        yield engine
    finally:
        engine.dispose()
