"""The specification of a job: the body of `POST /v1/jobs`, its stored JSON and the argument of its tasks, in one.

It knows the shape, the limits and what contradicts itself; it refuses to know which streams exist and how
many partitions they have (`graph` does).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, Tag

from service.streams.assignment.group import Strategy
from service.streams.errors import InvalidSpec, Problem
from service.streams.operators import AnyOperator
from service.streams.operators.fields import (
    JOB_NAME,
    MAX_INT64,
    Condition,
    Duration,
    OperatorName,
    Spec,
    StreamName,
    is_absent,
)
from service.streams.operators.step import OnError
from service.streams.operators.upstream import PLAIN, Upstream
from service.streams.topology.complaints import validated
from service.streams.topology.starts import Start, unfit_for_sources

MAX_OPERATORS = 64
MAX_SOURCES = 32
MAX_SINKS = 32
MAX_BATCH_RECORDS = 10_000_000
SOURCE = "source"  # what operators and sinks come after that get the records as they are read

BatchRecords = Annotated[int, Field(ge=1, le=MAX_BATCH_RECORDS)]
Standbys = Annotated[int, Field(ge=0, le=100)]
WarmUps = Annotated[int, Field(ge=1, le=10_000)]
Parallelism = Annotated[int, Field(ge=1, le=10_000)]
IdleTime = Annotated[int, Field(ge=1, le=MAX_INT64)]


class SinkSpec(Spec):
    """A stream that results go to: all of them, or those for which `where` is true; of the operator `after`, as an
    operator says that, by default of the last one.
    """

    stream: StreamName
    where: Condition | None = None
    after: Annotated[OperatorName | None, Field(exclude_if=is_absent)] = None


def _one_or_many(value: object) -> str:
    return "many" if isinstance(value, (list, tuple)) else "one"


Source = Annotated[
    Annotated[StreamName, Tag("one")]
    | Annotated[list[StreamName], Field(min_length=1, max_length=MAX_SOURCES), Tag("many")],
    Discriminator(_one_or_many),
]
Sink = Annotated[
    Annotated[StreamName, Tag("one")]
    | Annotated[list[SinkSpec], Field(min_length=1, max_length=MAX_SINKS), Tag("many")],
    Discriminator(_one_or_many),
]


class JobSpec(Spec):
    """A job: operators over a source stream, in order, and where the results go."""

    name: Annotated[str, Field(pattern=JOB_NAME, description="Its stores are called `<name>-<operator>`.")]
    source: Annotated[Source, Field(description="The stream to read.")]
    start: Annotated[
        Start, Field(description="Where a new job begins to read: `earliest`, `latest`, a timestamp, or offsets.")
    ] = "earliest"
    operators: Annotated[
        list[AnyOperator],
        Field(
            max_length=MAX_OPERATORS,
            default_factory=list,
            description="What records pass, one after the other, or as `after` says.",
        ),
    ]
    sink: Annotated[
        Sink | None,
        Field(description="Where results go; a stream that is not there is made. Absent: the job only keeps stores."),
    ] = None
    standby_replicas: Annotated[
        Standbys, Field(description="Copies of each task's stores on other nodes, as many as there are nodes for.")
    ] = 0
    acceptable_recovery_lag: Annotated[
        Duration, Field(description="How many records a copy may be behind for a task to move to it.")
    ] = 10_000
    max_warmup_replicas: Annotated[
        WarmUps, Field(description="Copies beyond the standbys, of all tasks, that catch up at a time.")
    ] = 2
    strategy: Annotated[
        Strategy | None,
        Field(
            exclude_if=is_absent,
            description="Absent or `high_availability`: a task moves once its copy has caught up. `sticky`: at once.",
        ),
    ] = None
    max_task_idle_ms: Annotated[
        Duration,
        Field(description="How long a task waits for a source partition that is read to its end before it goes on."),
    ] = 0
    max_repartition_bytes: Annotated[
        int,
        Field(
            ge=1,
            le=MAX_INT64,
            description="Unread bytes of a repartition stream, a task that writes it, above which that task waits.",
        ),
    ] = 256 << 20
    parallelism: Annotated[
        Parallelism | None,
        Field(description="Slots on each instance, at most; absent: as many as it has cores. Never more than tasks."),
    ] = None
    max_batch_records: Annotated[BatchRecords, Field(description="The most records that a task takes at once.")] = (
        500_000
    )
    commit_interval_ms: Annotated[
        Duration,
        Field(
            description="The least time between two rounds of a slot; a full batch and the first one of a new task do"
            " not wait."
        ),
    ] = 100
    idle_close_after_ms: Annotated[
        IdleTime | None,
        Field(description="Close what is open when the input was silent for so long. Absent: only records close."),
    ] = None
    keep_dropped: Annotated[
        bool, Field(description="Keep what operators drop in the stream `<name>-dropped`; it is counted in any case.")
    ] = False
    trust_partitions: Annotated[
        bool, Field(description="Equal keys share a partition, though the source was written with explicit ones.")
    ] = False
    on_error: Annotated[
        OnError,
        Field(
            description="A record on which an operator fails: `fail` the job, `drop` the record, or keep it "
            "with its error in `<name>-dropped` (`dead_letter`)."
        ),
    ] = "fail"

    @classmethod
    def parse(cls, body: object) -> Self:
        """A specification from decoded JSON. Raises InvalidSpec with the pointer of every problem found."""
        spec = validated(cls, body)
        if found := list(_contradictions(spec)):
            raise InvalidSpec(found)
        return spec

    def to_json(self) -> dict[str, Any]:
        """JSON-able, with every default filled in; `parse` reads it again."""
        return self.model_dump(mode="json", exclude_none=False)

    @property
    def sources(self) -> list[str]:
        """The names of the source streams, at least one."""
        return [self.source] if isinstance(self.source, str) else list(self.source)

    @property
    def has_dropped(self) -> bool:
        """Whether there is a stream for what its operators drop, or at least for what they fail at."""
        return self.keep_dropped or self.on_error == "dead_letter"

    @property
    def sinks(self) -> list[SinkSpec]:
        """The sinks, none for a job that only keeps stores."""
        if self.sink is None:
            return []
        return [SinkSpec(stream=self.sink)] if isinstance(self.sink, str) else list(self.sink)

    @property
    def operator_names(self) -> list[str]:
        """What each operator is called: as it says, or by its kind and place."""
        return [operator.name or f"{operator.op}-{i}" for i, operator in enumerate(self.operators)]

    def parents(self) -> list[int | None]:
        """For each operator, and then for each sink, the place of the operator whose results it gets; None: it gets the
        records of the sources. What is not there is where it would be by default.
        """
        names = self.operator_names
        ends = [len(names)] * len(self.sinks)
        afters = [operator.after for operator in self.operators] + [sink.after for sink in self.sinks]
        return [_parent(names[:i], after) for i, after in zip([*range(len(names)), *ends], afters, strict=True)]

    def upstreams(self) -> list[Upstream]:
        """For each operator, and then for each sink, what those before it make of the records that reach it."""
        found: list[Upstream] = []
        for parent in self.parents():
            found.append(PLAIN if parent is None else self.operators[parent].downstream(found[parent]))
        return found


def _contradictions(spec: JobSpec) -> Iterator[Problem]:
    """What each field alone does not show."""
    yield from _repeated(spec.sources, "/source/{}", "source")
    yield from _repeated([sink.stream for sink in spec.sinks], "/sink/{}/stream", "sink")
    yield from _repeated(spec.operator_names, "/operators/{}/name", "the name of operator")
    for i, sink in enumerate(spec.sinks):
        if sink.stream in spec.sources:
            pointer = "/sink" if isinstance(spec.sink, str) else f"/sink/{i}/stream"
            yield Problem(pointer, f"{sink.stream!r} is a source of the job: it would feed itself")
    yield from unfit_for_sources(spec.start, spec.sources)
    yield from _after_nothing(spec)
    for i, (operator, upstream) in enumerate(zip(spec.operators, spec.upstreams(), strict=False)):
        for problem in operator.contradictions(upstream):
            yield Problem(f"/operators/{i}{problem.pointer}", problem.detail)


def _parent(before: list[str], after: str | None) -> int | None:
    """The place of an operator among those before; the last one where none is named."""
    if after in before:
        return before.index(after)
    return None if not before or after == SOURCE else len(before) - 1


def _after_nothing(spec: JobSpec) -> Iterator[Problem]:
    """Operators and sinks that get the results of one that is not before them."""
    names = spec.operator_names
    afters = [(f"/operators/{i}/after", operator.after, names[:i]) for i, operator in enumerate(spec.operators)]
    afters += [(f"/sink/{i}/after", sink.after, names) for i, sink in enumerate(spec.sinks)]
    for pointer, after, before in afters:
        if after is not None and after not in {*before, SOURCE}:
            known = ", ".join(map(repr, [*before, SOURCE]))
            yield Problem(pointer, f"{after!r} is no operator before it; there are {known}")
        if after == SOURCE and SOURCE in before:
            yield Problem(pointer, "'source' means the records of the sources, and an operator before it: rename that")


def _repeated(names: list[str], pointer: str, noun: str) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for i, name in enumerate(names):
        if first.setdefault(name, i) != i:
            yield Problem(pointer.format(i), f"{name!r} is already {noun} {first[name]}")
