"""Groups over HTTP: nodes and copies, rounds that can be decided again, plans; what is refused. On SQLite."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx
import orjson
import pytest

from service.assignment_cases import answer
from service.streams.assignment.metadata import ACTIVE, UNKNOWN, AssignmentInfo, SubscriptionInfo
from tests.serving import Serving, serving

Json = dict[str, Any]
GROUP = "/v1/groups/visits"
ONCE = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 1_000}


@dataclass
class Playing:
    """A job over two tasks with a standby each, on nodes `a` and `b`."""

    service: Serving
    reader: httpx.Client

    def get(self, path: str = "", **params: Any) -> Json:
        return dict(self.reader.get(GROUP + path, params=params).raise_for_status().json())


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes) -> Iterator[Playing]:
    folder = tmp_path_factory.mktemp("groups")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    with serving(folder, f"sqlite:///{folder}/catalog.db", lease_ms=3_600_000, initial_rebalance_delay_ms=0) as running:
        admin, member = running.client("admin"), running.client("instance")
        admin.post("/v1/streams", json={"name": "clicks", "partitions": 2}).raise_for_status()
        spec = {"name": "visits", "source": "clicks", "sink": "out", "operators": [ONCE], "standby_replicas": 1}
        job = admin.post("/v1/jobs", json=spec).raise_for_status().json()
        slots = [_join(member, job["id"], name) for name in ("a", "b")]
        held: dict[str, Json] = {slot: {} for slot in slots}
        for slot in [*slots, *slots, *slots]:
            found = member.post(f"{slot}:poll", json={**held[slot], "timeout_ms": 0}).raise_for_status().json()
            held[slot] = {
                "tasks": [{"task": each["task"], "epoch": each["epoch"]} for each in found["tasks"]],
                "copies": [{"task": each["task"]} for each in found["copies"]],
            }
        yield Playing(running, running.client("reader"))


def _join(member: httpx.Client, job: str, name: str) -> str:
    """The path of a slot on a node of its own."""
    body = {"name": name, "incarnation": "1", "host": name, "cores": 1, "tags": {"zone": "z"}}
    instance = member.post("/v1/instances:join", json=body).raise_for_status().json()["instance_id"]
    path, slot = f"/v1/instances/{instance}/slots", uuid4().hex
    node = {"id": f"disk-{name}", "host": name, "place": "8:2"}
    member.post(path, json={"slot": slot, "job": job, "index": 0, "node": node}).raise_for_status()
    return f"{path}/{slot}"


def test_a_group_shows_its_nodes_and_where_copies_are(group: Playing) -> None:
    shown = group.get()
    assert [(node["node"], node["host"], node["slots"], node["instances"]) for node in shown["nodes"]] == [
        ("disk-a", "a", 1, ["a"]),
        ("disk-b", "b", 1, ["b"]),
    ]
    assert shown["nodes"][0]["tags"] == {"zone": "z", "host": "a"}
    roles = sorted((copy["task"], copy["role"], copy["state"]) for copy in shown["copies"])
    assert roles == [(task, role, "running") for task in ("0_0", "0_1") for role in ("active", "standby")]
    assert {(copy["lag_records"], copy["lag_s"]) for copy in shown["copies"]} == {(0, 0.0)}
    assert (shown["probing"], shown["missing_standbys"], shown["warm_up"]) == (False, 0, {})
    active = {copy["task"]: copy["node"] for copy in shown["copies"] if copy["role"] == "active"}
    assert all(where != [active[task]] and len(where) == 1 for task, where in shown["standby"].items())


def test_a_round_is_shown_with_its_case_and_decided_again(group: Playing) -> None:
    listed = group.get("/rebalances")["items"]
    for each in listed:
        shown = group.get(f"/rebalances/{each['generation']}")
        assert answer(orjson.dumps(shown["case"])) == shown["answer"]
        assert each.items() <= shown.items()
    assert [member["id"] for member in shown["case"]["members"]] == ["disk-a"]


@pytest.mark.parametrize(("generation", "status"), [("9999", 404), ("0", 422), ("x", 422), (str(2**70), 422)])
def test_a_round_that_is_not_there(group: Playing, generation: str, status: int) -> None:
    found = group.reader.get(f"{GROUP}/rebalances/{generation}")
    assert found.status_code == status
    assert found.json()["code"] == {404: "unknown_rebalance", 422: "invalid_request"}[status]


def test_a_plan_says_what_would_move_and_changes_nothing(group: Playing) -> None:
    before = group.get()
    plan = group.reader.post(f"{GROUP}:plan", json={"remove": ["disk-b"]}).raise_for_status().json()
    assert [move["to_node"] for move in plan["moves"]] == ["disk-a"]
    assert (plan["moves"][0]["from_node"], plan["moves"][0]["lag_records"]) == ("disk-b", 0)
    assert answer(orjson.dumps(plan["case"])) == plan["answer"]
    replaced = {"add": [{"node": "disk-c", "slots": 2, "tags": {"zone": "y"}}], "remove": ["disk-a"]}
    moves = group.reader.post(f"{GROUP}:plan", json=replaced).raise_for_status().json()["moves"]
    assert {move["to_node"] for move in moves} <= {"disk-b", "disk-c"}
    nothing = group.reader.post(f"{GROUP}:plan", json={}).raise_for_status().json()
    assert nothing["moves"] == []
    assert group.get() == before


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"remove": ["disk-x"]}, "/remove/0"),
        ({"remove": ["disk-a", "disk-a"]}, "/remove/1"),
        ({"add": [{"node": "disk-a", "slots": 1}]}, "/add/0/node"),
        ({"add": [{"node": "c", "slots": 1}, {"node": "c", "slots": 1}]}, "/add/1/node"),
        ({"add": [{"node": "c"}]}, "/add/0"),
        ({"add": [{"node": "c", "slots": 0}]}, "/add/0/slots"),
        ({"add": [{"node": "c", "slots": 10_001}]}, "/add/0/slots"),
        ({"add": [{"node": "c", "slots": "1"}]}, "/add/0/slots"),
        ({"add": [{"node": "c", "slots": 1, "cores": 2}]}, "/add/0"),
        ({"add": [{"node": "a b", "slots": 1}]}, "/add/0/node"),
        ({"add": [{"node": "c", "slots": 1}] * 101}, "/add"),
        ({"add": {}}, "/add"),
        ({"move": []}, ""),
    ],
)
def test_a_plan_that_can_not_be_is_refused(group: Playing, body: Json, pointer: str) -> None:
    found = group.reader.post(f"{GROUP}:plan", json=body)
    assert found.status_code == 422, found.text
    assert found.json()["errors"][0]["pointer"] == pointer


def test_groups_need_a_job_and_a_reader(group: Playing) -> None:
    assert group.reader.post("/v1/groups/nothing:plan", json={}).json()["code"] == "unknown_job"
    assert group.reader.get("/v1/groups/nothing/rebalances/1").json()["code"] == "unknown_job"
    member = group.service.client("instance")
    for found in (member.get(GROUP), member.get(f"{GROUP}/rebalances/1"), member.post(f"{GROUP}:plan", json={})):
        assert found.status_code == 403


def test_members_as_kafka_streams_would_speak(group: Playing) -> None:
    shown, infos = group.get(), group.get(format="v4")
    assert (infos["job"], infos["generation"]) == ("visits", shown["generation"])
    assert [each["slot"] for each in infos["members"]] == sorted(each["slot"] for each in shown["members"])
    for each in infos["members"]:
        subscription = SubscriptionInfo.decode(b64decode(each["subscription"]))
        assignment = AssignmentInfo.decode(b64decode(each["assignment"]))
        (running,) = assignment.active_tasks
        ((standby, changelogs),) = assignment.standby_tasks.items()
        assert subscription.task_offset_sums == {running: ACTIVE, standby: UNKNOWN}
        assert list(changelogs) == [("visits-once-changelog", standby[1])]
        assert shown["assignment"]["{}_{}".format(*running)] == each["slot"]
    assert group.reader.get(GROUP, params={"format": "v5"}).status_code == 422
