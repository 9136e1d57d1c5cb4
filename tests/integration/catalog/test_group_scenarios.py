"""Groups that grow, shrink, crash and come back, through the real coordinator.

`python -m tests.playing_coordinator` plays all of them, beside Kafka Streams' costs.
"""

from __future__ import annotations

import pytest

from tests.playing import scenarios
from tests.playing_coordinator import play


@pytest.mark.parametrize("seed", [4, 10, 29])
def test_nothing_starts_cold_and_what_stays_misses_no_tick(migrated_sqlite: bytes, seed: int) -> None:
    cost = play(scenarios()[seed], migrated_sqlite)
    assert (cost["cold"], cost["unstable"]) == (0, 0)
    assert cost["rounds"] > 0
