"""Resources followed in one stream: what their GETs answer, at once and when it differs, asked for once for all."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from benchmarks.running import PATIENCE_S, wait_until
from service import auth, live
from service.api import events
from service.catalog import keys, streams
from service.streams.errors import CatalogUnavailable
from tests.integration.test_streams_api import refused
from tests.serving import Serving, serving

Json = dict[str, Any]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes) -> Iterator[Serving]:
    """Of its own: some tests count what is asked for, and how many streams there are."""
    folder = tmp_path_factory.mktemp("events")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    url = f"sqlite:///{folder}/catalog.db"
    with serving(folder, url, max_event_streams=3, key_cache_ms=50) as running:
        running.client("writer").post("/v1/streams", json={"name": "followed", "partitions": 1}).raise_for_status()
        yield running


def told(lines: Iterator[str]) -> Iterator[tuple[str, Json]]:
    """Events by name, as a browser has them."""
    event = "message"
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "event":
            event = value
        elif name == "data":
            yield event, json.loads(value)
            event = "message"


@contextmanager
def following(
    service: Serving, *topics: str, key: str = "reader", **query: Any
) -> Iterator[Iterator[tuple[str, Json]]]:
    asked = httpx.QueryParams(topics=",".join(topic.replace(",", "%2C") for topic in topics), **query)
    with service.client(key).stream("GET", "/v1/events", params=asked) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        yield told(answer.iter_lines())


def answers(found: Iterator[tuple[str, Json]], count: int) -> dict[str, Json]:
    """The next so many, which are of different topics."""
    said = [next(each for event, each in found if event == "message") for _ in range(count)]
    by_topic = {each["topic"]: each for each in said}
    assert len(by_topic) == count, said
    return by_topic


def until(found: Iterator[tuple[str, Json]], topic: str, is_so: Any) -> Json:
    return next(each for event, each in found if event == "message" and each["topic"] == topic and is_so(each))


def figure(service: Serving, name: str) -> int:
    text = service.client("reader").get("/metrics").text
    return int(float(re.findall(rf"^millrace_{name} (\S+)$", text, re.MULTILINE)[0]))


def test_each_topic_is_what_its_get_answers(service: Serving) -> None:
    topics = ["/v1/streams?limit=1", "/v1/streams/followed", "/v1/jobs", "/readyz", "/info", "/v1/aggregators"]
    with following(service, *topics) as found:
        said = answers(found, len(topics))
    for topic in topics:
        answer = service.client("reader").get(topic)
        assert said[topic] == {"topic": topic, "status": answer.status_code, "body": answer.json()}


def test_a_refusal_comes_as_its_problem_and_what_is_there_later_as_itself(service: Serving) -> None:
    topics = ["/v1/streams/later", "/v1/tokens", "/v1/streams?limit=none"]
    with following(service, *topics) as found:
        said = answers(found, 3)
        codes = {topic: (each["status"], each["problem"]["code"]) for topic, each in said.items()}
        assert codes == dict(
            zip(topics, [(404, "unknown_stream"), (403, "forbidden"), (422, "invalid_request")], strict=True)
        )
        assert said[topics[2]]["problem"]["errors"][0]["pointer"] == "?limit"
        service.client("writer").post("/v1/streams", json={"name": "later"}).raise_for_status()
        assert answers(found, 1)["/v1/streams/later"]["body"]["name"] == "later"


def test_a_topic_is_as_its_viewers_role_may_see_it(service: Serving) -> None:
    with following(service, "/v1/tokens") as of_reader, following(service, "/v1/tokens", key="admin") as of_admin:
        assert answers(of_reader, 1)["/v1/tokens"]["status"] == 403
        assert answers(of_admin, 1)["/v1/tokens"]["body"]["items"]


def test_what_is_posted_comes_to_all_viewers_and_what_stays_to_none(service: Serving) -> None:
    posts = service.client("writer")
    with (
        following(service, "/v1/streams/followed", "/info") as one,
        following(service, "/v1/streams/followed") as other,
    ):
        before = answers(one, 2)["/v1/streams/followed"]["body"]["records"]
        answers(other, 1)
        for n in range(1, 3):
            posts.post("/v1/streams/followed/records", json={"records": [{"key": "k", "value": 1}]}).raise_for_status()
            for found in one, other:  # the next event of all: nothing else has come between
                assert answers(found, 1)["/v1/streams/followed"]["body"]["records"] == before + n


def test_a_topic_is_asked_for_once_however_many_follow_it(service: Serving) -> None:
    posts = service.client("writer")
    with ExitStack() as opened:
        many = [opened.enter_context(following(service, "/v1/streams/followed")) for _ in range(3)]
        records = max(answers(found, 1)["/v1/streams/followed"]["body"]["records"] for found in many)
        looks = figure(service, "event_looks_total")
        posts.post("/v1/streams/followed/records", json={"records": [{"key": "k", "value": 1}]}).raise_for_status()
        for found in many:
            until(found, "/v1/streams/followed", lambda each: each["body"]["records"] > records)
        assert figure(service, "event_topics") == 1
        assert figure(service, "event_looks_total") - looks <= 2  # a look of three seconds ago may be due as well


def test_a_jobs_state_comes_sooner_than_it_is_looked_at_anyway(
    service: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LOOK_AGAIN_S", 3 * PATIENCE_S)
    spec = {"name": "followed", "source": "followed", "operators": []}
    with following(service, "/v1/jobs/followed") as found:
        assert answers(found, 1)["/v1/jobs/followed"]["status"] == 404
        service.client("writer").post("/v1/jobs", json=spec).raise_for_status()
        until(found, "/v1/jobs/followed", lambda each: each["status"] == 200)
        for verb, state in ("pause", "paused"), ("resume", "starting"):
            service.client("writer").post(f"/v1/jobs/followed:{verb}").raise_for_status()
            until(found, "/v1/jobs/followed", lambda each, state=state: each["body"]["state"] == state)


def test_averages_that_change_by_the_clock_are_no_news(service: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LOOK_AGAIN_S", 0)
    spec = {
        "name": "resting",
        "source": "followed",
        "operators": [{"op": "aggregate", "name": "n", "aggregates": {"n": {"fn": "count"}}}],
    }
    service.client("writer").post("/v1/jobs", json=spec).raise_for_status()
    service.client("writer").post("/v1/jobs/resting:stop?wait=stopped").raise_for_status()
    with following(service, "/v1/jobs/resting/metrics", "/v1/jobs/resting", timeout_ms=3_000) as found:
        begin = figure(service, "event_looks_total")
        answers(found, 2)
        assert list(found) == []
    assert figure(service, "event_looks_total") - begin >= 4  # it was looked at, and its rates were others


def test_a_stream_that_is_silent_has_heartbeats(service: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "HEARTBEAT_S", 0.0)
    monkeypatch.setattr(live, "CHECK_S", 0.1)
    with following(service, "/info") as found:
        assert [next(found)[0] for _ in range(3)] == ["message", "heartbeat", "heartbeat"]


def test_it_ends_with_the_key(service: Serving) -> None:
    row, secret = service.catalog.write(keys.create_key, "leaving", "reader")
    asked = {"Authorization": f"Bearer {secret}"}
    with service.client(None, **asked).stream("GET", "/v1/events?topics=/info") as answer:
        found = told(answer.iter_lines())
        next(found)
        service.client().delete(f"/v1/tokens/{row.id}").raise_for_status()
        assert [(event, said["code"]) for event, said in found] == [("error", "unauthenticated")]


def test_a_catalog_that_does_not_answer_ends_none(service: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    async def caller(ring: auth.KeyRing, secret: str) -> None:
        asked.set()
        raise CatalogUnavailable("it is restarted")

    monkeypatch.setattr(live, "HEARTBEAT_S", 0.0)
    monkeypatch.setattr(live, "CHECK_S", 0.1)
    with following(service, "/info") as found:
        next(found)
        monkeypatch.setattr(auth.KeyRing, "caller", caller)
        assert asked.wait(PATIENCE_S)
        assert [next(found)[0] for _ in range(3)] == ["heartbeat"] * 3


def test_a_fault_of_the_service_is_the_answer_of_its_topic_alone(
    service: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("nobody foresaw this")

    monkeypatch.setattr(streams, "list_streams", broken)
    with following(service, "/v1/streams?limit=7", "/info", timeout_ms=0) as found:
        said = {each["topic"]: each for _, each in found}  # to its end: each topic was answered
    assert said["/info"]["status"] == 200
    problem = said["/v1/streams?limit=7"]["problem"]
    assert (problem["status"], problem["code"]) == (500, "internal_error")
    assert problem["instance"] == "/v1/streams"


def test_who_is_gone_is_counted_no_more(service: Serving) -> None:
    with following(service, "/info") as found:
        next(found)
        assert figure(service, "event_streams") == 1
    wait_until(lambda: figure(service, "event_streams") == 0, "the end of the stream")
    wait_until(lambda: figure(service, "event_topics") == 0, "the end of the topic")


def test_a_key_has_so_many_streams_and_no_more(service: Serving) -> None:
    with ExitStack() as opened:
        open_ones = [opened.enter_context(following(service, "/info")) for _ in range(3)]
        for found in open_ones:
            next(found)
        answer = service.client("reader").get("/v1/events?topics=/info")
        assert (answer.status_code, answer.json()["code"]) == (429, "too_many_event_streams")
        assert answer.headers["Retry-After"] == "10"
        with following(service, "/info", key="writer") as found:  # another key
            next(found)


def test_all_together_follow_so_many_topics(service: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_TOPICS", 2)
    with following(service, "/info", "/v1/jobs") as found:
        answers(found, 2)
        answer = service.client("writer").get("/v1/events?topics=/readyz")
        assert (answer.status_code, answer.json()["code"]) == (429, "too_many_event_streams")
        with following(service, "/info", "/v1/jobs") as others:  # these are followed already
            answers(others, 2)


@pytest.mark.parametrize(
    ("topics", "why"),
    [
        ("", "at least 1 character"),
        ("/v1/jobs,", "no path"),
        ("v1/jobs", "no path"),
        ("//elsewhere/v1/jobs", "no path"),
        ("https://elsewhere/v1/jobs", "no path"),
        ("/v1/jöbs", "no path"),
        ("/v1/jobs?limit=1#&wait=running", "no path"),
        ("/v1/nothing", "no resource that can be followed"),
        ("/metrics", "no resource that can be followed"),
        ("/v1/events?topics=/info", "no resource that can be followed"),
        ("/v1/jobs/visits:explain?key=a", "no resource that can be followed"),
        ("/v1/streams/followed/tail", "no resource that can be followed"),
        ("/v1/jobs/visits:pause", "no resource that can be followed"),
        ("/admin/session", "no resource that can be followed"),
        ("/v1/jobs/visits?wait=running", "leave out wait"),
        (",".join(f"/v1/jobs/j{n}" for n in range(events.MAX_TOPICS + 1)), "101 topics are too many"),
        ("/v1/jobs/" + "x" * events.MAX_LENGTH, "at most"),
    ],
)
def test_topics_that_are_none_are_refused(service: Serving, topics: str, why: str) -> None:
    answer = service.client("reader").get(f"/v1/events?topics={quote(topics, safe='/')}")
    assert answer.status_code == 422, answer.text
    [item] = answer.json()["errors"]
    assert item["pointer"] == "?topics"
    assert why in item["detail"]


def test_it_is_for_readers(service: Serving) -> None:
    assert service.client(None).get("/v1/events?topics=/readyz").status_code == 401
    assert service.client("instance").get("/v1/events?topics=/readyz").status_code == 403
    strange = service.client("reader").get("/v1/events?topics=/readyz&topic=/info")
    assert refused(strange, 422, "invalid_request") == ["?topic"]


def test_who_does_not_read_gets_the_newest_answer_only(service: Serving) -> None:
    """Its socket takes some of it; what the service keeps for it is one event."""
    viewer = live._Viewer(unknown=2)
    for n in range(100):
        viewer.take("/v1/jobs", b"%d" % n)
    viewer.take("/info", b"info")
    assert viewer.pending == {"/v1/jobs": b"99", "/info": b"info"}
    assert viewer.unknown == 0


def test_many_topics_are_asked_for_more_seldom() -> None:
    """All of them take a share of a processor, and no one is asked for more than once a second."""
    assert live.interval_s([0.0001] * 10) == live.LEAST_S
    assert live.interval_s([0.002] * 100) == pytest.approx(0.2 / live.SHARE)
    assert live.interval_s([0.1] * 100) == live.MOST_S
