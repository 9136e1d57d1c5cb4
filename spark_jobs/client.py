"""The API as an instance and its slots see it: what they may ask, and when they ask again.

It knows the routes of the slot protocol, and that an answer may get lost; its shapes are `service.protocol`'s. It
refuses to know what a slot does with an answer. Every request here can be repeated: the ids in it are its sender's, so
an unknown outcome is settled by asking again.

    ApiError
    ├── Unreachable        no answer in time; whether the request counted is not known
    └── Refused            an answer that says no, with the problem's code
        └── Gone           404, 410: whom or what it was about is not there any more
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec
import orjson
from tenacity import Retrying, retry_if_exception_type, stop_after_delay
from urllib3 import PoolManager, ProxyManager, Timeout, make_headers
from urllib3.exceptions import HTTPError

from service import backoff
from service.protocol import (
    ChunkRange,
    CommitRequest,
    FailRequest,
    HeartbeatRequest,
    JoinedInstance,
    JoinedSlot,
    JoinRequest,
    LeaveRequest,
    LiveStores,
    LostExecutors,
    Paths,
    PollAnswer,
    PollRequest,
    SegmentsRequest,
    SlotRequest,
    StoresRequest,
    TaskCommit,
    TaskError,
    Verdict,
    Verdicts,
    WantedJobs,
)

Json = dict[str, Any]
Answer = TypeVar("Answer")

ANSWER_S = 10.0  # how long an answer may take, beside the time it was asked to wait
PATIENCE_S = 30.0
CONNECT_S = 2.0
# Parts of a lease, where there are several processes: how long one of them may take to answer, so that who hangs there
# is elsewhere before its lease is over; and how long a poll waits, which is to be answered before that.
HANGS = 0.4
POLLS = 0.2
CONNECTIONS = 4  # kept alive: that of the loop, and of the thread that keeps the lease
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}
_ASK_AGAIN = {429, 500, 502, 503, 504}
_ASK_ELSEWHERE = {502, 503, 504}  # this one can not, another may

# Made by the one thread that imports this: an instance asks from several, and where two come to use a Struct first at
# one time, msgspec reads through NULL.
CHUNK_RANGE = msgspec.json.Decoder(ChunkRange)
JOINED_INSTANCE = msgspec.json.Decoder(JoinedInstance)
JOINED_SLOT = msgspec.json.Decoder(JoinedSlot)
LIVE_STORES = msgspec.json.Decoder(LiveStores)
PATHS = msgspec.json.Decoder(Paths)
POLL_ANSWER = msgspec.json.Decoder(PollAnswer)
VERDICTS = msgspec.json.Decoder(Verdicts)
WANTED_JOBS = msgspec.json.Decoder(WantedJobs)


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
class SlotPlace:
    """Where a slot finds its work; it travels to the executor with the slot, so it holds no secret. `executor`: its id,
    which is known there ("": not known).
    """

    api_url: str
    instance_id: str
    storage_uri: str
    replica_dir: Path
    job_id: str
    executor: str = ""


class Api:
    """Keep-alive connections to the API, of which there may be several processes: `urls`, with commas between them. One
    is asked until it can not be reached, can not answer or hangs, then the next: what it was asked may count all the
    same, and is asked again under the same id. Safe to share between threads.

    Each tick of a slot asks twice. Measured beside each other, processor time of a request: urllib3 0.4 to 0.5 of httpx
    (which was half of all that a slot does between a poll's answer and its commit), http.client 0.2.
    """

    def __init__(self, urls: str, key: str) -> None:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._places = [(url.rstrip("/"), _pools_for(url, headers)) for url in urls.split(",")]
        self._at = 0
        self._lease_s: float | None = None  # where it matters: there is another process to ask

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for _url, pools in self._places:
            pools.clear()

    # ------------------------------------------------------------ instances

    def join_instance(self, instance: JoinRequest) -> JoinedInstance:
        """Join under a stable name; the same name keeps its id. Raises ApiError."""
        joined = self._ask(JOINED_INSTANCE, "POST", "/v1/instances:join", instance)
        self._keep_lease(joined.lease_ms)
        return joined

    def heartbeat(self, instance_id: str, beat: HeartbeatRequest) -> WantedJobs:
        """Keep the lease; waits for an answer that differs from the known one. Raises ApiError."""
        beat = msgspec.structs.replace(beat, wait_ms=self._bounded_ms(beat.wait_ms))
        return self._ask(
            WANTED_JOBS, "POST", f"/v1/instances/{instance_id}:heartbeat", beat, wait_s=beat.wait_ms / 1000
        )

    def leave_instance(self, instance_id: str, incarnation: str, *, drain: bool) -> None:
        """Leave with all slots; with `drain` each of them is asked to leave first, and may commit. Raises ApiError."""
        self._do(f"/v1/instances/{instance_id}:leave", LeaveRequest(incarnation, drain), patience_s=5.0)

    def lose_executors(self, instance_id: str, incarnation: str, executors: Collection[str]) -> None:
        """Say that executors have ended, and all slots in them. Raises ApiError."""
        lost = LostExecutors(incarnation, list(executors))
        self._do(f"/v1/instances/{instance_id}:lost-executors", lost, patience_s=1.0)

    # ------------------------------------------------------------ slots

    def join_slot(self, instance_id: str, slot: SlotRequest) -> JoinedSlot:
        """Become a slot of a job in the place of the one before. Raises ApiError."""
        joined = self._ask(JOINED_SLOT, "POST", f"/v1/instances/{instance_id}/slots", slot)
        self._keep_lease(joined.lease_ms)
        return joined

    def poll(self, slot: str, held: PollRequest, *, patience_s: float = PATIENCE_S) -> PollAnswer:
        """What to do next with what the slot holds; waits until there is something. Raises ApiError."""
        held = msgspec.structs.replace(held, timeout_ms=self._bounded_ms(held.timeout_ms))
        wait_s = held.timeout_ms / 1000
        return self._ask(POLL_ANSWER, "POST", f"{slot}:poll", held, wait_s=wait_s, patience_s=patience_s)

    def find_chunks(self, slot: str, stream_id: str, partition: int, offset: int, max_records: int) -> ChunkRange:
        """The chunks that hold a partition from `offset` on. Raises ApiError."""
        query = f"stream_id={stream_id}&partition={partition}&from={offset}&max_records={max_records}"
        return self._ask(CHUNK_RANGE, "GET", f"{slot}/chunks?{query}")

    def register_segments(self, slot: str, count: int) -> list[tuple[str, str]]:
        """Announce `count` new segments; their (id, path). Raises ApiError."""
        announced = SegmentsRequest([uuid.uuid4().hex for _ in range(count)])
        return list(self._ask(PATHS, "POST", f"{slot}/segments", announced).paths.items())

    def commit(self, slot: str, commits: Sequence[TaskCommit], *, patience_s: float = PATIENCE_S) -> list[Verdict]:
        """Commit tasks, each judged alone; none of them just keeps the lease. Raises ApiError."""
        body = CommitRequest(list(commits))
        return self._ask(VERDICTS, "POST", f"{slot}:commit", body, patience_s=patience_s).results

    def fail_task(self, slot: str, *, task_id: str, epoch: int, error: TaskError) -> None:
        """Say that a task can not go on, and why: its job fails. Raises ApiError."""
        self._do(f"{slot}:fail", FailRequest(task_id, epoch, error))

    def live_stores(self, slot: str, found: list[str]) -> list[str]:
        """Those of the ids that are stores still. Raises ApiError."""
        return self._ask(LIVE_STORES, "POST", f"{slot}:live-stores", StoresRequest(found)).stores

    def leave_slot(self, slot: str) -> None:
        """Give all tasks up. Raises ApiError."""
        self._do(f"{slot}:leave", None, patience_s=5.0)

    # ------------------------------------------------------------ asking

    def _ask(
        self,
        answer: msgspec.json.Decoder[Answer],
        method: str,
        path: str,
        body: msgspec.Struct | None = None,
        *,
        wait_s: float = 0.0,
        patience_s: float = PATIENCE_S,
    ) -> Answer:
        """One request, repeated as it is until it is answered or `patience_s` has passed."""
        content = None if body is None else msgspec.json.encode(body)
        return answer.decode(self._repeat(method, path, content, wait_s, patience_s))

    def _do(self, path: str, body: msgspec.Struct | None, *, patience_s: float = PATIENCE_S) -> None:
        """A request whose answer says nothing but that it is done."""
        self._repeat("POST", path, b"{}" if body is None else msgspec.json.encode(body), 0.0, patience_s)

    def _repeat(self, method: str, path: str, content: bytes | None, wait_s: float, patience_s: float) -> bytes:
        attempts = Retrying(
            retry=retry_if_exception_type(Unreachable),
            wait=backoff.exponential(0.05, 1),
            stop=stop_after_delay(patience_s),
            reraise=True,
        )
        return attempts(self._ask_once, method, path, content, wait_s)

    def _ask_once(self, method: str, path: str, content: bytes | None, wait_s: float) -> bytes:
        read_s = ANSWER_S + wait_s
        if self._lease_s is not None:
            read_s = min(read_s, HANGS * self._lease_s)
        timeout = Timeout(connect=CONNECT_S, read=read_s)
        at = self._at
        url, pools = self._places[at]
        try:
            answer = pools.urlopen(method, url + path, body=content, timeout=timeout, retries=False, redirect=False)
        except HTTPError as error:
            self._leave(at)
            raise Unreachable(f"{method} {path}: {error or type(error).__name__}") from error
        if answer.status in _ASK_ELSEWHERE:
            self._leave(at)
        if answer.status >= 300:
            raise _refusal(path, answer.status, answer.data)
        return answer.data

    def _bounded_ms(self, wait_ms: int) -> int:
        """How long an answer may be waited for, of which so much was wanted."""
        return wait_ms if self._lease_s is None else min(wait_ms, int(1000 * POLLS * self._lease_s))

    def _keep_lease(self, lease_ms: int) -> None:
        if len(self._places) > 1:
            self._lease_s = lease_ms / 1000

    def _leave(self, at: int) -> None:
        """The next request asks the next one, unless another thread has seen to that."""
        if self._at == at:
            self._at = (at + 1) % len(self._places)


def slot_path(instance_id: str, slot_id: str) -> str:
    """The route of a slot; verbs and sub-resources are appended."""
    return f"/v1/instances/{instance_id}/slots/{slot_id}"


def _refusal(path: str, status: int, content: bytes) -> ApiError:
    try:
        problem = orjson.loads(content)
        code, detail = str(problem["code"]), str(problem["detail"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        code, detail = "unknown", content[:200].decode(errors="replace")
    if status in _ASK_AGAIN:
        return Unreachable(f"{path}: {status} {code}: {detail}")
    kind = Gone if status in {404, 410} else Refused
    return kind(status, code, detail)


def _pools_for(url: str, headers: Mapping[str, str]) -> PoolManager:
    """Through the proxy that the environment names for a URL; none is of use on the way to this machine."""
    parts, proxies = urlsplit(url), getproxies()
    proxy = proxies.get(parts.scheme, proxies.get("all"))
    if proxy is None or parts.hostname in _LOOPBACK or proxy_bypass(parts.netloc):
        return PoolManager(maxsize=CONNECTIONS, headers=headers)
    user = urlsplit(proxy)
    login = None if user.username is None else f"{unquote(user.username)}:{unquote(user.password or '')}"
    return ProxyManager(proxy, maxsize=CONNECTIONS, headers=headers, proxy_headers=make_headers(proxy_basic_auth=login))
