"""Aggregators from distributions that are really installed (files and metadata on the path): listed over HTTP, named in
jobs, run by slots; and what happens where one raises, or a worker does not have it. The package is that of
docs/aggregators.md.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from service.streams.operators import installed_aggregators
from service.streams.topology.graph import form_of
from tests.installing import install, install_example
from tests.integration.test_spark_slot import World, turn_until
from tests.serving import serving
from tests.stores import Engine, Job, at

PAGE = (Path(__file__).parents[2] / "docs" / "aggregators.md").read_text()
BROKEN = """
class Broken:
    def initializer(self):
        return 0

    def aggregator(self, key, value, aggregate):
        return aggregate + 1 // value
"""
SESSION = {"type": "session", "gap_ms": 1_000, "grace_ms": 5_000}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages that this process, which is service and worker here, can import."""
    folder = tmp_path / "site"
    folder.mkdir()
    install_example(folder, "aggregators.md", installed_aggregators.GROUP)
    broken = {"broken": "broken_ones:Broken", "gone": "broken_ones:Gone"}
    install(folder, "broken-ones", "0.2", BROKEN, installed_aggregators.GROUP, broken)
    monkeypatch.syspath_prepend(str(folder))
    installed_aggregators.aggregator_named.cache_clear()
    yield folder
    installed_aggregators.aggregator_named.cache_clear()
    for module in ("shop_aggregators", "broken_ones"):
        sys.modules.pop(module, None)


@pytest.fixture
def world(site: Path, tmp_path: Path, migrated_sqlite: bytes) -> Iterator[World]:
    (tmp_path / "catalog.db").write_bytes(migrated_sqlite)
    with serving(tmp_path, f"sqlite:///{tmp_path}/catalog.db") as service, ExitStack() as opened:
        yield World(service, tmp_path, opened)


def custom(name: str, window: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    of = {"fn": "custom", "aggregator": name, "of": "(value->>'id')::bigint"}
    return [{"op": "aggregate", "name": "agg", "window": window, "aggregates": {"x": of}}]


def refusal(world: World, operators: list[dict[str, Any]]) -> dict[str, str]:
    body = {"name": "j", "source": "clicks", "operators": operators}
    answer = world.admin.post("/v1/jobs", json=body)
    assert answer.status_code == 422, answer.text
    (error,) = answer.json()["errors"]
    return dict(error)


def test_the_api_lists_what_is_built_in_and_what_is_installed(world: World) -> None:
    found = {item["name"]: item for item in world.call("GET", "/v1/aggregators")["items"]}
    assert list(found) == [
        "count",
        "sum",
        "min",
        "max",
        "mean",
        "first",
        "last",
        "collect",
        "broken",
        "gone",
        "top_three",
    ]
    assert {name for name, item in found.items() if item["kind"] == "installed"} == {"broken", "gone", "top_three"}
    assert found["top_three"] == {
        "name": "top_three",
        "kind": "installed",
        "package": "shop-aggregators",
        "version": "1.0",
        "origin": "shop_aggregators:TopThree",
        "doc": "The three highest values of a group, highest first.",
        "merges": True,
        "problem": None,
    }
    assert (found["broken"]["merges"], found["broken"]["version"], found["broken"]["doc"]) == (False, "0.2", "")
    assert found["gone"]["problem"].startswith("broken_ones:Gone can not be loaded: AttributeError")
    assert found["collect"]["doc"]


def test_an_unknown_aggregator_is_refused_with_those_that_are_known(world: World) -> None:
    assert refusal(world, custom("nobody")) == {
        "pointer": "/operators/0/aggregates/x/aggregator",
        "detail": "'nobody' is not installed; installed: broken, gone, top_three",
    }
    assert refusal(world, custom("gone"))["pointer"] == "/operators/0/aggregates/x/aggregator"
    assert refusal(world, custom("broken", SESSION)) == {
        "pointer": "/operators/0/aggregates",
        "detail": "x: the aggregator 'broken' has no merger, which sessions need",
    }


def test_the_example_of_the_documentation_runs_and_merges_sessions(world: World) -> None:
    slot = world.slot(world.job(operators=custom("top_three", SESSION)))
    for timestamp, value in (1_000, 5), (2_900, 7), (1_950, 9), (2_000, 1):
        record = {"key": "k", "value": {"id": value}, "timestamp": timestamp, "partition": 0}
        world.call("POST", "/v1/streams/clicks/records", json={"records": [record]})
    path = "/v1/streams/job-out/records?partition=0"
    turn_until(slot, lambda: len(world.call("GET", path)["records"]) == 7)
    assert [record["value"] for record in world.call("GET", path)["records"]] == [
        {"x": [5]},
        {"x": [7]},
        None,
        None,
        {"x": [9, 7, 5]},
        None,
        {"x": [9, 7, 5]},
    ]


def test_an_aggregator_that_raises_fails_the_job_and_names_operator_and_offset(world: World) -> None:
    job = world.job(operators=custom("broken"))
    world.post(4, 0, 2, partition=1)
    slot = world.slot(job)
    turn_until(slot, lambda: world.state()["state"] == "failed")
    error = world.state()["error"]
    assert (error["code"], error["operator"], error["stream"]) == ("aggregator_failed", "agg", "clicks")
    assert (error["partition"], error["offset"], error["task"]) == (1, 1, "0_1")
    assert error["detail"] == "ZeroDivisionError: integer division or modulo by zero"
    world.call("POST", "/v1/jobs/job:skip", json={"partition": 1, "offset": 1})
    world.call("POST", "/v1/jobs/job:restart")
    again = world.slot(job)
    path = "/v1/streams/job-out/records?partition="
    turn_until(again, lambda: sum(len(world.call("GET", f"{path}{p}")["records"]) for p in range(2)) == 2)


def uninstall(site: Path) -> None:
    sys.path.remove(str(site))
    importlib.invalidate_caches()
    installed_aggregators.aggregator_named.cache_clear()


def test_what_it_stored_is_shown_where_it_is_not_installed(site: Path, tmp_path: Path) -> None:
    with ExitStack() as opened:
        job = Job(Engine(tmp_path / "kept", None, opened), tmp_path, custom("top_three", SESSION))
        job.feed(at("k", 1_000, value={"id": 4}) + at("k", 1_500, value={"id": 6}))
        uninstall(site)
        (store,) = job.stores.values()
        store.form = form_of(store.node)
        assert [(item["window"], item["value"]) for item in store.all()] == [
            ({"start": 1_000, "end": 1_500}, {"x": [6, 4]})
        ]


def test_a_worker_that_does_not_have_it_fails_the_job_and_says_what_is_missing(world: World, site: Path) -> None:
    job = world.job(operators=custom("top_three"))
    world.post(4)
    slot = world.slot(job)
    uninstall(site)
    turn_until(slot, lambda: world.state()["state"] == "failed")
    error = world.state()["error"]
    assert (error["code"], error["operator"]) == ("operator_unavailable", "agg")
    assert error["detail"] == "'top_three' is not installed; installed: none"
    sys.path.insert(0, str(site))
    world.call("POST", "/v1/jobs/job:restart")
    again = world.slot(job)
    path = "/v1/streams/job-out/records?partition="
    turn_until(again, lambda: sum(len(world.call("GET", f"{path}{p}")["records"]) for p in range(2)) == 1)
