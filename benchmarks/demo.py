"""`make demo`: a sample of bids in over HTTP, through three jobs on Spark, and out again, step by step.

Everything here uses the public API of a freshly started service, and shows the calls so that they can be repeated
with curl. The results are compared with a plain count of the same events; any difference is an error exit.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from benchmarks import incidents, sample
from benchmarks.events import ndjson
from benchmarks.running import NDJSON, Running
from benchmarks.sample import Results, Sample

RECORDS = 300_000
BODY_RECORDS = 50_000
PARTITIONS = 4
WIDTH = 72
NUMBERS = {"bids", "highest price"}
PURPOSES = {
    "unique": "every bid once, however often it was delivered",
    "bidders": "the sessions of each bidder; two minutes without a bid end one",
    "alert": "market makers who bid too rarely, judged once a minute, when it is over",
}

console = Console(highlight=False)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--keep", action="store_true", help="leave the service running")
    arguments.add_argument("--records", type=int, default=RECORDS, help="about how many deliveries (%(default)s)")
    given = arguments.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="millrace-demo-"))
    running = Running(folder / "data", arguments=("--spark-ui",))
    try:
        is_right = _show(running, sample.sample(given.records))
        if given.keep:
            _go_wrong(running)
            _keep_running(running)
        else:
            console.print("\nThe service ends here. [bold]make demo KEEP=1[/bold] leaves it running for these calls.")
    finally:
        if running.process.poll() is None:
            running.stop()
        shutil.rmtree(folder)
    return 0 if is_right else 1


def _show(running: Running, given: Sample) -> bool:
    console.print("[bold]Millrace[/bold]: stateful stream operators over HTTP, run by Spark")
    _start(running)
    _post(running, given)
    _submit(running, given)
    _look_up_open(running)
    _flush(running)
    found = _results(running)
    _show_unique(found, given)
    _show_bidders(running, found)
    _show_alert(running, found, given)
    return _check(found, given)


# ---------------------------------------------------------------- the steps


def _start(running: Running) -> None:
    _step("Start", "One process serves the API, another is a local Spark. Nothing else is needed.")
    with console.status("starting"):
        running.start().wait_for_instances()
    (instance,) = running.call("GET", "/v1/instances")["items"]
    _facts({"API": running.url, "its pages": f"{running.url}/docs", "Spark": instance["spark"]["ui"]})
    _shell(f"API={running.url}", f'AUTH="Authorization: Bearer $(cat {running.data_dir}/admin-key)"')


def _post(running: Running, given: Sample) -> None:
    count = given.events.num_rows
    _step("Post records", f"{count:,} bids of 25 minutes. A tenth comes twice, all come seconds out of order.")
    _call(running, "POST", "/v1/streams", {"name": "bids", "partitions": PARTITIONS})
    starts = range(0, count, BODY_RECORDS)
    bodies = [ndjson(given.events.slice(start, BODY_RECORDS)) for start in starts]
    file = running.data_dir.with_name("bids.ndjson")
    file.write_bytes(bodies[0])
    _shell(
        'curl -H "$AUTH" $API/v1/streams/bids/records \\',
        f'     -H "Content-Type: {NDJSON}" --data-binary @{file}',
    )
    started = time.monotonic()
    for start, body in zip(starts, bodies, strict=True):
        headers = {"Content-Type": NDJSON, "Idempotency-Key": f"demo-{start}"}
        running.call("POST", "/v1/streams/bids/records", content=body, headers=headers)
    seconds = time.monotonic() - started
    _say(f"All are on disk after {seconds:.1f} s: {count / seconds:,.0f} records a second.")


def _submit(running: Running, given: Sample) -> None:
    _step("Submit three jobs", "Each is one POST. What one writes, another may read.")
    started = time.monotonic()
    for job in sample.jobs(given.rate_per_s):
        _paragraph(f"[bold]{job['name']}[/bold]: {PURPOSES[job['name']]}")
        _call(running, "POST", "/v1/jobs", job)
    with console.status("the jobs read the bids"):
        for name in PURPOSES:  # in this order: what the first writes is the input of the others
            running.wait_until_caught_up(name)
    seconds = time.monotonic() - started
    _paragraph(f"Every job has read everything {seconds:.1f} s after the first POST.")
    _shell('curl -H "$AUTH" "$API/v1/jobs/alert?wait=caught_up"')


def _look_up_open(running: Running) -> None:
    _step("Look something up", "What a job knows can be read at any time. This session is still open:")
    page = _call(running, "GET", f"/v1/stores/bidders-sessions/sessions/{sample.MAKERS[0]}")
    _session_table(page["items"])


def _flush(running: Running) -> None:
    _step("Close what is open", "Only later bids would end the last sessions, and the sample has none.")
    for name in ("bidders", "alert"):
        _call(running, "POST", f"/v1/jobs/{name}:flush")
        running.wait_until_caught_up(name)


def _show_unique(found: Results, given: Sample) -> None:
    _step("Read the results", "They are streams too.")
    repeated = given.events.num_rows - found.unique
    _paragraph(f"[bold]unique[/bold] left {found.unique:,} bids; {repeated:,} deliveries were repetitions.")
    _shell('curl -H "$AUTH" "$API/v1/streams/bids-unique/records?partition=0&limit=5"')


def _show_bidders(running: Running, found: Results) -> None:
    bidders = len({bidder for bidder, _, _ in found.sessions})
    _paragraph(f"[bold]bidders[/bold] found {len(found.sessions):,} sessions of {bidders:,} bidders. The busiest:")
    _shell('curl -H "$AUTH" "$API/v1/streams/bidder-sessions/records?partition=0&limit=5"')
    busiest = sorted(found.sessions.items(), key=lambda session: -session[1][0])[:5]
    _table(
        ("bidder", "first bid", "last bid", "bids", "highest price"),
        (
            (key, _clock(start), _clock(end), f"{bids:,}", f"{highest / 100:,.2f}")
            for (key, start, end), (bids, highest) in busiest
        ),
    )
    _say("Others came and went:")
    bidder = _with_three_sessions(found)
    _session_table(_call(running, "GET", f"/v1/stores/bidders-sessions/sessions/{bidder}")["items"])


def _show_alert(running: Running, found: Results, given: Sample) -> None:
    _paragraph(
        f"[bold]alert[/bold] found {len(found.alerts)} minutes in which a maker had fewer than "
        f"{given.rate_per_s:,} bids:"
    )
    _shell('curl -H "$AUTH" "$API/v1/streams/alerts/records?partition=0"')
    _table(
        ("maker", "from", "to", "bids"),
        ((key, _clock(start), _clock(end), f"{bids:,}") for (key, start, end), bids in sorted(found.alerts.items())),
    )
    _say("The minutes around them:")
    where = {"from": sample.SILENCE_MS - sample.MINUTE_MS, "limit": 4}
    page = _call(running, "GET", f"/v1/stores/alert-per_minute/windows/{sample.SILENT}", params=where)
    _table(("from", "to", "bids", "is_final"), map(_window_row, page["items"]))


def _check(found: Results, given: Sample) -> bool:
    with console.status("counting the same events with plain loops"):
        plain = sample.plain_results(given)
    _step("Check", "Plain loops over the same events, without Millrace, count:")
    for name, ours, theirs in zip(("bids", "sessions", "alerts"), found, plain, strict=True):
        verdict = "[green]equal[/green]" if ours == theirs else "[red]different[/red]"
        _say(f"{theirs if isinstance(theirs, int) else len(theirs):>9,} {name:<9} {verdict}")
    return found == plain


def _go_wrong(running: Running) -> None:
    """Data for the dashboard: what it is for. Nobody waits for it here."""
    _step(
        "Let something go wrong",
        "Nine streams inc-…, for the dashboard: each job inc_… there has a trouble of its own.",
    )
    hours_ago = time.time_ns() // 1_000_000 - 3 * incidents.HOUR_MS
    incidents.seed(running.client, hours_ago - hours_ago % incidents.MINUTE_MS)


def _keep_running(running: Running) -> None:
    link = running.call("POST", "/admin/codes")["url"]
    console.print(f"\nThe service runs on at [bold]{running.url}[/bold]; Ctrl-C ends it.")
    console.print(f"Its dashboard, signed in with a code for once: [bold]{link}[/bold]", soft_wrap=True)
    try:
        running.process.wait()
    except KeyboardInterrupt:
        console.print("ending")


# ---------------------------------------------------------------- what they read


def _results(running: Running) -> Results:
    sessions = _windows(running, "bidder-sessions")
    return Results(
        unique=running.read("bids-unique", PARTITIONS).num_rows,
        sessions={window: (value["bids"], value["highest"]) for window, value in sessions},
        alerts={window: value["bids"] for window, value in _windows(running, "alerts")},
    )


def _windows(running: Running, stream: str) -> Iterator[tuple[tuple[str, int, int], Any]]:
    """(key, first and last ms of the window) and value of each record."""
    table = running.read(stream, PARTITIONS)
    columns = (table[name].to_pylist() for name in ("key", "window_start", "window_end", "value"))
    for key, start, end, value in zip(*columns, strict=True):
        yield (key.decode(), start, end), json.loads(value)


def _with_three_sessions(found: Results) -> str:
    """A bidder who came, went and came again; the first by name of those with the most bids."""
    sessions: dict[str, list[int]] = {}
    for (key, _, _), (bids, _) in found.sessions.items():
        sessions.setdefault(key, []).append(bids)
    return min(sessions, key=lambda key: (abs(len(sessions[key]) - 3), -sum(sessions[key]), key))


# ---------------------------------------------------------------- what they show


def _session_table(items: Iterable[Mapping[str, Any]]) -> None:
    _table(("first bid", "last bid", "bids", "highest price", "is_final"), map(_session_row, items))


def _session_row(item: Mapping[str, Any]) -> tuple[str, ...]:
    window, value = item["window"], item["value"]
    highest = f"{value['highest'] / 100:,.2f}"
    return _clock(window["start"]), _clock(window["end"]), f"{value['bids']:,}", highest, json.dumps(item["is_final"])


def _window_row(item: Mapping[str, Any]) -> tuple[str, ...]:
    window, bids = item["window"], item["value"]["bids"]
    return _clock(window["start"]), _clock(window["end"]), f"{bids:,}", json.dumps(item["is_final"])


def _clock(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%H:%M:%S}"


def _call(running: Running, method: str, path: str, body: Any = None, params: Mapping[str, Any] | None = None) -> Any:
    """Make a call, and show how to make it with curl."""
    query = "&".join(f"{name}={value}" for name, value in (params or {}).items())
    url = f'"$API{path}?{query}"' if query else f"$API{path}"
    verb = " -X POST" if method == "POST" and body is None else ""
    if body is None:
        _shell(f'curl -H "$AUTH"{verb} {url}')
    else:
        _shell(f"curl -H \"$AUTH\" {url} --json @- <<'JSON'", *_lines(body), "JSON")
    return running.call(method, path, json=body, params=params)


def _lines(body: Mapping[str, Any]) -> Iterator[str]:
    """A body as JSON, an operator a line or, where it is long, a few."""
    if "operators" not in body:
        yield json.dumps(body)
        return
    yield f'{{"name": "{body["name"]}", "source": "{body["source"]}", "operators": ['
    operators = [json.dumps(operator) for operator in body["operators"]]
    for operator in ",\n".join(operators).split("\n"):
        yield from _folded(operator)
    yield f'], "sink": {json.dumps(body["sink"])}}}'


def _folded(text: str) -> Iterator[str]:
    """JSON in lines that fit, cut between members."""
    line, *members = text.split(', "')
    indent = "  "
    for member in members:
        if len(indent) + len(line) + len(member) > WIDTH:
            yield f"{indent}{line},"
            line, indent = f'"{member}', "   "
        else:
            line += f', "{member}'
    yield indent + line


def _step(title: str, sentence: str) -> None:
    console.print(f"\n[bold cyan]{title}[/bold cyan]")
    _say(sentence)


def _paragraph(text: str) -> None:
    console.print()
    _say(text)


def _say(text: str) -> None:
    console.print(f"  {text}", soft_wrap=True)


def _shell(*lines: str) -> None:
    for line in lines:
        console.print(f"    [dim]{escape(line)}[/dim]", soft_wrap=True)


def _facts(facts: Mapping[str, str]) -> None:
    width = max(map(len, facts))
    for name, value in facts.items():
        _say(f"{name:<{width}}  [bold]{value}[/bold]")


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="italic")
    for column in columns:
        table.add_column(column, justify="right" if column in NUMBERS else "left")
    for row in rows:
        table.add_row(*row)
    console.print(Padding(table, (0, 0, 0, 6), expand=False))


if __name__ == "__main__":
    sys.exit(main())
