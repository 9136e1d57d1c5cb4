"""`spill_to_disk` bounds memory, not the operator: ten times the bound gives the output of no bound, in as little room.

Each run is a process of its own (`tests/spilling.py`); memory is RssAnon, as what LMDB maps is the kernel's to keep.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.spilling import VALUE_BYTES

ROOT = Path(__file__).parents[2]
BOUND = 1_000 * VALUE_BYTES
SPILLING = {"max_bytes": BOUND, "when_full": "spill_to_disk"}
MEBIBYTE = 1 << 20


def run(folder: Path, records: int, buffer: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.spilling", str(folder), str(records), json.dumps(buffer)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout)
    return told


def test_ten_times_the_byte_bound_gives_the_output_of_unbounded_in_bounded_memory(tmp_path: Path) -> None:
    little = run(tmp_path / "little", 1_000, SPILLING)
    much = run(tmp_path / "much", 10_000, SPILLING)
    unbounded = run(tmp_path / "unbounded", 10_000, {})
    assert much["outputs"] == unbounded["outputs"]
    assert (much["records"], unbounded["records"]) == (10_000, 10_000)
    assert (much["steps"] >= 9, unbounded["steps"]) == (True, 1)
    spilt = 9 * BOUND
    for phase in ("feeding", "closing"):
        assert much[phase] - little[phase] < spilt / 2, phase
    assert much["closing"] - much["at_rest"] < 20 * BOUND
    assert unbounded["closing"] - much["closing"] > 2 * spilt, "as it would be if all of it left at once"
