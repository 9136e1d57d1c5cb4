"""A slot and the view in Redis: written after every commit, rebuilt when lost or behind, never in the way of a task."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from service import lookups
from service.protocol import HeartbeatRequest, JoinRequest, SlotRequest
from service.storage import view
from service.storage.node import NodeFolder
from service.streams.errors import StoreNotReadable
from spark_jobs import follow, memory
from spark_jobs.client import Api, SlotPlace
from spark_jobs.pulse import Pulse
from spark_jobs.slot import Slot
from tests import services
from tests.serving import Serving, serving

pytestmark = pytest.mark.services

COUNT = {"op": "aggregate", "name": "k", "aggregates": {"n": {"fn": "count"}}}


class World:
    """A service that looks into Redis, and slots that live when a test says so."""

    def __init__(self, service: Serving, folder: Path, opened: ExitStack) -> None:
        self.service, self.folder, self.opened = service, folder, opened
        self.http = service.client("admin")
        self.api = opened.enter_context(Api(service.url, service.secrets["instance"]))
        self.member = self.api.join_instance(JoinRequest("here", "1", "localhost", 4))
        assert service.settings.redis_url is not None
        self.redis_url: str = service.settings.redis_url
        self.call("POST", "/v1/streams", json={"name": "clicks", "partitions": 2})
        job = {"name": "job", "source": "clicks", "operators": [COUNT], "sink": "out", "commit_interval_ms": 0}
        self.job = str(self.call("POST", "/v1/jobs", json=job)["id"])

    def call(self, method: str, path: str, **how: Any) -> Any:
        return self.http.request(method, path, **how).raise_for_status().json()

    def post(self, *keys: str) -> None:
        records = [{"key": key, "value": None, "timestamp": 1_000} for key in keys]
        body = {"records": [{**record, "value": 1} for record in records]}
        self.call("POST", "/v1/streams/clicks/records", json=body)

    def stay(self, until: threading.Event) -> None:
        """Renew the instance's lease, as its driver would: a slot that has nothing to do waits as long as that."""
        with Api(self.service.url, self.service.secrets["instance"]) as api:
            while not until.wait(0.3):
                api.heartbeat(self.member.instance_id, HeartbeatRequest("1", {self.job: 1}))

    def counted(self) -> dict[str, int]:
        found = self.http.get("/v1/stores/job-k/keys")
        return {item["key"]: item["value"]["n"] for item in found.json().get("items", [])}

    def has_read_all(self) -> bool:
        return not any(at["lag"] for at in self.call("GET", "/v1/jobs/job")["positions"])

    def slot(self, replicas: str = "replicas", *, has_redis: bool = True) -> Slot:
        where = (self.member.storage_uri, self.folder / replicas, self.job)
        place = SlotPlace(self.service.url, self.member.instance_id, *where)
        node = self.opened.enter_context(NodeFolder(place.replica_dir, "localhost"))
        slot = SlotRequest(f"slot-{time.monotonic_ns()}", self.job, 0, node.ref)
        joined = self.api.join_slot(self.member.instance_id, slot)
        joined = joined if has_redis else replace(joined, redis_url=None)
        pulse = self.opened.enter_context(Pulse(self.folder / "pulses"))
        return self.opened.enter_context(Slot(self.api, place, joined, pulse))


@contextmanager
def world_on(folder: Path, migrated_sqlite: bytes, redis_url: str) -> Iterator[World]:
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    database = f"sqlite:///{folder}/catalog.db"
    with serving(folder, database, redis_url=redis_url, lease_ms=6_000) as service, ExitStack() as opened:
        world, is_over = World(service, folder, opened), threading.Event()
        driver = threading.Thread(target=world.stay, args=(is_over,))
        driver.start()
        try:
            yield world
        finally:
            is_over.set()
            driver.join()


@pytest.fixture
def world(tmp_path: Path, migrated_sqlite: bytes, redis_server: str) -> Iterator[World]:
    with world_on(tmp_path, migrated_sqlite, redis_server) as made:
        yield made


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of seconds would be waits of the tests."""
    monkeypatch.setattr(follow, "CHECK_S", 0.0)
    monkeypatch.setattr(follow, "COPY_PAUSES_S", (0.05,))


def turn_until(slot: Slot, is_so: Callable[[], bool], turns: int = 60) -> None:
    for _ in range(turns):
        if is_so():
            return
        slot.turn()
    raise AssertionError(f"not so after {turns} turns")


def keys_in_redis(url: str) -> list[bytes]:
    with view.connect(url) as client:
        return list(client.scan_iter(match="millrace:*:meta"))


def test_the_view_follows_every_commit(world: World) -> None:
    slot = world.slot()
    world.post("a", "b", "a")
    turn_until(slot, lambda: world.counted() == {"a": 2, "b": 1})
    world.post("b", "c")
    turn_until(slot, lambda: world.counted() == {"a": 2, "b": 2, "c": 1})
    assert world.call("GET", "/v1/stores/job-k")["lag"] == 0
    assert world.http.get("/readyz").json()["parts"]["redis"] == "ok"


def test_a_view_that_was_lost_is_rebuilt_though_nothing_happens(world: World) -> None:
    slot = world.slot()
    for _ in range(3):
        world.post("a", "b")
        turn_until(slot, world.has_read_all)
    turn_until(slot, lambda: world.counted() == {"a": 3, "b": 3})
    with view.connect(world.redis_url) as client:
        client.flushdb()
    answer = world.http.get("/v1/stores/job-k/keys")
    assert (answer.status_code, answer.json()["code"]) == (503, "store_not_readable")
    assert answer.headers["Retry-After"]
    turn_until(slot, lambda: world.counted() == {"a": 3, "b": 3})


def test_a_view_that_is_behind_catches_up_from_the_changelog(world: World) -> None:
    first = world.slot(has_redis=False)
    for n in range(5):
        world.post("a", f"k{n}")
        turn_until(first, world.has_read_all)
    assert world.counted() == {}
    first.__exit__(None, None, None)
    second = world.slot(replicas="elsewhere")
    turn_until(second, lambda: world.counted() == {"a": 5, **{f"k{n}": 1 for n in range(5)}})


def test_of_a_stopped_job_a_view_that_was_lost_is_filled_when_the_job_runs_again(world: World) -> None:
    slot = world.slot()
    world.post("a", "b")
    turn_until(slot, lambda: world.counted() == {"a": 1, "b": 1})
    world.call("POST", "/v1/jobs/job:stop")
    while slot.turn():
        pass
    slot.__exit__(None, None, None)
    with view.connect(world.redis_url) as client:
        client.flushdb()
    answer = world.http.get("/v1/stores/job-k/keys/a")
    assert (answer.status_code, answer.json()["code"]) == (503, "store_not_readable")
    assert "the job is stopped: it is filled again" in answer.json()["reason"]
    assert "`:restart`" in answer.json()["detail"]
    world.call("POST", "/v1/jobs/job:restart")
    again = world.slot()
    turn_until(again, lambda: world.counted() == {"a": 1, "b": 1})


def test_what_filling_a_view_took_is_given_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = world.slot()
    world.post("a", "b")
    turn_until(slot, lambda: world.counted() == {"a": 1, "b": 1})
    slot.turn()
    times: list[float] = []
    monkeypatch.setattr(memory, "hand_back", lambda: times.append(time.monotonic()))
    monkeypatch.setattr(memory, "SWELLS_BYTES", 0)
    with view.connect(world.redis_url) as client:
        client.flushdb()
    turn_until(slot, lambda: world.counted() == {"a": 1, "b": 1})
    assert len(times) == 1


def test_another_owner_goes_on_where_the_view_stands(world: World) -> None:
    first = world.slot()
    world.post("a", "b")
    turn_until(first, lambda: world.counted() == {"a": 1, "b": 1})
    first.__exit__(None, None, None)
    second = world.slot(replicas="elsewhere")
    world.post("a")
    turn_until(second, lambda: world.counted() == {"a": 2, "b": 1})


def test_without_redis_tasks_run_and_lookups_say_so_until_it_is_back(tmp_path: Path, migrated_sqlite: bytes) -> None:
    port = services.free_port()
    with world_on(tmp_path, migrated_sqlite, f"redis://127.0.0.1:{port}/0") as world:
        slot = world.slot()
        world.post("a", "b", "a")
        out = "/v1/streams/out/records"
        turn_until(slot, lambda: sum(len(world.call("GET", f"{out}?partition={p}")["records"]) for p in (0, 1)) == 3)
        assert world.call("GET", "/v1/jobs/job")["state"] == "running"
        answer = world.http.get("/v1/stores/job-k/keys/a")
        assert (answer.status_code, answer.json()["code"]) == (503, "store_not_readable")
        ready = world.http.get("/readyz")
        assert ready.status_code == 503
        assert "Redis does not answer" in ready.json()["parts"]["redis"]
        with services.redis_server(port):
            turn_until(slot, lambda: world.counted() == {"a": 2, "b": 1})
            assert world.http.get("/readyz").json()["parts"]["redis"] == "ok"
        assert world.http.get("/v1/stores/job-k/keys/a").status_code == 503
        world.post("a")
        with services.redis_server(port):  # empty
            turn_until(slot, lambda: world.counted() == {"a": 3, "b": 1})


def test_the_views_of_deleted_stores_are_swept_away(world: World) -> None:
    slot = world.slot()
    world.post("a", "b")
    turn_until(slot, lambda: world.counted() == {"a": 1, "b": 1})
    store = world.call("GET", "/v1/stores/job-k")["id"].encode()
    assert lookups.sweep_views(world.redis_url, world.service.catalog) == 0
    world.call("POST", "/v1/jobs/job:stop")
    while slot.turn():
        pass
    world.http.delete("/v1/jobs/job").raise_for_status()
    with view.connect(world.redis_url) as client:
        client.hset("millrace:{other/0}:meta", "identity", "1/other/another lineage")
    before = [name for name in keys_in_redis(world.redis_url) if store in name]
    assert before
    assert lookups.sweep_views(world.redis_url, world.service.catalog) == len(before)
    left = keys_in_redis(world.redis_url)
    assert b"millrace:{other/0}:meta" in left
    assert not [name for name in left if store in name]


def test_redis_that_can_not_be_reached_is_a_failed_round_not_a_dead_loop(world: World) -> None:
    with pytest.raises(StoreNotReadable, match="Redis"):
        lookups.sweep_views("redis://127.0.0.1:1/0", world.service.catalog)
