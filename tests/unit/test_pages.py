"""README and docs: their shell is shell, the jobs in it are jobs, and links and citations of them lead somewhere."""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from pathlib import Path

import pyspark
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


def test_the_commands_of_the_readme_are_commands_with_these_options() -> None:
    given = re.findall(r"^(?:\.venv/bin/)?millrace ([a-z]+)(?: [a-z]+)?((?: --[^#\n]*)?)", README, re.MULTILINE)
    seen: dict[str, set[str]] = {name: set() for name, _ in given}
    for name, options in given:
        seen[name] |= set(re.findall(r"--[a-z-]+", options))
    assert {"--api", "--spark-master", "--name"} <= seen["instance"]
    assert {"up", "api", "instance", "migrate", "token"} <= set(seen)
    settings = (ROOT / "docs" / "settings.md").read_text()
    for name, options in seen.items():
        for option in options - {"--role"}:  # of `token create`
            assert f"`{option}`" in settings, f"{name} {option}"


def test_the_readme_starts_spark_by_classes_that_are_there() -> None:
    jars = zipfile.ZipFile(next((Path(pyspark.__file__).parent / "jars").glob("spark-core_*.jar")))
    classes = re.findall(r"^spark-class ([\w.]+)", README, re.MULTILINE)
    assert [name.rpartition(".")[2] for name in classes] == ["Master", "Worker"]
    assert {f"{name.replace('.', '/')}.class" for name in classes} <= set(jars.namelist())


def test_the_operators_of_their_page_are_operators() -> None:
    page = (ROOT / "docs" / "operators.md").read_text()
    blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL)]
    bodies = [block for block in blocks if "op" in block]
    session = next(body for body in bodies if body["op"] == "aggregate")
    for body in bodies:
        before = [session] if body["op"] == "suppress" else []
        JobSpec.parse({"name": "x", "source": "in", "operators": [*before, body]})
    assert len(bodies) == 4
    assert [JobSpec.parse(block).name for block in blocks if "op" not in block] == ["payments", "alerts"]


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
