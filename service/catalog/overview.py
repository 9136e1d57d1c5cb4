"""What the whole catalog holds, in figures, for metrics and readiness.

It knows sums and counts; it refuses to know how they are shown.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.catalog.engine import now_ms
from service.catalog.tables import Instance, Job, Partition, Rebalance, Slot, Task, TaskPosition


@dataclass
class Figures:
    """Totals since each job was made; keys are job names, (job, operator, reason) for `dropped`, states for `jobs`."""

    jobs: dict[str, int]
    lag: dict[str, int]
    rebalances: dict[str, int]
    live_instances: int
    live_slots: int
    records_in: Counter[str] = field(default_factory=Counter)
    records_out: Counter[str] = field(default_factory=Counter)
    dropped: Counter[tuple[str, str, str]] = field(default_factory=Counter)


def figures(s: Session) -> Figures:
    """All of it, from one snapshot."""
    found = Figures(
        jobs=dict(s.execute(select(Job.state, func.count()).group_by(Job.state)).all()),
        lag={job: int(records) for job, records in s.execute(_LAG)},
        rebalances=dict(s.execute(_REBALANCES).all()),
        live_instances=live_instances(s),
        live_slots=s.scalars(select(func.count()).where(Slot.state == "live", Slot.lease_until_ms > now_ms(s))).one(),
    )
    for job, counters in s.execute(select(Job.name, Task.counters).join(Task, Task.job_id == Job.id)):
        found.records_in[job] += counters.get("records_in", 0)
        found.records_out[job] += counters.get("records_out", 0)
        for operator, reasons in counters.get("dropped", {}).items():
            for reason, records in reasons.items():
                found.dropped[job, operator, reason] += records
    return found


_LAG = (
    select(Job.name, func.sum(Partition.end_offset - TaskPosition.position))
    .join(Task, Task.job_id == Job.id)
    .join(TaskPosition, TaskPosition.task_id == Task.id)
    .join(
        Partition,
        (Partition.stream_id == TaskPosition.stream_id) & (Partition.partition == TaskPosition.partition),
    )
    .group_by(Job.name)
)
_REBALANCES = select(Job.name, func.count()).join(Rebalance, Rebalance.job_id == Job.id).group_by(Job.name)


def live_instances(s: Session) -> int:
    """How many instances hold a lease."""
    query = select(func.count()).where(Instance.state == "live", Instance.lease_until_ms > now_ms(s))
    return s.scalars(query).one()
