"""Where a job begins to read: the forms of a start in a specification, and what one says of each source.

It knows which sources a job has; it refuses to know what is in them (`service.catalog.start_positions` does).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, TypeAdapter

from service.streams.errors import Problem
from service.streams.operators.fields import MAX_INT64, Spec, StreamName
from service.streams.topology.complaints import pointer, validated

_PARTITION = r"^(0|[1-9][0-9]{0,8})$"
_CLOSED: dict[str, Any] = {"additionalProperties": False}  # a pattern of names alone admits any others in JSON Schema

SourceOffsets = Annotated[
    dict[Annotated[str, Field(pattern=_PARTITION)], Annotated[int, Field(ge=0, le=MAX_INT64)]],
    Field(json_schema_extra=_CLOSED),
]


class StartTimestamp(Spec):
    """Start at the first record of each partition with this timestamp or a later one."""

    timestamp: Annotated[int, Field(ge=0, le=MAX_INT64)]


def _offsets_kind(value: object) -> str:
    is_nested = isinstance(value, Mapping) and any(isinstance(each, Mapping) for each in value.values())
    return "sources" if is_nested else "partitions"


class StartOffsets(Spec):
    """Start at these offsets: by partition of the one source, or by source and partition; at the earliest one of a
    partition that is not named.
    """

    offsets: Annotated[
        Annotated[SourceOffsets, Tag("partitions")]
        | Annotated[dict[StreamName, SourceOffsets], Field(min_length=1, json_schema_extra=_CLOSED), Tag("sources")],
        Discriminator(_offsets_kind),
    ]

    @property
    def names_sources(self) -> bool:
        """Whether the offsets stand below the names of sources."""
        return _offsets_kind(self.offsets) == "sources"

    def by_partition(self, source: str) -> Mapping[str, int]:
        """Partition → offset of a source, of those that are named."""
        given: dict[str, Any] = dict(self.offsets)
        return given.get(source, {}) if self.names_sources else given

    def pointer(self, source: str, partition: str | int) -> str:
        """Where in a request with a member `start` this offset stands."""
        place = (source, partition) if self.names_sources else (partition,)
        return pointer("start", "offsets", *place)


def _start_kind(value: object) -> str:
    if isinstance(value, StartTimestamp | StartOffsets):
        return "timestamp" if isinstance(value, StartTimestamp) else "offsets"
    if isinstance(value, dict):
        return next((kind for kind in ("offsets", "timestamp") if kind in value), "word" if value else "timestamp")
    return "word"


Start = Annotated[
    Annotated[Literal["earliest", "latest"], Tag("word")]
    | Annotated[StartTimestamp, Tag("timestamp")]
    | Annotated[StartOffsets, Tag("offsets")],
    Discriminator(_start_kind),
]


START: TypeAdapter[Start] = TypeAdapter(Start)  # from and to what a specification stores


class ResetRequest(Spec):
    """A start, or none: the one that the job's specification has."""

    start: Annotated[
        Start | None, Field(description="Where the job begins to read anew; absent: as its specification says.")
    ] = None

    @classmethod
    def parse(cls, body: object) -> Self:
        """A request from decoded JSON. Raises InvalidSpec with the pointer of every problem found."""
        return validated(cls, body)


def unfit_for_sources(start: Start, sources: Sequence[str]) -> Iterator[Problem]:
    """What a start says of sources that a job does not have, or of no one in particular where it has several."""
    if not isinstance(start, StartOffsets):
        return
    if start.names_sources:
        for name in start.offsets:
            if name not in sources:
                yield Problem(pointer("start", "offsets", name), f"{name!r} is no source of the job")
    elif start.offsets and len(sources) > 1:
        detail = f'the job has several sources, so name each: {{"{sources[0]}": {{"0": 17}}}}'
        yield Problem("/start/offsets", detail)


def unfit_for_partitions(start: Start, partitions: Mapping[str, int]) -> Iterator[Problem]:
    """Partitions that a start names and a source (name → how many it has) does not have."""
    if not isinstance(start, StartOffsets):
        return
    for source, count in partitions.items():
        for partition in start.by_partition(source):
            if int(partition) >= count:
                yield Problem(start.pointer(source, partition), f"{source!r} has {count} partition(s)")
