"""README and docs: their shell is shell, the jobs in it are jobs, and links and citations of them lead somewhere."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from service.streams.topology.spec import JobSpec

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
README = (ROOT / "README.md").read_text()
SOURCES = sorted(
    path
    for part in ("service", "spark_jobs", "migrations", "benchmarks", "tests")
    for path in (ROOT / part).rglob("*.py")
)
CITATION = re.compile(
    r"([\w./-]+\.md)\b(?:,\s+([A-Z]\w+)|\s+§([\d.]*\d))?"
)  # a page, and a heading's first word or number


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_to_be_pasted_is_shell(page: Path) -> None:
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
        checked = subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_link_leads_to_a_page_and_a_heading_of_it(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)]*)\)", page.read_text()):
        name, _, anchor = link.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), link
        assert not anchor or anchor in anchors(there), link


def test_the_jobs_of_the_readme_are_jobs() -> None:
    given = re.findall(r"call jobs '(.*?)'\n", README, re.DOTALL) + re.findall(
        r"<<'JSON'\n(.*?)JSON\n", README, re.DOTALL
    )
    assert [JobSpec.parse(json.loads(body)).name for body in given] == ["once", "visits"]


def test_the_operators_of_their_page_are_operators() -> None:
    page = (ROOT / "docs" / "operators.md").read_text()
    blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL)]
    bodies = [block for block in blocks if "op" in block]
    session = next(body for body in bodies if body["op"] == "aggregate")
    for body in bodies:
        before = [session] if body["op"] == "suppress" else []
        JobSpec.parse({"name": "x", "source": "in", "operators": [*before, body]})
    assert len(bodies) == 4
    assert [JobSpec.parse(block).name for block in blocks if "op" not in block] == ["alerts"]


def test_each_field_of_a_job_is_on_the_page_of_operators() -> None:
    page = (ROOT / "docs" / "operators.md").read_text()
    for name in JobSpec.model_fields:
        assert f"`{name}`" in page, name


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_page_that_a_module_cites_is_there_with_its_heading(source: Path) -> None:
    for name, word, number in CITATION.findall(source.read_text()):
        page = next((path for path in (ROOT / name, ROOT / "docs" / name) if path.exists()), None)
        assert page is not None, name
        if begin := word or number:
            assert re.search(rf"^#+ {re.escape(begin)}\b", page.read_text(), re.MULTILINE), f"{name}: {begin}"
