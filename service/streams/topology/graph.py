"""From a specification to what runs: nodes in order, cut into sub-topologies, with the stores they keep.

It knows the partition counts that it is given; it refuses to know where they come from, or who runs a task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

from service.streams.errors import InvalidSpec, OperatorUnavailable, Problem
from service.streams.operators import SPECS, OperatorSpec, StatefulSpec
from service.streams.operators.upstream import PLAIN, Upstream
from service.streams.records import StoreSpec
from service.streams.stores.reading import Form
from service.streams.topology.spec import JobSpec


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
class SubTopology:
    """What one task runs: read one partition of the sources, pass the nodes, write the sinks.

    The nodes are a tree: each names its parent, which comes before it. `dropped` is the stream that keeps what its
    operators drop, `keeps_failed_alone`: of that what they failed at; None: they are only counted.
    """

    id: int
    sources: list[str]
    nodes: list[Node]
    sinks: list[Sink]
    partitions: int
    dropped: str | None = None
    keeps_failed_alone: bool = False

    def stores(self) -> list[StoreSpec]:
        """The stores of its nodes, in order."""
        return [node.store for node in self.nodes if node.store is not None]


@dataclass(frozen=True, slots=True)
class Topology:
    """A compiled job."""

    job: str
    sub_topologies: list[SubTopology]

    def stores(self) -> list[StoreSpec]:
        """The stores of all sub-topologies."""
        return [store for sub_topology in self.sub_topologies for store in sub_topology.stores()]

    def internal_streams(self) -> list[str]:
        """The streams that the job keeps for itself: changelogs and dropped records."""
        dropped = [sub_topology.dropped for sub_topology in self.sub_topologies if sub_topology.dropped is not None]
        return [*(store.changelog for store in self.stores()), *dropped]

    def dropping(self) -> list[str]:
        """The operators that may drop records, by the names that these carry, and the conditions of sinks."""
        return [
            name
            for sub_topology in self.sub_topologies
            for name in [
                *(node.name for node in sub_topology.nodes),
                *(gate_name(i) for i, sink in enumerate(sub_topology.sinks) if sink.where is not None),
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
    if found := [*_impossible(spec, partitions), *_untrusted(spec, partitions, custom)]:
        raise InvalidSpec(found)
    *reaching, results = spec.upstreams()
    nodes = [
        _node(spec.name, i, name, operator, reaching[i])
        for i, (name, operator) in enumerate(zip(spec.operator_names, spec.operators, strict=True))
    ]
    last = len(nodes) - 1 if nodes else None
    sinks = [Sink(sink.stream, sink.where, last, results) for sink in spec.sinks]
    dropped = _dropped(spec.name) if spec.has_dropped else None
    run = SubTopology(0, spec.sources, nodes, sinks, partitions[spec.sources[0]], dropped, not spec.keep_dropped)
    return Topology(spec.name, [run])


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


def _dropped(job: str) -> str:
    return f"{job}-dropped"


def _node(job: str, position: int, name: str, operator: OperatorSpec, upstream: Upstream) -> Node:
    store = _store(job, operator) if isinstance(operator, StatefulSpec) else None
    parent = position - 1 if position else None
    return Node(name, operator.op, operator.model_dump(mode="json", exclude_none=True), store, upstream, parent)


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
    if len(spec.sources) > 1:
        yield Problem("/source", "several sources need merging by time, which is not available yet")
    elif partitions.get(spec.sources[0], 1) > 1:
        yield from _needs_repartitioning(spec)
    yield from _unknown_start_partitions(spec, partitions)
    yield from _own_sinks(spec)


def _own_sinks(spec: JobSpec) -> Iterator[Problem]:
    """What a job keeps for itself is written by nobody else, not even by its own results."""
    own = {_changelog(spec.name, operator): "changelog" for operator in spec.operators if operator.name}
    if spec.has_dropped:
        own[_dropped(spec.name)] = "stream of dropped records"
    for i, sink in enumerate(spec.sinks):
        if sink.stream in own:
            pointer = "/sink" if isinstance(spec.sink, str) else f"/sink/{i}/stream"
            yield Problem(pointer, f"the sink is the job's own {own[sink.stream]}")


def _needs_repartitioning(spec: JobSpec) -> Iterator[Problem]:
    moved = False
    for i, operator in enumerate(spec.operators):
        moved = moved or operator.changes_key
        if isinstance(operator, StatefulSpec) and (moved or operator.is_global):
            why = "after select_key" if moved else "over all partitions"
            yield Problem(
                f"/operators/{i}",
                f"{operator.op} {why} needs repartitioning, which is not available yet "
                "for a source with more than one partition",
            )


def _untrusted(spec: JobSpec, partitions: Mapping[str, int], custom: Collection[str]) -> Iterator[Problem]:
    is_stateful = any(isinstance(operator, StatefulSpec) for operator in spec.operators)
    for source in spec.sources:
        if is_stateful and source in custom and partitions[source] > 1 and not spec.trust_partitions:
            yield Problem(
                "/trust_partitions",
                f"records of {source!r} were written with explicit partitions, so equal keys may lie apart and "
                "need repartitioning, which is not available yet; say true if they do lie together",
            )


def _unknown_start_partitions(spec: JobSpec, partitions: Mapping[str, int]) -> Iterator[Problem]:
    offsets = getattr(spec.start, "offsets", {})
    count = partitions.get(spec.sources[0], 0)
    for partition in offsets:
        if int(partition) >= count > 0:
            yield Problem(f"/start/offsets/{partition}", f"{spec.sources[0]!r} has {count} partition(s)")
