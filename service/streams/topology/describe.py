"""A topology as text, in the layout of Kafka Streams' `Topology.describe()`.

It knows that layout: sub-topologies ascending; nodes by descending size, which counts all behind them, then name. A
stream that other sub-topologies go on with is the topic of a sink there and of a source here. It refuses to know how
anything runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from service.streams.topology.graph import SubTopology, Topology, gate_name


@dataclass(slots=True)
class _Line:
    """A node of the text: its kind and name, what stands in its brackets, and its neighbours."""

    kind: str
    name: str
    about: str
    before: _Line | None = None
    behind: list[_Line] = field(default_factory=list)
    size: int = 1

    def text(self) -> Iterator[str]:
        yield f"    {self.kind}: {self.name} ({self.about})"
        if self.kind != "Sink":
            yield f"      --> {', '.join(each.name for each in _ordered(self.behind)) or 'none'}"
        if self.before is not None:
            yield f"      <-- {self.before.name}"


def describe(topology: Topology) -> str:
    """The text that people know from Kafka Streams."""
    own = {stream: f"{each.name}-source" for stream, (_, each) in topology.repartitions().items()}
    return "Topologies:\n" + "".join(_described(each, own) for each in topology.sub_topologies)


def _described(sub_topology: SubTopology, own: Mapping[str, str]) -> str:
    lines = [f"   Sub-topology: {sub_topology.id}"]
    for node in _ordered(_lines(sub_topology, own)):
        lines += node.text()
    return "\n".join(lines) + "\n\n"


def _lines(sub_topology: SubTopology, own: Mapping[str, str]) -> list[_Line]:
    """The nodes of a sub-topology, each before those behind it; `own`: repartition stream → what reads it is called."""
    topics = ", ".join(sub_topology.sources)
    name = own.get(topics, f"source-{sub_topology.id}")
    found: list[_Line] = [_Line("Source", name, f"topics: [{topics}]")]
    at: dict[int | None, _Line] = {None: found[0]}
    for i, node in enumerate(sub_topology.nodes):
        about = f"stores: [{node.store.name if node.store else ''}]"
        at[i] = _Line("Processor", node.name, about, at[node.parent])
        found.append(at[i])
    for i, sink in enumerate(sub_topology.sinks):
        found.append(_Line("Sink", gate_name(sink, i), f"topic: {sink.stream}", at[sink.parent]))
    for each in sub_topology.repartitions:
        found.append(_Line("Sink", f"{each.name}-sink", f"topic: {each.stream}", at[each.parent]))
    for line in reversed(found):
        if line.before is not None:
            line.before.behind.append(line)
            line.before.size += line.size
    return found


def _ordered(lines: list[_Line]) -> list[_Line]:
    return sorted(lines, key=lambda line: (-line.size, line.name))
