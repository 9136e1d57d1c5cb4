"""`/readyz` and the storage: what can not be written, or has no room left, is not ready."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from service.api import health
from service.storage.segments import open_storage
from tests.serving import Serving, serving

Serve = Callable[..., Serving]


@pytest.fixture
def serve(tmp_path: Path, migrated_sqlite: bytes) -> Iterator[Serve]:
    """Starts a service with the settings of a test."""
    (tmp_path / "catalog.db").write_bytes(migrated_sqlite)
    with ExitStack() as opened:
        yield lambda **settings: opened.enter_context(serving(tmp_path, f"sqlite:///{tmp_path}/catalog.db", **settings))


def storage_part(service: Serving) -> str:
    answer = service.client(None).get("/readyz")
    assert answer.status_code == 503  # no instance is alive here
    return str(answer.json()["parts"]["storage"])


def test_a_storage_that_can_be_written_is_ready(serve: Serve) -> None:
    assert storage_part(serve()) == "ok"


def test_a_storage_without_room_for_a_block_is_not_ready(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "storage").mkdir()
    (tmp_path / "storage" / "probe").symlink_to("/dev/full")
    assert storage_part(serve()) == "the storage does not answer; why is in the log"


def test_a_storage_that_is_nearly_full_is_not_ready(serve: Serve) -> None:
    found = storage_part(serve(min_free_bytes=1 << 62))
    assert found.startswith("nearly full: ")
    assert found.endswith(f"MILLRACE_MIN_FREE_BYTES is {1 << 62}")


@pytest.mark.parametrize(("known_s", "found"), [(0.0, "the storage does not answer; why is in the log"), (600.0, "ok")])
def test_what_was_found_is_known_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known_s: float, found: str
) -> None:
    """The page needs no key, and writing is not for free."""
    monkeypatch.setattr(health, "STORAGE_KNOWN_S", known_s)
    check = health.StorageCheck(open_storage(str(tmp_path / "storage")), 0)
    assert check() == "ok"
    shutil.rmtree(tmp_path / "storage")
    (tmp_path / "storage").touch()
    assert check() == found


def test_instances_without_cores_are_not_ready_and_say_how_many_tasks_wait(serve: Serve) -> None:
    service = serve()
    admin, driver = service.client("admin"), service.client("instance")

    def standing() -> tuple[int, str]:
        answer = service.client(None).get("/readyz")
        return answer.status_code, answer.json()["parts"]["instances"]

    def beat(shortage: str) -> None:
        body = {"incarnation": "1", "cores": 0 if shortage else 2, "shortage": shortage}
        driver.post(f"/v1/instances/{instance}:heartbeat", json=body).raise_for_status()

    assert standing() == (503, "none is alive")
    joining = {"name": "i", "incarnation": "1", "host": "here", "cores": 0}
    instance = driver.post("/v1/instances:join", json=joining).raise_for_status().json()["instance_id"]
    beat("no_cores")
    assert standing() == (503, "no cores")
    admin.post("/v1/streams", json={"name": "clicks", "partitions": 8}).raise_for_status()
    admin.post("/v1/jobs", json={"name": "copy", "source": "clicks", "sink": "out"}).raise_for_status()
    assert standing() == (503, "8 tasks wait for cores")
    shown = admin.get(f"/v1/instances/{instance}").json()
    assert (shown["cores"], shown["shortage"]) == (0, "no_cores")
    beat("")
    assert standing() == (200, "ok")
    shown = admin.get(f"/v1/instances/{instance}").json()
    assert (shown["cores"], shown["shortage"]) == (2, None)
