"""Cores shared between jobs: what each instance should run, kept in the catalog, and decided anew where jobs, instances
or their cores are others.

It knows which rows make the question and what follows from another answer. It refuses to know by which rule cores are
shared (`service.streams.assignment.sharing`) and how tasks move (`ownership`).

What follows: an instance hears of its share with its next heartbeat, and starts what is missing. Where it runs more
slots than its share the latest of them give their tasks up as those of an instance that leaves do: others take them
over first. So nobody stops in the round that decides, and a core is free once its slot has nothing left.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.catalog.engine import JOBS, job_topic, now_ms, wake
from service.catalog.job_states import STAFFED, lock_job
from service.catalog.tables import InstanceRow, JobRow, Json, ShareRow, TaskRow
from service.coordinator.leases import LIVE
from service.coordinator.ownership import gather, members_of, rebalance
from service.protocol import WantedJob
from service.streams.assignment.sharing import Claim, InstanceCores, share_out

NO_CORES: Final = "no_cores"
UNCOUNTED: Final = 1_024  # slots of an instance whose cores are not counted, at most
_THREADS: Final = re.compile(r"local\[(\d+)")

_TASKS = select(func.count()).where(TaskRow.job_id == JobRow.id).scalar_subquery()
_CLAIMS = (
    select(JobRow.id, JobRow.name, JobRow.shortage, JobRow.parallelism, _TASKS)
    .add_columns(JobRow.spec["standby_replicas"].as_integer())
    .where(JobRow.state.in_(STAFFED))
    .order_by(JobRow.created_at, JobRow.id)
)
_PLACES = (
    select(InstanceRow.id, InstanceRow.cores, InstanceRow.spark)
    .where(InstanceRow.state == LIVE)
    .order_by(InstanceRow.joined_ms, InstanceRow.id)
)
_HELD = select(ShareRow.job_id, ShareRow.instance_id, ShareRow.slots).order_by(ShareRow.job_id, ShareRow.instance_id)

_Held = tuple[tuple[tuple[str, str], int], ...]


class Sharing(NamedTuple):
    """Slots by (job, instance): that are shared now, where 0 is one that ran some before, and that should be; of the
    jobs that want to run the names, and what is said to be missing.
    """

    held: Mapping[tuple[str, str], int]
    wanted: Mapping[tuple[str, str], int]
    names: Mapping[str, str]
    shortages: Mapping[str, str]
    places: Collection[str]  # instances that stay

    @property
    def target(self) -> dict[tuple[str, str], int]:
        """What `held` should be."""
        return {**dict.fromkeys(self.held, 0), **self.wanted}

    @property
    def lacking(self) -> dict[str, str]:
        """What `shortages` should be."""
        running = {job_id for job_id, _ in self.wanted}
        return {job_id: "" if job_id in running else NO_CORES for job_id in self.names}

    @property
    def is_settled(self) -> bool:
        """Whether everything is as it should be."""
        return self.held == self.target and self.shortages == self.lacking

    def wanted_on(self, instance_id: str) -> list[WantedJob]:
        """What an instance should run, by name."""
        mine = {job_id: slots for (job_id, at), slots in self.wanted.items() if at == instance_id}
        return sorted((WantedJob(i, self.names[i], slots) for i, slots in mine.items()), key=lambda job: job.name)


def sharing_of(s: Session) -> Sharing:
    """From one snapshot: three queries."""
    claims, places = s.execute(_CLAIMS).all(), s.execute(_PLACES).all()
    held = tuple(((job_id, at), slots) for job_id, at, slots in s.execute(_HELD))
    open_places = tuple(InstanceCores(at, cores, _room(cores, spark)) for at, cores, spark in places)
    hosts = sum(place.cores > 0 for place in open_places)
    wanted = _shared(
        open_places,
        tuple(Claim(i, max(n, min(1 + (standbys or 0), hosts)), each) for i, _, _, each, n, standbys in claims),
        held,
    )
    names, shortages = {i: name for i, name, *_ in claims}, {i: lack for i, _, lack, *_ in claims}
    return Sharing(dict(held), wanted, names, shortages, {place.id for place in open_places})


@lru_cache(maxsize=4)  # every heartbeat asks
def _shared(places: Sequence[InstanceCores], claims: Sequence[Claim], held: _Held) -> Mapping[tuple[str, str], int]:
    return share_out(places, claims, dict(held))


def _room(cores: int, spark: Json) -> int:
    """Slots of all jobs that fit in: the cores of a cluster; locally threads, and idle ones cost nothing."""
    master = str(spark.get("master", ""))
    if found := _THREADS.match(master):
        return int(found[1])
    return cores if master and not master.startswith("local") else UNCOUNTED


def share_cores(s: Session, *, scale_down_timeout_ms: int, initial_delay_ms: int) -> None:
    """Have what is shared be what should be; slots that are too many may keep their tasks for `scale_down_timeout_ms`,
    and for `initial_delay_ms` those that are to come elsewhere are waited for.
    """
    of_staffed = select(JobRow.id).where(JobRow.state.in_(STAFFED)).order_by(JobRow.id)
    jobs = {job_id: lock_job(s, job_id=job_id) for job_id in s.scalars(of_staffed).all()}
    sharing, at = sharing_of(s), now_ms(s)
    gaining, losing = set[str](), set[str]()
    for (job_id, instance_id), slots in sharing.target.items():
        before = sharing.held.get((job_id, instance_id), 0)
        if slots != before and (job_id in jobs or not slots):
            if instance_id in sharing.places:  # slots of others leave already
                (gaining if slots > before else losing).add(job_id)
            by_ms = at + scale_down_timeout_ms
            s.merge(ShareRow(job_id=job_id, instance_id=instance_id, slots=slots, leave_by_ms=by_ms))
    s.flush()
    for job_id, job in jobs.items():
        job.shortage = sharing.lacking.get(job_id, "")
        if job_id in losing and members_of(s, job_id):
            if job_id in gaining and initial_delay_ms:
                gather(s, job, initial_delay_ms)
            rebalance(s, job, "cores were shared anew")
            wake(s, job_topic(job_id))
    wake(s, JOBS)
