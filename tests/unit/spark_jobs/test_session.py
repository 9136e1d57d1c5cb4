"""The settings that resident slots rely on."""

from __future__ import annotations

from dataclasses import fields

import pytest

from spark_jobs import session
from spark_jobs.client import SlotPlace


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


@pytest.mark.parametrize("jvm", ["driver", "executor"])
def test_a_jvm_without_memory_ends_so_that_somebody_notices(jvm: str) -> None:
    options = session.settings_for("spark://h:7077", name="x", has_ui=False)[f"spark.{jvm}.extraJavaOptions"]
    assert "-XX:+ExitOnOutOfMemoryError" in options.split()


@pytest.mark.parametrize("master", ["local[2]", "spark://h:7077", "yarn", "k8s://https://h:6443"])
def test_sparks_ports_answer_nobody_who_does_not_know_the_secret(master: str) -> None:
    found = session.settings_for(master, name="x", has_ui=True)
    assert found["spark.authenticate"] == "true"
    assert found["spark.ui.killEnabled"] == "false"


def test_what_crosses_a_network_is_encrypted() -> None:
    found = session.settings_for("yarn", name="x", has_ui=True)
    assert found["spark.network.crypto.enabled"] == "true"


def test_authentication_is_left_out_on_an_open_cluster_alone() -> None:
    on_cluster = session.settings_for("spark://h:7077", name="x", has_ui=False, has_auth=False)
    assert not {"spark.authenticate", "spark.network.crypto.enabled"} & on_cluster.keys()
    assert session.settings_for("local[2]", name="x", has_ui=False, has_auth=False)["spark.authenticate"] == "true"


def test_a_key_goes_to_executors_in_their_environment_and_the_secret_where_spark_makes_none() -> None:
    known = {"api_key": "key", "spark_secret": "of the cluster"}
    environment = {"spark.executorEnv.MILLRACE_API_KEY": "key"}
    assert session.secrets_for("local[2]", **known) == {}
    assert session.secrets_for("yarn", **known) == environment
    assert session.secrets_for("spark://h:7077", **known) == {
        "spark.authenticate.secret": "of the cluster",
        **environment,
    }
    assert session.secrets_for("spark://h:7077", api_key="", spark_secret=None) == {}


def test_no_setting_that_anybody_may_see_is_a_secret() -> None:
    """They stand on the command line of the JVM."""
    for master in ("local[2]", "spark://h:7077"):
        assert not [
            n for n in session.settings_for(master, name="x", has_ui=False) if "secret" in n or "executorEnv" in n
        ]


def test_what_travels_with_a_slot_holds_no_secret() -> None:
    assert {field.name for field in fields(SlotPlace)} == {
        "api_url",
        "instance_id",
        "storage_uri",
        "replica_dir",
        "job_id",
        "executor",
    }


def test_what_an_instance_takes_of_a_standalone_cluster_is_bounded() -> None:
    assert session.settings_for("spark://h:7077", name="x", has_ui=False, cores=6)["spark.cores.max"] == "6"
    for master, cores in (("spark://h:7077", None), ("local[2]", 6), ("yarn", 6)):
        assert "spark.cores.max" not in session.settings_for(master, name="x", has_ui=False, cores=cores)
