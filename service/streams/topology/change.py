"""What of a job may change while its stores stay: how much it takes at once, how often, how full its buffers get, where
copies of its stores are kept, what becomes of records that fail or are dropped.

It knows the fields that never change what stored state means, and which of them slots at work take over; it refuses to
know what the job's state is.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Self

from pydantic import ConfigDict, Field, ValidationError

from service.streams.assignment.group import Strategy
from service.streams.errors import InvalidSpec, Problem
from service.streams.operators.fields import Duration, OperatorName, Spec, absent_stays
from service.streams.operators.step import OnError
from service.streams.operators.suppress import BufferSpec, SuppressSpec
from service.streams.topology.complaints import complaints, pointer, validated
from service.streams.topology.spec import MAX_OPERATORS, BatchRecords, IdleTime, JobSpec, Parallelism, Standbys, WarmUps

# What no slot at work takes over: who runs the job, what becomes of records that fail, which streams there are.
_STOPPED_FIRST: Final = frozenset({"parallelism", "keep_dropped", "on_error"})
_STOPPED = "Of a stopped or failed job."


class BufferChange(BufferSpec):
    """What of a buffer is changed; what is absent stays, null takes a bound away."""

    model_config = ConfigDict(json_schema_extra=absent_stays)


class JobChange(Spec):
    """What of a job may be changed; what is absent stays, also within a buffer."""

    model_config = ConfigDict(json_schema_extra=absent_stays)

    standby_replicas: Standbys = 0
    acceptable_recovery_lag: Duration = 10_000
    max_warmup_replicas: WarmUps = 2
    strategy: Strategy | None = None
    parallelism: Annotated[Parallelism | None, Field(description=_STOPPED)] = None
    max_batch_records: BatchRecords = 500_000
    commit_interval_ms: Duration = 100
    idle_close_after_ms: IdleTime | None = None
    keep_dropped: Annotated[
        bool, Field(description=f"{_STOPPED} What was kept until it is false stays, with the job.")
    ] = False
    on_error: Annotated[OnError, Field(description=_STOPPED)] = "fail"
    buffers: Annotated[
        dict[OperatorName, BufferChange],
        Field(max_length=MAX_OPERATORS, default_factory=dict, description="By the names of suppress operators."),
    ]

    @classmethod
    def parse(cls, body: object) -> Self:
        """A change from decoded JSON. Raises InvalidSpec with the pointer of every problem found."""
        return validated(cls, body)

    def needs_stop(self, spec: JobSpec) -> bool:
        """Whether it changes what no slot at work takes over."""
        return any(getattr(self, name) != getattr(spec, name) for name in self.model_fields_set & _STOPPED_FIRST)

    def applied_to(self, spec: JobSpec) -> JobSpec:
        """The specification with this change. Raises InvalidSpec, with pointers into the change."""
        operators = {operator.name: operator for operator in spec.operators if isinstance(operator, SuppressSpec)}
        found: list[Problem] = []
        for name, buffer in self.buffers.items():
            if name in operators:
                found += _rebuffer(operators, name, buffer)
            else:
                known = ", ".join(operators) or "none"
                found.append(Problem(pointer("buffers", name), f"the job has no suppress of this name, only: {known}"))
        if found:
            raise InvalidSpec(found)
        chain = [operators.get(operator.name or "", operator) for operator in spec.operators]
        changed = self.model_dump(exclude={"buffers"}, exclude_unset=True)
        return JobSpec.parse(spec.model_copy(update={**changed, "operators": chain}).to_json())

    def to_json(self) -> dict[str, Any]:
        """The change as JSON, only what it names."""
        return self.model_dump(mode="json", exclude_unset=True)

    def to_text(self) -> str:
        """The change as compact JSON, only what it names."""
        return self.model_dump_json(exclude_unset=True)


def _rebuffer(operators: dict[str, SuppressSpec], name: str, buffer: BufferSpec) -> list[Problem]:
    """Put an operator with this change of its buffer in place of what it was; what is wrong with that."""
    body = operators[name].model_dump(mode="json", exclude_none=True)
    body["buffer"] |= buffer.model_dump(mode="json", exclude_unset=True)
    try:
        operators[name] = SuppressSpec.model_validate(body)
    except ValidationError as error:
        at = pointer("buffers", name)
        return [Problem(at + fault.pointer.removeprefix("/buffer"), fault.detail) for fault in complaints(error)]
    return []
