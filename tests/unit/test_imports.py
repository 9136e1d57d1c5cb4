"""What a process loads before it has anything to do: seconds of CPU that every start would pay."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"alembic", "duckdb", "fastapi", "numba", "pyarrow", "pyspark", "sqlalchemy"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("module", "needed"),
    [
        ("service.cli", set()),
        ("service.app", HEAVY - {"numba", "pyspark"}),
        ("spark_jobs.instance", {"pyarrow", "pyspark"}),
        ("service.streams.operators", {"duckdb", "pyarrow"}),
    ],
)
def test_a_process_loads_only_what_it_needs_to_start(module: str, needed: set[str]) -> None:
    code = f"import {module}, sys; print(*{HEAVY} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= needed


def test_a_kernel_is_loaded_by_its_first_use() -> None:
    use = "int(sys.modules['service.streams.partitioner'].murmur2(b'a key that is longer than short'))"
    code = f"import service.streams.partitioner, sys; print('numba' in sys.modules, {use}, 'numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "-463955030", "True"]
