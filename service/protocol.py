"""The protocol between an instance with its slots and the service: every shape that travels, once, for both ends.

It knows names, types and ranges. It refuses to know who asks, what is behind an answer and how it travels
(`service.api.instances`, `spark_jobs.client`). A field that one end does not know is ignored, a new one has a default:
the two ends may be of different versions.

requests   JoinRequest · HeartbeatRequest · LeaveRequest · LostExecutors · SlotRequest · PollRequest · SegmentsRequest ·
           CommitRequest · FailRequest · StoresRequest
answers    JoinedInstance · WantedJobs · JoinedSlot · PollAnswer · ChunkRange · Paths · Verdicts · LiveStores
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import UNSET, UnsetType

from service.streams.records import Chunk, ChunkMeta, Count, Handover, Id, Int32, Int64, Published
from service.streams.topology.replays import Wanted

MAX_WAIT_MS = 10_000  # of a long poll

SegmentId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}$")]
Text = Annotated[str, msgspec.Meta(max_length=255, pattern=r"^[^\x00]*$")]  # no database takes U+0000
WaitMs = Annotated[int, msgspec.Meta(ge=0)]
Frontier = Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]

Role = Literal["active", "standby", "warm-up"]
AdvanceReason = Literal["idle", "flush"]

# ---------------------------------------------------------------- requests: instances


class JoinRequest(msgspec.Struct, frozen=True):
    """An instance says that it is there; its incarnation tells a restarted one from the one before."""

    name: Id
    incarnation: Id
    host: Text
    cores: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    spark: dict[str, str] = {}
    tags: dict[str, str] = {}


class HeartbeatRequest(msgspec.Struct, frozen=True):
    """An instance says that it lives, what it runs (job id → slots), and which answer it knows; how many cores it has
    now (null: as it joined), and what its Spark lacks (`no_cores`; "": nothing).

    `pulses`: slot → how many ms ago its process gave a sign of life, of the slots whose signs the instance sees. While
    the poll of such a slot waits, that renews its lease.
    """

    incarnation: Id
    jobs: dict[str, Count] = {}
    known: str = ""
    wait_ms: WaitMs = 0
    cores: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    shortage: Literal["", "no_cores"] = ""
    pulses: Annotated[dict[Id, Count], msgspec.Meta(max_length=10_000)] = {}


class LeaveRequest(msgspec.Struct, frozen=True):
    """An instance says that it goes; with `drain` its slots are asked to commit and leave first."""

    incarnation: Id
    drain: bool = False


class LostExecutors(msgspec.Struct, frozen=True):
    """An instance says which of its Spark executors have ended: nothing of what ran there will come back."""

    incarnation: Id
    executors: Annotated[list[Text], msgspec.Meta(min_length=1, max_length=1000)]


# ---------------------------------------------------------------- requests: slots


class NodeRef(msgspec.Struct, frozen=True):
    """The replica folder of a slot: its id, the host that it is on, and which folder it is there (`place`, a text that
    two folders never share).
    """

    id: Id
    host: Text
    place: Text


class SlotRequest(msgspec.Struct, frozen=True):
    """A slot says that it is there; it has chosen its own id. `node`: where it keeps replicas (null: not said);
    `executor`: the Spark executor that it runs in, as its instance names it ("": not known).
    """

    slot: Id
    job: Id
    index: Int32
    node: NodeRef | None = None
    executor: Text = ""


class HeldTask(msgspec.Struct, frozen=True):
    """A task as a slot knows it: its epoch, how far its replicas are (store id → changelog position), and whether its
    operators still have output of what they have read.

    `held_at`: the `heads_digest` at which it found no row to run though some are unread (0: never); until the digest
    changes there is nothing to do for it.
    """

    task: Id
    epoch: Int64
    role: Role = "active"
    applied: dict[str, Count] = {}
    has_backlog: bool = False
    held_at: Count = 0


class HeldCopy(msgspec.Struct, frozen=True):
    """A copy that the slot keeps of a task that it does not run: store id → changelog position."""

    task: Id
    applied: dict[str, Count] = {}


class PollRequest(msgspec.Struct, frozen=True):
    """The tasks that the slot holds, the copies that it keeps of others, and the specification and version of its job
    that it knows (empty, 0: not said); the answer comes when one of them changes or there is work.
    """

    tasks: list[HeldTask] = []
    timeout_ms: WaitMs = MAX_WAIT_MS
    spec_sha256: Annotated[str, msgspec.Meta(max_length=64)] = ""
    job_version: Count = 0
    copies: list[HeldCopy] = []


class StoresRequest(msgspec.Struct, frozen=True):
    """Ids of stores of which a slot has found replicas on its disk."""

    stores: Annotated[list[Id], msgspec.Meta(max_length=1000)]


class SegmentsRequest(msgspec.Struct, frozen=True):
    """Ids of segments that the slot is going to write."""

    segments: Annotated[list[SegmentId], msgspec.Meta(min_length=1, max_length=1000)]


class Move(msgspec.Struct, frozen=True, rename={"start": "from", "end": "to"}):
    """A task has read its input of this number from offset `start` to `end`; below the time `frontier` (ms; -1: not
    known) nothing can come from there any more.
    """

    input: Int32
    start: Count
    end: Count
    frontier: Frontier = -1


class WrittenSegment(msgspec.Struct, frozen=True):
    """A segment that a commit publishes; its chunks in the order of the file."""

    id: SegmentId
    bytes: Count
    chunks: list[ChunkMeta]


class Advanced(msgspec.Struct, frozen=True):
    """Stream time was moved `to` (ms) without a record; null: nothing was open."""

    to: Count | None
    reason: AdvanceReason


class SpreadFigures(TypedDict, total=False):
    """Figures of some values: how many, their sum and their extremes."""

    count: Count
    sum: Count
    min: Count
    max: Count
    last: Count


class MissedFigures(SpreadFigures, total=False):
    """By how many ms records missed going on; `below`: how many by less than that bound and not less than the one
    before.
    """

    below: dict[str, Count]


class FlowFigures(TypedDict, total=False):
    """Records that an operator, a sink or a repartition stream took and gave, and how long it was busy with them."""

    records_in: Count
    records_out: Count
    busy_us: Count


class Counters(TypedDict, total=False):
    """What the batch adds to the totals of its task, by operator where it is an operator's. `repartitioned_in`: so many
    of `records_in` came from repartition streams.
    """

    records_in: Count
    repartitioned_in: Count
    records_out: Count
    dropped: dict[str, dict[str, Count]]
    missed_by_ms: dict[str, dict[str, MissedFigures]]
    flow: dict[str, FlowFigures]
    advances: dict[str, Count]
    batch_us: SpreadFigures
    operators: dict[str, dict[str, Count | SpreadFigures]]  # by what each measures: it declares that


class TakenOrder(msgspec.Struct, frozen=True):
    """Where the records of a commit of several inputs begin and end in their order: `aligned_at` (ms) and input number
    of the first one and of the last. `records`: where repartition streams are among the inputs, how many of each the
    commit takes, by number; offsets in these say nothing, for records of other targets lie in between.
    """

    first_aligned_at: Int64
    first_input: Int32
    last_aligned_at: Int64
    last_input: Int32
    records: list[Count] = []


class TaskCommit(msgspec.Struct, frozen=True):
    """One batch of one task: inputs, stream time or a replay moved, segments to publish. Repeated under the same
    id it gets the first answer. `has_backlog`: it leaves operators with output of what they have read. `adopted`: the
    version of the job that the task's stores stand at from this commit on, which does nothing else. `order`: of a task
    with several inputs, or with a repartition stream among them.
    """

    commit_id: Id
    task: Id
    epoch: Int64
    version: Int64
    positions: list[Move]
    segments: list[WrittenSegment] = []
    advance: Advanced | None = None
    replayed: Move | None = None
    counters: Counters = {}
    stream_time: Int64 = -1
    applied: dict[str, Count] = {}
    has_backlog: bool = False
    adopted: Count | None = None
    order: TakenOrder | None = None


class CommitRequest(msgspec.Struct, frozen=True):
    """Commits of several tasks; each is accepted or refused alone."""

    commits: list[TaskCommit]


class TaskError(msgspec.Struct, frozen=True):
    """Why a task can not go on, and at which record of its source; of a full buffer, how full it is."""

    code: Annotated[str, msgspec.Meta(max_length=100)]
    detail: Annotated[str, msgspec.Meta(max_length=100_000)]
    operator: str | None = None
    stream: str | None = None
    partition: Int32 | None = None
    offset: Int64 | None = None
    records: Count | UnsetType | None = UNSET
    max_records: Count | UnsetType | None = UNSET
    bytes: Count | UnsetType | None = UNSET
    max_bytes: Count | UnsetType | None = UNSET


class FailRequest(msgspec.Struct, frozen=True):
    """A task can not go on: its job fails with this."""

    task: Id
    epoch: Int64
    error: TaskError


# ---------------------------------------------------------------- answers: instances


class JoinedInstance(msgspec.Struct, frozen=True):
    """An instance's id, its lease, where records are kept, and how long its slots may keep their tasks once it begins
    to
    leave.
    """

    instance_id: str
    lease_ms: int
    storage_uri: str
    lineage: str = ""
    scale_down_timeout_ms: int = 0


class WantedJob(msgspec.Struct, frozen=True):
    """A job that should run on this instance, on so many slots."""

    id: str
    name: str
    slots: int


class WantedJobs(msgspec.Struct, frozen=True):
    """All jobs that should run here, and the version of this answer."""

    jobs: list[WantedJob]
    version: str
    lease_ms: int = 0


# ---------------------------------------------------------------- answers: slots


class JobToRun(msgspec.Struct, frozen=True):
    """A version of a job as it was posted and as it was compiled."""

    id: str
    name: str
    spec: dict[str, Any]
    topology: dict[str, Any]
    spec_sha256: str = ""
    version: int = 1


class StreamRef(msgspec.Struct, frozen=True):
    """A stream of the job."""

    id: str
    partitions: int


class StoreRef(msgspec.Struct, frozen=True):
    """A store of the job, and the id of the stream that is its truth."""

    id: str
    changelog: str


class JoinedSlot(msgspec.Struct, frozen=True):
    """A slot's job with the ids behind every name; where its views are kept; which history the catalog has; how long
    its loop may be silent before it is taken to hang.
    """

    slot: str
    lease_ms: int
    lineage: str
    job: JobToRun
    streams: dict[str, StreamRef]
    stores: dict[str, StoreRef]
    redis_url: str | None = None
    max_busy_ms: int = 10_000


class InputHead(msgspec.Struct, frozen=True):
    """An input of a task, whose number is its place in the list: where the task stands in it, and where it ends.

    Of a task with several inputs: `sub_log`, the target whose part of a repartition log it reads; `bound` (ms, -1: not
    known), below which nothing can come behind `end`; `is_caught_up`: nothing can come there until something happens
    outside of the job, so it holds nobody back.
    """

    stream_id: str
    partition: int
    position: int
    end: int
    frontier: int = -1
    sub_log: int | None = None
    bound: int = -1
    is_caught_up: bool = False


class InputRange(msgspec.Struct, frozen=True):
    """Offsets [start, end) of an input (by its number) to run next, and the chunks that hold them.

    Of a repartition log only the chunks with something for the task, each with the `ranges` of its target alone; `end`
    may lie beyond the last of them.
    """

    input: int
    start: int
    end: int
    chunks: list[Chunk]


class KeptRange(msgspec.Struct, frozen=True):
    """Dropped records of the task's partition to take in again, and which of them; the number of this input is the one
    behind all others.
    """

    stream_id: str
    range: InputRange
    wanted: Wanted


class Adoption(msgspec.Struct, frozen=True):
    """A version of the job that a task has not begun yet: what each of its stores (by name) remembers of the operators
    that filled it before. The task's next commit is for this alone.
    """

    version: int
    stores: dict[str, Handover]


class AssignedTask(msgspec.Struct, frozen=True):
    """A task of a slot as the catalog sees it now.

    `work`: one range an input that has something, in the order of the inputs; `advance`: why the task shall close what
    is open, instead of working; `replay`: what of its dropped records comes before either; `changelogs`: store → end
    offset; `skips`: (input, offset) of records to pass over; `heads_digest`: of all that `inputs` say, for a task with
    several, else 0. `can_wait`: it has only to pass over records of others, and nobody waits for it to be further.
    """

    task: str
    name: str
    sub_topology: int
    partition: int
    epoch: int
    version: int
    role: Role = "active"
    inputs: list[InputHead] = []
    work: list[InputRange] = []
    advance: AdvanceReason | None = None
    replay: KeptRange | None = None
    changelogs: dict[str, int] = {}
    skips: list[tuple[int, int]] = []
    heads_digest: int = 0
    adopt: Adoption | None = None
    can_wait: bool = False

    @property
    def is_due(self) -> bool:
        """Whether there is something to do."""
        return bool(self.work) or any(each is not None for each in (self.advance, self.replay, self.adopt))


class FollowedTask(msgspec.Struct, frozen=True):
    """A task of which the slot keeps a copy without running it; `changelogs`: store → the end offset to follow to."""

    task: str
    name: str
    sub_topology: int
    partition: int
    role: Literal["standby", "warm-up"]
    changelogs: dict[str, int]


class PollAnswer(msgspec.Struct, frozen=True):
    """What a slot should do, exactly the tasks that it owns and those of which it keeps copies, and the job where the
    slot knows a former one, with the ids behind its names.
    """

    directive: Literal["run", "leave"]
    tasks: list[AssignedTask] = []
    job: JobToRun | None = None
    streams: dict[str, StreamRef] = {}
    stores: dict[str, StoreRef] = {}
    copies: list[FollowedTask] = []


class ChunkRange(msgspec.Struct, frozen=True):
    """Chunks of a partition from an offset on; the partition holds offsets [start, end)."""

    start: int
    end: int
    chunks: list[Chunk]


class LiveStores(msgspec.Struct, frozen=True):
    """Those of the ids that are stores of a job still; what is kept of the others is of use to nobody."""

    stores: list[str]


class Paths(msgspec.Struct, frozen=True):
    """Segment id → its path in the storage location."""

    paths: dict[str, str]


class Verdict(msgspec.Struct, frozen=True):
    """What became of a commit; `version` is the one that the catalog holds now (null: no such task), `published` the
    chunks of its segments in their order.
    """

    task: str
    commit_id: str
    status: Literal["accepted", "refused"]
    reason: str | None = None
    version: int | None = None
    published: list[Published] = []


class Verdicts(msgspec.Struct, frozen=True):
    """One verdict a commit, in the order of the commits."""

    results: list[Verdict]
