"""Streams: listed, shown, made, deleted."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.filesize import decimal

from millrace_client.commands.asking import Asked, Confirmed, StreamName, command, confirm
from millrace_client.commands.failures import Failed
from millrace_client.commands.printing import Column, duration, optional, print_table
from millrace_client.exchanges import path_of

app = typer.Typer(help="Streams: list, show, create, delete.", no_args_is_help=True)

COLUMNS = (
    Column("name", lambda each: each["name"]),
    Column("kind", lambda each: each["kind"]),
    Column("partitions", lambda each: str(len(each["partitions"])), is_number=True),
    Column("records", lambda each: str(each["records"]), is_number=True),
    Column("size", lambda each: decimal(each["bytes"]), is_number=True),
    Column("retention", lambda each: duration(each["retention_ms"])),
)
PARTITIONS = (
    Column("partition", lambda each: str(each["partition"]), is_number=True),
    Column("start", lambda each: str(each["start_offset"]), is_number=True),
    Column("end", lambda each: str(each["end_offset"]), is_number=True),
)


@command(app, "list")
def list_streams(
    asked: Asked,
    has_internal: Annotated[bool, typer.Option("--all", help="Also those that jobs keep for themselves.")] = False,
) -> None:
    """List streams."""
    found = asked.client.items("/v1/streams", {"limit": 1_000})
    asked.show_list((each for each in found if has_internal or each["kind"] == "user"), COLUMNS)


@command(app, "show")
def show_stream(asked: Asked, stream: StreamName) -> None:
    """Show a stream and its partitions."""
    view = asked.client.call("GET", path_of("streams", stream))
    asked.show(view, _members(view))
    if not asked.is_json:
        print_table(view["partitions"], PARTITIONS)


def _members(view: dict[str, Any]) -> dict[str, str]:
    fields = ", ".join(f"{name}: {kind}" for name, kind in (view["fields"] or {}).items())
    return {
        "name": view["name"],
        "kind": view["kind"],
        "records": str(view["records"]),
        "size": decimal(view["bytes"]),
        "retention": duration(view["retention_ms"]),
        "fields": optional(fields),
        "created": view["created_at"],
    }


@command(app, "create")
def create_stream(
    asked: Asked,
    stream: Annotated[str, typer.Argument(metavar="STREAM")],
    partitions: Annotated[int | None, typer.Option(help="How many; it never changes.", show_default="4")] = None,
    retention_ms: Annotated[
        int | None, typer.Option(help="How long records are kept.", show_default="for ever")
    ] = None,
    field: Annotated[
        list[str] | None, typer.Option(help="A member of every value: NAME=TYPE, such as `amount=double?`.")
    ] = None,
) -> None:
    """Make a stream; one that is there and equal is that stream."""
    given = {"partitions": partitions, "retention_ms": retention_ms, "fields": _fields(field) if field else None}
    body = {"name": stream} | {name: value for name, value in given.items() if value is not None}
    view = asked.client.call("POST", "/v1/streams", body, is_repeatable=True)
    asked.done(view, f"stream {view['name']} has {len(view['partitions'])} partitions")


def _fields(given: list[str]) -> dict[str, str]:
    pairs = [each.partition("=") for each in given]
    if wrong := [each for each, (name, _, kind) in zip(given, pairs, strict=True) if not (name and kind)]:
        raise Failed(f"{wrong[0]!r} is no field: NAME=TYPE, such as amount=double?", 2)
    return {name: kind for name, _, kind in pairs}


@command(app, "delete")
def delete_stream(asked: Asked, stream: StreamName, yes: Confirmed = False) -> None:
    """Delete a stream with its records; not one that a job reads or writes."""
    confirm(f"Delete the stream {stream!r} with all its records?", yes)
    asked.client.call("DELETE", path_of("streams", stream))
    asked.done({"name": stream, "deleted": True}, f"stream {stream} is deleted")
