"""The protocol of instances and slots over HTTP, on SQLite and on Postgres: join, poll, commit, leave, be fenced."""

import copy
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import msgspec
import pyarrow as pa
import pytest
from msgspec.structs import astuple

from benchmarks.running import wait_until
from service.catalog import streams
from service.catalog.tables import ShareRow
from service.storage.segments import encode_segment, open_storage
from service.streams.records import RECORD_SCHEMA, Chunk
from tests.serving import Serving, serving

Json = dict[str, Any]
LEASE_MS = 150_000  # polls may wait for 60 s, so that one that is woken is told from one that waits to its end


@pytest.fixture
def service(tmp_path: Path, database_url: str) -> Iterator[Serving]:
    with serving(tmp_path, database_url, lease_ms=LEASE_MS) as running:
        yield running


class Member:
    """An instance with one slot of one job, as `spark_jobs` would speak for them."""

    def __init__(self, service: Serving) -> None:
        self.service = service
        self.admin = service.client("admin")
        self.http = service.client("instance")
        self.storage = open_storage(service.settings.storage_uri)
        self.admin.post("/v1/streams", json={"name": "clicks", "partitions": 1}).raise_for_status()
        spec = {"name": "copy", "source": "clicks", "sink": "out"}
        self.job = self.admin.post("/v1/jobs", json=spec).raise_for_status().json()
        self.instance = self.join("1")["instance_id"]
        self.slot = uuid4().hex
        self.joined = self.join_slot(self.slot)

    def join(self, incarnation: str) -> Json:
        body = {"name": "i", "incarnation": incarnation, "host": "here", "cores": 2, "tags": {"rack": "a"}}
        answer = self.http.post("/v1/instances:join", json=body)
        return dict(answer.raise_for_status().json())

    def join_slot(self, slot: str, index: int = 0) -> httpx.Response:
        body = {"slot": slot, "job": self.job["id"], "index": index}
        return self.http.post(f"/v1/instances/{self.instance}/slots", json=body)

    def heartbeat(self, **body: Any) -> httpx.Response:
        return self.http.post(f"/v1/instances/{self.instance}:heartbeat", json={"incarnation": "1", **body})

    def ask(self, verb: str, body: Json | None = None, slot: str | None = None) -> httpx.Response:
        return self.http.post(f"/v1/instances/{self.instance}/slots/{slot or self.slot}{verb}", json=body or {})

    def poll(self, held: list[Json], timeout_ms: int = 0) -> Json:
        return dict(self.ask(":poll", {"tasks": held, "timeout_ms": timeout_ms}).raise_for_status().json())

    def post_records(self, count: int) -> None:
        records = [{"key": f"k{i}", "value": i} for i in range(count)]
        self.admin.post("/v1/streams/clicks/records", json={"records": records}).raise_for_status()

    def commit_of(self, task: Json, **changes: Any) -> Json:
        """A commit of all the work of a task: as many records, written to the sink."""
        [work] = task["work"]
        count = work["end"] - work["start"]
        columns = [[b"k"] * count, ["1"] * count, [7] * count, [None] * count, [None] * count, [None] * count]
        batch = pa.RecordBatch.from_arrays(
            [pa.array(c, f.type) for c, f in zip(columns, RECORD_SCHEMA, strict=True)], schema=RECORD_SCHEMA
        )
        segment = encode_segment([(self.joined.json()["streams"]["out"]["id"], 0, batch)])
        segment_id = uuid4().hex
        path = self.ask("/segments", {"segments": [segment_id]}).raise_for_status().json()["paths"][segment_id]
        self.storage.write(path, segment)
        return {
            "commit_id": uuid4().hex,
            "task": task["task"],
            "epoch": task["epoch"],
            "version": task["version"],
            "positions": [{"input": work["input"], "from": work["start"], "to": work["end"]}],
            "segments": [
                {"id": segment_id, "bytes": segment.bytes, "chunks": [list(astuple(c)) for c in segment.chunks]},
            ],
            "counters": {
                "records_in": count,
                "records_out": count,
                "dropped": {"f": {"late": 1}},
                "batch_us": {"count": 1, "sum": 1500, "max": 1500},
            },
            "stream_time": 7,
            "applied": {},
            **changes,
        }

    def commit(self, *commits: Json) -> list[Json]:
        return list(self.ask(":commit", {"commits": list(commits)}).raise_for_status().json()["results"])


@pytest.fixture
def member(service: Serving) -> Member:
    return Member(service)


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes) -> Iterator[Member]:
    """One for tests whose requests are refused for what they are, before a database is asked; it has work to do."""
    folder = tmp_path_factory.mktemp("refusing")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    with serving(folder, f"sqlite:///{folder}/catalog.db") as running:
        member = Member(running)
        member.post_records(1)
        yield member


def held(answer: Json) -> list[Json]:
    return [{"task": task["task"], "epoch": task["epoch"], "applied": {}} for task in answer["tasks"]]


def later(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Run `call` in a thread; its answer is put in the list."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    return thread, answers


def test_who_joins_learns_where_records_are_and_for_how_long_it_lives(member: Member) -> None:
    joined = member.join("1")
    assert joined["lease_ms"] == member.service.settings.lease_ms
    assert joined["storage_uri"] == member.service.settings.storage_uri
    assert joined["lineage"] == member.admin.get("/info").json()["lineage"]
    shown = member.admin.get(f"/v1/instances/{member.instance}").json()
    assert (shown["name"], shown["state"], shown["cores"], shown["tags"]) == ("i", "live", 2, {"rack": "a"})
    assert [slot["job"] for slot in shown["slots"]] == ["copy"]


def test_a_slot_learns_its_job_with_the_ids_behind_every_name(member: Member) -> None:
    joined = member.joined.json()
    assert joined["job"]["name"] == "copy"
    assert joined["job"]["topology"]["sub_topologies"][0]["sinks"][0]["stream"] == "out"
    assert set(joined["streams"]) == {"clicks", "out"}
    assert joined["lineage"]
    group = member.admin.get("/v1/groups/copy").json()
    assert group["assignment"] == {"0_0": member.slot}
    assert group["members"][0]["tasks"] == ["0_0"]
    assert member.admin.get("/v1/groups/copy/rebalances").json()["items"][0]["reason"] == "a slot joined"
    assert member.admin.get("/v1/jobs/copy").json()["state"] == "running"


def test_a_heartbeat_answers_at_once_when_the_wanted_jobs_differ_from_the_known_ones(member: Member) -> None:
    first = member.heartbeat(wait_ms=10_000).json()
    assert first["jobs"] == [{"id": member.job["id"], "name": "copy", "slots": 1}]
    thread, answers = later(lambda: member.heartbeat(known=first["version"], wait_ms=10_000).json())
    member.admin.post("/v1/jobs", json={"name": "another", "source": "clicks"}).raise_for_status()
    thread.join(30)
    assert [job["name"] for job in answers[0]["jobs"]] == ["another", "copy"]


def test_a_heartbeat_that_knows_all_waits_no_longer_than_it_was_told(member: Member) -> None:
    version = member.heartbeat().json()["version"]
    assert member.heartbeat(known=version, wait_ms=20).json()["version"] == version


def test_a_poll_is_answered_when_records_arrive(member: Member) -> None:
    holds = held(member.poll([]))
    thread, answers = later(lambda: member.poll(holds, timeout_ms=60_000))
    began = time.monotonic()
    member.post_records(3)
    thread.join(90)
    assert time.monotonic() - began < 30  # a poll without news waits for 60 s
    [work] = answers[0]["tasks"][0]["work"]
    assert (work["input"], work["start"], work["end"]) == (0, 0, 3)
    [chunk] = msgspec.convert(work["chunks"], list[Chunk])
    assert (chunk.first_offset, chunk.end_offset, chunk.records, chunk.is_sparse) == (0, 3, 3, False)
    assert member.storage.read_chunk(chunk).num_rows == 3


def test_a_poll_that_holds_something_else_than_it_owns_is_answered_at_once(member: Member) -> None:
    answer = member.poll([], timeout_ms=10_000)
    assert [task["name"] for task in answer["tasks"]] == ["0_0"]
    assert answer["directive"] == "run"


def test_a_commit_publishes_and_moves_and_counts_and_the_same_commit_again_changes_nothing(member: Member) -> None:
    member.post_records(3)
    commit = member.commit_of(member.poll([])["tasks"][0])
    [first] = member.commit(commit)
    assert first["status"] == "accepted"
    assert [(at["first_offset"], at["end_offset"]) for at in first["published"]] == [(0, 3)]
    assert member.commit(commit) == [first]
    assert member.admin.get("/v1/streams/out").json()["partitions"] == [
        {"partition": 0, "start_offset": 0, "end_offset": 3}
    ]
    metrics = member.admin.get("/v1/jobs/copy/metrics").json()
    assert (metrics["records_in"], metrics["dropped"], metrics["lag"]) == (3, {"f": {"late": 1}}, 0)
    exposition = member.admin.get("/metrics").text
    assert 'millrace_dropped_records_total{job="copy",operator="f",reason="late",task="0_0"} 1.0' in exposition
    assert "millrace_live_slots 1.0" in exposition


def test_who_waits_for_a_job_to_catch_up_hears_of_the_commit(member: Member) -> None:
    member.post_records(2)
    wait = {"wait": "caught_up", "timeout_ms": 30_000}
    thread, answers = later(lambda: member.admin.get("/v1/jobs/copy", params=wait).json())
    member.commit(member.commit_of(member.poll([])["tasks"][0]))
    thread.join(30)
    assert answers[0]["caught_up"]
    assert answers[0]["stream_time"] == 7


@pytest.mark.parametrize(
    ("change", "reason"), [({"epoch": 0}, "stale_epoch"), ({"version": 9}, "stale_version"), ({"task": "x"}, None)]
)
def test_a_stale_commit_is_refused_alone(member: Member, change: Json, reason: str | None) -> None:
    member.post_records(1)
    good = member.commit_of(member.poll([])["tasks"][0])
    bad = {**good, "commit_id": uuid4().hex, **change}
    refused, accepted = member.commit(bad, good)
    assert (refused["status"], accepted["status"]) == ("refused", "accepted")
    assert reason in (refused["reason"], None)


def swap(commit: Json, field: int, value: Any) -> None:
    chunks = commit["segments"][0]["chunks"]
    chunks[0] = [*chunks[0][:field], value, *chunks[0][field + 1 :]]


@pytest.mark.parametrize(
    ("break_it", "pointer"),
    [
        (lambda commit: commit.pop("epoch"), "/commits/0"),
        (lambda commit: commit.update(epoch="one"), "/commits/0/epoch"),
        (lambda commit: commit["positions"][0].pop("from"), "/commits/0/positions/0"),
        (lambda commit: commit["segments"][0]["chunks"][0].clear(), "/commits/0/segments/0/chunks/0"),
        (lambda commit: swap(commit, 2, -1), "/commits/0/segments/0/chunks/0/2"),
        (lambda commit: swap(commit, 0, "../x"), "/commits/0/segments/0/chunks/0/0"),
        (lambda commit: commit["segments"][0].update(id="../../etc/passwd"), "/commits/0/segments/0/id"),
        (lambda commit: commit["positions"][0].update(input=-1), "/commits/0/positions/0/input"),
        (lambda commit: commit.update(counters={"records_in": "many"}), "/commits/0/counters/records_in"),
        (lambda commit: commit.update(counters={"records_in": 2**63}), "/commits/0/counters/records_in"),
        (lambda commit: commit.update(counters={"batch_us": {"sum": -1}}), "/commits/0/counters/batch_us/sum"),
    ],
)
def test_a_commit_that_is_none_is_422_with_a_pointer(
    refusing: Member, break_it: Callable[[Json], object], pointer: str
) -> None:
    commit = refusing.commit_of(refusing.poll([])["tasks"][0])
    break_it(commit)
    answer = refusing.ask(":commit", {"commits": [commit]})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == pointer


def test_a_new_slot_in_the_same_place_fences_the_old_one(member: Member) -> None:
    member.post_records(1)
    commit = member.commit_of(member.poll([])["tasks"][0])
    member.join_slot(uuid4().hex).raise_for_status()
    assert member.commit(commit)[0]["status"] == "refused"
    gone = member.ask(":poll", {"tasks": []})
    assert (gone.status_code, gone.json()["code"]) == (410, "instance_gone")
    assert member.ask("/segments", {"segments": [uuid4().hex]}).status_code == 410


def test_an_instance_that_starts_again_takes_the_place_of_the_former_one(member: Member) -> None:
    assert member.join("2")["instance_id"] == member.instance
    assert member.heartbeat().status_code == 410
    assert member.ask(":poll", {"tasks": []}).status_code == 410


def test_an_instance_that_left_has_no_slots_and_may_leave_again(member: Member) -> None:
    path = f"/v1/instances/{member.instance}:leave"
    assert member.http.post(path, json={"incarnation": "1"}).status_code == 204
    assert member.http.post(path, json={"incarnation": "1"}).status_code == 204
    shown = member.admin.get("/v1/instances").json()["items"][0]
    assert (shown["state"], shown["slots"]) == ("gone", [])


def test_a_slot_that_leaves_frees_its_tasks_at_once(member: Member) -> None:
    assert member.ask(":leave").status_code == 204
    assert member.admin.get("/v1/groups/copy").json()["assignment"] == {"0_0": None}


def test_a_job_that_stops_tells_its_slots_to_leave(member: Member) -> None:
    holds = held(member.poll([]))
    thread, answers = later(lambda: member.poll(holds, timeout_ms=10_000))
    assert member.admin.post("/v1/jobs/copy:stop").json()["state"] == "draining"
    thread.join(30)
    assert answers[0]["directive"] == "leave"
    member.ask(":leave")
    assert member.admin.get("/v1/jobs/copy").json()["state"] == "stopped"


def test_a_task_that_fails_fails_its_job_with_the_record_and_the_record_can_be_skipped(member: Member) -> None:
    member.post_records(3)
    [task] = member.poll([])["tasks"]
    error = {"code": "expression_failed", "operator": "f", "partition": 0, "offset": 1, "detail": "not a number"}
    failed = {"task": task["task"], "epoch": task["epoch"], "error": error}
    assert member.ask(":fail", failed).status_code == 204
    job = member.admin.get("/v1/jobs/copy").json()
    assert (job["state"], job["error"]["offset"], job["error"]["detail"]) == ("failed", 1, "not a number")
    assert member.admin.get("/v1/jobs/copy/errors").json()["items"][0]["error"]["operator"] == "f"
    assert member.poll(held({"tasks": [task]}))["directive"] == "leave"
    skip = {"partition": 0, "offset": 1}
    assert member.admin.post("/v1/jobs/copy:skip", json=skip).status_code == 200
    member.ask(":leave")
    assert member.admin.post("/v1/jobs/copy:restart").json()["state"] == "starting"
    member.slot = uuid4().hex
    member.join_slot(member.slot).raise_for_status()
    assert member.poll([])["tasks"][0]["skips"] == [[0, 1]]


def test_chunks_are_found_from_any_offset(member: Member) -> None:
    member.post_records(5)
    stream_id = member.joined.json()["streams"]["clicks"]["id"]
    query = {"stream_id": stream_id, "partition": 0, "from": 2, "max_records": 10}
    path = f"/v1/instances/{member.instance}/slots/{member.slot}/chunks"
    found = member.http.get(path, params=query).json()
    assert (found["start"], found["end"], msgspec.convert(found["chunks"][0], Chunk).records) == (0, 5, 5)
    assert member.http.get(path, params={**query, "partition": 9}).status_code == 404
    assert member.http.get(path, params={**query, "from": -1}).status_code == 422


def test_chunks_are_those_of_the_slots_job(member: Member) -> None:
    member.admin.post("/v1/streams", json={"name": "secret", "partitions": 1}).raise_for_status()
    member.admin.post("/v1/streams/secret/records", json={"records": [{"value": 1}]}).raise_for_status()
    foreign = member.service.catalog.read(streams.get_stream, "secret").id
    path = f"/v1/instances/{member.instance}/slots/{member.slot}/chunks"
    for stream_id in (foreign, "0" * 32):
        answer = member.http.get(path, params={"stream_id": stream_id, "partition": 0, "from": 0})
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_partition")
    own = {"stream_id": member.joined.json()["streams"]["clicks"]["id"], "partition": 0, "from": 0}
    assert member.http.get(path, params=own).status_code == 200
    nobody = member.http.get(path.replace(member.slot, "nobody"), params=own)
    assert (nobody.status_code, nobody.json()["code"]) == (410, "instance_gone")


def test_an_instances_key_publishes_into_no_stream_but_its_jobs_outputs(member: Member) -> None:
    member.admin.post("/v1/streams", json={"name": "payments", "partitions": 1}).raise_for_status()
    member.post_records(2)
    [task] = member.poll([])["tasks"]
    commit = member.commit_of(task)
    for name in ("payments", "clicks"):
        bad = copy.deepcopy(commit)
        swap(bad, 0, member.service.catalog.read(streams.get_stream, name).id)
        assert member.commit(bad)[0]["reason"] == "foreign_stream"
    assert member.admin.get("/v1/streams/payments").json()["partitions"][0]["end_offset"] == 0
    assert member.admin.get("/v1/streams/clicks").json()["partitions"][0]["end_offset"] == 2
    own_slot = member.slot
    member.slot = uuid4().hex
    member.join_slot(member.slot, index=1).raise_for_status()
    others = member.commit_of(task)
    member.slot = own_slot
    assert member.commit({**commit, "segments": others["segments"]})[0]["reason"] == "foreign_segment"
    assert member.commit(commit)[0]["status"] == "accepted"


@pytest.mark.parametrize(
    "change",
    [{"cores": -1}, {"cores": "2"}, {"name": "a b"}, {"incarnation": None}, {"tags": {"rack": 1}}, {"spark": []}],
)
def test_an_instance_that_can_not_be_is_refused(refusing: Member, change: Json) -> None:
    body = {"name": "i", "incarnation": "1", "host": "here", "cores": 2, **change}
    answer = refusing.http.post("/v1/instances:join", json=body)
    assert answer.status_code == 422
    assert answer.json()["code"] == "invalid_request"


@pytest.mark.parametrize(
    ("node", "pointer"),
    [
        ("disk", "/node"),
        ({"id": "disk", "host": "here"}, "/node"),
        ({"id": "a b", "host": "here", "place": "8:2"}, "/node/id"),
        ({"id": "d" * 300, "host": "here", "place": "8:2"}, "/node/id"),
        ({"id": "disk", "host": "h" * 300, "place": "8:2"}, "/node/host"),
        ({"id": "disk", "host": "here", "place": 8}, "/node/place"),
    ],
)
def test_a_node_that_can_not_be_is_refused(refusing: Member, node: Any, pointer: str) -> None:
    body = {"slot": uuid4().hex, "job": refusing.job["id"], "index": 1, "node": node}
    answer = refusing.http.post(f"/v1/instances/{refusing.instance}/slots", json=body)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)


def test_a_node_that_is_in_use_elsewhere_is_a_conflict(member: Member) -> None:
    body = {"slot": uuid4().hex, "job": member.job["id"], "index": 1}
    disk = {"id": "disk", "host": "here", "place": "8:2"}
    where = f"/v1/instances/{member.instance}/slots"
    member.http.post(where, json=body | {"node": disk}).raise_for_status()
    answer = member.http.post(where, json=body | {"slot": uuid4().hex, "index": 2, "node": disk | {"host": "there"}})
    assert (answer.status_code, answer.json()["code"]) == (409, "node_elsewhere")


def test_a_slot_hears_which_of_the_stores_on_its_disk_are_still_there(member: Member) -> None:
    once = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 1000}
    member.admin.post("/v1/jobs", json={"name": "other", "source": "clicks", "operators": [once]}).raise_for_status()
    there = member.admin.get("/v1/stores/other-once").json()["id"]
    answer = member.ask(":live-stores", {"stores": ["gone", there]})
    assert answer.json() == {"stores": [there]}
    assert member.ask(":live-stores", {"stores": []}).json() == {"stores": []}
    assert member.ask(":live-stores", {"stores": [there]}, slot="nobody").status_code == 410
    where = f"/v1/instances/{member.instance}/slots/{member.slot}:live-stores"
    assert member.service.client("reader").post(where, json={"stores": []}).status_code == 403


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, ""),
        ({"stores": "store"}, "/stores"),
        ({"stores": [7]}, "/stores/0"),
        ({"stores": ["a", "a/b"]}, "/stores/1"),
        ({"stores": ["a"] * 1001}, "/stores"),
    ],
)
def test_stores_that_can_not_be_are_refused(member: Member, body: Json, pointer: str) -> None:
    answer = member.ask(":live-stores", body)
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


def test_a_field_that_only_a_later_version_knows_is_ignored(member: Member) -> None:
    member.post_records(1)
    [task] = member.poll([])["tasks"]
    later = {"task": task["task"], "epoch": task["epoch"], "a_new_field": [1]}
    assert member.ask(":poll", {"tasks": [later], "timeout_ms": 0, "another": {}}).status_code == 200
    commit = member.commit_of(task, a_new_field=1)
    commit["segments"][0]["chunks"][0].append("of a longer chunk")
    assert member.commit(commit)[0]["status"] == "accepted"


def test_an_unknown_instance_is_404_and_an_unknown_slot_is_410(member: Member) -> None:
    assert member.http.post("/v1/instances/nobody:heartbeat", json={"incarnation": "1"}).status_code == 404
    assert member.admin.get("/v1/instances/nobody").status_code == 404
    assert member.ask(":poll", {"tasks": []}, slot="nobody").status_code == 410


def test_resources_that_can_not_be_are_refused(refusing: Member) -> None:
    for wrong in ({"cores": -1}, {"cores": "2"}, {"cores": 2**31}, {"shortage": "no_luck"}, {"shortage": None}):
        answer = refusing.heartbeat(**wrong)
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["pointer"] == f"/{next(iter(wrong))}"


def test_signs_of_life_that_can_not_be_are_refused(refusing: Member) -> None:
    for wrong in ([], None, {"s": -1}, {"s": "1"}, {"s": 1.5}, {"a slot": 1}, {f"s{n}": 0 for n in range(10_001)}):
        answer = refusing.heartbeat(pulses=wrong)
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["pointer"].startswith("/pulses")


def test_signs_of_life_of_slots_that_do_not_wait_here_change_nothing(member: Member) -> None:
    before = member.admin.get("/v1/groups/copy").json()["members"]
    pulses = {member.slot: 0, "nobody": 0}
    assert member.heartbeat(pulses=pulses).status_code == 200
    assert member.admin.get("/v1/groups/copy").json()["members"] == before


def test_slots_of_a_lost_executor_are_gone_at_once(member: Member) -> None:
    slot = uuid4().hex
    body = {"slot": slot, "job": member.job["id"], "index": 1, "executor": "7"}
    member.http.post(f"/v1/instances/{member.instance}/slots", json=body).raise_for_status()
    lose = f"/v1/instances/{member.instance}:lost-executors"
    assert member.http.post(lose, json={"incarnation": "1", "executors": ["7"]}).status_code == 204
    assert member.ask(":poll", {"timeout_ms": 0}, slot=slot).status_code == 410
    assert member.ask(":poll", {"timeout_ms": 0}).status_code == 200


def test_an_executor_that_was_lost_is_shown_with_its_slots_and_whether_they_are_back(member: Member) -> None:
    def lost() -> list[Json]:
        instance = member.admin.get(f"/v1/instances/{member.instance}").raise_for_status().json()
        found: list[Json] = instance["lost_executors"]
        assert all(each.pop("lost_at") for each in found)
        return found

    def join(index: int, executor: str) -> None:
        body = {"slot": uuid4().hex, "job": member.job["id"], "index": index, "executor": executor}
        member.http.post(f"/v1/instances/{member.instance}/slots", json=body).raise_for_status()

    def share(slots: int) -> None:
        row = ShareRow(job_id=member.job["id"], instance_id=member.instance, slots=slots, leave_by_ms=0)
        member.service.catalog.write(lambda s: s.merge(row) and None)

    share(3)
    for index in (1, 2):
        join(index, "7")
    assert lost() == []
    lose = {"incarnation": "1", "executors": ["7"]}
    member.http.post(f"/v1/instances/{member.instance}:lost-executors", json=lose).raise_for_status()
    assert lost() == [{"executor": "7", "slots": 2, "back": 0}]
    join(1, "8")
    assert lost() == [{"executor": "7", "slots": 2, "back": 1}]
    share(3)
    assert lost() == [{"executor": "7", "slots": 2, "back": 1}]
    share(2)  # and it runs two: nobody waits for the other one
    assert lost() == [{"executor": "7", "slots": 1, "back": 1}]
    share(3)
    join(2, "8")
    assert lost() == [{"executor": "7", "slots": 2, "back": 2}]
    member.admin.post("/v1/jobs/copy:stop").raise_for_status()
    assert lost() == []  # nobody waits for them


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"incarnation": "1"}, ""),
        ({"incarnation": "1", "executors": []}, "/executors"),
        ({"incarnation": "1", "executors": ["7"] * 1_001}, "/executors"),
        ({"incarnation": "1", "executors": [7]}, "/executors/0"),
        ({"incarnation": "1", "executors": ["7" * 256]}, "/executors/0"),
    ],
)
def test_executors_that_can_not_be_lost_are_refused(refusing: Member, body: Json, pointer: str) -> None:
    answer = refusing.http.post(f"/v1/instances/{refusing.instance}:lost-executors", json=body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == pointer


def test_who_may_not_lose_executors(refusing: Member) -> None:
    body = {"incarnation": "1", "executors": ["7"]}
    for name, status in (("nobody", 404), (refusing.instance, 410)):
        answer = refusing.http.post(f"/v1/instances/{name}:lost-executors", json=body | {"incarnation": "2"})
        assert answer.status_code == status
    reader = refusing.service.client("reader")
    assert reader.post(f"/v1/instances/{refusing.instance}:lost-executors", json=body).status_code == 403


def test_a_slot_answers_only_under_its_own_instance(member: Member) -> None:
    member.post_records(1)
    [task] = member.poll([])["tasks"]
    commit, mine = member.commit_of(task), member.instance
    body = {"name": "other", "incarnation": "1", "host": "there", "cores": 1}
    member.instance = member.http.post("/v1/instances:join", json=body).json()["instance_id"]
    error = {"code": "expression_failed", "detail": "no"}
    asked = [
        member.ask(":poll", {"tasks": held({"tasks": [task]})}),
        member.ask(":commit", {"commits": [commit]}),
        member.ask(":fail", {"task": task["task"], "epoch": task["epoch"], "error": error}),
        member.ask("/segments", {"segments": [uuid4().hex]}),
        member.ask(":live-stores", {"stores": []}),
        member.ask(":leave"),
        member.http.get(
            f"/v1/instances/{member.instance}/slots/{member.slot}/chunks",
            params={"stream_id": member.joined.json()["streams"]["clicks"]["id"], "partition": 0, "from": 0},
        ),
    ]
    assert [(answer.status_code, answer.json()["code"]) for answer in asked] == [(404, "unknown_slot")] * 7
    member.instance = mine
    assert member.commit(commit)[0]["status"] == "accepted"
    assert member.admin.get("/v1/jobs/copy").json()["state"] == "running"


def test_rebalances_and_errors_are_listed_page_by_page(member: Member) -> None:
    for _ in range(3):
        [task] = member.poll([])["tasks"]
        body = {"task": task["task"], "epoch": task["epoch"], "error": {"code": "x", "detail": "y"}}
        member.ask(":fail", body).raise_for_status()
        member.ask(":leave").raise_for_status()
        member.admin.post("/v1/jobs/copy:restart").raise_for_status()
        member.slot = uuid4().hex
        member.join_slot(member.slot).raise_for_status()
    for path in ("/v1/groups/copy/rebalances", "/v1/jobs/copy/errors"):
        whole = member.admin.get(path).json()
        assert whole["next"] is None
        assert len(whole["items"]) >= 3
        first = member.admin.get(path, params={"limit": 2}).json()
        rest = member.admin.get(path, params={"cursor": first["next"]}).json()
        assert first["items"] + rest["items"] == whole["items"]


def test_a_full_buffer_fails_its_job_with_its_figures(member: Member) -> None:
    [task] = member.poll([])["tasks"]
    figures = {"records": 7, "max_records": None, "bytes": 900, "max_bytes": 800}
    error = {"code": "buffer_full", "operator": "f", "detail": "full", **figures}
    body = {"task": task["task"], "epoch": task["epoch"], "error": error}
    member.ask(":fail", body).raise_for_status()
    shown = member.admin.get("/v1/jobs/copy").json()["error"]
    assert {name: shown[name] for name in figures} == figures


def test_a_closing_service_lets_its_long_polls_go(tmp_path: Path, database_url: str) -> None:
    with serving(tmp_path, database_url, lease_ms=LEASE_MS) as running:
        member = Member(running)
        holds = held(member.poll([]))
        thread, answers = later(lambda: member.poll(holds, timeout_ms=60_000))
        began = time.monotonic()
        wait_until(lambda: running.hub.has_waiters, "the poll")
        running.hub.close()
        thread.join(90)
        assert answers[0]["directive"] == "run"
        assert time.monotonic() - began < 30


def test_what_slots_ask_all_the_time_is_counted_under_its_route(member: Member) -> None:
    member.poll([])
    member.commit()
    lines = member.admin.get("/metrics").text.splitlines()
    for verb in (":poll", ":commit"):
        route = f'route="/v1/instances/{{instance}}/slots/{{slot}}{verb}"'
        assert any("requests_total" in line and route in line and 'status="200"' in line for line in lines)


def test_errors_of_slots_are_the_same_past_the_routes_and_through_them(member: Member) -> None:
    quick = f"/v1/instances/{member.instance}/slots/{member.slot}"
    routed = quick.replace(member.slot, f"%{ord(member.slot[0]):x}{member.slot[1:]}")
    for verb, body, status in (
        (":poll", b"{", 400),
        (":poll", b'{"timeout_ms":-1}', 422),
        (":commit", b'{"commits":[{}]}', 422),
        ("/segments", b'{"segments":["x"]}', 422),
        ("/segments", b'{"segments":[],"segments":[]}', 422),
    ):
        answers = [
            member.http.post(path + verb, content=body, headers={"Content-Type": "application/json"})
            for path in (quick, routed)
        ]
        one, other = (answer.json() | {"request_id": "", "instance": ""} for answer in answers)
        assert one == other
        assert (answers[0].status_code, answers[0].headers["Content-Type"]) == (status, "application/problem+json")
    for name in (member.slot[::-1], "gone"):
        assert member.ask(":poll", slot=name).status_code == 410
    assert member.http.post(quick + ":poll", content=b"{}", headers={"Content-Type": "text/plain"}).status_code == 415
    assert member.service.client("reader").post(quick + ":poll", json={}).status_code == 403
    assert member.service.client(None).post(quick + ":poll", json={}).status_code == 401
    assert member.http.post(quick + ":poll", params={"x": 1}, json={}).status_code == 422
