"""From a specification to what runs: nodes in order, cut into sub-topologies, with the stores they keep.

It knows the partition counts that it is given; it refuses to know where they come from, or who runs a task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from service.streams.errors import InvalidSpec, OperatorUnavailable, Problem
from service.streams.operators import SPECS, OperatorSpec, StatefulSpec
from service.streams.operators.repartition import RepartitionSpec
from service.streams.operators.upstream import PLAIN, Upstream
from service.streams.records import StoreSpec
from service.streams.stores.reading import Form
from service.streams.topology.spec import JobSpec
from service.streams.topology.starts import unfit_for_partitions


@dataclass(frozen=True, slots=True)
class Node:
    """One operator: the name that errors and dropped records carry, its specification (JSON), its store, what the
    operators before it make of its records, and the place among the nodes of the one that it gets them from (None: it
    gets those of the source).
    """

    name: str
    op: str
    spec: dict[str, Any]
    store: StoreSpec | None = None
    upstream: Upstream = PLAIN
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class Sink:
    """A stream that results go to, the condition for it, the place of the node whose results these are (None: the
    records of the source), what the operators up to there make of them, and its number among the job's sinks (None: its
    place here).
    """

    stream: str
    where: str | None = None
    parent: int | None = None
    upstream: Upstream = PLAIN
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Repartition:
    """Results that tasks of another sub-topology go on with: an internal stream with one partition a task that writes
    it, read by `targets` tasks. A record is for the target that its key belongs to, or the text of the expression `by`.
    `parent`, `upstream`: as of a sink. `operator`: the one that needs it, or that it is.
    """

    stream: str
    operator: str
    targets: int
    by: str | None = None
    parent: int | None = None
    upstream: Upstream = PLAIN

    @property
    def name(self) -> str:
        """What it is called, as an operator that may fail at a record."""
        return f"{self.operator}-repartition"


@dataclass(frozen=True, slots=True)
class SubTopology:
    """What one task runs: read its share of the sources, pass the nodes, write the sinks and what others go on with.

    Of a user stream its share is the partition of its own number, of a repartition stream what is for it in each
    partition. The nodes are a tree: each names its parent, which comes before it. `dropped` is the stream that keeps
    what its operators drop, `keeps_failed_alone`: of that what they failed at; None: they are only counted.
    `upstreams`: the sub-topologies that write what it reads of repartition streams.
    """

    id: int
    sources: list[str]
    nodes: list[Node]
    sinks: list[Sink]
    partitions: int
    dropped: str | None = None
    keeps_failed_alone: bool = False
    repartitions: list[Repartition] = field(default_factory=list)
    upstreams: list[int] = field(default_factory=list)

    @property
    def reads_user_streams(self) -> bool:
        """Whether records from outside reach it; each of its other sources is written by one of `upstreams`."""
        return len(self.upstreams) < len(self.sources)

    def stores(self) -> list[StoreSpec]:
        """The stores of its nodes, in order."""
        return [node.store for node in self.nodes if node.store is not None]


@dataclass(frozen=True, slots=True)
class Topology:
    """A compiled job. A sub-topology reads repartition streams of those before it only."""

    job: str
    sub_topologies: list[SubTopology]

    def stores(self) -> list[StoreSpec]:
        """The stores of all sub-topologies."""
        return [store for sub_topology in self.sub_topologies for store in sub_topology.stores()]

    def repartitions(self) -> dict[str, tuple[SubTopology, Repartition]]:
        """Repartition stream → the sub-topology that writes it, and how."""
        return {each.stream: (writer, each) for writer in self.sub_topologies for each in writer.repartitions}

    def user_sources(self) -> list[str]:
        """The streams that come from outside, in the order of the sub-topologies that read them."""
        own = self.repartitions()
        return [name for each in self.sub_topologies for name in each.sources if name not in own]

    def internal_streams(self) -> list[str]:
        """The streams that the job keeps for itself: changelogs, repartition streams and dropped records."""
        dropped = {sub_topology.dropped for sub_topology in self.sub_topologies if sub_topology.dropped is not None}
        return [*(store.changelog for store in self.stores()), *self.repartitions(), *dropped]

    def dropping(self) -> list[str]:
        """The operators that may drop records, by the names that these carry, and the conditions of sinks."""
        return [
            name
            for sub_topology in self.sub_topologies
            for name in [
                *(node.name for node in sub_topology.nodes),
                *(gate_name(sink, i) for i, sink in enumerate(sub_topology.sinks) if sink.where is not None),
                *(each.name for each in sub_topology.repartitions if each.by is not None),
            ]
        ]

    def to_json(self) -> dict[str, Any]:
        """JSON-able; `from_json` reads it again."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Topology:
        """The inverse of `to_json`."""
        return _TOPOLOGY.validate_python(dict(stored))


_TOPOLOGY = TypeAdapter(Topology)


def compile(  # noqa: A001 - it is what it does
    spec: JobSpec, partitions: Mapping[str, int], custom: Collection[str] = frozenset()
) -> Topology:
    """The topology of a job over source streams with these partition counts. Raises InvalidSpec.

    `custom`: the sources that were written with explicit partitions, where equal keys may lie apart.
    """
    if found := [*_impossible(spec, partitions)]:
        raise InvalidSpec(found)
    topology = _Cutting(spec, partitions, custom).topology()
    if found := [*_own_sinks(spec, topology)]:
        raise InvalidSpec(found)
    return topology


def compile_again(spec: JobSpec, partitions: Mapping[str, int], former: JobSpec, made: Topology) -> Topology:
    """The topology of another specification of a job, cut as its topology `made` was: who chose partitions of its
    sources since then, or had done before, changes nothing. Raises InvalidSpec.
    """
    custom = set[str]() if _reads(compile(former, partitions)) == _reads(made) else set(partitions)
    return compile(spec, partitions, custom)


def over_same_stores(topology: Topology, made: Topology) -> Topology:
    """A topology whose operators with state are those of `made`, over what their stores hold: entries keep layouts."""
    return with_layouts(topology, {store.operator: store.layouts for store in made.stores()})


def with_layouts(topology: Topology, layouts: Mapping[str, list[dict[str, Any]] | None]) -> Topology:
    """A topology whose stores have had these layouts of entries, by operator; those of no other but the first."""

    def over(node: Node) -> Node:
        store = node.store
        return node if store is None else replace(node, store=replace(store, layouts=layouts.get(store.operator)))

    return replace(
        topology,
        sub_topologies=[replace(each, nodes=[over(node) for node in each.nodes]) for each in topology.sub_topologies],
    )


def _reads(topology: Topology) -> list[list[str]]:
    return [each.sources for each in topology.sub_topologies]


class _Results(NamedTuple):
    """Where results are: in a sub-topology, of the node at this place (None: what it reads). `lie_apart`: those with
    equal keys may be in several partitions.
    """

    sub_topology: SubTopology
    place: int | None
    lie_apart: bool


class _Cutting:
    """A tree of operators on its way to sub-topologies: cut where what follows needs records to lie otherwise."""

    def __init__(self, spec: JobSpec, partitions: Mapping[str, int], custom: Collection[str]) -> None:
        self._spec, self._done = spec, list[SubTopology]()
        sources, most = spec.sources, max(partitions[source] for source in spec.sources)
        if any(isinstance(operator, StatefulSpec) for operator in spec.operators):
            sources = [self._co_partitioned(source, partitions[source], most) for source in sources]
        untrusted = set() if spec.trust_partitions else set(custom).intersection(sources)
        self._source = _Results(self._added(sources, most), None, bool(untrusted))

    def topology(self) -> Topology:
        """All sub-topologies, each behind those that it reads."""
        found, count = list[_Results](), len(self._spec.operators)
        parents, upstreams = self._spec.parents(), self._spec.upstreams()
        for i, (name, operator) in enumerate(zip(self._spec.operator_names, self._spec.operators, strict=True)):
            found.append(self._behind(self._of(found, parents[i]), name, operator, upstreams[i]))
        for number, sink in enumerate(self._spec.sinks):
            at = self._of(found, parents[count + number])
            upstream = upstreams[count + number]
            at.sub_topology.sinks.append(Sink(sink.stream, sink.where, at.place, upstream, number))
        return Topology(self._spec.name, self._done)

    def _of(self, found: Sequence[_Results], parent: int | None) -> _Results:
        return self._source if parent is None else found[parent]

    def _behind(self, at: _Results, name: str, operator: OperatorSpec, upstream: Upstream) -> _Results:
        """What an operator makes of results, behind a cut where it needs one."""
        count = at.sub_topology.partitions
        if isinstance(operator, RepartitionSpec):
            return self._cut(at, name, None, operator.partitions or count, upstream)
        if isinstance(operator, StatefulSpec) and count > 1:
            by = operator.partitioned_by
            if by is not None or at.lie_apart:
                at = self._cut(at, name, by, count, upstream)._replace(lie_apart=by is not None)
        store = _store(self._spec.name, operator) if isinstance(operator, StatefulSpec) else None
        written, nodes = operator.model_dump(mode="json", exclude_none=True), at.sub_topology.nodes
        nodes.append(Node(name, operator.op, written, store, upstream, at.place))
        return _Results(at.sub_topology, len(nodes) - 1, at.lie_apart or operator.changes_key)

    def _co_partitioned(self, source: str, count: int, targets: int) -> str:
        """A source as it is, or the stream in which its records lie as those of the others do."""
        if count == targets:
            return source
        repartition = Repartition(_repartition(self._spec.name, source), source, targets)
        self._added([source], count).repartitions.append(repartition)
        return repartition.stream

    def _cut(self, at: _Results, operator: str, by: str | None, targets: int, upstream: Upstream) -> _Results:
        repartition = Repartition(_repartition(self._spec.name, operator), operator, targets, by, at.place, upstream)
        at.sub_topology.repartitions.append(repartition)
        return _Results(self._added([repartition.stream], targets), None, lie_apart=False)

    def _added(self, sources: list[str], partitions: int) -> SubTopology:
        """A sub-topology of nothing yet, behind all others."""
        own = {each.stream: writer.id for writer in self._done for each in writer.repartitions}
        made = SubTopology(
            id=len(self._done),
            sources=sources,
            nodes=[],
            sinks=[],
            partitions=partitions,
            dropped=_dropped(self._spec.name) if self._spec.has_dropped else None,
            keeps_failed_alone=not self._spec.keep_dropped,
            upstreams=[own[source] for source in sources if source in own],
        )
        self._done.append(made)
        return made


def gate_name(sink: Sink, place: int) -> str:
    """What the condition of a sink is called, as an operator; `place`: among those of its sub-topology."""
    return f"sink-{place if sink.number is None else sink.number}"


def form_of(node: Node) -> Form:
    """How the store of a node is read. Raises OperatorUnavailable where its operator is not installed here."""
    spec = SPECS.get(node.op)
    if node.store is None:
        raise ValueError(f"{node.name} keeps no store")
    if spec is None or not issubclass(spec, StatefulSpec):
        raise OperatorUnavailable(node.name, f"{node.op!r} is not installed")
    return spec.form(node.name, node.spec, node.upstream, node.store)


def _changelog(job: str, operator: OperatorSpec) -> str:
    return f"{job}-{operator.name}-changelog"


def _repartition(job: str, operator: str) -> str:
    return f"{job}-{operator}-repartition"


def _dropped(job: str) -> str:
    return f"{job}-dropped"


def _store(job: str, operator: StatefulSpec) -> StoreSpec:
    kept = operator.kept
    return StoreSpec(
        name=f"{job}-{operator.name}",
        operator=operator.name,
        type=kept.type,
        changelog=_changelog(job, operator),
        kind=operator.kind,
        layout=kept.layout,
        interval_ms=kept.interval_ms,
    )


def _impossible(spec: JobSpec, partitions: Mapping[str, int]) -> Iterator[Problem]:
    is_list = not isinstance(spec.source, str)
    for i, source in enumerate(spec.sources):
        if source not in partitions:
            yield Problem(f"/source/{i}" if is_list else "/source", f"stream {source!r} does not exist")
        if is_list and source in spec.operator_names:
            yield Problem(f"/source/{i}", f"{source!r} is also an operator: their repartition streams would be one")
    yield from unfit_for_partitions(spec.start, {each: partitions[each] for each in spec.sources if each in partitions})


def _own_sinks(spec: JobSpec, topology: Topology) -> Iterator[Problem]:
    """What a job keeps for itself is written by nobody else, not even by its own results."""
    own = {store.changelog: "changelog" for store in topology.stores()}
    own |= dict.fromkeys(topology.repartitions(), "repartition stream")
    if spec.has_dropped:
        own[_dropped(spec.name)] = "stream of dropped records"
    for i, sink in enumerate(spec.sinks):
        if sink.stream in own:
            pointer = "/sink" if isinstance(spec.sink, str) else f"/sink/{i}/stream"
            yield Problem(pointer, f"the sink is the job's own {own[sink.stream]}")
