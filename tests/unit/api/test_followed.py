"""What pages follow may be followed."""

import json
import re
from pathlib import Path

from service.api.events import FOLLOWED

ROOT = Path(__file__).parents[3]
DOCUMENT = json.loads((ROOT / "openapi" / "openapi.json").read_bytes())
GETS = {path: item["get"]["operationId"] for path, item in DOCUMENT["paths"].items() if "get" in item}
ASKED = re.compile(r'\buse(?:Live|LiveEach|Every)(?:<[^(]*>)?\(\s*"([^"]+)"')


def test_each_resource_that_the_dashboard_follows_is_in_the_table() -> None:
    sources = [each.read_text() for each in (ROOT / "dashboard" / "src").rglob("*.ts*")]
    asked = {path for source in sources for path in ASKED.findall(source)}
    assert "/v1/jobs" in asked
    assert {path: GETS[path] for path in asked if GETS[path] not in FOLLOWED} == {}


def test_the_table_names_what_is_there() -> None:
    assert set(GETS.values()) >= FOLLOWED
