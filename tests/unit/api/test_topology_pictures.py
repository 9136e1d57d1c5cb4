"""Pictures of topologies: what is drawn of one, and that the SVG around it is whole, apart, and safe."""

from __future__ import annotations

from itertools import combinations
from typing import Any
from xml.etree import ElementTree

import pytest

from service.api.topology_pictures import Drawing, drawing_of, picture, places
from service.streams.topology import graph
from service.streams.topology.graph import Topology
from service.streams.topology.spec import JobSpec

ONCE = {"op": "deduplicate", "name": "once", "id": "value->>'id'", "interval_ms": 10}
CLICKS = {"op": "filter", "where": "value->>'kind' = 'click'"}
FINAL = {"stream": "final"}
ALERTS = {"stream": "alerts", "where": "value->>'n' > '3'"}
SVG = "{http://www.w3.org/2000/svg}"

Rectangle = tuple[float, float, float, float]


def compiled(*operators: dict[str, Any], sources: dict[str, int] | None = None, **fields: Any) -> Topology:
    read = sources or {"clicks": 4}
    spec = {"name": "visits", "source": list(read), "operators": list(operators), "sink": [FINAL], **fields}
    return graph.compile(JobSpec.parse(spec), read)


def named(drawing: Drawing) -> list[tuple[str, str]]:
    """The arrows by the names of their boxes."""
    return [(drawing.boxes[a].lines[0], drawing.boxes[b].lines[0]) for a, b in drawing.arrows]


def framed(drawing: Drawing) -> dict[str, list[str]]:
    """Frame → what lies in it."""
    found: dict[str, list[str]] = {box.lines[0]: [] for box in drawing.boxes if box.kind == "frame"}
    for box in drawing.boxes:
        if box.frame is not None:
            found[drawing.boxes[box.frame].lines[0]].append(box.lines[0])
    return found


def drawn(topology: Topology) -> ElementTree.Element:
    return ElementTree.fromstring(picture(topology))


def rectangles(svg: ElementTree.Element, *kinds: str) -> list[Rectangle]:
    """(left, top, right, bottom) of the boxes of these kinds."""
    found = []
    for each in svg.iter(f"{SVG}rect"):
        if each.attrib["class"] in kinds:
            x, y, width, height = (float(each.attrib[name]) for name in ("x", "y", "width", "height"))
            found.append((x, y, x + width, y + height))
    return found


def apart(a: Rectangle, b: Rectangle) -> bool:
    return a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


def test_streams_lie_outside_of_the_frame_and_operators_inside() -> None:
    drawing = drawing_of(compiled(CLICKS, sink=[FINAL, ALERTS]))
    assert framed(drawing) == {"Sub-topology 0 \N{MIDDLE DOT} 4 tasks": ["filter-0"]}
    assert named(drawing) == [("clicks", "filter-0"), ("filter-0", "final"), ("filter-0", "alerts")]
    texts = {box.lines[0]: list(box.lines[1:]) for box in drawing.boxes}
    assert texts["filter-0"] == ["filter: value->>'kind' = 'click'"]
    assert texts["alerts"] == ["where value->>'n' > '3'"]


def test_sub_topologies_hang_together_by_their_repartition_streams() -> None:
    drawing = drawing_of(compiled(CLICKS, ONCE))
    between = "visits-once-repartition"
    assert list(framed(drawing).values()) == [["filter-0"], ["once"]]
    assert named(drawing) == [("clicks", "filter-0"), ("filter-0", between), (between, "once"), ("once", "final")]
    by = next(box for box in drawing.boxes if box.lines[0] == between)
    assert (by.kind, by.lines[1]) == ("repartition", "by value->>'id', to 4 task(s)")
    once = next(box for box in drawing.boxes if box.lines[0] == "once")
    assert (once.kind, once.lines[2]) == ("operator stateful", "store visits-once")


def test_several_sources_meet_and_what_has_no_operator_is_read() -> None:
    drawing = drawing_of(compiled(ONCE | {"op": "deduplicate_by_key_value"}, sources={"clicks": 4, "views": 2}))
    assert list(framed(drawing).values()) == [["read"], ["merge", "once"]]
    assert ("visits-views-repartition", "merge") in named(drawing)
    assert ("clicks", "merge") in named(drawing)


@pytest.mark.parametrize(
    "topology",
    [
        compiled(),
        compiled(CLICKS, ONCE, {"op": "select_key", "key": "value->>'u'"}, {**ONCE, "name": "again"}),
        compiled(ONCE, sources={f"s{i}": 1 + i % 3 for i in range(8)}, sink=[{"stream": f"o{i}"} for i in range(8)]),
    ],
)
def test_boxes_lie_apart_and_inside_of_the_picture(topology: Topology) -> None:
    svg = drawn(topology)
    boxes = rectangles(svg, "stream", "repartition", "operator", "operator stateful", "entry")
    frames = rectangles(svg, "frame")
    assert len(frames) == len(topology.sub_topologies)
    assert len(boxes) + len(frames) == len(drawing_of(topology).boxes)
    assert all(apart(*pair) for pair in combinations(boxes, 2))
    assert all(apart(*pair) for pair in combinations(frames, 2))
    ((left, top, right, bottom),) = rectangles(svg, "paper")
    assert all(left <= b[0] and top <= b[1] and b[2] <= right and b[3] <= bottom for b in [*boxes, *frames])


def test_text_is_escaped_and_what_xml_can_not_hold_is_replaced() -> None:
    text = "value->>'a' < '<script>&\"' AND key <> '\x01\ud83d\ude00'".encode("utf-16", "surrogatepass").decode(
        "utf-16"
    )
    svg = drawn(compiled({"op": "filter", "where": text}))
    assert not list(svg.iter(f"{SVG}script"))
    titles = [each.text or "" for each in svg.iter(f"{SVG}title")]
    assert any("<script>&" in title and "\U0001f600" in title for title in titles)
    shown = [each.text or "" for each in svg.iter(f"{SVG}text")]
    assert any(line.endswith("\N{HORIZONTAL ELLIPSIS}") for line in shown)
    assert "\x01" not in "".join([*titles, *shown])


def test_the_same_topology_is_the_same_picture_for_light_and_dark() -> None:
    topology = compiled(CLICKS, ONCE)
    assert picture(topology) == picture(Topology.from_json(topology.to_json()))
    assert b"prefers-color-scheme: dark" in picture(topology)


def test_boxes_with_room_for_figures_lie_apart_and_say_what_they_are_of() -> None:
    topology = compiled(CLICKS, ONCE, sink=[FINAL, ALERTS])
    found = places(topology)
    boxes = {(box["role"], box["name"]): box for box in found["boxes"]}
    assert {name: (box["sub_topology"], box["counted_as"]) for name, box in boxes.items()} == {
        ("source", "clicks"): (None, None),
        ("repartition", "visits-once-repartition"): (0, "once-repartition"),
        ("sub_topology", "0"): (0, None),
        ("operator", "filter-0"): (0, "filter-0"),
        ("sub_topology", "1"): (1, None),
        ("operator", "once"): (1, "once"),
        ("sink", "final"): (1, "sink-0"),
        ("sink", "alerts"): (1, "sink-1"),
    }
    drawn_ones = [box for box in found["boxes"] if box["role"] != "sub_topology"]
    outlines = [(box["x"], box["y"], box["x"] + box["width"], box["y"] + box["height"]) for box in drawn_ones]
    assert all(apart(*pair) for pair in combinations(outlines, 2))
    assert all(
        x >= 0 and y >= 0 and right <= found["width"] and end <= found["height"] for x, y, right, end in outlines
    )
    assert all(box["height"] >= 18 * (len(box["lines"]) + 2) for box in drawn_ones)
    assert len(found["arrows"]) == len(drawing_of(topology).arrows)
    heads = {(round(arrow["points"][-1]["x"]), round(arrow["points"][-1]["y"])) for arrow in found["arrows"]}
    assert any(abs(y - boxes["sink", "final"]["y"]) <= 2 for _, y in heads)
