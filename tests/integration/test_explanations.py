"""`:explain` of jobs that run: verdicts with their causes, what closed windows, and what nobody knows.

That verdicts are right is shown by tests/conformance/test_explain.py; here is how the history of a task comes to it.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from sqlalchemy import update

from benchmarks.running import wait_until
from service.api import explanations
from service.catalog.tables import PartitionRow
from service.problems import Refusal
from service.simulate.processes import Simulations
from service.streams.errors import ExplanationTooLarge
from service.streams.partitioner import partition_of_key
from tests import naive_explain
from tests.serving import Serving

pytestmark = pytest.mark.services

Json = dict[str, Any]
CAUGHT_UP = {"wait": "caught_up", "timeout_ms": 60_000}
ONCE = {"op": "deduplicate_by_key_value", "name": "once", "id": "value->>'id'", "interval_ms": 1_000}
COUNT = {"n": {"fn": "count"}}
VISITS = {"op": "aggregate", "name": "visits", "window": {"type": "session", "gap_ms": 100}, "aggregates": COUNT}
FINAL = {"op": "suppress", "name": "final", "until": "window_closes", "buffer": {}}
POSITIVE = {"op": "filter", "name": "positive", "where": "(value->>'n')::bigint > 0"}


@pytest.fixture(scope="module")
def http(working: Serving) -> httpx.Client:
    return working.client("writer")


def make(http: httpx.Client, name: str, *operators: Json, partitions: int = 1, **more: Any) -> None:
    http.post("/v1/streams", json={"name": f"{name}-in", "partitions": partitions}).raise_for_status()
    spec = {"name": name, "source": f"{name}-in", "sink": f"{name}-out", "operators": list(operators)}
    http.post("/v1/jobs", json=spec | {"commit_interval_ms": 0} | more).raise_for_status()


def post(http: httpx.Client, name: str, *records: tuple[str | None, int, Json]) -> None:
    """Keys, timestamps, values; returns when the job has read them."""
    body = [{"key": key, "timestamp": at, "value": value} for key, at, value in records]
    http.post(f"/v1/streams/{name}-in/records", json={"records": body}).raise_for_status()
    http.get(f"/v1/jobs/{name}", params=CAUGHT_UP).raise_for_status()


def explain(http: httpx.Client, name: str, **asked: Any) -> Json:
    answer = http.get(f"/v1/jobs/{name}:explain", params=asked)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def said(found: Json) -> tuple[Any, ...]:
    return tuple(found[name] for name in ("verdict", "operator", "reason", "cause", "by_ms"))


def record(stream: str, offset: int, timestamp: int) -> Json:
    return {**at(stream, offset, timestamp), "reason": "record"}


def at(stream: str, offset: int, timestamp: int) -> Json:
    return {"stream": stream, "partition": 0, "offset": offset, "timestamp": timestamp}


def test_a_duplicate_says_whose_and_by_how_much(http: httpx.Client) -> None:
    make(http, "explained", POSITIVE, ONCE)
    post(http, "explained", ("a", 5_000, {"id": "x", "n": 1}), ("b", 5_100, {"id": "x", "n": 1}))
    post(http, "explained", ("a", 5_400, {"id": "x", "n": 1}), ("a", 5_500, {"id": "y", "n": 0}))
    assert said(explain(http, "explained", key="a", id="x")) == (
        "out",
        "once",
        "duplicate",
        record("explained-in", 0, 5_000),
        600,
    )
    assert said(explain(http, "explained", key="a")) == ("out", "positive", "filtered", None, None)
    assert said(explain(http, "explained", partition=0, offset=1)) == ("in", None, None, None, None)
    found = explain(http, "explained", key="a", timestamp=5_400)
    assert found["record"] == {"partition": 0, "offset": 2, "timestamp": 5_400}
    assert (found["known_from"], found["matched"], found["why"]) == (0, 2, None)
    assert [(each["offset"], each["verdict"]) for each in found["records"]] == [(0, "in"), (2, "out")]
    passed = {"operator": "positive", "outcome": "passed", "reason": None}
    assert found["path"] == [passed, {"operator": "once", "outcome": "dropped", "reason": "duplicate"}]
    assert found["outputs"] == []
    found = explain(http, "explained", partition=0, offset=0)
    came = {"timestamp": 5_000, "key": "a", "value": {"id": "x", "n": 1}, "window": None}
    assert found["outputs"] == [{"stream": "explained-out", **came}]


def test_sessions_say_who_is_in_them_and_what_closed_them(http: httpx.Client) -> None:
    """A record closes the first, a flush the second: what comes for it then is out because of the flush."""
    make(http, "sessions-why", VISITS, FINAL)
    post(http, "sessions-why", ("a", 1_000, {}), ("a", 1_050, {}), ("b", 1_300, {}), ("a", 900, {}))
    found = explain(http, "sessions-why", key="a")
    assert said(found) == ("out", "visits", "late", record("sessions-why-in", 2, 1_300), 300)
    found = explain(http, "sessions-why", partition=0, offset=1)
    [window] = found["windows"]
    assert (window["start"], window["end"], window["closed"]) == (1_000, 1_050, record("sessions-why-in", 2, 1_300))
    assert window["updates"] == [at("sessions-why-in", 0, 1_000), at("sessions-why-in", 1, 1_050)]
    assert (window["closes_at"], window["stream_time"]) == (1_151, 1_300)
    by = {"stream": "sessions-why-in", "partition": 0, "offset": 2}
    assert window["finals"] == [{"operator": "final", "reason": "stream_time", **by, "value": {"n": 2}}]
    http.post("/v1/jobs/sessions-why:flush").raise_for_status()
    wait_until(lambda: not http.get("/v1/jobs/sessions-why").json()["is_flushing"], "the flush")
    post(http, "sessions-why", ("b", 1_300, {}))
    found = explain(http, "sessions-why", key="b")
    nobody = {"stream": None, "partition": None, "offset": None}
    flushed = {**nobody, "timestamp": 1_401, "reason": "flush"}
    assert said(found) == ("out", "visits", "closed_idle", flushed, 1)
    [window] = explain(http, "sessions-why", key="b", timestamp=1_300)["windows"]
    assert (window["updated"], window["closed"]) == (1, flushed)
    assert window["finals"] == [{"operator": "final", "reason": "flush", **nobody, "value": {"n": 1}}]


def test_a_record_may_not_be_read_yet_or_not_be_there(http: httpx.Client) -> None:
    make(http, "unread-why", ONCE)
    post(http, "unread-why", ("a", 1, {"id": "x"}))
    http.post("/v1/jobs/unread-why:pause").raise_for_status()
    body = {"records": [{"key": "a", "timestamp": 2, "value": {"id": "x"}}]}
    http.post("/v1/streams/unread-why-in/records", json=body).raise_for_status()
    for asked, reason in (
        ({"key": "a"}, "unread"),
        ({"key": "nobody"}, "no_record"),
        ({"key": "a", "id": "z"}, "no_record"),
        ({"partition": 0, "offset": 9}, "no_record"),
    ):
        found = explain(http, "unread-why", **asked)
        assert (found["verdict"], found["reason"], found["windows"]) == ("unknown", reason, [])
        assert found["why"]


ANYWHERE = {"op": "deduplicate", "name": "anywhere", "id": "value->>'id'", "interval_ms": 1_000}


def test_tasks_behind_a_repartition_say_what_became_of_a_record_by_records_of_the_source(http: httpx.Client) -> None:
    make(http, "across-why", POSITIVE, ANYWHERE, partitions=2)
    first, second = partition_of_key(b"a", 2), partition_of_key(b"d", 2)
    assert first != second
    post(http, "across-why", ("a", 1, {"id": "x", "n": 1}), ("d", 1, {"id": "x", "n": 0}))
    post(http, "across-why", ("d", 401, {"id": "x", "n": 1}))
    assert said(explain(http, "across-why", key="a")) == ("in", None, None, None, None)
    assert said(explain(http, "across-why", partition=second, offset=0)) == ("out", "positive", "filtered", None, None)
    found = explain(http, "across-why", key="d")
    blamed = {**record("across-why-in", 0, 1), "partition": first}
    assert said(found) == ("out", "anywhere", "duplicate", blamed, 600)
    passed = {"operator": "positive", "outcome": "passed", "reason": None}
    assert found["path"] == [passed, {"operator": "anywhere", "outcome": "dropped", "reason": "duplicate"}]
    assert (found["why"], found["known_from"], found["matched"]) == (None, 0, 2)
    came = {"timestamp": 1, "key": "a", "value": {"id": "x", "n": 1}, "window": None}
    assert explain(http, "across-why", key="a")["outputs"] == [{"stream": "across-why-out", **came}]


def test_a_job_behind_a_repartition_says_of_each_record_what_its_naive_twin_says(http: httpx.Client) -> None:
    """In the order in which its tasks took the records, a few at a time: one partition wakes late now and then."""
    by_user = {"op": "select_key", "name": "by_user", "key": "value->>'user'"}
    tens = {"op": "aggregate", "name": "tens", "window": {"type": "tumbling", "size_ms": 12}, "aggregates": COUNT}
    make(http, "across-all", by_user, tens, FINAL, partitions=2)
    drawn, writers, rounds = random.Random(3), [[], []], []
    ids = {key: partition_of_key(key.encode(), 2) for key in "ad"}
    time = 50
    for _ in range(12):
        keys = drawn.choice(["a", "d", "ad", "ad"])
        records = []
        for _ in range(drawn.randint(1, 8)):
            time = max(0, time + drawn.choice([-9, -4, 0, 1, 2, 5, 17]))
            records.append((drawn.choice(keys), time, {"user": drawn.choice("uvwxy")}))
        post(http, "across-all", *records)
        for key, stamp, value in records:
            writers[ids[key]].append({"key": key, "timestamp": stamp, "value": value})
        rounds.append([len(each) for each in writers])
    verdicts: dict[tuple[int, int], Json] = {}
    for target in range(2):

        def target_of(each: Json) -> int:
            return partition_of_key(each["value"]["user"].encode(), 2)

        taken = [place for part in naive_explain.taken_behind(writers, rounds, target_of, target) for place in part]
        own = [writers[writer][offset] for writer, offset in taken]
        twin = naive_explain.Windows(tens, [{**each, "key": each["value"]["user"]} for each in own])
        for place, each in zip(taken, twin.verdicts, strict=True):
            cause = each["cause"] and {"stream": "across-all-in", **each["cause"]}
            if cause is not None:
                cause |= dict(zip(("partition", "offset"), taken[cause["offset"]], strict=True))
            verdicts[place] = each | {"cause": cause}
    for key, partition in ids.items():
        found = explain(http, "across-all", key=key)
        assert found["matched"] == len(writers[partition])
        for each in found["records"]:
            stamp = writers[partition][each["offset"]]["timestamp"]
            place = {"offset": each["offset"], "timestamp": stamp}
            assert each == place | verdicts[partition, each["offset"]]
    assert {each["verdict"] for each in verdicts.values()} == {"in", "out"}


class Drawn:
    """Rounds of records, each posted and taken before the next: what was drawn of them before lies at lower offsets."""

    def __init__(self, seed: int) -> None:
        self.drawn, self.time = random.Random(seed), 50

    def records(self, keys: str) -> list[tuple[str, int, Json]]:
        found = []
        for _ in range(self.drawn.randint(1, 8)):
            self.time = max(0, self.time + self.drawn.choice([-9, -4, 0, 1, 2, 5, 17]))
            value = {"user": self.drawn.choice("uvwxy"), "id": self.drawn.choice("klmnop")}
            found.append((self.drawn.choice(keys), self.time, value))
        return found


def check_verdicts(
    http: httpx.Client, name: str, keys: str, verdicts: dict[tuple[str, int, int], Json], **streams: int
) -> None:
    """Each record of the keys in streams with so many partitions: `verdicts` by (stream, partition, offset)."""
    for stream, partitions in streams.items():
        for key in keys:
            found = explain(http, name, key=key, stream=f"{name}-{stream}")
            assert found["records"], (stream, key)
            for each in found["records"]:
                place = (f"{name}-{stream}", partition_of_key(key.encode(), partitions), each["offset"])
                twin = verdicts[place]
                assert each == {"offset": each["offset"], "timestamp": each["timestamp"]} | twin, place
    assert {each["verdict"] for each in verdicts.values()} == {"in", "out"}


def blamed(cause: Json | None, places: list[tuple[str, int, int]]) -> Json | None:
    """A cause of a twin, whose offsets are numbers of records that lie at these places."""
    if cause is None:
        return None
    return {**cause, **dict(zip(("stream", "partition", "offset"), places[cause["offset"]], strict=True))}


def test_behind_two_repartitions_each_record_is_what_naive_twins_in_a_row_say(http: httpx.Client) -> None:
    """The second twin gets what the first lets go, as late as all that this had taken."""
    once = ANYWHERE | {"interval_ms": 30}
    by_user = {"op": "select_key", "name": "by_user", "key": "value->>'user'"}
    tens = {"op": "aggregate", "name": "tens", "window": {"type": "tumbling", "size_ms": 12}, "aggregates": COUNT}
    make(http, "twice", once, by_user, tens, FINAL, partitions=2)
    drawn, writers, rounds = Drawn(5), [[], []], []
    for _ in range(15):
        records = drawn.records(drawn.drawn.choice(["a", "d", "ad", "ad"]))
        post(http, "twice", *records)
        for key, stamp, value in records:
            writers[partition_of_key(key.encode(), 2)].append({"key": key, "timestamp": stamp, "value": value})
        rounds.append([len(each) for each in writers])

    def target_of(member: str, record: Json) -> int:
        return partition_of_key(record["value"][member].encode(), 2)

    verdicts: dict[tuple[str, int, int], Json] = {}
    second: list[list[Json]] = [[], []]
    second_rounds = [[0, 0] for _ in rounds]
    for target in range(2):
        parts = naive_explain.taken_behind(writers, rounds, lambda each: target_of("id", each), target)
        taken = [place for part in parts for place in part]
        places = [("twice-in", writer, offset) for writer, offset in taken]
        own = [writers[writer][offset] for writer, offset in taken]
        for place, record, each in zip(places, own, naive_explain.deduplicate(once, own), strict=True):
            verdicts[place] = each | {"cause": blamed(each["cause"], places)}
            reached = max(before["timestamp"] for before in writers[place[1]][: place[2] + 1])
            to = target_of("user", record) if each["verdict"] == "in" else None
            second[target].append({"timestamp": reached, "place": place, "to": to})
        for number in range(len(rounds)):
            second_rounds[number][target] = sum(map(len, parts[: number + 1]))
    assert {each["verdict"] for each in verdicts.values()} == {"in", "out"}
    for target in range(2):
        parts = naive_explain.taken_behind(second, second_rounds, lambda each: each["to"], target)
        places = [second[writer][number]["place"] for part in parts for writer, number in part]
        own = [writers[partition][offset] for _, partition, offset in places]
        twin = naive_explain.Windows(tens, [{**each, "key": each["value"]["user"]} for each in own])
        for place, each in zip(places, twin.verdicts, strict=True):
            verdicts[place] = each | {"cause": blamed(each["cause"], places)}
    assert {each["operator"] for each in verdicts.values()} == {"anywhere", "tens"}
    check_verdicts(http, "twice", "ad", verdicts, **{"in": 2})


def test_a_stream_of_a_user_beside_a_repartition_is_taken_by_time_with_it(http: httpx.Client) -> None:
    """The source with fewer partitions goes through a repartition, and its records meet those of the other."""
    for name, partitions in (("beside-in", 2), ("beside-two", 3)):
        http.post("/v1/streams", json={"name": name, "partitions": partitions}).raise_for_status()
    visits = VISITS | {"window": {"type": "session", "gap_ms": 3}}
    spec = {"name": "beside", "source": ["beside-in", "beside-two"], "sink": "beside-out", "operators": [visits]}
    http.post("/v1/jobs", json=spec | {"commit_interval_ms": 0}).raise_for_status()
    drawn = Drawn(8)
    read: dict[str, list[list[Json]]] = {"beside-in": [[], []], "beside-two": [[], [], []]}
    rounds = []
    for number in range(20):
        stream = "beside-two" if number % 3 else "beside-in"
        records = drawn.records("adeg")
        body = [{"key": key, "timestamp": at, "value": value} for key, at, value in records]
        http.post(f"/v1/streams/{stream}/records", json={"records": body}).raise_for_status()
        http.get("/v1/jobs/beside", params=CAUGHT_UP).raise_for_status()
        own = read[stream]
        for each in body:
            own[partition_of_key(each["key"].encode(), len(own))].append(each)
        rounds.append({name: [len(each) for each in parts] for name, parts in read.items()})
    verdicts: dict[tuple[str, int, int], Json] = {}
    for target in range(3):
        writers = [*read["beside-in"], read["beside-two"][target]]
        ends = [[*at["beside-in"], at["beside-two"][target]] for at in rounds]
        parts = naive_explain.taken_behind(
            writers, ends, lambda each: partition_of_key(each["key"].encode(), 3), target
        )
        taken = [place for part in parts for place in part]
        places = [
            ("beside-in", writer, offset) if writer < 2 else ("beside-two", target, offset) for writer, offset in taken
        ]
        twin = naive_explain.Windows(visits, [writers[writer][offset] for writer, offset in taken])
        for place, each in zip(places, twin.verdicts, strict=True):
            verdicts[place] = each | {"cause": blamed(each["cause"], places)}
    check_verdicts(http, "beside", "adeg", verdicts, **{"in": 2, "two": 3})


def test_where_all_tasks_are_too_much_the_first_says_that_others_go_on(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More records than are run again; or more time and memory than there is."""
    make(http, "across-long", POSITIVE, ANYWHERE, partitions=2)
    post(
        http, "across-long", ("a", 1, {"id": "x", "n": 1}), ("a", 2, {"id": "y", "n": 0}), ("d", 1, {"id": "x", "n": 1})
    )
    asked = {"key": "a", "timestamp": 1}
    assert explain(http, "across-long", **asked)["verdict"] == "in"
    with monkeypatch.context() as patched:
        patched.setattr(explanations, "MAX_RECORDS", 2)
        cut_off = explain(http, "across-long", **asked)
        assert explain(http, "across-long", key="a")["reason"] == "filtered"
    asks_one = Simulations.explain
    refusal = Refusal(422, ExplanationTooLarge.code, "more than time allows")

    async def explain_one(simulations: Simulations, frames: AsyncIterator[bytes]) -> bytes | Refusal:
        first = await anext(frames)
        if msgspec.json.decode(first)["tasks"]:
            return refusal

        async def whole() -> AsyncIterator[bytes]:
            yield first
            async for frame in frames:
                yield frame

        answer: bytes | Refusal = await asks_one(simulations, whole())
        return answer

    monkeypatch.setattr(Simulations, "explain", explain_one)
    assert explain(http, "across-long", **asked) == cut_off
    said = (cut_off["verdict"], cut_off["operator"], cut_off["reason"])
    assert said == ("unknown", "anywhere", "repartitioned")
    assert (cut_off["record"]["offset"], cut_off["known_from"]) == (0, 0)


def test_of_more_records_than_are_shown_the_last_are_and_the_answer_says_so(http: httpx.Client) -> None:
    make(http, "many-why", ONCE)
    post(http, "many-why", *(("a", at, {"id": "x"}) for at in range(100)))
    assert explain(http, "many-why", key="a")["cut"] == []
    post(http, "many-why", ("a", 100, {"id": "x"}))
    found = explain(http, "many-why", key="a")
    assert (found["matched"], found["cut"]) == (101, ["records"])
    assert [each["offset"] for each in found["records"]] == list(range(1, 101))


def test_what_others_do_not_know_of_a_record_says_why(http: httpx.Client, working: Serving) -> None:
    make(http, "across-gone", POSITIVE, ANYWHERE, partitions=2)
    post(http, "across-gone", ("a", 1, {"id": "x", "n": 1}), ("d", 1, {"id": "x", "n": 1}))
    stream = http.get("/v1/streams/across-gone-in").json()["id"]
    is_other = PartitionRow.partition == partition_of_key(b"d", 2)
    gone = update(PartitionRow).where(PartitionRow.stream_id == stream, is_other).values(start_offset=1)
    working.catalog.write(lambda s: s.execute(gone))
    found = explain(http, "across-gone", key="a")
    assert (found["verdict"], found["operator"], found["reason"]) == ("unknown", "anywhere", "retention")
    other = partition_of_key(b"d", 2)
    of_other = f"task 0_{other} read across-gone-in partition {other} from offset 0 on, which begins at 1 now"
    assert found["why"].endswith(of_other)
    assert [each["reason"] for each in found["records"]] == ["retention"]


def test_a_flush_closes_what_is_behind_a_repartition_too(http: httpx.Client) -> None:
    by_user = {"op": "select_key", "name": "by_user", "key": "value->>'user'"}
    make(http, "across-flush", by_user, VISITS, FINAL, partitions=2)
    post(http, "across-flush", ("a", 1_000, {"user": "u"}), ("d", 1_050, {"user": "u"}))
    http.post("/v1/jobs/across-flush:flush").raise_for_status()
    wait_until(lambda: not http.get("/v1/jobs/across-flush").json()["is_flushing"], "the flush")
    post(http, "across-flush", ("a", 1_010, {"user": "u"}))
    found = explain(http, "across-flush", key="a")
    nobody = {"stream": None, "partition": None, "offset": None}
    flushed = {**nobody, "timestamp": 1_151, "reason": "flush"}
    assert said(found)[:4] == ("out", "visits", "closed_idle", flushed)
    [window] = explain(http, "across-flush", key="d")["windows"]
    places = [(each["partition"], each["offset"]) for each in window["updates"]]
    assert places == [(partition_of_key(b"a", 2), 0), (partition_of_key(b"d", 2), 0)]
    assert window["closed"] == flushed
    assert window["finals"] == [{"operator": "final", "reason": "flush", **nobody, "value": {"n": 2}}]


def test_after_a_reset_the_history_is_a_new_one_and_a_change_ends_it(http: httpx.Client) -> None:
    make(http, "changed-why", ONCE)
    post(http, "changed-why", ("a", 1_000, {"id": "x"}), ("a", 1_001, {"id": "x"}))
    http.post("/v1/jobs/changed-why:stop", params={"wait": "stopped", "timeout_ms": 60_000}).raise_for_status()
    http.post("/v1/jobs/changed-why:reset", json={"start": {"offsets": {"0": 1}}}).raise_for_status()
    http.post("/v1/jobs/changed-why:restart").raise_for_status()
    http.get("/v1/jobs/changed-why", params=CAUGHT_UP).raise_for_status()
    found = explain(http, "changed-why", key="a")
    assert (found["verdict"], found["known_from"], found["matched"]) == ("in", 1, 1)
    seen = http.get("/v1/jobs/changed-why")
    spec = seen.json()["spec"] | {"operators": [ONCE | {"interval_ms": 5}]}
    headers = {"If-Match": seen.headers["etag"]}
    http.put("/v1/jobs/changed-why", json=spec, headers=headers).raise_for_status()
    http.get("/v1/jobs/changed-why", params=CAUGHT_UP).raise_for_status()
    post(http, "changed-why", ("a", 1_002, {"id": "x"}))
    found = explain(http, "changed-why", key="a")
    assert (found["verdict"], found["reason"]) == ("unknown", "version_changed")
    assert [each["verdict"] for each in found["records"]] == ["in", "unknown"]


def test_a_record_repeats_one_of_another_stream_that_was_taken_before_it_though_it_is_younger(
    http: httpx.Client,
) -> None:
    """The second stream wakes late: its record is taken behind a younger one, as the task remembers."""
    for name in ("late-why-in", "late-why-two"):
        http.post("/v1/streams", json={"name": name, "partitions": 1}).raise_for_status()
    spec = {"name": "late-why", "source": ["late-why-in", "late-why-two"], "sink": "late-why-out", "operators": [ONCE]}
    http.post("/v1/jobs", json=spec | {"commit_interval_ms": 0}).raise_for_status()
    post(http, "late-why", ("a", 1_500, {"id": "x"}), ("a", 1_600, {"id": "y"}))
    for stamp in (1_100, 1_550):
        body = {"records": [{"key": "a", "timestamp": stamp, "value": {"id": "x"}}]}
        http.post("/v1/streams/late-why-two/records", json=body).raise_for_status()
        http.get("/v1/jobs/late-why", params=CAUGHT_UP).raise_for_status()
    first = record("late-why-in", 0, 1_500)
    found = explain(http, "late-why", stream="late-why-two", key="a")
    assert said(found) == ("out", "once", "duplicate", first, 950)
    assert [(each["offset"], each["verdict"]) for each in found["records"]] == [(0, "out"), (1, "out")]
    found = explain(http, "late-why", stream="late-why-two", partition=0, offset=0)
    assert said(found) == ("out", "once", "duplicate", first, 600)
    assert explain(http, "late-why", stream="late-why-in", partition=0, offset=0)["verdict"] == "in"
    assert explain(http, "late-why", stream="late-why-in", partition=0, offset=9)["reason"] == "no_record"
    answer = http.get("/v1/jobs/late-why:explain", params={"key": "a"})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "?stream")


def test_of_a_long_history_as_much_is_run_again_as_says_it(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where all of it were too much. What a record may be a duplicate of is an interval back, and no farther."""
    make(http, "near-why", ONCE, POSITIVE)
    for at in range(1_000, 61_000, 1_000):
        body = {"records": [{"key": "ab"[at % 2_000 > 0], "timestamp": at, "value": {"id": "x", "n": 1}}]}
        http.post("/v1/streams/near-why-in/records", json=body).raise_for_status()
    post(http, "near-why", ("b", 59_600, {"id": "x", "n": 1}))
    whole = explain(http, "near-why", key="b")
    assert (whole["known_from"], whole["matched"]) == (0, 31)
    cause = whole["cause"]
    assert said(whole) == ("out", "once", "duplicate", cause, 400)
    monkeypatch.setattr(explanations, "NEAR_RECORDS", 10)
    near = explain(http, "near-why", key="b")
    assert 50 < near["known_from"] < 58
    count = near["matched"]
    assert near == whole | {"known_from": near["known_from"], "matched": count, "records": whole["records"][-count:]}
    assert explain(http, "near-why", partition=0, offset=30) == explain_from(0, http, "near-why", 30, monkeypatch)
    monkeypatch.setattr(explanations, "MAX_RECORDS", 30)
    assert explain(http, "near-why", key="b") == near
    monkeypatch.setattr(explanations, "NEAR_RECORDS", 2)
    found = explain(http, "near-why", key="b")
    assert (said(found), found["known_from"] > 30) == (said(whole), True)
    assert refused_as_too_large(http, "near-why", partition=0, offset=3)
    assert refused_as_too_large(http, "near-why", key="nobody")


def explain_from(known_from: int, http: httpx.Client, name: str, offset: int, patch: pytest.MonkeyPatch) -> Json:
    """The whole answer, as one from further on would be."""
    with patch.context() as whole:
        whole.setattr(explanations, "NEAR_RECORDS", 1_000)
        found = explain(http, name, partition=0, offset=offset)
    near = explain(http, name, partition=0, offset=offset)["known_from"]
    assert near > found["known_from"] == known_from
    return found | {"known_from": near}


def refused_as_too_large(http: httpx.Client, name: str, **asked: Any) -> bool:
    answer = http.get(f"/v1/jobs/{name}:explain", params=asked)
    return (answer.status_code, answer.json()["code"]) == (422, "explanation_too_large")


def test_a_task_whose_records_are_gone_is_unknown(http: httpx.Client, working: Serving) -> None:
    make(http, "gone-why", ONCE)
    post(http, "gone-why", ("a", 1_000, {"id": "x"}), ("a", 1_001, {"id": "x"}))
    stream = http.get("/v1/streams/gone-why-in").json()["id"]
    taken = update(PartitionRow).where(PartitionRow.stream_id == stream).values(start_offset=1)
    working.catalog.write(lambda s: s.execute(taken))
    found = explain(http, "gone-why", key="a")
    assert (found["verdict"], found["reason"], found["known_from"]) == ("unknown", "retention", 1)


def test_more_records_than_are_run_again_are_refused(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    make(http, "long-why", ONCE)
    post(http, "long-why", ("a", 1_000, {"id": "x"}), ("a", 1_001, {"id": "x"}))
    monkeypatch.setattr(explanations, "MAX_RECORDS", 1)
    answer = http.get("/v1/jobs/long-why:explain", params={"key": "a"})
    assert (answer.status_code, answer.json()["code"]) == (422, "explanation_too_large")
    assert answer.json()["errors"][0]["pointer"] == "{job}"


@pytest.mark.parametrize(
    ("asked", "pointer"),
    [
        ({}, "?key"),
        ({"partition": 0}, "?key"),
        ({"key": "a", "offset": 1}, "?offset"),
        ({"offset": 1, "timestamp": 1, "partition": 0}, "?offset"),
        ({"offset": 0}, "?partition"),
        ({"key": "a", "partition": 2}, "?partition"),
        ({"key": "a", "stream": "another"}, "?stream"),
        ({"key": "a", "id": "x"}, "?id"),
        ({"key": "a", "timestamp": "soon"}, "?timestamp"),
        ({"key": "a", "timestamp": -1}, "?timestamp"),
        ({"key": "a", "timestamp": 2**63}, "?timestamp"),
        ({"partition": 0, "offset": 2**47}, "?offset"),
        ({"key": "k" * 5_000}, "?key"),
        ({"key": "a", "where": "true"}, "?where"),
    ],
)
def test_a_question_that_says_too_little_or_too_much_is_refused(
    http: httpx.Client, refused_job: str, asked: Json, pointer: str
) -> None:
    answer = http.get(f"/v1/jobs/{refused_job}:explain", params=asked)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)


@pytest.fixture(scope="module")
def refused_job(http: httpx.Client) -> str:
    make(http, "refused-why", POSITIVE, partitions=2)
    return "refused-why"


def test_an_unknown_job_is_not_found(http: httpx.Client) -> None:
    assert http.get("/v1/jobs/nobody:explain", params={"key": "a"}).json()["code"] == "unknown_job"
