"""The dashboard's built files on their way into a wheel: what `make install` built, else built here.

Knows npm. Refuses to fail without it: a package without the dashboard is one in which `/admin` says so.
"""

import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class DashboardBuild(BuildHookInterface[Any]):
    """Runs before a wheel is put together; an editable installation has the files where they are."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if version == "editable" or (root / "service/dashboard/index.html").exists():
            return
        try:
            for command in (["ci", "--ignore-scripts", "--no-audit", "--no-fund"], ["run", "build"]):
                subprocess.run(["npm", "--prefix", "dashboard", *command], cwd=root, check=True)  # noqa: S603, S607
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(f"the wheel is without the dashboard: {error}")
