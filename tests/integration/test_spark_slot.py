"""A slot's loop against the real API on SQLite, turn by turn, in this process: no Spark, every edge in reach."""

from __future__ import annotations

import fcntl
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from service.protocol import JoinRequest, SlotRequest, TaskCommit
from service.storage import janitor
from service.storage.node import NodeFolder, node_id_of
from service.storage.replica import Replica
from service.storage.segments import Storage
from service.streams.inputs import Batch
from spark_jobs import follow, memory, rounds, stores, tasks
from spark_jobs import job as slot_job
from spark_jobs import slot as slots
from spark_jobs.client import Api, Gone, Json, SlotPlace, Unreachable
from spark_jobs.pulse import Pulse
from spark_jobs.slot import Slot
from spark_jobs.work import FIRST_RECORDS, States, TaskRunner, read_batch
from tests.serving import Serving, serving

HOUR = 3_600_000
ONCE = {"op": "deduplicate_by_key_value", "name": "once", "id": "value->>'id'", "interval_ms": HOUR}
POSITIVE = {"op": "filter", "name": "positive", "where": "(value->>'n')::bigint > 0"}


class World:
    """A service, an instance that joined, and slots that live when a test says so."""

    def __init__(self, service: Serving, folder: Path, opened: ExitStack) -> None:
        self.service, self.folder, self.opened = service, folder, opened
        self.admin = service.client("admin")
        self.api = opened.enter_context(Api(service.url, service.secrets["instance"]))
        self.member = self.api.join_instance(JoinRequest("here", "1", "localhost", 4))
        self.call("POST", "/v1/streams", json={"name": "clicks", "partitions": 2})

    def call(self, method: str, path: str, **how: Any) -> Any:
        answer = self.admin.request(method, path, **how)
        if answer.is_error:
            raise httpx.HTTPStatusError(answer.text, request=answer.request, response=answer)
        return answer.json() if answer.content else None

    def job(self, name: str = "job", **fields: Any) -> str:
        spec = {"name": name, "source": "clicks", "operators": [ONCE], "sink": f"{name}-out", "commit_interval_ms": 0}
        return str(self.call("POST", "/v1/jobs", json=spec | fields)["id"])

    def state(self, name: str = "job") -> Json:
        found: Json = self.call("GET", f"/v1/jobs/{name}")
        return found

    def post(self, *ids: Any, partition: int = 0) -> None:
        """Records of one key, with these `id`s."""
        records = [
            {"key": "k", "value": {"id": i, "n": i}, "timestamp": 1_700_000_000_000, "partition": partition}
            for i in ids
        ]
        self.call("POST", "/v1/streams/clicks/records", json={"records": records})

    def out(self, name: str = "job", partition: int = 0) -> list[Any]:
        """The `id`s that came out."""
        where = {"partition": partition, "from_offset": 0, "limit": 1000}
        page = self.call("GET", f"/v1/streams/{name}-out/records", params=where)
        return [record["value"]["id"] for record in page["records"]]

    def end(self, name: str = "job") -> int:
        """How many records came out of partition 0, where all of one key go."""
        return int(self.call("GET", f"/v1/streams/{name}-out")["partitions"][0]["end_offset"])

    def all_out(self, name: str = "job") -> list[Any]:
        return [i for partition in range(2) for i in self.out(name, partition)]

    def slot(self, job_id: str, index: int = 0, replicas: str = "replicas") -> Slot:
        place = SlotPlace(
            self.service.url,
            self.member.instance_id,
            self.member.storage_uri,
            self.folder / replicas,
            job_id,
        )
        pulse = self.opened.enter_context(Pulse(self.folder / "pulses"))
        node = self.opened.enter_context(NodeFolder(place.replica_dir, "localhost"))
        slot = SlotRequest(f"slot-{time.monotonic_ns()}", job_id, index, node.ref)
        joined = self.api.join_slot(self.member.instance_id, slot)
        return self.opened.enter_context(Slot(self.api, place, joined, pulse))


@pytest.fixture
def world(tmp_path: Path, migrated_sqlite: bytes) -> Iterator[World]:
    (tmp_path / "catalog.db").write_bytes(migrated_sqlite)
    with serving(tmp_path, f"sqlite:///{tmp_path}/catalog.db", lease_ms=10_000) as service, ExitStack() as opened:
        yield World(service, tmp_path, opened)


def turn_until(slot: Slot, is_so: Callable[[], bool], turns: int = 30) -> None:
    """Turn until it is so; each turn is one poll and all that follows."""
    for _ in range(turns):
        if is_so():
            return
        slot.turn()
    raise AssertionError(f"not so after {turns} turns")


def has_come_out(world: World, which: Any) -> bool:
    return which in world.all_out()


def end(slot: Slot) -> None:
    """What the end of its process does."""
    slot.__exit__(None, None, None)


def failing(error: Exception, times: int, then: Callable[..., Any]) -> Callable[..., Any]:
    """A call that fails so often before it works."""
    left = [times]

    def call(*arguments: Any, **named: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise error
        return then(*arguments, **named)

    return call


# ---------------------------------------------------------------- the way of a record


def test_records_pass_are_committed_and_replayed(world: World) -> None:
    slot = world.slot(world.job())
    world.post(1, 2, 1, 3)
    turn_until(slot, lambda: len(world.all_out()) == 3)
    world.post(2, 4)
    turn_until(slot, lambda: len(world.all_out()) == 4)
    assert world.all_out() == [1, 2, 3, 4]
    assert world.state()["state"] == "running"


def test_a_batch_is_bounded_by_what_the_job_says(world: World) -> None:
    slot = world.slot(world.job(max_batch_records=2))
    world.post(1, 2, 3, 4, 5)
    turn_until(slot, lambda: len(world.all_out()) >= 2)
    assert world.all_out() == [1, 2]
    turn_until(slot, lambda: len(world.all_out()) == 5)


@pytest.mark.parametrize(
    ("many", "ran"),
    [(0, [FIRST_RECORDS, 12_000, 12_000]), (1_000_000, [FIRST_RECORDS, FIRST_RECORDS, 2_000, 2_000])],
    ids=["quick", "slow"],
)
def test_the_first_records_of_a_task_are_committed_with_many_more_where_they_are_quick(
    world: World, monkeypatch: pytest.MonkeyPatch, many: int, ran: list[int]
) -> None:
    """And the other task need not try that."""
    run, found = TaskRunner.run, list[int]()

    def counted(runner: TaskRunner, batch: Batch, states: States) -> Any:
        found.append(batch.rows.num_rows)
        return run(runner, batch, states)

    monkeypatch.setattr(TaskRunner, "run", counted)
    monkeypatch.setattr(slot_job, "MANY", many)
    slot = world.slot(world.job(operators=[]))
    for partition in 0, 1:
        world.post(*range(12_000), partition=partition)
    turn_until(slot, lambda: world.end() == 24_000)
    assert found == ran
    assert world.out()[:3] == [0, 1, 2]


def test_how_long_a_first_chunk_takes_to_read_says_nothing_of_more_records(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is decoded whole, for however few of its records."""
    monkeypatch.setattr(slot_job, "time", clock := Mock(monotonic=Mock(return_value=1000.0)))

    def read_slowly(*arguments: Any) -> Batch:
        clock.monotonic.return_value += 60.0
        return read_batch(*arguments)

    monkeypatch.setattr(slot_job, "read_batch", read_slowly)
    slot = world.slot(world.job(operators=[]))
    world.post(*range(12_000))
    turn_until(slot, lambda: world.end() == 12_000, turns=2)


def test_the_first_record_after_idle_does_not_wait_for_the_commit_interval(world: World) -> None:
    slot = world.slot(world.job(commit_interval_ms=60_000))
    world.post(1)
    started = time.monotonic()
    turn_until(slot, lambda: world.all_out() == [1])
    assert time.monotonic() - started < 50


def test_under_load_commits_keep_their_distance(world: World) -> None:
    slot = world.slot(world.job(commit_interval_ms=1000))
    world.post(1)
    turn_until(slot, lambda: world.all_out() == [1])
    first = time.monotonic()
    world.post(2)
    turn_until(slot, lambda: world.all_out() == [1, 2])
    assert time.monotonic() - first > 0.5


def test_a_long_round_ends_early_and_nobody_starves(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round runs one task only: those that have waited longest come first, without a pause in between."""
    monkeypatch.setattr(rounds, "ROUND_S", 0.0)
    slot = world.slot(world.job(commit_interval_ms=60_000, max_batch_records=1))
    world.post(1, 2, 3)
    world.post(4, 5, 6, partition=1)
    turn_until(slot, lambda: len(world.all_out()) >= 4, turns=6)
    assert sorted(world.all_out()) == [1, 2, 4, 5]
    turn_until(slot, lambda: len(world.all_out()) == 6, turns=3)


def test_a_round_that_ended_early_goes_on_with_those_that_it_has_not_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever ran waits for the next round, whatever came in meanwhile; nobody else waits."""
    monkeypatch.setattr(rounds, "ROUND_S", 0.0)
    slot = world.slot(world.job(commit_interval_ms=60_000))
    world.post(0)
    world.post(1, partition=1)
    turn_until(slot, lambda: len(world.all_out()) == 1)
    (ran,) = world.all_out()
    world.post(2, partition=ran)
    slot.turn()
    assert sorted(world.all_out()) == [0, 1]
    for _ in range(3):
        slot.turn()
    assert sorted(world.all_out()) == [0, 1]


def test_a_full_batch_does_not_wait(world: World) -> None:
    slot = world.slot(world.job(commit_interval_ms=60_000, max_batch_records=2))
    world.post(1)
    turn_until(slot, lambda: world.all_out() == [1])
    world.post(2, 3)
    turn_until(slot, lambda: world.all_out() == [1, 2, 3], turns=5)


def test_two_slots_share_the_tasks(world: World) -> None:
    job = world.job()
    first, second = world.slot(job, 0), world.slot(job, 1)
    turn_until(first, lambda: world.state()["state"] == "running" or not second.turn())
    members = world.call("GET", "/v1/groups/job")["members"]
    assert sorted(len(member["tasks"]) for member in members) == [1, 1]


def test_leaving_gives_the_tasks_up(world: World) -> None:
    slot = world.slot(world.job())
    slot.turn()
    world.call("POST", "/v1/jobs/job:stop")
    assert slot.turn() is False
    assert world.state()["state"] == "stopped"


def test_a_draining_instance_tells_its_slots_to_leave_and_takes_their_last_commit(world: World) -> None:
    slot = world.slot(world.job())
    world.post(1)
    turn_until(slot, lambda: world.all_out() == [1])
    world.api.leave_instance(world.member.instance_id, "1", drain=True)
    assert slot.turn() is False
    assert world.call("GET", f"/v1/instances/{world.member.instance_id}")["slots"] == []
    world.api.leave_instance(world.member.instance_id, "1", drain=False)
    assert world.call("GET", f"/v1/instances/{world.member.instance_id}")["state"] == "gone"


def test_a_replaced_slot_finds_itself_gone(world: World) -> None:
    job = world.job()
    old = world.slot(job)
    old.turn()
    new = world.slot(job)
    with pytest.raises(Gone):
        old.turn()
    world.post(1)
    turn_until(new, lambda: world.all_out() == [1])


# ---------------------------------------------------------------- restore


def test_a_lost_replica_is_restored_from_the_changelog(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "SLICE_RECORDS", 1)
    monkeypatch.setattr(slots, "ALONE_S", 0.0)
    job = world.job()
    first = world.slot(job)
    for i in range(6):
        world.post(i)
        turn_until(first, partial(has_come_out, world, i))
    end(first)
    shutil.rmtree(world.folder / "replicas")
    second = world.slot(job)
    world.post(*range(8))
    turn_until(second, lambda: len(world.all_out()) == 8)
    assert world.all_out() == list(range(8))


def test_a_kept_replica_is_not_restored_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job = world.job()
    first = world.slot(job)
    world.post(1)
    turn_until(first, lambda: world.all_out() == [1])
    end(first)
    asked: list[Any] = []
    monkeypatch.setattr(world.api, "find_chunks", lambda *where: asked.append(where))
    second = world.slot(job)
    world.post(1, 2)
    turn_until(second, lambda: world.all_out() == [1, 2])
    assert asked == []


@contextmanager
def held_by_another(replicas: Path) -> Iterator[None]:
    """The replicas, closed here, as if a process that hangs had them open still."""
    with ExitStack() as held:
        for file in replicas.glob("*/*/*/lock"):
            lock = held.enter_context(file.open())
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_a_replica_that_its_former_process_has_open_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it may take until that process is killed: then what it had is not restored."""
    job = world.job()
    first = world.slot(job)
    world.post(1)
    turn_until(first, lambda: world.all_out() == [1])
    end(first)
    asked: list[Any] = []
    monkeypatch.setattr(world.api, "find_chunks", lambda *where: asked.append(where))
    monkeypatch.setattr(tasks, "HAND_OVER_PAUSE_S", 0.0)
    second = world.slot(job)
    world.post(1, 2)
    with held_by_another(world.folder / "replicas"):
        for _ in range(3):
            second.turn()
        assert world.all_out() == [1]
    turn_until(second, lambda: world.all_out() == [1, 2])
    assert asked == []


def test_a_replica_that_nobody_lets_go_of_is_begun_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "HAND_OVER_S", -60.0)
    job = world.job()
    first = world.slot(job)
    world.post(1)
    turn_until(first, lambda: world.all_out() == [1])
    end(first)
    second = world.slot(job)
    world.post(1, 2)
    with held_by_another(world.folder / "replicas"):
        turn_until(second, lambda: world.all_out() == [1, 2])


def test_another_instance_on_the_node_goes_on_with_the_replicas_that_are_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.job()
    first = world.slot(job)
    world.post(1)
    turn_until(first, lambda: world.all_out() == [1])
    end(first)
    world.api.leave_instance(world.member.instance_id, "1", drain=False)
    asked: list[Any] = []
    monkeypatch.setattr(world.api, "find_chunks", lambda *where: asked.append(where))
    world.member = world.api.join_instance(JoinRequest("renamed", "2", "localhost", 4))
    second = world.slot(job)
    world.post(1, 2)
    turn_until(second, lambda: world.all_out() == [1, 2])
    assert asked == []


def test_a_node_that_was_cloned_takes_another_id_and_joins(world: World, tmp_path: Path) -> None:
    job = world.job()
    world.slot(job)
    shutil.copytree(world.folder / "replicas", world.folder / "clone")
    place = SlotPlace(
        world.service.url, world.member.instance_id, world.member.storage_uri, world.folder / "clone", job
    )
    pulse = world.opened.enter_context(Pulse(world.folder / "pulses"))
    with NodeFolder(world.folder / "clone", "localhost") as clone:
        before = clone.ref.id
        assert before == node_id_of(world.folder / "replicas")
        assert slots._join(world.api, place, 1, pulse, clone) is not None
        assert clone.ref.id not in (before, None)
    assert node_id_of(world.folder / "replicas") == before


def test_an_idle_slot_sweeps_what_deleted_jobs_left_on_its_node(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(janitor, "EVERY_S", 0.0)
    monkeypatch.setattr(janitor, "LOOK_EVERY_S", 0.0)
    gone = world.slot(world.job("gone"))
    world.post(1)
    turn_until(gone, lambda: world.all_out("gone") == [1])
    world.call("POST", "/v1/jobs/gone:stop")
    assert gone.turn() is False
    left = {path.name for path in (world.folder / "replicas").iterdir() if path.is_dir()}
    world.call("DELETE", "/v1/jobs/gone")
    slot = world.slot(world.job())
    turn_until(slot, lambda: world.all_out() == [1])
    turn_until(slot, lambda: not any((world.folder / "replicas" / name).exists() for name in left))
    assert len(left) == 1
    world.post(1, 2)
    turn_until(slot, lambda: world.all_out() == [1, 2])


def test_an_unknown_outcome_is_settled_by_the_next_poll(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit counts, its answer never comes: the replica catches up from the changelog, nothing runs twice."""
    slot = world.slot(world.job())
    slot.turn()
    world.post(1)
    commit = world.api.commit

    def lost(*arguments: Any, **named: Any) -> Any:
        commit(*arguments, **named)
        monkeypatch.setattr(world.api, "commit", commit)
        raise Unreachable("no answer")

    monkeypatch.setattr(world.api, "commit", lost)
    turn_until(slot, lambda: world.all_out() == [1])
    world.post(1, 2)
    turn_until(slot, lambda: world.all_out() == [1, 2])


def test_a_refused_commit_is_run_again_from_what_the_catalog_says(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = world.slot(world.job())
    slot.turn()
    world.post(1)
    commit = world.api.commit

    def stale(path: str, commits: Sequence[TaskCommit], **named: Any) -> Any:
        monkeypatch.setattr(world.api, "commit", commit)
        return commit(path, [replace(each, version=99) for each in commits], **named)

    monkeypatch.setattr(world.api, "commit", stale)
    turn_until(slot, lambda: world.all_out() == [1])


# ---------------------------------------------------------------- standbys


class Pair:
    """Two slots of a job with standbys, each on a node of its own."""

    def __init__(self, world: World, **fields: Any) -> None:
        self.world = world
        job = world.job(standby_replicas=1, **fields)
        self.first, self.second = world.slot(job), world.slot(job, 1, "others")

    def turn(self) -> None:
        self.first.turn()
        self.second.turn()

    def turn_until(self, is_so: Callable[[], bool], turns: int = 60) -> None:
        for _ in range(turns):
            if is_so():
                return
            self.turn()
        raise AssertionError(f"not so after {turns} turns")

    def settle(self) -> None:
        """Until each slot runs a task, and keeps a copy of the other one that is at its end."""
        self.turn_until(lambda: all(len(slot._tasks) == 1 for slot in (self.first, self.second)))
        self.turn_until(lambda: all(self.has_copy(slot) for slot in (self.first, self.second)))

    @staticmethod
    def has_copy(slot: Slot) -> bool:
        return len(slot._job.standbys.held(slot._job.joined.stores)) == 1 and slot._job.standbys.not_before_s is None

    def leave(self) -> None:
        """The first slot is out, and does not know yet."""
        self.world.api.leave_slot(self.first._path)


@pytest.fixture
def pair(world: World) -> Pair:
    made = Pair(world)
    world.post(1)
    world.post(2, partition=1)
    made.turn_until(lambda: sorted(world.all_out()) == [1, 2])
    made.settle()
    return made


def test_a_task_goes_on_from_its_standby_without_a_restore(
    world: World, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.leave()
    asked: list[Any] = []
    monkeypatch.setattr(world.api, "find_chunks", lambda *where: asked.append(where))
    world.post(1, 3)
    world.post(2, 4, partition=1)
    turn_until(pair.second, lambda: len(world.all_out()) == 4)
    assert sorted(world.all_out()) == [1, 2, 3, 4]
    assert asked == []


def test_what_was_committed_last_is_in_a_copy_before_its_task_goes_on(world: World, pair: Pair) -> None:
    """The end of the changelog is read once nobody else can commit any more."""
    world.post(*range(10, 20))
    world.post(*range(20, 30), partition=1)
    turn_until(pair.first, lambda: len(world.all_out()) == 12)  # the other slot does not hear of it
    pair.leave()
    world.post(*range(10, 21))
    world.post(*range(20, 31), partition=1)
    turn_until(pair.second, lambda: len(world.all_out()) >= 24)
    assert sorted(world.all_out()) == [1, 2, *range(10, 20), 20, 20, *range(21, 31)]


def test_what_a_former_owner_commits_late_is_refused(world: World, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, late = world.api.commit, list[Any]()

    def after_all(path: str, commits: Sequence[TaskCommit], **named: Any) -> Any:
        monkeypatch.setattr(world.api, "commit", commit)
        pair.leave()
        turn_until(pair.second, lambda: len(world.all_out()) == 4)
        late.extend(commit(path, commits, **named))
        return late

    monkeypatch.setattr(world.api, "commit", after_all)
    world.post(1, 3)
    world.post(2, 4, partition=1)
    with suppress(Gone):
        pair.first.turn()
    assert [(verdict.status, verdict.reason) for verdict in late] == [("refused", "stale_epoch")]
    assert sorted(world.all_out()) == [1, 2, 3, 4]


def test_the_lag_of_each_copy_is_shown(world: World, pair: Pair) -> None:
    families = text_string_to_metric_families(world.admin.get("/metrics").text)
    shown = next(family.samples for family in families if family.name == "millrace_copy_lag_records")
    assert sorted((each.labels["task"], each.labels["role"]) for each in shown) == [
        ("0_0", "standby"),
        ("0_1", "standby"),
    ]
    assert all(0 <= each.value <= 3 for each in shown)  # as it was last reported: one of a copy that keeps up is rare
    nodes = {node_id_of(world.folder / name) for name in ("replicas", "others")}
    assert {each.labels["node"] for each in shown} == nodes


def test_a_lost_copy_is_built_again_beside_the_tasks(world: World, pair: Pair) -> None:
    held = pair.second._job.standbys.held(pair.second._job.joined.stores)
    store = next(iter(held[0].applied))
    end(pair.second)
    shutil.rmtree(world.folder / "others" / store)
    pair.second = world.slot(str(world.state()["id"]), 1, "others")
    pair.settle()
    (again,) = pair.second._job.standbys.held(pair.second._job.joined.stores)
    assert again == held[0]


# ---------------------------------------------------------------- memory


@pytest.fixture
def handed_back(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When memory was given back."""
    times: list[float] = []
    monkeypatch.setattr(memory, "hand_back", lambda: times.append(time.monotonic()))
    return times


def test_a_few_large_records_are_given_back_once_the_slot_is_idle(world: World, handed_back: list[float]) -> None:
    slot = world.slot(world.job())
    world.post("x" * (memory.SWELLS_BYTES + 1))
    turn_until(slot, lambda: len(world.all_out()) == 1)
    assert not handed_back
    slot.turn()
    assert len(handed_back) == 1


def test_little_leaves_nothing_worth_giving_back(world: World, handed_back: list[float]) -> None:
    slot = world.slot(world.job())
    world.post(*range(1_000))
    turn_until(slot, lambda: len(world.all_out()) == 1_000)
    slot.turn()
    assert not handed_back


def test_what_a_restore_took_is_given_back(
    world: World, handed_back: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.job()
    first = world.slot(job)
    world.post(1)
    turn_until(first, lambda: world.all_out() == [1])
    end(first)
    shutil.rmtree(world.folder / "replicas")
    monkeypatch.setattr(memory, "SWELLS_BYTES", 0)
    second = world.slot(job)
    turn_until(second, lambda: bool(handed_back), turns=3)


# ---------------------------------------------------------------- failures


def test_a_poisoned_record_fails_its_job_with_partition_and_offset_and_may_be_skipped(world: World) -> None:
    job = world.job(operators=[POSITIVE])
    world.post(1, "poison", 2, partition=1)
    slot = world.slot(job)
    turn_until(slot, lambda: world.state()["state"] == "failed")
    error = world.state()["error"]
    assert (error["code"], error["operator"], error["stream"]) == ("expression_failed", "positive", "clicks")
    assert (error["partition"], error["offset"], error["task"]) == (1, 1, "0_1")
    assert world.all_out() == [1]  # what came before it is not held back
    assert slot.turn() is False
    world.call("POST", "/v1/jobs/job:skip", json={"partition": 1, "offset": 1})
    world.call("POST", "/v1/jobs/job:restart")
    again = world.slot(job)
    turn_until(again, lambda: world.all_out() == [1, 2])


def test_a_failing_record_is_dropped_where_the_job_says_so(world: World) -> None:
    slot = world.slot(world.job(operators=[POSITIVE], on_error="drop"))
    world.post(1, "poison", 2)
    turn_until(slot, lambda: world.all_out() == [1, 2])


def test_a_damaged_segment_fails_the_job_and_names_the_file(world: World) -> None:
    job = world.job()
    world.post(1)
    (file,) = (world.folder / "storage").rglob("*.arrows")
    file.write_bytes(file.read_bytes()[:-10])
    slot = world.slot(job)
    turn_until(slot, lambda: world.state()["state"] == "failed")
    error = world.state()["error"]
    assert error["code"] == "segment_damaged"
    assert file.name in error["detail"]


def test_a_missing_segment_fails_the_job_after_it_was_looked_for_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "TASK_PAUSES_S", (0.2,))
    job = world.job()
    world.post(1)
    (file,) = (world.folder / "storage").rglob("*.arrows")
    file.unlink()
    slot = world.slot(job)
    turn_until(slot, lambda: world.state()["state"] == "failed")
    assert world.state()["error"]["code"] == "segment_missing"


def test_a_passing_disk_error_is_survived(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = world.slot(world.job())
    slot.turn()
    world.post(1)
    monkeypatch.setattr(Storage, "write", failing(OSError(28, "No space left on device"), 2, Storage.write))
    turn_until(slot, lambda: world.all_out() == [1])


def test_a_lasting_disk_error_fails_the_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "TASK_PAUSES_S", (0.2,))
    slot = world.slot(world.job())
    slot.turn()
    world.post(1)
    monkeypatch.setattr(Storage, "write", failing(OSError(28, "No space left on device"), 99, Storage.write))
    turn_until(slot, lambda: world.state()["state"] == "failed")
    assert world.state()["error"]["code"] == "io_failed"
    assert "No space left" in world.state()["error"]["detail"]


def test_one_failing_task_does_not_stop_the_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = world.slot(world.job())
    slot.turn()
    run = TaskRunner.run

    def fails_on_partition_0(runner: TaskRunner, *rest: Any) -> Any:
        if runner.assigned.partition == 0:
            raise OSError("this disk only")
        return run(runner, *rest)

    monkeypatch.setattr(TaskRunner, "run", fails_on_partition_0)
    world.post(1, partition=0)
    world.post(2, partition=1)
    turn_until(slot, lambda: world.all_out() == [2])
    monkeypatch.setattr(TaskRunner, "run", run)
    turn_until(slot, lambda: sorted(world.all_out()) == [1, 2])


def test_a_fault_of_ours_is_the_jobs_state_not_the_slots_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = world.slot(world.job())
    slot.turn()
    monkeypatch.setattr(TaskRunner, "run", failing(ZeroDivisionError("a bug"), 99, TaskRunner.run))
    world.post(1)
    turn_until(slot, lambda: world.state()["state"] == "failed")
    assert world.state()["error"]["code"] == "internal_error"
    assert "ZeroDivisionError: a bug" in world.state()["error"]["detail"]


def test_a_replica_that_breaks_at_replay_is_restored(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = world.slot(world.job())
    slot.turn()
    monkeypatch.setattr(Replica, "apply", failing(OSError("the disk is gone"), 1, Replica.apply))
    world.post(1)
    turn_until(slot, lambda: world.all_out() == [1])
    world.post(1, 2)
    turn_until(slot, lambda: world.all_out() == [1, 2])
