"""What of a job may change while its stores stay: how much it takes at once, how often, and how full its buffers get.

It knows the fields that never change what stored state means; it refuses to know whether the job's state allows it.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, ValidationError

from service.streams.errors import InvalidSpec, Problem
from service.streams.operators.fields import Duration, OperatorName, Spec
from service.streams.operators.suppress import BufferSpec, SuppressSpec
from service.streams.topology.complaints import complaints, pointer
from service.streams.topology.spec import MAX_OPERATORS, BatchRecords, IdleTime, JobSpec, Parallelism


class JobChange(Spec):
    """What of a stopped or failed job may be changed; what is absent stays, also within a buffer."""

    parallelism: Parallelism | None = None
    max_batch_records: BatchRecords = 500_000
    commit_interval_ms: Duration = 100
    idle_close_after_ms: IdleTime | None = None
    buffers: Annotated[
        dict[OperatorName, BufferSpec],
        Field(max_length=MAX_OPERATORS, default_factory=dict, description="By the names of suppress operators."),
    ]

    @classmethod
    def parse(cls, body: object) -> Self:
        """A change from decoded JSON. Raises InvalidSpec with the pointer of every problem found."""
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            raise InvalidSpec(complaints(error, body)) from error

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
        return [Problem(at + fault.pointer.removeprefix("/buffer"), fault.detail) for fault in complaints(error, body)]
    return []
