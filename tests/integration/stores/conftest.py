"""Every test of stores runs on LMDB and on Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.storage import view
from tests.stores import Engine


@pytest.fixture(params=["lmdb", pytest.param("redis", marks=pytest.mark.services)])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """Where stores are kept: LMDB, then Redis."""
    if request.param == "lmdb":
        with Engine(tmp_path / "stores", None).opened as opened:
            yield Engine(tmp_path / "stores", None, opened)
        return
    with view.connect(request.getfixturevalue("redis_server")) as client, Engine(None, client).opened as opened:
        yield Engine(None, client, opened)
