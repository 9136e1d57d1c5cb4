"""Room for bodies of posts: taken as bytes arrive, bounded for each key, given back however a request ends."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx
import pytest

from benchmarks.running import wait_until
from service.catalog import keys
from tests.serving import Serving, serving

MB = 1_000_000
PATH = "/v1/streams/s/records"
NDJSON = {"Content-Type": "application/x-ndjson"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("bodies")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    limits = {"ingest_buffer_bytes": 4 * MB, "ingest_key_bytes": 2 * MB, "max_body_bytes": 3 * MB}
    with serving(folder, f"sqlite:///{folder}/catalog.db", **limits) as running:
        running.client().post("/v1/streams", json={"name": "s", "partitions": 1}).raise_for_status()
        yield running


@contextmanager
def open_post(service: Serving, secret: str, sent: int) -> Iterator[socket.socket]:
    """A post of 3 MB of which so many bytes came."""
    before = buffered(service)
    url = urlsplit(service.url)
    lines = [
        f"POST {PATH} HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {secret}",
        "Content-Type: application/x-ndjson",
    ]
    with socket.create_connection((url.hostname, url.port), timeout=30) as client:
        client.sendall("\r\n".join([*lines, f"Content-Length: {3 * MB}", "", ""]).encode() + b" " * sent)
        wait_until(lambda: buffered(service) == before + sent, "the bytes that were sent")
        yield client
    # long before the connection counts as idle
    wait_until(lambda: buffered(service) == before, "the room, given back", timeout_s=30)


def buffered(service: Serving) -> float:
    text = service.client().get("/metrics").text
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith("millrace_ingest_buffered"))


def posted(service: Serving, secret: str, size: int) -> httpx.Response:
    body = b'{"value":"' + b"x" * size + b'"}'
    return httpx.post(service.url + PATH, content=body, headers={"Authorization": f"Bearer {secret}", **NDJSON})


def test_what_is_announced_and_does_not_come_holds_nothing(service: Serving) -> None:
    writer, admin = service.secrets["writer"], service.secrets["admin"]
    with open_post(service, writer, 0), open_post(service, writer, 0), open_post(service, admin, 0):
        assert posted(service, writer, MB).status_code == 200


def test_a_key_holds_its_share_and_leaves_the_rest_to_others(service: Serving) -> None:
    writer, admin = service.secrets["writer"], service.secrets["admin"]
    with open_post(service, writer, MB), open_post(service, writer, MB // 2):
        refused = posted(service, writer, MB)
        assert (refused.status_code, refused.json()["code"]) == (429, "ingest_buffer_full")
        assert refused.headers["Retry-After"] == "1"
        assert posted(service, writer, MB // 3).status_code == 200
        assert posted(service, admin, MB).status_code == 200
    assert posted(service, writer, MB).status_code == 200


def test_one_body_beyond_the_share_has_room_where_it_is_alone(service: Serving) -> None:
    assert posted(service, service.secrets["writer"], 2 * MB + 500_000).status_code == 200


def test_all_keys_together_hold_no_more_than_the_buffer(service: Serving) -> None:
    secrets = [service.catalog.write(keys.create_key, "more", "writer")[1] for _ in range(3)]
    with (
        open_post(service, secrets[0], 15 * MB // 10),
        open_post(service, secrets[1], 15 * MB // 10),
        open_post(service, secrets[2], MB // 2),
    ):
        assert posted(service, service.secrets["admin"], MB).status_code == 429
        assert posted(service, service.secrets["admin"], MB // 4).status_code == 200


def test_a_packed_body_is_counted_as_it_is_unpacked_and_bounded(service: Serving) -> None:
    writer = service.client("writer", **NDJSON, **{"Content-Encoding": "gzip"})
    line = b'{"value":"' + b"x" * 2_500_000 + b'"}'
    assert writer.post(PATH, content=gzip.compress(line)).status_code == 200
    in_pieces = gzip.compress(line)
    assert writer.post(PATH, content=(in_pieces[n : n + 100] for n in range(0, len(in_pieces), 100))).status_code == 200
    assert writer.post(PATH, content=gzip.compress(line * 2)).status_code == 413
    for wrong in (gzip.compress(line)[:-1], gzip.compress(line) + b"more", b"\x1f\x8b no"):
        assert writer.post(PATH, content=wrong).json()["code"] == "malformed_body"
    with open_post(service, service.secrets["writer"], MB):
        assert writer.post(PATH, content=gzip.compress(line)).status_code == 429
