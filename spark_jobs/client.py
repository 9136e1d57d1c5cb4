"""The API as an instance and its slots see it: what they may ask, and when they ask again.

It knows the routes of the slot protocol, their bodies, and that an answer may get lost. It refuses to know what a slot
does with an answer. Every request here can be repeated: the ids in it are its sender's, so an unknown outcome is
settled by asking again.

    ApiError
    ├── Unreachable        no answer in time; whether the request counted is not known
    └── Refused            an answer that says no, with the problem's code
        └── Gone           404, 410: whom or what it was about is not there any more
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import httpx
import orjson
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from service.streams.records import Chunk

Json = dict[str, Any]

ANSWER_S = 10.0  # how long an answer may take, beside the time it was asked to wait
PATIENCE_S = 30.0
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}
_ASK_AGAIN = {429, 500, 502, 503, 504}


class ApiError(Exception):
    """The API did not do what it was asked for."""


class Unreachable(ApiError):
    """No answer in time; whether the request counted is not known."""


class Refused(ApiError):
    """The API said no."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"{status} {code}: {detail}")
        self.status, self.code, self.detail = status, code, detail


class Gone(Refused):
    """The instance, slot or job is not there any more."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a slot finds its work; it travels to the executor with the slot, so it holds no secret."""

    api_url: str
    instance_id: str
    storage_uri: str
    replica_dir: Path
    job_id: str


@dataclass(frozen=True, slots=True)
class Membership:
    """What an instance is told when it joins."""

    instance_id: str
    lease_ms: int
    storage_uri: str


@dataclass(frozen=True, slots=True)
class WantedJob:
    """A job that should run on this instance, on so many slots."""

    id: str
    name: str
    slots: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """All jobs that should run here, and the version of this answer."""

    jobs: list[WantedJob]
    version: str


@dataclass(frozen=True, slots=True)
class StreamRef:
    """A stream of the job."""

    id: str
    partitions: int


@dataclass(frozen=True, slots=True)
class StoreRef:
    """A store of the job and the stream that is its truth."""

    id: str
    changelog: str


@dataclass(frozen=True, slots=True)
class JoinedSlot:
    """What a slot is told when it joins: its job, as it was compiled, with the ids behind every name."""

    slot_id: str
    lease_ms: int
    lineage: str
    job_name: str
    spec: Json
    topology: Json
    streams: Mapping[str, StreamRef]
    stores: Mapping[str, StoreRef]
    redis_url: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Work:
    """A range of one input to run next, and the chunks that hold it."""

    stream_id: str
    partition: int
    start: int
    end: int
    chunks: list[Chunk]


@dataclass(frozen=True, slots=True)
class AssignedTask:
    """A task of this slot as the catalog sees it now. `changelogs`: store → end; `skips`: offsets to pass over;
    `advance`: why it shall close what is open, instead of working.
    """

    id: str
    name: str
    sub_topology: int
    partition: int
    epoch: int
    version: int
    work: Work | None
    changelogs: Mapping[str, int]
    skips: frozenset[int]
    advance: Literal["idle", "flush"] | None = None

    @property
    def is_due(self) -> bool:
        """Whether there is something to do."""
        return self.work is not None or self.advance is not None


@dataclass(frozen=True, slots=True)
class PollAnswer:
    """What a slot should do."""

    directive: Literal["run", "leave"]
    tasks: list[AssignedTask]


@dataclass(frozen=True, slots=True)
class ChunkRange:
    """Chunks of a partition from an offset on, and where the partition ends."""

    chunks: list[Chunk]
    end: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a commit; `first_offsets` of the segment's chunks, in their order, when it was accepted."""

    is_accepted: bool
    reason: str | None
    first_offsets: list[int]


class Api:
    """A keep-alive connection to the API. Safe to share between threads."""

    def __init__(self, url: str, key: str) -> None:
        self._client = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
            trust_env=urlsplit(url).hostname not in _LOOPBACK,  # a proxy is of no use on the way to this machine
            timeout=httpx.Timeout(ANSWER_S, connect=2.0),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    # ------------------------------------------------------------ instances

    def join_instance(self, told: Json) -> Membership:
        """Join under a stable name; the same name keeps its id. Raises ApiError."""
        answer = self._ask("POST", "/v1/instances:join", told)
        return Membership(answer["instance_id"], answer["lease_ms"], answer["storage_uri"])

    def heartbeat(self, instance_id: str, incarnation: str, running: Mapping[str, int], known: str) -> Wanted:
        """Keep the lease; waits for an answer that differs from `known`. Raises ApiError."""
        told = {"incarnation": incarnation, "jobs": dict(running), "known": known, "wait_ms": 10_000}
        answer = self._ask("POST", f"/v1/instances/{instance_id}:heartbeat", told, wait_s=10.0)
        return Wanted([WantedJob(**job) for job in answer["jobs"]], answer["version"])

    def leave_instance(self, instance_id: str, incarnation: str, *, drain: bool) -> None:
        """Leave with all slots; with `drain` each of them is told to leave first, and may commit. Raises ApiError."""
        told = {"incarnation": incarnation, "drain": drain}
        self._ask("POST", f"/v1/instances/{instance_id}:leave", told, patience_s=5.0)

    # ------------------------------------------------------------ slots

    def join_slot(self, instance_id: str, *, slot_id: str, job_id: str, index: int) -> JoinedSlot:
        """Become a slot of a job in the place of the one before. Raises ApiError."""
        told = {"slot": slot_id, "job": job_id, "index": index}
        answer = self._ask("POST", f"/v1/instances/{instance_id}/slots", told)
        return JoinedSlot(
            slot_id=slot_id,
            lease_ms=answer["lease_ms"],
            lineage=answer["lineage"],
            job_name=answer["job"]["name"],
            spec=answer["job"]["spec"],
            topology=answer["job"]["topology"],
            streams={name: StreamRef(**stream) for name, stream in answer["streams"].items()},
            stores={name: StoreRef(**store) for name, store in answer["stores"].items()},
            redis_url=answer["redis_url"],
        )

    def poll(self, slot: str, held: Sequence[Json], wait_ms: int, *, patience_s: float = PATIENCE_S) -> PollAnswer:
        """What to do next, told what is held; waits until there is something. Raises ApiError."""
        told = {"tasks": list(held), "timeout_ms": wait_ms}
        answer = self._ask("POST", f"{slot}:poll", told, wait_s=wait_ms / 1000, patience_s=patience_s)
        return PollAnswer(answer["directive"], [_assigned(task) for task in answer["tasks"]])

    def find_chunks(self, slot: str, stream_id: str, partition: int, offset: int, max_records: int) -> ChunkRange:
        """The chunks that hold a partition from `offset` on. Raises ApiError."""
        query = f"stream_id={stream_id}&partition={partition}&from={offset}&max_records={max_records}"
        answer = self._ask("GET", f"{slot}/chunks?{query}")
        return ChunkRange(_chunks(answer["chunks"]), answer["end"])

    def register_segments(self, slot: str, count: int) -> list[tuple[str, str]]:
        """Announce `count` new segments; their (id, path). Raises ApiError."""
        answer = self._ask("POST", f"{slot}/segments", {"segments": [uuid.uuid4().hex for _ in range(count)]})
        return list(answer["paths"].items())

    def commit(self, slot: str, commits: Sequence[Json], *, patience_s: float = PATIENCE_S) -> list[Verdict]:
        """Commit tasks, each judged alone; none of them just keeps the lease. Raises ApiError."""
        answer = self._ask("POST", f"{slot}:commit", {"commits": list(commits)}, patience_s=patience_s)
        return [
            Verdict(
                result["status"] == "accepted", result["reason"], [at["first_offset"] for at in result["published"]]
            )
            for result in answer["results"]
        ]

    def fail_task(self, slot: str, *, task_id: str, epoch: int, error: Json) -> None:
        """Say that a task can not go on, and why: its job fails. Raises ApiError."""
        self._ask("POST", f"{slot}:fail", {"task": task_id, "epoch": epoch, "error": error})

    def leave_slot(self, slot: str) -> None:
        """Give all tasks up. Raises ApiError."""
        self._ask("POST", f"{slot}:leave", {}, patience_s=5.0)

    # ------------------------------------------------------------ asking

    def _ask(
        self, method: str, path: str, body: Json | None = None, *, wait_s: float = 0.0, patience_s: float = PATIENCE_S
    ) -> Any:
        """One request, repeated as it is until it is answered or `patience_s` has passed."""
        content = None if body is None else orjson.dumps(body)
        attempts = Retrying(
            retry=retry_if_exception_type(Unreachable),
            wait=wait_random_exponential(multiplier=0.05, max=1.0),
            stop=stop_after_delay(patience_s),
            reraise=True,
        )
        return attempts(self._ask_once, method, path, content, wait_s)

    def _ask_once(self, method: str, path: str, content: bytes | None, wait_s: float) -> Any:
        timeout = httpx.Timeout(ANSWER_S + wait_s, connect=2.0)
        try:
            answer = self._client.request(method, path, content=content, timeout=timeout)
        except httpx.TransportError as error:
            raise Unreachable(f"{method} {path}: {error or type(error).__name__}") from error
        if answer.is_error:
            raise _refusal(answer)
        return orjson.loads(answer.content) if answer.content else None


def slot_path(instance_id: str, slot_id: str) -> str:
    """The route of a slot; verbs and sub-resources are appended."""
    return f"/v1/instances/{instance_id}/slots/{slot_id}"


def _refusal(answer: httpx.Response) -> ApiError:
    try:
        problem = orjson.loads(answer.content)
        code, detail = str(problem["code"]), str(problem["detail"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        code, detail = "unknown", answer.text[:200]
    if answer.status_code in _ASK_AGAIN:
        return Unreachable(f"{answer.request.url.path}: {answer.status_code} {code}: {detail}")
    kind = Gone if answer.status_code in {404, 410} else Refused
    return kind(answer.status_code, code, detail)


def _assigned(task: Json) -> AssignedTask:
    work = task["work"]
    return AssignedTask(
        id=task["task"],
        name=task["name"],
        sub_topology=task["sub_topology"],
        partition=task["partition"],
        epoch=task["epoch"],
        version=task["version"],
        work=None if work is None else _work(work),
        changelogs={name: at["end"] for name, at in task["changelogs"].items()},
        skips=frozenset(task["skips"]),
        advance=task["advance"],
    )


def _work(work: Json) -> Work:
    return Work(work["stream_id"], work["partition"], work["from"], work["to"], _chunks(work["chunks"]))


def _chunks(chunks: Iterable[Json]) -> list[Chunk]:
    return [Chunk(**chunk) for chunk in chunks]
