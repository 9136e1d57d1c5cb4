"""What tasks take over by their next commit: other versions of their job, and a stream time that was set back.

It knows of each store what the operators that filled it leave to those that go on with it. It refuses to know who asked
for a change, and what a store makes of what is handed over (`service.streams.operators.adoption`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import msgspec
from sqlalchemy.orm import Session

from service.catalog.job_versions import former_names, get_version
from service.catalog.jobs import stores_of
from service.catalog.tables import JobRow, JobVersionRow, StoreRow
from service.streams.records import Handover
from service.streams.topology.graph import Topology
from service.streams.topology.spec import JobSpec
from service.streams.topology.versions import Version


class Adopting(Protocol):
    """A task: where its stores stand, and what becomes of their time."""

    @property
    def sub_topology(self) -> int: ...

    @property
    def spec_version(self) -> int: ...

    @property
    def stream_time(self) -> int:
        """ms; -1: not started."""

    @property
    def set_back_to(self) -> int | None: ...


class Adoptions:
    """What the tasks of a job have to take over to be of its present version."""

    def __init__(self, s: Session, job: JobRow) -> None:
        self._s, self._job = s, job
        self._since: dict[int, list[_Store]] = {}

    def of(self, task: Adopting) -> dict[str, Handover]:
        """By store what a task has to write; nothing: it is of the present version."""
        if task.spec_version not in self._since:
            self._since[task.spec_version] = self._stores(task.spec_version)
        own = [each for each in self._since[task.spec_version] if each.sub_topology == task.sub_topology]
        found = {}
        for each in own:
            if each.handover is None and task.stream_time >= 0:
                found[each.name] = Handover(begins_at=task.stream_time)
            elif each.handover is not None and (each.is_changed or task.set_back_to is not None):
                found[each.name] = msgspec.structs.replace(each.handover, stream_time=task.set_back_to)
        return found

    def _stores(self, since: int) -> list[_Store]:
        """Those of a job, for tasks whose stores are of this version.

        Nothing was run by a version that no commit adopted, but its slots may have opened copies, and deleted what was
        over by it: an entry has lived no longer than the shortest of all versions since.
        """
        stores, now = stores_of(self._s, self._job.id), version_of(self._job).handovers()
        passed = [self._handovers_then(stores, version) for version in range(since, self._job.spec_version)]
        found = []
        for store in stores:
            if store.since_version > since:
                found.append(_Store(store.name, store.sub_topology, None, is_changed=True))
                continue
            met = [*(before[store.id] for before in passed), now[store.name]]
            kept = [each.kept_ms for each in met if each.kept_ms is not None]
            handover = msgspec.structs.replace(met[0], kept_ms=min(kept, default=None))
            is_changed = any(was != met[-1] for was in met)
            found.append(_Store(store.name, store.sub_topology, handover, is_changed=is_changed))
        return found

    def _handovers_then(self, stores: Iterable[StoreRow], version: int) -> dict[str, Handover]:
        """By the ids of stores that were there at a version, what they had to know of it."""
        there = [store for store in stores if store.since_version <= version]
        names = former_names(self._s, self._job.id, version, [store.operator for store in there])
        found = version_of(get_version(self._s, self._job, version)).handovers()
        return {store.id: found[f"{self._job.name}-{names[store.operator]}"] for store in there}


class _Store(NamedTuple):
    """A store: what it had of the version at which its task stands (None: it begins anew), and whether that is
    different by now.
    """

    name: str
    sub_topology: int
    handover: Handover | None
    is_changed: bool


def version_of(row: JobRow | JobVersionRow) -> Version:
    """A version of a job, present or former, as changes are judged."""
    return Version(JobSpec.parse(row.spec), Topology.from_json(row.topology))
