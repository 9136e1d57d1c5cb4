"""`make screenshots`: pictures of the dashboard's pages for docs/dashboard, of a service that has something to show.

Knows which page is shown in which state. A picture is written anew only where its page looks otherwise: ages, rates and
ids differ with each run, and are a small part of it.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from PIL import Image, ImageChops
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect, sync_playwright

from benchmarks import incidents, sample
from benchmarks.events import ndjson
from benchmarks.running import NDJSON, PATIENCE_S, Running

FOLDER: Final = Path(__file__).parents[1] / "docs" / "dashboard"
RECORDS: Final = 20_000
PARTITIONS: Final = 4
WIDE, NARROW = 1280, 390
HEIGHT, MOST_HEIGHT = 800, 1_500
COLOURS: Final = 128
OTHERWISE: Final = 0.02  # of the pixels
NOTICEABLE: Final = 48  # of 255
SETTLED_MS: Final = 1_500


class Shot(NamedTuple):
    """A page, and what has to be there before it is taken: the name of a heading or the text of something.
    `presses`: what the name of a button begins with that is pressed first, once it can be."""

    name: str
    path: str
    shows: str
    is_narrow_too: bool = False
    presses: str = ""


SHOTS: Final = (
    Shot("job", "/jobs/alert", "Topology", is_narrow_too=True),
    Shot("job-failed", "/jobs/inc_poison", "It failed"),
    Shot("time", "/jobs/bidders/time", "stream time", is_narrow_too=True),
    Shot("why", "/jobs/inc_twice/why?key=order-7", "order-7", is_narrow_too=True),
    Shot("dropped", "/jobs/inc_burst/dropped", "late"),
    Shot("state", "/jobs/bidders/state", "bidders-sessions"),
    Shot("assignment", "/jobs/unique/assignment", "0_0"),
    Shot("job-try", "/jobs/unique/try", "What comes out", presses="run over the last"),
    Shot("streams", "/streams", "bids-unique"),
    Shot("stream", "/streams/bids", "Records"),
    Shot("stream-webhook", "/streams/inc-orders", "shop"),
    Shot("instances", "/instances", "cores"),
    Shot("try", "/try?stream=bids", "What comes out", presses="run over the last"),
    Shot("keys", "/keys", "admin"),
    Shot("overview", "", "Needs somebody", is_narrow_too=True),  # last: by then there are figures to draw
)


def main() -> None:
    """Start a service, fill it, take the pictures."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--only", nargs="*", default=[shot.name for shot in SHOTS], help="names of pictures")
    arguments.add_argument("--folder", type=Path, default=FOLDER, help="where to (%(default)s)")
    given = arguments.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    shots = [shot for shot in SHOTS if shot.name in given.only]
    with (
        tempfile.TemporaryDirectory(prefix="millrace-screenshots-") as folder,
        Running(Path(folder) / "data", instances=2) as running,
        sync_playwright() as driver,
    ):
        running.wait_for_instances()
        fill(running)
        chromium = driver.chromium.launch(executable_path="/usr/bin/chromium-headless-shell")
        for name, taken in pictures(chromium, running, shots):
            print(name, keep(given.folder / f"{name}.png", taken))
        chromium.close()


def fill(running: Running) -> None:
    """The bids of the demo with its three jobs, and what may go wrong, some hours ago."""
    given = sample.sample(RECORDS)
    running.call("POST", "/v1/streams", json={"name": "bids", "partitions": PARTITIONS})
    headers = {"Content-Type": NDJSON}
    running.call("POST", "/v1/streams/bids/records", content=ndjson(_of_now(given.events)), headers=headers)
    for job in sample.jobs(given.rate_per_s):
        running.call("POST", "/v1/jobs", json=job)
    hours_ago = time.time_ns() // 1_000_000 - 3 * incidents.HOUR_MS
    incidents.seed(running.client, hours_ago - hours_ago % incidents.MINUTE_MS)
    for name in ("unique", "bidders", "alert"):  # in this order: what the first writes is the input of the others
        running.wait_until_caught_up(name)
    incidents.settle(running.client)


def _of_now(events: pa.Table) -> pa.Table:
    """The same events, the last of them of this minute."""
    times = events["timestamp"].to_numpy()
    later = (time.time_ns() // 1_000_000 - int(times.max())) // incidents.MINUTE_MS * incidents.MINUTE_MS
    place = events.schema.get_field_index("timestamp")
    return events.set_column(
        place, events.schema.field(place), pa.array(times + later, events.schema.field(place).type)
    )


def pictures(chromium: Browser, running: Running, shots: list[Shot]) -> Iterator[tuple[str, Image.Image]]:
    """By name: light and dark, of some narrow ones too."""
    for scheme in ("light", "dark"):
        for width in (WIDE, NARROW):
            of_width = [shot for shot in shots if width == WIDE or shot.is_narrow_too]
            context = _signed_in(chromium, running, width=width, scheme=scheme)
            for shot in of_width:
                page = context.new_page()
                page.goto(f"/admin{shot.path}")
                if shot.presses:
                    page.get_by_role("button", name=shot.presses).click()
                page.locator("main").get_by_text(shot.shows).first.wait_for()
                expect(page.locator("main .mantine-Loader-root")).to_have_count(0, timeout=PATIENCE_S * 1000)
                page.wait_for_timeout(SETTLED_MS)  # charts are drawn, and what is asked for behind the first answer
                suffix = "-narrow" if width == NARROW else ""
                yield f"{shot.name}{suffix}-{scheme}", _taken(page)
                page.close()
            context.close()


def keep(file: Path, taken: Image.Image) -> str:
    """Write a picture where the one that is there shows something else; says which it was."""
    if file.exists():
        with Image.open(file) as there:
            if there.size == taken.size and _difference(there.convert("RGB"), taken) < OTHERWISE:
                return "is as it was"
    taken.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(file, optimize=True)
    return f"{file.stat().st_size:,} bytes"


def _difference(one: Image.Image, other: Image.Image) -> float:
    """The share of pixels that differ noticeably."""
    differs = ImageChops.difference(one, other).convert("L").point(lambda level: 255 * (level > NOTICEABLE))
    return differs.histogram()[255] / (one.width * one.height)


def _taken(page: Page) -> Image.Image:
    height = min(MOST_HEIGHT, page.evaluate("document.documentElement.scrollHeight"))
    viewport = page.viewport_size
    assert viewport is not None
    page.set_viewport_size({"width": viewport["width"], "height": max(HEIGHT, height)})
    page.wait_for_timeout(SETTLED_MS // 5)
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def _signed_in(chromium: Browser, running: Running, *, width: int, scheme: Any) -> BrowserContext:
    size = ViewportSize(width=width, height=HEIGHT)
    context = chromium.new_context(base_url=running.url, viewport=size, color_scheme=scheme, timezone_id="UTC")
    key = running.client.headers["Authorization"].removeprefix("Bearer ")
    answer = context.request.post("/admin/session", data={"key": key}, headers={"Origin": running.url})
    assert answer.ok, answer.text()
    return context


if __name__ == "__main__":
    main()
