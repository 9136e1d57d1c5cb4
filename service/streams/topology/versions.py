"""Versions of a job: what becomes of its stores and its outputs where its specification changes and its state stays.

It knows what a change of the whole asks of each operator that keeps state (what of its own fields may change, each
declares): equal keys in the same tasks, rows of the same shape. It refuses to know what is in a store (it names the
conditions), who owns a task and when a change takes place.

verdict     unchanged   nothing of it changes
            keeps       the store goes on, from here on by the new specification
            empty       a new store begins empty, at the task's stream time
            restarts    as asked for, the store begins anew, empty, at the task's stream time
            removed     the store stays until the job is reset or deleted, and nothing is written to it
returns     a store that a former version had, and that was removed since, goes on as it was left
            refused     what is stored would mean something else
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

from service.streams.errors import Problem
from service.streams.operators import OperatorSpec, StatefulSpec
from service.streams.operators.aggregate_layouts import TooManyLayouts
from service.streams.operators.declaration import Condition
from service.streams.operators.upstream import Upstream
from service.streams.records import Handover, StoreSpec
from service.streams.topology.complaints import pointer
from service.streams.topology.graph import Node, Topology, with_layouts
from service.streams.topology.spec import JobSpec

OperatorVerdict = Literal["unchanged", "keeps", "empty", "restarts", "removed", "returns", "refused"]
SinkVerdict = Literal["unchanged", "keeps", "added", "removed"]
SourceVerdict = Literal["unchanged", "added", "removed"]

_OTHERWISE: Final = "make another job of it, or `:copy` this one and change the copy"
_SHAPE: Final = ("type", "size_ms", "advance_ms", "time_difference_ms")  # what windows in stores are aligned by


@dataclass(frozen=True, slots=True)
class Version:
    """A specification and what it was compiled to."""

    spec: JobSpec
    topology: Topology

    def handovers(self) -> dict[str, Handover]:
        """By store what the operators of a later version need to know of how it was filled."""
        operators = _stateful(self)
        return {store.name: operators[store.operator].handover() for store in self.topology.stores()}


class LeftStore(NamedTuple):
    """A store that no operator has any more: the number of the last version that had it, that version, the operator in
    it, and the sub-topology of the present version whose tasks had it.
    """

    number: int
    version: Version
    operator: str
    sub_topology: int


@dataclass(frozen=True, slots=True)
class OperatorChange:
    """What becomes of an operator: its name now, or the former one where it is removed; the store that it keeps, or
    kept (None: it keeps no state).
    """

    operator: str
    op: str
    verdict: OperatorVerdict
    detail: str
    former: str | None = None
    store: str | None = None


@dataclass(frozen=True, slots=True)
class SinkChange:
    """What becomes of the records of a sink."""

    stream: str
    verdict: SinkVerdict
    detail: str


@dataclass(frozen=True, slots=True)
class SourceChange:
    """What becomes of the records of a source."""

    stream: str
    verdict: SourceVerdict
    detail: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """A version beside the one before. `topology`: the new one, whose stores know what they have taken over;
    `tasks`: sub-topology → the former one whose tasks go on with it; `inherited`: operator → its former name, of stores
    that go on; `returned`: operator → version and operator whose removed store it has back; `conditions`: by former
    store name, what must be so at the change; `unseen`: operator that waits for windows to close and begins empty → the
    former store that has those windows; `problems`: what is refused, with pointers into the new specification.
    """

    topology: Topology
    operators: list[OperatorChange] = field(default_factory=list)
    sinks: list[SinkChange] = field(default_factory=list)
    sources: list[SourceChange] = field(default_factory=list)
    tasks: dict[int, int] = field(default_factory=dict)
    inherited: dict[str, str] = field(default_factory=dict)
    returned: dict[str, tuple[int, str]] = field(default_factory=dict)
    conditions: list[tuple[str, Condition]] = field(default_factory=list)
    unseen: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def sources_that(self, verdict: SourceVerdict) -> list[str]:
        """The sources with this verdict."""
        return [each.stream for each in self.sources if each.verdict == verdict]


def compare(
    old: Version,
    new: Version,
    *,
    renames: Mapping[str, str] | None = None,
    restart: Collection[str] = (),
    left: Mapping[str, LeftStore] | None = None,
) -> Comparison:
    """What becomes of a job. `renames`: former name → name now; `restart`: which operators (by now) begin anew; `left`:
    by operator (by now) the removed stores that may come back.
    """
    return _Comparing(old, new, dict(renames or {}), set(restart), left or {}).comparison()


# ---------------------------------------------------------------- what reaches an operator


class _Step(NamedTuple):
    """Something on the way of records: `source`, a `cut` between tasks, or an operator (its `op`), and all of it that
    counts, as JSON.
    """

    kind: str
    what: str


Way = tuple[_Step, ...]


class _Place(NamedTuple):
    """Where an operator stands: the way of the records that reach it, itself not included."""

    sub_topology: int
    node: Node
    way: Way

    @property
    def keys(self) -> Way:
        """What of its way says which keys records have, and in which tasks they lie."""
        return _keys(self.way)

    @property
    def shape(self) -> tuple[bool, dict[str, Any]]:
        """What rows are as they reach it: updates of a table or none, and the windows that they carry."""
        return _shape(self.node.upstream)


def _shape(upstream: Upstream) -> tuple[bool, dict[str, Any]]:
    window = upstream.window or {}
    return upstream.is_table, {name: window[name] for name in _SHAPE if name in window}


def _keys(way: Way) -> Way:
    return tuple(step for step in way if step.kind in {"select_key", "cut"})


class _Share(NamedTuple):
    """What the tasks of a sub-topology read: users' streams, and what others cut for them (which sub-topologies, and
    the operators that this is for); `keys`: of what they read, as of a place.
    """

    sub_topology: int
    partitions: int
    users: frozenset[str]
    writers: tuple[int, ...]
    needed_by: tuple[str, ...]
    keys: Way


class _Layout:
    """A topology with all ways in it. `names`: what operators are called in the other version, where renamed."""

    def __init__(self, version: Version, names: Mapping[str, str]) -> None:
        self.places: dict[str, _Place] = {}
        self.sinks: dict[str, Way] = {}
        self.shares: list[_Share] = []
        cuts = version.topology.repartitions()
        behind: dict[str, Way] = {}  # by repartition stream
        for each in version.topology.sub_topologies:
            ways = [behind.get(source, (_Step("source", source),)) for source in each.sources]
            start = ways[0] if len(ways) == 1 else (_Step("source", ", ".join(sorted(each.sources))),)
            passed: list[Way] = []
            for node in each.nodes:
                way = start if node.parent is None else passed[node.parent]
                self.places[node.name] = _Place(each.id, node, way)
                passed.append((*way, _Step(node.op, _canonical(node.spec))))
            for sink in each.sinks:
                way = start if sink.parent is None else passed[sink.parent]
                self.sinks[sink.stream] = (*way, _Step("where", sink.where or ""))
            for cut in each.repartitions:
                way = start if cut.parent is None else passed[cut.parent]
                behind[cut.stream] = (*way, _Step("cut", f"{cut.by or 'key'} -> {cut.targets}"))
            read = sorted(
                (writer.id, names.get(cut.operator, cut.operator))
                for writer, cut in (cuts[source] for source in each.sources if source in cuts)
            )
            users = frozenset(each.sources) - cuts.keys()
            writers, needed_by = tuple(writer for writer, _ in read), tuple(operator for _, operator in read)
            self.shares.append(_Share(each.id, each.partitions, users, writers, needed_by, _keys(start)))


def _tasks_that_stay(
    before: _Layout, after: _Layout, added: Collection[str], removed: Collection[str]
) -> dict[int, int]:
    """Sub-topology → the former one that reads the same, but for sources that come or go: for the same operators, or
    records with the same keys for operators that are called otherwise.
    """
    found: dict[int, int] = {}
    called = {share.needed_by for share in after.shares}
    for share in after.shares:
        writers = sorted(found.get(writer, -1) for writer in share.writers)
        alike = [
            each
            for each in before.shares
            if each.sub_topology not in found.values()
            and (each.partitions, bool(each.users)) == (share.partitions, bool(share.users))
            and each.users.difference(removed) == share.users.difference(added)
            and sorted(each.writers) == writers
        ]
        named = [each for each in alike if each.needed_by == share.needed_by]
        keyed = [each for each in alike if each.needed_by not in called and each.keys == share.keys]
        for each in (named or keyed)[:1]:
            found[share.sub_topology] = each.sub_topology
    return found


def _canonical(spec: Mapping[str, Any]) -> str:
    return json.dumps({name: value for name, value in spec.items() if name not in {"name", "after"}}, sort_keys=True)


# ---------------------------------------------------------------- the comparison


class _Comparing:
    def __init__(
        self, old: Version, new: Version, renames: dict[str, str], restart: set[str], left: Mapping[str, LeftStore]
    ) -> None:
        self._old, self._new, self._renames, self._restart, self._left = old, new, renames, restart, left
        self._before, self._after = _Layout(old, renames), _Layout(new, {})
        self._formers = {now: was for was, now in renames.items()}
        self._found = Comparison(new.topology)
        self._refused: dict[str, list[Problem]] = {}

    def comparison(self) -> Comparison:
        found = self._found
        self._judge_sources()
        found.problems.extend([*self._misnamed(), *self._misplaced()])
        if not found.problems:
            for place, (name, operator) in enumerate(zip(self._names, self._new.spec.operators, strict=True)):
                self._judge(place, name, operator)
            self._judge_removed()
            self._judge_sinks()
            found.problems.extend(self._ways_out())
        return replace(found, topology=self._inheriting())

    @cached_property
    def _names(self) -> list[str]:
        return self._new.spec.operator_names

    def _misnamed(self) -> Iterator[Problem]:
        """Names beside the specification that name nothing."""
        if self._new.spec.name != self._old.spec.name:
            yield Problem("/name", f"a job keeps its name, {self._old.spec.name!r}: {_OTHERWISE}")
        kept_before = {each.operator for each in self._old.topology.stores()}
        kept_now = {each.operator for each in self._new.topology.stores()}
        for was, now in self._renames.items():
            if was not in kept_before:
                yield Problem(pointer("renames", was), f"there is no operator {was!r} with a store to rename")
            elif now not in kept_now:
                yield Problem(pointer("renames", was), f"{now!r} is no operator with a store of the new version")
            elif now in kept_before and now not in self._renames:
                yield Problem(pointer("renames", was), f"{now!r} is another operator of the former version")
        if len(set(self._renames.values())) < len(self._renames):
            yield Problem("/renames", "two operators can not become one")
        for name in sorted(self._restart - kept_now):
            yield Problem("/restart", f"{name!r} is no operator with a store of the new version")

    def _misplaced(self) -> Iterator[Problem]:
        """Who reads the sources stays; where these come or go, all tasks do."""
        added, removed = self._found.sources_that("added"), self._found.sources_that("removed")
        kept = _tasks_that_stay(self._before, self._after, added, removed)
        self._found.tasks.update(kept)
        if len(kept) == len(self._before.shares) == len(self._after.shares):
            return
        if added:
            detail = "its partitions do not lie as those that the job reads, so that tasks would read otherwise"
            at = "/source" if isinstance(self._new.spec.source, str) else pointer("source", self._place_of(added[0]))
            yield Problem(at, f"{detail}: `repartition` it by a job of its own before")
        elif removed:
            detail = f"without {removed[0]!r} records would go from task to task otherwise than they do now"
            yield Problem("/source", f"{detail}: make another job of it")
        elif any(share.users and share.sub_topology not in kept for share in self._after.shares):
            detail = "a source would be read by other tasks, which do not know how far it was read"
            yield Problem("/operators", f"{detail}: make another job of it")

    def _place_of(self, source: str) -> int:
        return self._new.spec.sources.index(source)

    def _judge_sources(self) -> None:
        before, after = self._old.spec.sources, self._new.spec.sources
        for source in after:
            if source in before:
                self._found.sources.append(SourceChange(source, "unchanged", ""))
            else:
                detail = "is read from `start` on, beside what the job reads already"
                self._found.sources.append(SourceChange(source, "added", detail))
        for source in before:
            if source not in after:
                detail = "what is in it when this is asked for is read before, and nothing behind that"
                self._found.sources.append(SourceChange(source, "removed", detail))

    # ------------------------------------------------------------ operators

    def _judge(self, place: int, name: str, operator: OperatorSpec) -> None:
        if not isinstance(operator, StatefulSpec):
            return self._judge_stateless(name, operator)
        was = self._formers.get(name, name)
        former = self._former(was, name)
        store = self._store(self._new, operator.name).name
        if former is None:
            self._note_unseen(place, name, operator)
            self._note(self._begun(name, operator, store))
            return None
        if name in self._restart:
            self._note_unseen(place, name, operator)
            of = (
                "each task" if self._after.places[name].sub_topology in self._found.tasks else "the job, in other tasks"
            )
            detail = f"begins anew, empty, at the stream time of {of}"
            self._note(OperatorChange(name, operator.op, "restarts", detail, was, store))
            return None
        before = self._before.places[was]
        objections = [*self._objections(before, before.sub_topology, name, former, operator)]
        if objections:
            at = pointer("operators", place)
            self._refused[name] = [Problem(at + each.pointer, each.detail) for each in objections]
            detail = "; ".join(each.detail for each in objections)
            self._note(OperatorChange(name, operator.op, "refused", detail, was, store))
            return None
        self._found.inherited[name] = was
        former_store = self._store(self._old, was).name
        self._found.conditions.extend((former_store, each) for each in former.conditions(operator))
        details = [*_differences(former, operator), *self._reached_by_others(was, name)]
        if was != name:
            details.insert(0, f"was {was!r}")
        verdict: OperatorVerdict = "keeps" if details else "unchanged"
        self._note(OperatorChange(name, operator.op, verdict, "; ".join(details), was, store))
        return None

    def _ways_out(self) -> Iterator[Problem]:
        """What is refused, and all that has to begin anew for it to be taken."""
        names = [name for name in self._names if name in self._restart or name in self._refused]
        way_out = f"; `restart: {json.dumps(names)}` begins {'it' if len(self._refused) == 1 else 'them'} empty"
        for problems in self._refused.values():
            yield from (Problem(each.pointer, each.detail + way_out) for each in problems)

    def _note_unseen(self, place: int, name: str, operator: StatefulSpec) -> None:
        """Of one that begins empty and lets go what windows have when they close: whose open windows it has not seen.
        They come out only where they change again. Windows of an operator that begins anew itself are all new.
        """
        upstreams, parents = self._new.spec.upstreams(), self._new.spec.parents()
        upstream = upstreams[place]
        if upstream.window is None or upstream.is_final or not operator.downstream(upstream).is_final:
            return
        above = parents[place]
        while above is not None and not isinstance(self._new.spec.operators[above], StatefulSpec):
            above = parents[above]
        was = None if above is None else self._found.inherited.get(self._names[above])
        if was is not None:
            self._found.unseen[name] = self._store(self._old, was).name

    def _former(self, was: str, name: str) -> StatefulSpec | None:
        """The operator that the store had; None where there was none, or it goes on under another name."""
        if was in self._renames and self._renames[was] != name:
            return None
        return _stateful(self._old).get(was)

    def _begun(self, name: str, operator: StatefulSpec, store: str) -> OperatorChange:
        """One that the version before does not have: it begins empty, unless there is a store of it that can go on."""
        detail, left = "begins empty, at the stream time of each task", self._left.get(name)
        if left is None or name in self._restart:
            return OperatorChange(name, operator.op, "empty", detail, None, store)
        former = _stateful(left.version)[left.operator]
        place = _Layout(left.version, {}).places[left.operator]
        objections = [*self._objections(place, left.sub_topology, name, former, operator)]
        if objections:
            why = "; ".join(each.detail for each in objections)
            detail = f"{detail}: what version {left.number} left can not go on: {why}"
            return OperatorChange(name, operator.op, "empty", detail, None, store)
        self._found.returned[name] = (left.number, left.operator)
        detail = f"goes on as version {left.number} left it; what came since then is not in it"
        return OperatorChange(name, operator.op, "returns", detail, left.operator, store)

    def _objections(
        self, before: _Place, sub_topology: int, name: str, former: StatefulSpec, operator: StatefulSpec
    ) -> Iterator[Problem]:
        """Why the store of an operator that was at a place, in tasks of this sub-topology, can not go on."""
        after = self._after.places[name]
        own = (
            [Problem("/op", f"it was {former.op}, which keeps something else")]
            if former.op != operator.op
            else [*former.unkept(operator)]
        )
        yield from own
        if own:
            return
        if self._found.tasks.get(after.sub_topology) != sub_topology:
            yield Problem("", "it would run in other tasks, which have none of its state")
        elif before.keys != after.keys:
            yield Problem("", "the records that reach it have other keys, or lie in other tasks")
        elif before.shape != after.shape:
            yield Problem("", "what reaches it are updates of a table where it was records, or carry other windows")

    def _judge_stateless(self, name: str, operator: OperatorSpec) -> None:
        """One that keeps nothing is what it is: its rows are made by the new specification from here on."""
        after = self._after.places.get(name)
        if after is None:
            return self._judge_cut(name, operator)
        step = _Step(operator.op, _canonical(after.node.spec))
        before = self._before.places.get(name)
        if before is not None and before.node.op == operator.op and operator.name is not None:
            details = "; ".join(_changes(before.node.spec, after.node.spec))
            return self._note(OperatorChange(name, operator.op, "keeps" if details else "unchanged", details, name))
        had = {(each.node.op, _canonical(each.node.spec)) for each in self._before.places.values()}
        if (step.kind, step.what) in had:
            return self._note(OperatorChange(name, operator.op, "unchanged", "", name))
        return self._note(OperatorChange(name, operator.op, "keeps", "applies from here on"))

    def _judge_cut(self, name: str, operator: OperatorSpec) -> None:
        """A `repartition`: no node, but what is between tasks."""
        had = {_canonical(each.model_dump(mode="json")) for each in self._old.spec.operators if each.op == operator.op}
        is_known = _canonical(operator.model_dump(mode="json")) in had
        verdict: OperatorVerdict = "unchanged" if is_known else "keeps"
        detail = "" if is_known else "applies from here on"
        self._note(OperatorChange(name, operator.op, verdict, detail, name if is_known else None))

    def _judge_removed(self) -> None:
        gone = {each.operator: each for each in self._old.topology.stores()}
        for change in self._found.operators:
            gone.pop(change.former or "", None)
        for name, store in gone.items():
            spec = next(each for each in self._old.spec.operators if each.name == name)
            if isinstance(spec, StatefulSpec):
                self._found.conditions.extend((store.name, each) for each in spec.conditions(None))
            detail = (
                "its store stays until the job is reset or deleted: a rollback has it back, another one begins empty"
            )
            if self._before.places[name].sub_topology not in self._found.tasks.values():
                detail = "its store goes with its tasks"
            self._note(OperatorChange(name, spec.op, "removed", detail, name, store.name))
        now = {(each.node.op, _canonical(each.node.spec)) for each in self._after.places.values()}
        named = {each.operator for each in self._found.operators}
        for name, place in self._before.places.items():
            is_stateless = place.node.store is None
            if is_stateless and name not in named and (place.node.op, _canonical(place.node.spec)) not in now:
                self._note(OperatorChange(name, place.node.op, "removed", "applies no more", name))

    def _reached_by_others(self, was: str, name: str) -> Iterator[str]:
        """That other records reach it than before, as something on their way is otherwise."""
        if self._before.places[was].way != self._after.places[name].way:
            yield "what reaches it is made by the new version from here on"

    def _note(self, change: OperatorChange) -> None:
        self._found.operators.append(change)

    # ------------------------------------------------------------ sinks

    def _judge_sinks(self) -> None:
        before, after = self._before.sinks, self._after.sinks
        for stream, way in after.items():
            if stream not in before:
                self._found.sinks.append(SinkChange(stream, "added", "gets results from here on"))
            elif before[stream] != way:
                detail = "the records in it were made by former versions; those behind them by this one"
                self._found.sinks.append(SinkChange(stream, "keeps", detail))
            else:
                self._found.sinks.append(SinkChange(stream, "unchanged", ""))
        for stream in before.keys() - after.keys():
            self._found.sinks.append(SinkChange(stream, "removed", "keeps its records and gets no more"))

    # ------------------------------------------------------------ stores

    def _inheriting(self) -> Topology:
        """The new topology, whose stores that go on know the layouts of what is in them."""
        new, layouts = _stateful(self._new), {}
        formers = {name: (self._old, was) for name, was in self._found.inherited.items()}
        formers |= {name: (self._left[name].version, was) for name, (_, was) in self._found.returned.items()}
        for name, (version, was) in formers.items():
            try:
                layouts[name] = _stateful(version)[was].layouts_after(new[name], self._store(version, was).layouts)
            except TooManyLayouts as error:
                at = pointer("operators", self._names.index(name), "aggregates")
                self._found.problems.append(Problem(at, str(error)))

        return with_layouts(self._new.topology, layouts)

    @staticmethod
    def _store(version: Version, operator: str) -> StoreSpec:
        return next(each for each in version.topology.stores() if each.operator == operator)


def _stateful(version: Version) -> dict[str, StatefulSpec]:
    """The operators of a version that keep state, by name."""
    return {each.name: each for each in version.spec.operators if isinstance(each, StatefulSpec)}


def _differences(former: OperatorSpec, operator: OperatorSpec) -> Iterator[str]:
    """The fields that differ, as people read them."""
    return _changes(former.model_dump(mode="json"), operator.model_dump(mode="json"))


def _changes(before: Mapping[str, Any], after: Mapping[str, Any], within: str = "") -> Iterator[str]:
    for name in dict.fromkeys([*before, *after]):
        was, now = before.get(name), after.get(name)
        if not within and name in {"name", "after"}:
            continue
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            yield from _changes(was, now, f"{within}{name}.")
        elif was != now:
            yield f"{within}{name}: {json.dumps(was)} -> {json.dumps(now)}"
    if list(before) != list(after) and dict(before) == dict(after):
        yield f"{within.rstrip('.')}: in another order"
