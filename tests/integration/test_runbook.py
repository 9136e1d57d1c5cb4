"""What docs/runbook.md tells people to type is taken: a new lineage, on both databases, and the body of a PATCH."""

from __future__ import annotations

import json
import re
from pathlib import Path

from service.api.time_resets import TimeResetRequest
from service.catalog.engine import Catalog
from service.streams.topology.change import JobChange
from service.streams.topology.complaints import validated
from service.streams.topology.starts import ResetRequest
from spark_jobs import instance
from spark_jobs.watch import End

PAGE = (Path(__file__).parents[2] / "docs" / "runbook.md").read_text()


def statement(word: str) -> str:
    """The SQL of the runbook that has this word in it."""
    found: list[str] = re.findall(r"```sql\n\s*(.*?)\n\s*```", PAGE, re.DOTALL)
    [only] = [text for text in found if word in text]
    return only


def test_the_lineage_is_renewed_as_it_says(database_url: str) -> None:
    catalog = Catalog(database_url)
    word = "randomblob" if database_url.startswith("sqlite") else "gen_random_uuid"
    former = catalog.lineage
    catalog.write(lambda s: s.connection().exec_driver_sql(statement(word)))
    catalog.close()
    renewed = Catalog(database_url)
    assert re.fullmatch("[0-9a-f]{32}", renewed.lineage)
    assert renewed.lineage != former
    renewed.close()


def test_the_body_of_a_change_is_one() -> None:
    [body] = re.findall(r"-X PATCH .*?--json '(.*?)'", PAGE, re.DOTALL)
    assert JobChange.parse(json.loads(body)).buffers["final"].when_full == "spill_to_disk"


def test_the_body_of_a_reset_is_one() -> None:
    [body] = re.findall(r":reset\" .*?--json '(.*?)'", PAGE)
    assert ResetRequest.parse(json.loads(body)).start is not None


def test_the_body_of_a_time_to_go_back_to_is_one() -> None:
    bodies = re.findall(r":reset-time\S*\" .*?--json '(.*?)'", PAGE)
    assert [validated(TimeResetRequest, json.loads(body)).stream_time for body in bodies] == [1_700_000_000_000] * 2


def test_the_exit_codes_of_an_instance_are_all_there() -> None:
    codes = {instance.SPARK_LOST, instance.PARENT_LOST, instance.REFUSED, instance.NAME_TAKEN, instance.BROKEN}
    shown = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}
    assert shown == codes | {0, 1, 2} | set(End)
