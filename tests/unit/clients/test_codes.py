"""The errors of the clients are those of docs/errors.md, and their shapes those of the OpenAPI document."""

from __future__ import annotations

import ast
import dataclasses
import json
import runpy
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from millrace_client import codes, errors, records
from millrace_client.errors import ApiError, family_of
from tests.unit.api.test_errors_page import OF_JOBS_ALONE, rows

ROOT = Path(__file__).parents[3]
CLIENTS = ROOT / "clients"
SCHEMAS = json.loads((ROOT / "openapi" / "openapi.json").read_bytes())["components"]["schemas"]
IN_LOGS_ALONE = {"replica_damaged"}


def test_there_is_a_class_for_each_code_that_is_answered_with_its_status() -> None:
    shown = dict(reversed(list(rows())))  # the first row of a code counts: those below are of failed jobs
    assert codes.BY_CODE.keys() == shown.keys() - OF_JOBS_ALONE - IN_LOGS_ALONE
    statuses = {code: kind.http_status for code, kind in codes.BY_CODE.items()}
    assert {code: str(status) for code, status in statuses.items() if shown[code].isdigit()}.items() <= shown.items()
    for code, kind in codes.BY_CODE.items():
        assert kind.code == code
        assert issubclass(kind, family_of(kind.http_status))


def test_both_clients_have_the_codes_of_the_page() -> None:
    """Where this fails after a change of docs/errors.md: `make openapi`."""
    writer = runpy.run_path(str(CLIENTS / "write_codes.py"))
    found = writer["codes"](writer["PAGE"].read_text())
    assert writer["PYTHON"].read_text() == writer["python"](found)
    assert writer["TYPESCRIPT"].read_text() == writer["typescript"](found)


def test_each_family_is_the_class_of_a_status_and_stands_in_the_tree() -> None:
    families = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ApiError)}
    assert {family_of(status) for status in range(400, 600)} == families - {ApiError}
    drawn = str(ast.get_docstring(ast.parse(Path(errors.__file__).read_text())))
    assert all(family.__name__ in drawn for family in families)


@pytest.mark.parametrize(
    ("shape", "schema", "own"),
    [
        (records.Record, "RecordView", {"position"}),
        (records.Window, "WindowView", set()),
        (records.Appended, "AppendedView", set()),
        (records.AppendedRange, "AppendedRangeView", set()),
        (records.Entry, "EntryView", set()),
        (records.AsOf, "AsOfView", set()),
        (errors.Fault, "ProblemItemView", set()),
        (records.JobView, "JobView", set()),
        (records.JobPosition, "JobPositionView", set()),
    ],
)
def test_shapes_are_those_of_the_document(shape: Any, schema: str, own: set[str]) -> None:
    members = {field.name for field in dataclasses.fields(shape)} if dataclasses.is_dataclass(shape) else None
    members = members or set(get_type_hints(shape))
    assert members - own <= set(SCHEMAS[schema]["properties"])
    assert own <= members
    assert members & set(SCHEMAS[schema]["required"])


def test_states_of_jobs_are_those_of_the_document() -> None:
    assert set(get_args(records.JobState)) == set(SCHEMAS["JobView"]["properties"]["state"]["enum"])
