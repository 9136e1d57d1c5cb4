"""Which tests stay together in `make test`, and which go first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scheduling import APART, FILES, FIRST, FOLDERS, rank_of, unit_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("named", [*FOLDERS, *APART, *FILES, *FIRST])
def test_what_is_named_is_there(named: str) -> None:
    """What was renamed would fall to the end of the queue, or into another unit, and nobody would notice."""
    path, _, function = named.partition("::")
    assert (ROOT / path).exists()
    assert not function or f"def {function}" in (ROOT / path).read_text()


def test_tests_that_share_a_service_stay_together() -> None:
    assert unit_of("tests/unit/test_pages.py::test_a[1-b::c]") == "tests/unit/test_pages.py"
    assert unit_of("tests/e2e/test_web_log.py::test_a") == unit_of("tests/e2e/test_suppress_full.py::test_b")
    assert unit_of("tests/e2e/test_demo.py::test_a") == "tests/e2e/test_demo.py"
    assert unit_of("tests/chaos/test_killed.py::test_a") == "tests/chaos"


def test_tests_that_share_nothing_are_given_away_one_by_one() -> None:
    one, other = (f"tests/integration/test_fuzzed_api.py::test_a[{name}]" for name in ("sqlite", "postgres"))
    assert (unit_of(one), unit_of(other)) == (one, other)


def test_the_longest_go_first_and_what_is_not_named_last() -> None:
    units = ["tests/unit/test_pages.py", "tests/integration/test_steps.py", "tests/spark/test_ends.py", "tests/e2e"]
    assert sorted(units, key=rank_of) == [units[2], units[3], units[1], units[0]]
