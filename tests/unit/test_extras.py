"""The extras of the package: an API runs without Spark, an executor without the web and the database; and the locks."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

# Imports every module below some packages with some others as good as not installed.
IMPORT_ALL = """
import importlib, pkgutil, sys

class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"{name} is not installed")

packages, absent = (argument.split() for argument in sys.argv[1:])
sys.meta_path.insert(0, Absent)
for package in packages:
    found = importlib.import_module(package)
    for each in pkgutil.walk_packages(getattr(found, "__path__", []), f"{package}."):
        importlib.import_module(each.name)
"""


def normal(requirement: str) -> str:
    """The name of a distribution, as PyPI compares them."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()  # type: ignore[index]


def modules_of(extra: str) -> set[str]:
    """The top-level modules that only this extra brings."""
    names = {normal(requirement) for requirement in EXTRAS[extra]}
    return {
        module
        for module, distributions in packages_distributions().items()
        if names & {normal(distribution) for distribution in distributions}
    }


def imported(packages: list[str], absent: set[str]) -> subprocess.CompletedProcess[str]:
    """The end of a process that imports `packages` with the modules `absent` as good as not installed."""
    command = [sys.executable, "-c", IMPORT_ALL, " ".join(packages), " ".join(absent)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def pins(lock: str) -> dict[str, str]:
    """Distribution → version."""
    return dict(re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==(\S+)", (ROOT / lock).read_text(), re.MULTILINE))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("extra", "packages"),
    [
        ("api", ["spark_jobs", "service.streams", "service.storage", "service.cli"]),
        ("instance", ["service.app", "service.embedded", "service.cli"]),
    ],
)
def test_one_half_is_imported_without_what_the_other_needs(extra: str, packages: list[str]) -> None:
    absent = modules_of(extra)
    assert len(absent) >= len(EXTRAS[extra])
    done = imported(packages, absent)
    assert done.returncode == 0, done.stderr


def test_a_module_that_is_absent_is_missed() -> None:
    done = imported(["service.app"], {"fastapi"})
    assert "fastapi is not installed" in done.stderr


def test_the_image_runs_the_versions_that_are_tested_and_no_development_tools() -> None:
    image, everything = pins("requirements-image.lock"), pins("requirements.lock")
    assert image.items() <= everything.items()
    wanted = [*PROJECT["dependencies"], *EXTRAS["api"], *EXTRAS["instance"]]
    assert {normal(requirement) for requirement in wanted} <= image.keys()
    tools = {normal(requirement) for requirement in EXTRAS["dev"]} - {"millrace"}
    assert tools <= everything.keys()
    assert not tools & image.keys()
