"""Server-Sent Events out of pieces: however they are cut, and whatever their text holds."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from millrace_client.consumer import Event, EventParser

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)


@given(st.lists(TEXT, max_size=5), st.lists(st.integers(0, 400), max_size=6))
def test_events_are_the_same_however_they_are_cut(values: list[str], cuts: list[int]) -> None:
    """Also texts with line ends of Unicode, which are none of Server-Sent Events."""
    events = [Event("message", f"id-{n}", {"value": value}) for n, value in enumerate(values)]
    frames = [f"data: {json.dumps(event.data, ensure_ascii=False)}\nid: {event.id}\n\n" for event in events]
    text = b": following\nid: id\nretry: 1000\n\n" + "".join(frames).encode()
    parser, places = EventParser(), sorted({0, *cuts, len(text)})
    pieces = [text[begin:end] for begin, end in pairwise(places)]
    assert [event for piece in pieces for event in parser.feed(piece)] == [Event("message", "id", None), *events]


def test_an_event_says_of_which_kind_it_is() -> None:
    [event] = EventParser().feed(b'event: error\ndata: {"code":"unknown_stream","detail":""}\n\n')
    assert event == Event("error", None, {"code": "unknown_stream", "detail": ""})
