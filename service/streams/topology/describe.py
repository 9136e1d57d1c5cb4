"""A topology as text, in the layout of Kafka Streams' `Topology.describe()`.

It knows that layout (sub-topologies ascending, nodes by descending size, then name); it refuses to know
how anything runs.
"""

from __future__ import annotations

from service.streams.topology.graph import SubTopology, Topology


def describe(topology: Topology) -> str:
    """The text that people know from Kafka Streams."""
    return "Topologies:\n" + "".join(_sub_topology(each) for each in topology.sub_topologies)


def _sub_topology(sub_topology: SubTopology) -> str:
    """A chain is already in the order of descending size: each node holds all that follow it."""
    source, sinks = f"source-{sub_topology.id}", _sink_names(sub_topology)
    names = [source, *(node.name for node in sub_topology.nodes)]
    lines = [f"   Sub-topology: {sub_topology.id}"]
    lines += [f"    Source: {source} (topics: [{', '.join(sub_topology.sources)}])"]
    lines += [f"      --> {_next(names, 0, sinks)}"]
    for i, node in enumerate(sub_topology.nodes, start=1):
        lines += [f"    Processor: {node.name} (stores: [{node.store.name if node.store else ''}])"]
        lines += [f"      --> {_next(names, i, sinks)}", f"      <-- {names[i - 1]}"]
    for name, sink in zip(sinks, sub_topology.sinks, strict=True):
        lines += [f"    Sink: {name} (topic: {sink.stream})", f"      <-- {names[-1]}"]
    return "\n".join(lines) + "\n\n"


def _sink_names(sub_topology: SubTopology) -> list[str]:
    return [f"sink-{i}" for i in range(len(sub_topology.sinks))]


def _next(names: list[str], i: int, sinks: list[str]) -> str:
    return names[i + 1] if i + 1 < len(names) else ", ".join(sinks) or "none"
