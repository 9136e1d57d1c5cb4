"""What tasks take over by their next commit: other versions of their job, and a stream time that was set back.

It knows of each store what the operators that filled it leave to those that go on with it. It refuses to know who asked
for a change, and what a store makes of what is handed over (`service.streams.operators.adoption`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import msgspec
from sqlalchemy.orm import Session

from service.catalog.job_versions import LEFT, Standing, get_version, stood
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
    def partition(self) -> int: ...

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
        self._since: dict[int, dict[str, _Store]] = {}
        self._left: dict[int, dict[str, Handover]] = {}  # by version

    def of(self, task: Adopting) -> dict[str, Handover]:
        """By store what a task has to write; nothing: it is of the present version."""
        own = [each for each in self._at(task.spec_version).values() if each.sub_topology == task.sub_topology]
        found = {}
        for each in own:
            was_away, to = each.was_away, task.set_back_to
            if was_away:
                each, to = self._as_left(each.operator, task), _started(task)
            if each.handover is None and task.stream_time >= 0:
                found[each.name] = Handover(begins_at=task.stream_time)
            elif each.handover is not None and (was_away or each.is_changed or task.set_back_to is not None):
                found[each.name] = msgspec.structs.replace(each.handover, stream_time=to)
        return found

    def _at(self, since: int) -> dict[str, _Store]:
        """By operator, for tasks whose stores are of this version."""
        if since not in self._since:
            self._since[since] = {each.operator: each for each in self._stores(since)}
        return self._since[since]

    def _as_left(self, operator: str, task: Adopting) -> _Store:
        """A store that was away at the version of a task: as of the one at which it stood when it was removed there, as
        the task may have had versions before to take over.
        """
        since, partition = task.spec_version, str(task.partition)
        while (found := self._at(since)[operator]).was_away:
            at = stood(self._s, self._job.id, since, {"": Standing(self._job.spec_version, operator)})[""]
            removal = get_version(self._s, self._job, at.version + 1).details or {}
            since = removal.get(LEFT, {}).get(at.operator, {}).get(partition, at.version)
        return found

    def _stores(self, since: int) -> list[_Store]:
        """Those of a job, for tasks whose stores are of this version.

        Nothing was run by a version that no commit adopted, but its slots may have opened copies, and deleted what was
        over by it: an entry has lived no longer than the shortest of all versions since.
        """
        stores, now = stores_of(self._s, self._job.id), version_of(self._job).handovers()
        passed = [self._handovers_then(stores, version) for version in range(since, self._job.spec_version)]
        stood = self._stood(stores, since)
        found = []
        for store in stores:
            if store.since_version > since:
                found.append(_Store(store.name, store.operator, store.sub_topology, None, True, False))
                continue
            met = [*(before[store.id] for before in passed), now[store.name]]
            kept = [each.kept_ms for each in met if each.kept_ms is not None]
            handover = msgspec.structs.replace(met[0], kept_ms=min(kept, default=None))
            is_changed = any(was != met[-1] for was in met)
            was_away = since < self._job.spec_version and stood[store.operator].version < since
            found.append(_Store(store.name, store.operator, store.sub_topology, handover, is_changed, was_away))
        return found

    def _handovers_then(self, stores: Iterable[StoreRow], version: int) -> dict[str, Handover]:
        """By the ids of stores that had begun by a version, what they had to know of it, or of the last before it that
        had them.
        """
        begun = [store for store in stores if store.since_version <= version]
        stood = self._stood(begun, version)
        return {store.id: self._handover(*stood[store.operator]) for store in begun}

    def _stood(self, stores: Iterable[StoreRow], version: int) -> dict[str, Standing]:
        now = {store.operator: Standing(self._job.spec_version, store.operator) for store in stores}
        return stood(self._s, self._job.id, version, now)

    def _handover(self, version: int, operator: str) -> Handover:
        if version not in self._left:
            self._left[version] = version_of(get_version(self._s, self._job, version)).handovers()
        return self._left[version][f"{self._job.name}-{operator}"]


class _Store(NamedTuple):
    """A store: what it had of the version at which its task stands (None: it begins anew), whether that is different by
    now, and whether no operator had it then: it is as a version before that left it.
    """

    name: str
    operator: str
    sub_topology: int
    handover: Handover | None
    is_changed: bool
    was_away: bool


def _started(task: Adopting) -> int | None:
    """The stream time (ms) of a task: a store that comes back is not ahead of it."""
    return task.stream_time if task.stream_time >= 0 else None


def version_of(row: JobRow | JobVersionRow) -> Version:
    """A version of a job, present or former, as changes are judged."""
    return Version(JobSpec.parse(row.spec), Topology.from_json(row.topology))
