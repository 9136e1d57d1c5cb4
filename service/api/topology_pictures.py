"""The picture of a topology: streams and operators as boxes, sub-topologies as frames around what one task runs; SVG.

Knows what a reader is to see, and colours for light and dark. Refuses to know where boxes lie and how arrows run: that
is graphlay's (docs/adr/0015-graphlay-lays-pictures-out.md).
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from xml.etree import ElementTree

import graphlay

from service.streams.topology.graph import Node, SubTopology, Topology, gate_name

Role = Literal["source", "operator", "repartition", "sink", "entry", "sub_topology"]

MOST_LETTERS: Final = 44  # of a line in a box; the tooltip has all of it
LINE: Final = 18
ROOM: Final = 2  # lines for figures in a box, where they are drawn
ROOMY: Final = 210.0  # px that such lines need
MARGIN: Final = 16
HEADER: Final = 26
EXPRESSIONS: Final = ("where", "key", "id")  # fields that say in a line what an operator does
_NO_XML: Final = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_STYLE: Final = """
text { font: 12px ui-sans-serif, system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #24292f }
text.name { font-weight: 600; font-size: 13px }
text.more, text.frame { fill: #57606a }
text.frame { stroke: #f6f8fa; stroke-width: 6; paint-order: stroke }
rect.paper { fill: #ffffff }
rect.frame { fill: #f6f8fa; stroke: #d0d7de }
rect.operator, rect.entry { fill: #ddf4ff; stroke: #0969da }
rect.stateful { fill: #fff8c5; stroke: #9a6700 }
rect.stream { fill: #dafbe1; stroke: #1a7f37 }
rect.repartition { fill: #ffffff; stroke: #57606a; stroke-dasharray: 5 3 }
path.arrow { fill: none; stroke: #57606a; stroke-width: 1.3; stroke-linejoin: round }
path.head { fill: #57606a }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  text.more, text.frame { fill: #9198a1 }
  text.frame { stroke: #151b23 }
  rect.paper { fill: #0d1117 }
  rect.frame { fill: #151b23; stroke: #3d444d }
  rect.operator, rect.entry { fill: #121d2f; stroke: #4493f8 }
  rect.stateful { fill: #272115; stroke: #d29922 }
  rect.stream { fill: #12261e; stroke: #3fb950 }
  rect.repartition { fill: #0d1117; stroke: #9198a1 }
  path.arrow { stroke: #9198a1 }
  path.head { fill: #9198a1 }
}
"""


@dataclass(slots=True)
class Box:
    """Something drawn: its kind (classes of the style), what stands in it, its name first, a tooltip, and the number of
    the frame that it lies in.

    `role`: what it is in a job. `name`: whole, of the stream or operator. `counted_as`: under which name counters have
    what goes through it. `sub_topology`: the one that it belongs to; None: what users post. `room`: further lines.
    """

    kind: str
    lines: Sequence[str]
    tooltip: str = ""
    frame: int | None = None
    role: Role = "operator"
    name: str = ""
    counted_as: str | None = None
    sub_topology: int | None = None
    room: int = 0

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of all its lines, whatever sans serif they are set in."""
        letters = max(len(line) + (2 if i == 0 else 0) for i, line in enumerate(self.lines))
        least = ROOMY if self.room else 150.0
        return max(least, 7.4 * letters + 24), LINE * (len(self.lines) + self.room) + 16.0


@dataclass(slots=True)
class Drawing:
    """Boxes by number, and the arrows between them."""

    boxes: list[Box] = field(default_factory=list)
    arrows: list[tuple[int, int]] = field(default_factory=list)

    def add(self, box: Box) -> int:
        """The number of a new box."""
        self.boxes.append(box)
        return len(self.boxes) - 1


def picture(topology: Topology) -> bytes:
    """A topology as an SVG document, which follows the light or dark of who looks at it."""
    drawing = drawing_of(topology)
    laid = _laid_out(drawing)
    low, high = laid.bounds["min"], laid.bounds["max"]
    width, height = high["x"] - low["x"] + 2 * MARGIN, high["y"] - low["y"] + 2 * MARGIN
    view = [low["x"] - MARGIN, low["y"] - MARGIN, width, height]
    attributes = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": " ".join(map(_number, view)), "role": "img"}
    attributes |= {"width": _number(width), "height": _number(height), "aria-label": f"Topology of {topology.job}"}
    svg = ElementTree.Element("svg", attributes)
    _element(svg, "title", text=f"Topology of {topology.job}")
    _element(svg, "style", text=_STYLE)
    head = {"id": "head", "viewBox": "0 0 8 8", "refX": "7", "refY": "4", "markerWidth": "8", "markerHeight": "8"}
    marker = _element(_element(svg, "defs"), "marker", {**head, "orient": "auto"})
    _element(marker, "path", {"class": "head", "d": "M0 0 L8 4 L0 8 z"})
    paper = dict(zip(("x", "y", "width", "height"), map(_number, view), strict=True))
    _element(svg, "rect", {"class": "paper", **paper})
    places = list(zip(drawing.boxes, laid.nodes, strict=True))
    for box, place in places:
        if box.kind == "frame":
            _element(svg, "rect", {"class": "frame", **_outline(place, 8)})
    for edge in laid.edges:
        points = " L".join(f"{_number(at['x'])} {_number(at['y'])}" for at in edge["points"])
        _element(svg, "path", {"class": "arrow", "d": f"M{points}", "marker-end": "url(#head)"})
    for box, place in places:
        _draw(svg, box, place)
    document: bytes = ElementTree.tostring(svg, encoding="utf-8", xml_declaration=True)
    return document


def places(topology: Topology) -> dict[str, Any]:
    """Where boxes lie and how arrows run, for who draws a topology with figures in its boxes: px from the top left.

    Boxes have room for `ROOM` lines more than they have.
    """
    drawing = drawing_of(topology)
    for box in drawing.boxes:
        box.room = 0 if box.kind in ("frame", "entry") else ROOM
    laid = _laid_out(drawing)
    low, high = laid.bounds["min"], laid.bounds["max"]
    left, top = low["x"] - MARGIN, low["y"] - MARGIN

    def box_at(box: Box, place: dict[str, Any]) -> dict[str, Any]:
        size = place["size"]
        return {
            "role": box.role,
            "name": box.name,
            "sub_topology": box.sub_topology,
            "counted_as": box.counted_as,
            "lines": list(box.lines),
            "x": round(place["center"]["x"] - size["width"] / 2 - left, 1),
            "y": round(place["center"]["y"] - size["height"] / 2 - top, 1),
            "width": round(size["width"], 1),
            "height": round(size["height"], 1),
        }

    return {
        "width": round(high["x"] - left + MARGIN, 1),
        "height": round(high["y"] - top + MARGIN, 1),
        "boxes": [box_at(box, place) for box, place in zip(drawing.boxes, laid.nodes, strict=True)],
        "arrows": [
            {"points": [{"x": round(at["x"] - left, 1), "y": round(at["y"] - top, 1)} for at in edge["points"]]}
            for edge in laid.edges
        ],
    }


def drawing_of(topology: Topology) -> Drawing:
    """What is drawn of a topology."""
    drawing = Drawing()
    streams: dict[str, int] = {}
    written = topology.repartitions()
    for name in topology.user_sources():
        streams[name] = drawing.add(Box("stream", [_short(name)], name, role="source", name=name))
    for name, (writer, by) in written.items():
        lines = [_short(name), _short(f"by {by.by or 'key'}, to {by.targets} task(s)")]
        box = Box("repartition", lines, f"{name}, by {by.by or 'key'}", role="repartition", name=name)
        box.counted_as, box.sub_topology = by.name, writer.id
        streams[name] = drawing.add(box)
    for sub_topology in topology.sub_topologies:
        for place, sink in enumerate(sub_topology.sinks):
            more = [] if sink.where is None else [f"where {sink.where}"]
            box = Box("stream", [_short(line) for line in (sink.stream, *more)], "\n".join([sink.stream, *more]))
            box.role, box.name, box.counted_as = "sink", sink.stream, gate_name(sink, place)
            box.sub_topology = sub_topology.id
            streams[sink.stream] = drawing.add(box)
        _add_sub_topology(drawing, sub_topology, streams)
    return drawing


def _add_sub_topology(drawing: Drawing, sub_topology: SubTopology, streams: dict[str, int]) -> None:
    tasks = f"{sub_topology.partitions} task{'s' if sub_topology.partitions > 1 else ''}"
    box = Box("frame", [f"Sub-topology {sub_topology.id} \N{MIDDLE DOT} {tasks}"], role="sub_topology")
    box.name, box.sub_topology = str(sub_topology.id), sub_topology.id
    frame = drawing.add(box)
    sources = [streams[name] for name in sub_topology.sources]
    at: dict[int | None, int] = {}
    if _needs_entry(sub_topology):
        entry = Box("entry", ["merge" if len(sources) > 1 else "read"], frame=frame, role="entry")
        entry.name, entry.sub_topology = entry.lines[0], sub_topology.id
        at[None] = drawing.add(entry)
        drawing.arrows += [(source, at[None]) for source in sources]
        sources = [at[None]]
    for i, node in enumerate(sub_topology.nodes):
        operator = _operator(node, frame)
        operator.sub_topology = sub_topology.id
        at[i] = drawing.add(operator)
        drawing.arrows.append((sources[0] if node.parent is None else at[node.parent], at[i]))
    drawing.arrows += [(at[sink.parent], streams[sink.stream]) for sink in sub_topology.sinks]
    drawing.arrows += [(at[each.parent], streams[each.stream]) for each in sub_topology.repartitions]


def _needs_entry(sub_topology: SubTopology) -> bool:
    """Whether its records need a box where they come in: streams meet there, or no single operator takes them all."""
    first = sum(node.parent is None for node in sub_topology.nodes)
    passed_on = [each.parent for each in sub_topology.sinks] + [each.parent for each in sub_topology.repartitions]
    return len(sub_topology.sources) > 1 or first > 1 or None in passed_on


def _operator(node: Node, frame: int) -> Box:
    lines = [node.name, *_about(node)]
    if node.store is not None:
        lines.append(f"store {node.store.name}")
    kind = "operator" if node.store is None else "operator stateful"
    shown = [_short(line) for line in lines]
    return Box(kind, shown, json.dumps(node.spec, ensure_ascii=False), frame, name=node.name, counted_as=node.name)


def _about(node: Node) -> Iterator[str]:
    """What an operator is, and the expression or window that says most of it."""
    said = next((str(node.spec[name]) for name in EXPRESSIONS if node.spec.get(name)), None)
    window = node.spec.get("window")
    if isinstance(window, dict):
        said = f"{window.get('type')} window"
    yield node.op if said is None else f"{node.op}: {said}"


def _laid_out(drawing: Drawing) -> graphlay.Layout:
    graph = graphlay.Graph()
    for number, box in enumerate(drawing.boxes):
        width, height = box.size
        inside: dict[str, Any] = {} if box.frame is None else {"parent": box.frame}
        graph.node(number, width=width, height=height, **inside)
    for source, target in drawing.arrows:
        graph.edge(source, target)
    spacing = {"layer_gap": 36.0, "node_gap": 32.0, "compound_header": float(HEADER)}
    return graphlay.layout(graph, options={"direction": "topbottom", "spacing": spacing})


def _draw(svg: ElementTree.Element, box: Box, place: dict[str, Any]) -> None:
    """A box with its lines; of a frame, which lies below the arrows, its heading alone."""
    outline = _outline(place, place["size"]["height"] / 2 if box.kind == "stream" and len(box.lines) == 1 else 8)
    left, top = (place["center"][axis] - place["size"][size] / 2 for axis, size in (("x", "width"), ("y", "height")))
    if box.kind == "frame":
        _element(svg, "text", {"class": "frame", "x": _number(left + 14), "y": _number(top + 19)}, box.lines[0])
        return
    group = _element(svg, "g")
    _element(group, "title", text=box.tooltip or box.lines[0])
    _element(group, "rect", {"class": box.kind, **outline})
    for i, line in enumerate(box.lines):
        at = {"x": _number(place["center"]["x"]), "y": _number(top + 21 + LINE * i)}
        _element(group, "text", {"class": "more" if i else "name", "text-anchor": "middle", **at}, line)


def _outline(place: dict[str, Any], radius: float) -> dict[str, str]:
    center, size = place["center"], place["size"]
    left, top = center["x"] - size["width"] / 2, center["y"] - size["height"] / 2
    shape = {"x": left, "y": top, "width": size["width"], "height": size["height"], "rx": radius}
    return {name: _number(value) for name, value in shape.items()}


def _element(
    parent: ElementTree.Element, name: str, attributes: dict[str, str] | None = None, text: str = ""
) -> ElementTree.Element:
    made = ElementTree.SubElement(parent, name, attributes or {})
    if text:
        made.text = _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
    return made


def _short(text: str) -> str:
    """One line of text, cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_LETTERS else line[: MOST_LETTERS - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
