"""Whatever is sent to the API, no answer is a fault of the service (5xx), and every answer is one that its OpenAPI
document declares: status, headers, media type, schema. What the document rules out is refused, and no operation goes
without a key. All operations, with a key that may do everything; schemathesis makes the requests up, in all its phases:
examples, coverage, fuzzing, and scenarios in which what one answers leads to the next.

That all it holds for valid is accepted is not checked: which expressions, names, cursors and positions there are is
beyond a schema.

Postgres, which refuses more than SQLite does, gets everything; SQLite fewer random requests and no coverage, thousands
of requests of which most reach no database. Of the operations that take a whole job one is covered: they have one
schema and one parser, and would be more than half of all requests.

`MILLRACE_FUZZ_EXAMPLES` says how many random requests each operation gets beside the systematic ones, with nothing left
out; the default few are the same in every run.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import schemathesis
import structlog
from schemathesis.engine import Status, events, from_schema

from tests.forkserver import ForkServer
from tests.fuzzing import World, impatient, world

EXAMPLES = int(os.environ.get("MILLRACE_FUZZ_EXAMPLES", "0"))
REFUSALS = ["400", "401", "403", "404", "405", "406", "409", "410", "412", "413", "414", "415", "422", "428", "429"]
CHECKS: dict[str, Any] = {
    "not_a_server_error": {},
    "status_code_conformance": {},
    "content_type_conformance": {},
    "response_headers_conformance": {},
    "response_schema_conformance": {},
    "negative_data_rejection": {"expected-statuses": REFUSALS},
    "ignored_auth": {},
    "unsupported_method": {},
    "use_after_free": {},
    "ensure_resource_availability": {},
    "allow_header_conformance": {},
}
COVERED_BY_ANOTHER = ["POST /v1/jobs:validate", "POST /v1/jobs:simulate", "PUT /v1/jobs/{job}"]  # by POST /v1/jobs
COSTLY = ["GET /v1/jobs/{job}:explain"]  # a process for each that is accepted: what it refuses has tests of its own
ID = re.compile("[0-9a-f]{32}")
OPERATIONS = {"examples": 10, "coverage": 50, "fuzzing": 50, "stateful": 8}  # at least, that each phase goes through
# What the service answers makes no requests: the next run must send the same, and spare what others look into.
PHASE = {"extra-data-sources": {"responses": False}}


@pytest.fixture
def fuzzed(tmp_path: Path, database_url: str, forks: ForkServer) -> Iterator[World]:
    # Thousands of requests: what goes as it should is no news.
    processors = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    before = structlog.get_config()
    structlog.configure(processors, wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with world(tmp_path, database_url, forks) as made:
        yield made
    structlog.configure(**before)


@schemathesis.hook
def before_call(_context: schemathesis.HookContext, case: schemathesis.Case, _kwargs: dict[str, Any]) -> None:
    impatient(case)


@pytest.mark.timeout(0 if EXAMPLES else 1_800)  # 0: none
def test_every_answer_is_one_that_is_declared_and_none_a_fault(fuzzed: World) -> None:
    schema = schemathesis.openapi.from_dict(fuzzed.document(), config=_config(fuzzed))
    findings: dict[tuple[str, ...], str] = {}
    statuses: dict[str, Counter[int]] = {}
    phases: dict[str, Counter[str]] = {}
    for event in from_schema(schema).execute():
        assert not isinstance(event, events.NonFatalError | events.FatalError), event
        if isinstance(event, events.ScenarioFinished):
            findings |= _findings(event)
            for label, status in _answered(event):
                statuses.setdefault(label, Counter())[status] += 1
                phases.setdefault(event.phase.value, Counter())[label] += 1
    assert not findings, "\n\n".join("\n".join([*where, how]) for where, how in findings.items())
    assert "coverage" not in phases or _never_accepted(statuses) == set()
    assert all(len(phases[name]) >= least for name, least in _phases(fuzzed).items()), phases


def _phases(world: World) -> dict[str, int]:
    """Those that it goes through, with `OPERATIONS`."""
    spared = set() if EXAMPLES or not _is_sqlite(world) else {"coverage"}
    return {name: least for name, least in OPERATIONS.items() if name not in spared}


def _is_sqlite(world: World) -> bool:
    return world.service.settings.database_url.startswith("sqlite")


def _config(world: World) -> schemathesis.Config:
    off = {"coverage": {"enabled": False}}
    fewer = {"generation": {"max-examples": 2}} if _is_sqlite(world) and not EXAMPLES else {}
    phases = {"examples": PHASE, "coverage": PHASE, "fuzzing": PHASE | fewer, "stateful": {"max-steps": 4}}
    return schemathesis.Config.from_dict(
        {
            "base-url": world.service.url,
            "headers": {"Authorization": f"Bearer {world.service.secrets['admin']}"},
            "continue-on-failure": True,
            "request-timeout": 60,  # seconds: the first simulation loads all kernels, on a machine that may be busy
            "checks": {"enabled": False} | {name: {"enabled": True} | how for name, how in CHECKS.items()},
            "generation": {"max-examples": EXAMPLES or 6, "deterministic": not EXAMPLES},
            "phases": {name: {"enabled": name in _phases(world), **how} for name, how in phases.items()},
            "operations": []
            if EXAMPLES
            else [{"include-name": name, "phases": off} for name in (*COVERED_BY_ANOTHER, *COSTLY)],
        }
    )


def _answered(event: events.ScenarioFinished) -> Iterator[tuple[str, int]]:
    """The operation and status of each answer; a scenario of states goes through several operations."""
    for case_id, each in event.recorder.interactions.items():
        if each.response is not None:
            yield event.recorder.cases[case_id].value.operation.label, each.response.status_code


def _findings(event: events.ScenarioFinished) -> dict[tuple[str, ...], str]:
    """(operation, check, what was wrong) and how to see it again."""
    found = {}
    has_deleted_stream = ("DELETE /v1/streams/{stream}", 204) in _answered(event)
    for case_id, checks in event.recorder.checks.items():
        answer = event.recorder.interactions[case_id].response
        shown = "" if answer is None else f"→ {answer.status_code} {answer.content[:500]!r}"
        for check in checks:
            named = event.recorder.cases[case_id].value.path_parameters or {}
            if check.status != Status.SUCCESS and not _has_a_reason(check.name, answer, named, has_deleted_stream):
                failure = check.failure_info
                what, how = ("", "") if failure is None else (str(failure.failure), failure.code_sample[:2_000])
                label = event.recorder.cases[case_id].value.operation.label
                found[label, check.name, what[:300]] = f"{how}\n{shown}"
    return found


def _has_a_reason(check: str, answer: Any, named: Mapping[str, Any], has_deleted_stream: bool) -> bool:
    """Whether what was just made may not be there: a slot is not under another instance, whose id is as good a guess in
    a scenario; a subscription ends with its stream, which the scenario may have deleted in between; and what has a
    name goes by that alone, where the scenario may have taken the `id` of the answer.
    """
    gone = [b'"unknown_slot"', *([b'"unknown_subscription"'] if has_deleted_stream else [])]
    is_by_id = any(ID.fullmatch(str(named.get(kind))) for kind in ("stream", "job", "subscription"))
    return check == "ensure_resource_availability" and (is_by_id or any(code in answer.content for code in gone))


def _never_accepted(statuses: dict[str, Counter[int]]) -> set[str]:
    """Operations that always said no: the fuzzer did not get past their door, so it showed little."""
    return {label for label, seen in statuses.items() if not any(status < 300 for status in seen)}
