"""A topology as text, in the layout of Kafka Streams' `Topology.describe()`.

It knows that layout (sub-topologies ascending, nodes by descending size, which counts all behind them, then name); it
refuses to know how anything runs.
"""

from __future__ import annotations

from service.streams.topology.graph import SubTopology, Topology


def describe(topology: Topology) -> str:
    """The text that people know from Kafka Streams."""
    return "Topologies:\n" + "".join(_sub_topology(each) for each in topology.sub_topologies)


def _sub_topology(sub_topology: SubTopology) -> str:
    nodes = sub_topology.nodes
    names = {None: f"source-{sub_topology.id}"} | {i: node.name for i, node in enumerate(nodes)}
    behind: dict[int | None, list[str]] = {place: [] for place in names}
    sizes = dict.fromkeys(range(len(nodes)), 1)
    for i in reversed(range(len(nodes))):
        if (parent := nodes[i].parent) is not None:
            sizes[parent] += sizes[i]
    order = sorted(range(len(nodes)), key=lambda i: (-sizes[i], nodes[i].name))
    for i in order:
        behind[nodes[i].parent].append(nodes[i].name)
    for i, sink in enumerate(sub_topology.sinks):
        behind[sink.parent].append(f"sink-{i}")
    for repartition in sub_topology.repartitions:
        behind[repartition.parent].append(repartition.name)
    lines = [f"   Sub-topology: {sub_topology.id}"]
    lines += [f"    Source: {names[None]} (topics: [{', '.join(sub_topology.sources)}])"]
    lines += [f"      --> {_list(behind[None])}"]
    for i in order:
        store = nodes[i].store
        lines += [f"    Processor: {nodes[i].name} (stores: [{store.name if store else ''}])"]
        lines += [f"      --> {_list(behind[i])}", f"      <-- {names[nodes[i].parent]}"]
    for i, sink in enumerate(sub_topology.sinks):
        lines += [f"    Sink: sink-{i} (topic: {sink.stream})", f"      <-- {names[sink.parent]}"]
    for each in sub_topology.repartitions:
        lines += [f"    Sink: {each.name} (topic: {each.stream})", f"      <-- {names[each.parent]}"]
    return "\n".join(lines) + "\n\n"


def _list(names: list[str]) -> str:
    return ", ".join(names) or "none"
