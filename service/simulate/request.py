"""The request of `:simulate`: a job whose names may be left out, records in their order of arrival, and their batches.

It knows the shape of the body and points at what is wrong in it; it refuses to know how operators run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

import msgspec
import numpy as np
import pyarrow as pa
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    JsonValue,
    ModelWrapValidatorHandler,
    PrivateAttr,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from service.streams.errors import InvalidRecords, Problem
from service.streams.inputs import Part
from service.streams.operators.fields import JOB_NAME, MAX_INT64
from service.streams.records import RECORD_SCHEMA
from service.streams.topology import graph
from service.streams.topology.complaints import errors_below
from service.streams.topology.graph import Topology
from service.streams.topology.spec import JobSpec, Sink, Source

MAX_RECORDS: Final = 100_000
MAX_PARTITIONS: Final = 256
_DEFAULTS = {"name": "x", "source": "in", "sink": "out"}


@dataclass(frozen=True)
class _ShapeOf:
    """Has the JSON schema say that a value has the shape of a model, which is looked at later."""

    model: type[BaseModel]

    def __get_pydantic_json_schema__(self, _: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(self.model.__pydantic_core_schema__)


class SimulatedRecord(BaseModel):
    """A record to feed; the order of the list is the order of arrival."""

    model_config = ConfigDict(extra="forbid", strict=True)

    stream: str | None = None
    partition: Annotated[int, Field(ge=0, lt=MAX_PARTITIONS)] = 0
    key: str | None = None
    value: JsonValue = None
    timestamp: Annotated[int, Field(ge=0, le=MAX_INT64)]


class SimulatedJob(JobSpec):
    """A job as a simulation takes it: nothing but its operators has to be there."""

    name: Annotated[str, Field(pattern=JOB_NAME, description="The name that messages are to have.")] = "x"
    source: Annotated[Source, Field(description="The streams that the records are of.")] = "in"
    sink: Annotated[Sink | None, Field(description="Where results would go; null: nowhere.")] = "out"


class SimulateRequest(BaseModel):
    """The body: a job whose `name`, `source` and `sink` may be left out, and what to feed it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    job: Annotated[dict[str, Any], _ShapeOf(SimulatedJob)]
    records: Annotated[list[SimulatedRecord], Field(max_length=MAX_RECORDS)] = []
    batch_records: Annotated[int, Field(ge=1)] | None = None
    advance_to: Annotated[int, Field(ge=0, le=MAX_INT64)] | None = None
    _job_at: str = PrivateAttr("/job")

    @model_validator(mode="wrap")
    @classmethod
    def _take_bare(cls, body: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(body, dict) or "job" in body or not body.keys() & JobSpec.model_fields.keys():
            return handler(body)
        beside = {name: value for name, value in body.items() if name in cls.model_fields}
        job = {name: value for name, value in body.items() if name not in cls.model_fields}
        taken = handler({"job": job, **beside})
        taken._job_at = ""
        return taken

    @property
    def job_at(self) -> str:
        """The JSON pointer of the job in the body."""
        return self._job_at


class BareSimulateRequest(SimulatedJob):
    """The same with the members of the job in the place of `job`."""

    records: Annotated[list[SimulatedRecord], Field(max_length=MAX_RECORDS, default_factory=list)]
    batch_records: Annotated[int, Field(ge=1)] | None = None
    advance_to: Annotated[int, Field(ge=0, le=MAX_INT64)] | None = None


class _WrittenRecord(msgspec.Struct):
    value: msgspec.Raw = msgspec.Raw(b"null")


class _WrittenRequest(msgspec.Struct):
    records: list[_WrittenRecord] = []


_BODY = msgspec.json.Decoder(_WrittenRequest)


NumberedRecord = tuple[int, SimulatedRecord, str | None]  # its position in the request, and its value as JSON text


def compiled(body: SimulateRequest) -> tuple[JobSpec, Topology]:
    """The job, its sources as wide as the records say. Raises InvalidSpec, with pointers into the body."""
    partitions = 1 + max((record.partition for record in body.records), default=0)
    with errors_below(body.job_at):
        spec = JobSpec.parse(_DEFAULTS | body.job)
        return spec, graph.compile(spec, dict.fromkeys(spec.sources, partitions))


def check_streams(records: list[SimulatedRecord], sources: list[str]) -> None:
    """Every record is of a source of the job. Raises InvalidRecords."""
    unknown = [
        Problem(f"/records/{i}/stream", f"{record.stream!r} is not a source of the job")
        for i, record in enumerate(records)
        if record.stream is not None and record.stream not in sources
    ]
    if unknown:
        raise InvalidRecords(unknown[:100])


def batches(body: SimulateRequest) -> list[range]:
    """The batches of `batch_records`, as positions in the records."""
    count = len(body.records)
    size = min(body.batch_records or count, count)
    return [range(begin, min(begin + size, count)) for begin in range(0, count, size)] if count else []


def sees_batches(spec: JobSpec) -> bool:
    """Whether outputs depend on how records are cut into batches."""
    return any(operator.sees_batches for operator in spec.operators)


def as_part(records: Sequence[NumberedRecord]) -> Part:
    """Records as they lie in a log: the offset of each is its position in the request. Raises InvalidRecords."""
    nothing = pa.nulls(len(records), pa.int64())
    columns = [
        pa.array([_key(record, offset) for offset, record, _ in records], pa.binary()),
        pa.array([text for _, _, text in records], pa.utf8()),
        pa.array([record.timestamp for _, record, _ in records], pa.int64()),
        nothing,
        nothing,
        pa.nulls(len(records), pa.utf8()),
    ]
    offsets = np.array([offset for offset, _, _ in records], np.int64)
    return Part(pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA), offsets)


def written_values(body: bytes) -> list[str | None]:
    """The values of the records of a request as they were written, JSON texts; None for null. Raises
    msgspec.DecodeError.
    """
    raw = (bytes(record.value) for record in _BODY.decode(body).records)
    return [None if text == b"null" else text.decode() for text in raw]


def value_text(record: SimulatedRecord, position: int) -> str | None:
    """The value as JSON text, None for null. Raises InvalidRecords."""
    if record.value is None:
        return None
    try:
        text = json.dumps(record.value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        text.encode()
    except ValueError as error:  # NaN, infinities and lone surrogates, which Python's JSON reads
        raise InvalidRecords([Problem(f"/records/{position}/value", "is not JSON")]) from error
    return text


def _key(record: SimulatedRecord, position: int) -> bytes | None:
    try:
        return None if record.key is None else record.key.encode()
    except UnicodeEncodeError as error:
        raise InvalidRecords([Problem(f"/records/{position}/key", "is not Unicode text")]) from error
