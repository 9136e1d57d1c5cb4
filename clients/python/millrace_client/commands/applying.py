"""What a file declares is made so: what is not there is made, what is different is changed, nothing is deleted.

A plan is made first, of everything; only then something is changed. Of a stream those settings count that the file has;
a job is to be as the file has it, with the service's defaults for the rest. What a job's change means for its stores is
what the service says of it (`PUT …?dry_run=true`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from millrace_client.commands.asking import Asked
from millrace_client.commands.differences import Difference, differences
from millrace_client.commands.failures import REFUSED, UNAVAILABLE, Failed, failure_of, in_words
from millrace_client.commands.manifests import Declared, Manifest, read_manifest
from millrace_client.commands.printing import print_json, printable
from millrace_client.errors import ApiError, Fault, JobFailed, NotFoundError
from millrace_client.exchanges import json_request, path_of
from millrace_client.jobs import Job
from millrace_client.records import JobView

Action = Literal["create", "change", "unchanged"]

CHANGING: Final = "changing"  # a job that reads what is on its way before it is another version
TIMEOUT_S: Final = 60.0  # for that

DONE = {"create": "created", "change": "changed", "unchanged": "unchanged"}
SIGNS = {"create": "+", "change": "~", "unchanged": " "}


@dataclass(frozen=True, slots=True)
class Step:
    """What becomes of a stream or job. `tag`: of a stream's present state; `notes`: what the service says of a change;
    `job`: as it was seen, where it changes.
    """

    kind: Literal["stream", "job"]
    declared: Declared
    action: Action
    tag: str = ""
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    job: Job | None = None

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        changes = [{"path": each.path, "before": each.before, "after": each.after} for each in self.differences]
        return {
            "kind": self.kind,
            "name": self.declared.name,
            "action": self.action,
            "differences": changes,
            "notes": self.notes,
        }


def apply(
    asked: Asked,
    file: Annotated[Path, typer.Option("--file", "-f", help="Streams and jobs as YAML or JSON; `-`: standard input.")],
    is_dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
) -> None:
    """Make streams and jobs as a file has them; what is so already stays, and nothing is deleted."""
    steps = plan(asked, read_manifest(file))
    for step in steps:
        if not is_dry_run:
            _carry_out(asked, step)
        if not asked.is_json:
            _say(step, is_dry_run)
    if asked.is_json:
        print_json({"dry_run": is_dry_run, "steps": [step.as_json() for step in steps]})
    elif all(step.action == "unchanged" for step in steps):
        typer.echo("nothing to do")


def plan(asked: Asked, manifest: Manifest) -> list[Step]:
    """What is to be done, streams first. Raises Failed where the service would not do it."""
    steps: list[Step] = []
    for each in manifest.streams:
        with _in_place(each):
            steps.append(_stream_step(asked, each))
    coming = {step.declared.name for step in steps if step.action == "create"}
    for each in manifest.jobs:
        with _in_place(each):
            steps.append(_job_step(asked, each, coming))
        coming |= _sinks(each.body)
    return steps


@contextmanager
def _in_place(declared: Declared) -> Iterator[None]:
    """What the service refuses is said with its place in the file."""
    try:
        yield
    except ApiError as error:
        raise failure_of(error, declared.place) from None


# ---------------------------------------------------------------- what is to be done


def _stream_step(asked: Asked, declared: Declared) -> Step:
    try:
        answer = asked.client.answer(json_request("GET", path_of("streams", declared.name)))
    except NotFoundError:
        return Step("stream", declared, "create")
    view = answer.json()
    present = {**view, "partitions": len(view["partitions"])}
    if unknown := [name for name in declared.body if name not in present]:
        raise Failed(f"{declared.place(f'/{unknown[0]}')}: is no setting of a stream", REFUSED)
    found = [*differences({name: present[name] for name in declared.body}, declared.body)]
    if present["partitions"] != declared.body.get("partitions", present["partitions"]):
        said = f"{declared.name!r} has {present['partitions']} partitions, and never another number"
        raise Failed(f"{declared.place('/partitions')}: {said}", REFUSED)
    return Step("stream", declared, "change" if found else "unchanged", answer.headers["ETag"], found)


def _job_step(asked: Asked, declared: Declared, coming: set[str]) -> Step:
    job = Job(asked.client, declared.name)
    try:
        view = _at_rest(job)
    except NotFoundError:
        if not _sources(declared.body) & coming:  # else it is judged when they are there
            asked.client.call("POST", "/v1/jobs:validate", declared.body, is_repeatable=True)
        return Step("job", declared, "create")
    verdict = job.dry_run(declared.body)
    found = [*differences(view["spec"], verdict["spec"])]
    if not found:
        return Step("job", declared, "unchanged")
    if not verdict["is_possible"]:
        faults = [Fault(each["pointer"], each["detail"]) for each in verdict["errors"]]
        raise Failed(f"{declared.name!r} can not be changed so: {in_words(faults, declared.place)}", REFUSED)
    return Step("job", declared, "change", differences=found, notes=[*_notes(verdict)], job=job)


def _at_rest(job: Job) -> JobView:
    """A job that is not about to be another version: what the file has is held against the one that it becomes."""
    view = job.view()
    if view["state"] == CHANGING:
        with suppress(JobFailed, TimeoutError):
            job.wait("running", TIMEOUT_S)
        view = job.view()
    if view["state"] == CHANGING:
        said = f"{job.name!r} is still on its way to version {view['spec_version'] + 1}, after {TIMEOUT_S:g} s"
        raise Failed(f"{said}: try again, or give that version up (`millrace job start {job.name}`)", UNAVAILABLE)
    return view


def _notes(verdict: Mapping[str, Any]) -> Iterator[str]:
    for kind, name in ("operators", "operator"), ("sinks", "stream"), ("sources", "stream"):
        for each in verdict[kind]:
            if each["verdict"] != "unchanged":
                yield f"{kind.removesuffix('s')} {each[name]}: {each['verdict']}: {each['detail']}"
    yield from (f"warning: {each['detail']}" for each in verdict["warnings"])


def _sources(body: Mapping[str, Any]) -> set[str]:
    source = body.get("source")
    return {source} if isinstance(source, str) else {each for each in source or () if isinstance(each, str)}


def _sinks(body: Mapping[str, Any]) -> set[str]:
    sink = body.get("sink")
    if isinstance(sink, str):
        return {sink}
    return {str(each.get("stream")) for each in sink if isinstance(each, dict)} if isinstance(sink, list) else set()


# ---------------------------------------------------------------- doing it


def _carry_out(asked: Asked, step: Step) -> None:
    body = step.declared.body
    with _in_place(step.declared):
        if step.action == "create":
            asked.client.call("POST", f"/v1/{step.kind}s", body, is_repeatable=True)
        elif step.job is not None:
            view = step.job.update(body)
            if view["state"] == CHANGING:
                step.notes.append(f"version {view['spec_version'] + 1} begins when what is on its way is read")
        elif step.action == "change":
            path = path_of("streams", step.declared.name)
            asked.client.call("PATCH", path, _changed(step), headers={"If-Match": step.tag})


def _changed(step: Step) -> dict[str, Any]:
    """The settings of a stream that are different: `fields` is one, whatever is different in it."""
    names = {each.path.partition(".")[0] for each in step.differences}
    return {name: value for name, value in step.declared.body.items() if name in names}


def _say(step: Step, is_dry_run: bool) -> None:
    said = f"would be {DONE[step.action]}" if is_dry_run and step.action != "unchanged" else DONE[step.action]
    typer.echo(f"{SIGNS[step.action]} {step.kind} {printable(step.declared.name)} {said}")
    for each in (*map(str, step.differences), *step.notes):
        typer.echo(f"    {printable(each)}")
