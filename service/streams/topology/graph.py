"""From a specification to what runs: nodes in order, cut into sub-topologies, with the stores they keep.

It knows the partition counts that it is given; it refuses to know where they come from, or who runs a task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

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
    records of the source), and what the operators up to there make of them.
    """

    stream: str
    where: str | None = None
    parent: int | None = None
    upstream: Upstream = PLAIN


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
                *(gate_name(i) for i, sink in enumerate(sub_topology.sinks) if sink.where is not None),
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
    cutting = _Cutting(spec, partitions, custom)
    *reaching, results = spec.upstreams()
    for name, operator, upstream in zip(spec.operator_names, spec.operators, reaching, strict=True):
        cutting.take(name, operator, upstream)
    topology = cutting.end(results)
    if found := [*_own_sinks(spec, topology)]:
        raise InvalidSpec(found)
    return topology


class _Cutting:
    """A chain of operators on its way to sub-topologies: cut where what follows needs records to lie otherwise.

    `_lie_apart`: records with equal keys may be in several partitions.
    """

    def __init__(self, spec: JobSpec, partitions: Mapping[str, int], custom: Collection[str]) -> None:
        self._spec, self._done = spec, list[SubTopology]()
        self._sources, self._nodes = list(spec.sources), list[Node]()
        self._partitions = max(partitions[source] for source in spec.sources)
        if any(isinstance(operator, StatefulSpec) for operator in spec.operators):
            self._sources = [self._co_partitioned(source, partitions[source]) for source in spec.sources]
        untrusted = set() if spec.trust_partitions else set(custom).intersection(self._sources)
        self._lie_apart = bool(untrusted)

    def take(self, name: str, operator: OperatorSpec, upstream: Upstream) -> None:
        """The next operator, behind a cut where it needs one."""
        if isinstance(operator, RepartitionSpec):
            self._cut(name, None, operator.partitions or self._partitions, upstream)
            return
        if isinstance(operator, StatefulSpec) and self._partitions > 1:
            by = operator.partitioned_by
            if by is not None or self._lie_apart:
                self._cut(name, by, self._partitions, upstream)
                self._lie_apart = by is not None
        self._lie_apart = self._lie_apart or operator.changes_key
        store = _store(self._spec.name, operator) if isinstance(operator, StatefulSpec) else None
        written = operator.model_dump(mode="json", exclude_none=True)
        self._nodes.append(Node(name, operator.op, written, store, upstream, self._last))

    def end(self, results: Upstream) -> Topology:
        """All sub-topologies, the last one with the sinks."""
        sinks = [Sink(sink.stream, sink.where, self._last, results) for sink in self._spec.sinks]
        self._add(self._sources, self._nodes, self._partitions, sinks=sinks)
        return Topology(self._spec.name, self._done)

    @property
    def _last(self) -> int | None:
        return len(self._nodes) - 1 if self._nodes else None

    def _co_partitioned(self, source: str, count: int) -> str:
        """A source as it is, or the stream in which its records lie as those of the others do."""
        if count == self._partitions:
            return source
        repartition = Repartition(_repartition(self._spec.name, source), source, self._partitions)
        self._add([source], [], count, repartitions=[repartition])
        return repartition.stream

    def _cut(self, operator: str, by: str | None, targets: int, upstream: Upstream) -> None:
        repartition = Repartition(_repartition(self._spec.name, operator), operator, targets, by, self._last, upstream)
        self._add(self._sources, self._nodes, self._partitions, repartitions=[repartition])
        self._sources, self._nodes, self._partitions = [repartition.stream], [], targets
        self._lie_apart = False

    def _add(
        self,
        sources: list[str],
        nodes: list[Node],
        partitions: int,
        *,
        sinks: Sequence[Sink] = (),
        repartitions: Sequence[Repartition] = (),
    ) -> None:
        own = {each.stream: writer.id for writer in self._done for each in writer.repartitions}
        self._done.append(
            SubTopology(
                id=len(self._done),
                sources=sources,
                nodes=nodes,
                sinks=list(sinks),
                partitions=partitions,
                dropped=_dropped(self._spec.name) if self._spec.has_dropped else None,
                keeps_failed_alone=not self._spec.keep_dropped,
                repartitions=list(repartitions),
                upstreams=[own[source] for source in sources if source in own],
            )
        )


def gate_name(number: int) -> str:
    """What the condition of a job's sink of this number is called, as an operator."""
    return f"sink-{number}"


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
