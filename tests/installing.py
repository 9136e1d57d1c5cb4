"""Packages as an installer leaves them behind, modules and metadata in a folder; those of the documentation."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def install(folder: Path, name: str, version: str, code: str, group: str, points: Mapping[str, str]) -> None:
    """A module, and the metadata of a distribution with these entry points."""
    module = name.replace("-", "_")
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [f"[{group}]", *(f"{point} = {value}" for point, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))


def install_example(folder: Path, page: str, group: str) -> None:
    """The package of a page of the documentation."""
    blocks = dict(re.findall(r"```(python|toml)\n(.*?)```", (DOCS / page).read_text(), re.DOTALL))
    project = tomllib.loads(blocks["toml"])["project"]
    install(folder, project["name"], project["version"], blocks["python"], group, project["entry-points"][group])
