"""Whatever is sent to the API, no answer is a fault of the service (5xx), and every answer is one that its OpenAPI
document declares: status, headers, media type, schema. What the document rules out is refused, and no operation goes
without a key. All operations, with a key that may do everything; schemathesis makes the requests up.

That all it holds for valid is accepted is not checked: which expressions, names, cursors and positions there are is
beyond a schema.

`MILLRACE_FUZZ_EXAMPLES` says how many random requests each operation gets beside the systematic ones; the default few
are the same in every run.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
import structlog
from schemathesis.engine import Status, events, from_schema

from tests.fuzzing import World, impatient, world

EXAMPLES = int(os.environ.get("MILLRACE_FUZZ_EXAMPLES", "0"))
REFUSALS = ["400", "401", "403", "404", "405", "406", "409", "410", "412", "413", "415", "422", "428", "429"]
CHECKS: dict[str, Any] = {
    "not_a_server_error": {},
    "status_code_conformance": {},
    "content_type_conformance": {},
    "response_headers_conformance": {},
    "response_schema_conformance": {},
    "negative_data_rejection": {"expected-statuses": REFUSALS},
    "ignored_auth": {},
    "unsupported_method": {},
    "allow_header_conformance": {},
}
# What the service answers makes no requests: the next run must send the same, and spare what others look into.
PHASE = {"extra-data-sources": {"responses": False}}


@pytest.fixture
def fuzzed(tmp_path: Path, database_url: str) -> Iterator[World]:
    # Thousands of requests: what goes as it should is no news.
    processors = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(processors, wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with world(tmp_path, database_url) as made:
        yield made
    structlog.reset_defaults()


@schemathesis.hook
def before_call(_context: schemathesis.HookContext, case: schemathesis.Case, _kwargs: dict[str, Any]) -> None:
    impatient(case)


@pytest.mark.timeout(None if EXAMPLES else 900)
def test_every_answer_is_one_that_is_declared_and_none_a_fault(fuzzed: World) -> None:
    schema = schemathesis.openapi.from_dict(fuzzed.document(), config=_config(fuzzed))
    findings: dict[tuple[str, ...], str] = {}
    statuses: dict[str, Counter[int]] = {}
    for event in from_schema(schema).execute():
        assert not isinstance(event, events.NonFatalError | events.FatalError), event
        if isinstance(event, events.ScenarioFinished):
            findings |= _findings(event)
            answered = statuses.setdefault(event.label or "", Counter())
            answered.update(
                each.response.status_code for each in event.recorder.interactions.values() if each.response is not None
            )
    assert not findings, "\n\n".join("\n".join([*where, how]) for where, how in findings.items())
    assert _never_accepted(statuses) == set()


def _config(world: World) -> schemathesis.Config:
    return schemathesis.Config.from_dict(
        {
            "base-url": world.service.url,
            "headers": {"Authorization": f"Bearer {world.service.secrets['admin']}"},
            "continue-on-failure": True,
            "checks": {"enabled": False} | {name: {"enabled": True} | how for name, how in CHECKS.items()},
            "generation": {"max-examples": EXAMPLES or 15, "deterministic": not EXAMPLES},
            "phases": {"examples": PHASE, "coverage": PHASE, "fuzzing": PHASE, "stateful": {"enabled": False}},
        }
    )


def _findings(event: events.ScenarioFinished) -> dict[tuple[str, ...], str]:
    """(operation, check, what was wrong) and how to see it again."""
    found = {}
    for case_id, checks in event.recorder.checks.items():
        answer = event.recorder.interactions[case_id].response
        shown = "" if answer is None else f"→ {answer.status_code} {answer.content[:500]!r}"
        for check in checks:
            if check.status != Status.SUCCESS:
                failure = check.failure_info
                what, how = ("", "") if failure is None else (str(failure.failure), failure.code_sample[:2_000])
                found[event.label or "", check.name, what[:300]] = f"{how}\n{shown}"
    return found


def _never_accepted(statuses: dict[str, Counter[int]]) -> set[str]:
    """Operations that always said no: the fuzzer did not get past their door, so it showed little."""
    return {label for label, seen in statuses.items() if not any(status < 300 for status in seen)}
