"""The settings that resident slots rely on."""

from __future__ import annotations

import pytest

from spark_jobs import session


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local[3]", 3), ("local[8,1000000]", 8), ("local[*]", None), ("local", None), ("spark://127.0.0.1:7077", None)],
)
def test_the_master_says_how_many_slots_a_job_may_have(master: str, cores: int | None) -> None:
    assert session.cores_in(master) == cores


def test_a_local_master_has_threads_for_all_jobs_and_forgives_every_lost_slot() -> None:
    found = session.settings_for("local[2,4]", name="x", has_ui=False)
    assert found["spark.master"] == "local[1024,1000000]"


def test_embedded_nothing_listens_beyond_this_machine() -> None:
    found = session.settings_for("local[2]", name="x", has_ui=False)
    assert found["spark.driver.bindAddress"] == found["spark.driver.host"] == "127.0.0.1"
    assert found["spark.ui.enabled"] == "false"


def test_the_ui_is_there_when_asked_for_and_on_a_cluster() -> None:
    assert session.settings_for("local[2]", name="x", has_ui=True)["spark.ui.enabled"] == "true"
    assert session.settings_for("spark://h:7077", name="x", has_ui=False)["spark.ui.enabled"] == "true"


def test_a_cluster_chooses_its_own_addresses() -> None:
    found = session.settings_for("spark://h:7077", name="x", has_ui=False)
    assert "spark.driver.host" not in found
    assert found["spark.master"] == "spark://h:7077"


def test_a_slot_is_never_run_twice_at_once() -> None:
    found = session.settings_for("spark://h:7077", name="x", has_ui=False)
    assert found["spark.speculation"] == "false"
    assert found["spark.dynamicAllocation.enabled"] == "false"
