"""Stores: listed, and looked into by key or over a range of keys."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from millrace_client.commands.asking import Asked, JobName, StoreName, command
from millrace_client.commands.failures import REFUSED, Failed
from millrace_client.commands.printing import Column, compact, moment, optional
from millrace_client.exchanges import path_of
from millrace_client.records import Entry
from millrace_client.stores import Store

app = typer.Typer(help="Stores: list, get, range.", no_args_is_help=True)

COLUMNS = (
    Column("name", lambda each: each["name"]),
    Column("type", lambda each: each["type"]),
    Column("kind", lambda each: each["kind"]),
    Column("partitions", lambda each: str(len(each["partitions"])), is_number=True),
    Column("entries", lambda each: optional(each["entries"]), is_number=True),
    Column("size", lambda each: optional(None if each["bytes"] is None else decimal(each["bytes"])), is_number=True),
    Column("lag", lambda each: str(each["lag"]), is_number=True),
)
ENTRIES = (
    Column("key", lambda each: optional(each.key)),
    Column("from", lambda each: moment(each.window.start if each.window else None)),
    Column("to", lambda each: moment(each.window.end if each.window else None)),
    Column("final", lambda each: "yes" if each.is_final else "no"),
    Column("value", lambda each: compact(each.value)),
)

Key = Annotated[str, typer.Argument(metavar="KEY")]
MinPosition = Annotated[
    str | None, typer.Option(help="The position of a post: wait until the store has it, see --timeout-ms.")
]
TimeoutMs = Annotated[int | None, typer.Option(help="How long to wait for that.")]


@command(app, "list")
def list_stores(asked: Asked) -> None:
    """List stores."""
    asked.show_list(asked.client.items("/v1/stores", {"limit": 1_000}), COLUMNS)


@command(app, "get")
def get_entries(
    asked: Asked, store: StoreName, key: Key, min_position: MinPosition = None, timeout_ms: TimeoutMs = None
) -> None:
    """Show all entries of a key."""
    _get(asked, store, key, min_position, timeout_ms)


@command(app, "range")
def range_entries(
    asked: Asked,
    store: StoreName,
    from_key: Annotated[str | None, typer.Option(help="The first key.", show_default="the first there is")] = None,
    to_key: Annotated[str | None, typer.Option(help="The last key.", show_default="the last there is")] = None,
    most: Annotated[
        int | None, typer.Option("--max", min=1, help="So many entries at most.", show_default="all")
    ] = None,
) -> None:
    """Show entries of all keys, or of those from one to another."""
    _show(asked, islice(_store(asked, store).range(from_key, to_key), most))


def lookup(
    asked: Asked,
    job: JobName,
    store: Annotated[str, typer.Argument(metavar="STORE", help="The operator's name, or the whole name of the store.")],
    key: Key,
    min_position: MinPosition = None,
    timeout_ms: TimeoutMs = None,
) -> None:
    """Show what a store of a job has for a key."""
    stores = asked.client.call("GET", path_of("jobs", job))["stores"]
    found = [name for name in (store, f"{job}-{store}") if name in stores]
    if not found:
        raise Failed(f"the job {job!r} has no store {store!r}: {', '.join(stores) or 'none'}", REFUSED)
    _get(asked, found[0], key, min_position, timeout_ms)


def _get(asked: Asked, store: str, key: str, min_position: str | None, timeout_ms: int | None) -> None:
    filters = {"min_position": min_position, "timeout_ms": timeout_ms}
    found = _store(asked, store).get(key, **filters)
    if not found.entries and not asked.is_json:
        typer.echo(f"{store} has nothing for {key!r}", err=True)
        return
    _show(asked, found.entries)


def _store(asked: Asked, name: str) -> Store:
    return Store(asked.client, name)


def _show(asked: Asked, entries: Iterable[Entry]) -> None:
    asked.show_list(map(_as_json, entries) if asked.is_json else entries, ENTRIES)


def _as_json(entry: Entry) -> dict[str, Any]:
    """As the API has it."""
    return {
        "key": entry.key,
        "window": entry.window._asdict() if entry.window else None,
        "value": entry.value,
        "timestamp": entry.timestamp,
        "closes_at": entry.closes_at,
        "is_final": entry.is_final,
    }
