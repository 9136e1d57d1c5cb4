"""Jobs: listed, shown, submitted, started and stopped, deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from millrace_client.commands.asking import Asked, Confirmed, JobName, command, confirm
from millrace_client.commands.failures import Failed, failure_of
from millrace_client.commands.manifests import read_document
from millrace_client.commands.printing import Column, moment, optional, print_table
from millrace_client.errors import ApiError
from millrace_client.exchanges import path_of
from millrace_client.jobs import Job
from millrace_client.records import JobView

app = typer.Typer(help="Jobs: list, show, submit, start, stop, pause, delete.", no_args_is_help=True)

TIMEOUT_S = 60.0

Waiting = Annotated[bool, typer.Option("--wait", help=f"Return when it is so, or after {TIMEOUT_S:g} s with an error.")]


def _sources(view: dict[str, Any]) -> str:
    source = view["spec"]["source"]
    return source if isinstance(source, str) else ", ".join(source)


def _sinks(view: dict[str, Any]) -> str:
    sink = view["spec"]["sink"]
    return optional(sink if isinstance(sink, str | None) else ", ".join(each["stream"] for each in sink))


def _why(view: dict[str, Any]) -> str:
    error = view["error"]
    return f"{error['code']}: {error['detail']}" if error else view["reason"]


COLUMNS = (
    Column("name", lambda each: each["name"]),
    Column("state", lambda each: each["state"]),
    Column("source", _sources),
    Column("sink", _sinks),
    Column("lag", lambda each: str(sum(position["lag"] for position in each["positions"])), is_number=True),
    Column("reason", _why),
)
POSITIONS = (
    Column("stream", lambda each: each["stream"]),
    Column("partition", lambda each: str(each["partition"]), is_number=True),
    Column("position", lambda each: str(each["position"]), is_number=True),
    Column("end", lambda each: str(each["end"]), is_number=True),
    Column("lag", lambda each: str(each["lag"]), is_number=True),
)


@command(app, "list")
def list_jobs(
    asked: Asked, state: Annotated[str | None, typer.Option(help="Those in this state alone.")] = None
) -> None:
    """List jobs."""
    asked.show_list(asked.client.items("/v1/jobs", {"limit": 1_000, "state": state}), COLUMNS)


@command(app, "show")
def show_job(asked: Asked, job: JobName) -> None:
    """Show a job and how far it has read."""
    view = asked.client.call("GET", path_of("jobs", job))
    members = {
        "name": view["name"],
        "state": f"{view['state']}, {'caught up' if view['caught_up'] else 'behind'}",
        "reason": _why(view),
        "source": _sources(view),
        "sink": _sinks(view),
        "operators": optional(", ".join(each["op"] for each in view["spec"]["operators"])),
        "stores": optional(", ".join(view["stores"])),
        "stream time": moment(view["stream_time"]),
        "version": str(view["spec_version"]),
        "created": view["created_at"],
    }
    asked.show(view, members)
    if not asked.is_json:
        print_table(view["positions"], POSITIONS)


@command(app, "submit")
def submit_job(
    asked: Asked,
    file: Annotated[Path, typer.Argument(help="The specification as YAML or JSON; `-`: standard input.")],
    is_waiting: Waiting = False,
) -> None:
    """Make a job and start it; one that is there and equal is that job."""
    document = read_document(file)
    if not isinstance(document.body, dict) or not isinstance(document.body.get("name"), str):
        raise Failed(f"{document.place('')}: is no specification of a job, which has a `name`")
    try:
        job = Job.submit(asked.client, document.body)
    except ApiError as error:
        raise failure_of(error, document.place) from None
    _say(asked, job.wait("running", TIMEOUT_S) if is_waiting else job.view())


@command(app, "start")
def start_job(asked: Asked, name: JobName, is_waiting: Waiting = False) -> None:
    """Run a job again that is paused, stopped or failed, from where it stood; one that is changing gives that up."""
    job = _job(asked, name)
    view = job.resume() if job.view()["state"] in ("paused", "changing") else job.restart()
    _say(asked, job.wait("running", TIMEOUT_S) if is_waiting else view)


@command(app, "stop")
def stop_job(asked: Asked, name: JobName, is_waiting: Waiting = False) -> None:
    """Stop a job once what is under way is committed."""
    job = _job(asked, name)
    view = job.stop()
    _say(asked, job.wait("stopped", TIMEOUT_S) if is_waiting else view)


@command(app, "pause")
def pause_job(asked: Asked, name: JobName) -> None:
    """Have a job read nothing until it is started."""
    _say(asked, _job(asked, name).pause())


@command(app, "delete")
def delete_job(asked: Asked, name: JobName, yes: Confirmed = False) -> None:
    """Delete a stopped job with its stores; its sinks stay."""
    confirm(f"Delete the job {name!r} with its stores?", yes)
    _job(asked, name).delete()
    asked.done({"name": name, "deleted": True}, f"job {name} is deleted")


def _job(asked: Asked, name: str) -> Job:
    return Job(asked.client, name)


def _say(asked: Asked, view: JobView) -> None:
    asked.done(view, f"job {view['name']} is {view['state']}")
