"""docs/settings.md: every setting and every option is on it, with the default that the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from service.settings import Settings
from spark_jobs.instance import parse

PAGE = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
OF_AN_INSTANCE = {"spark_auth", "spark_patience_ms", "spark_secret"}  # which knows no settings
ROWS = dict(re.findall(r"^\| `(MILLRACE_\w+)` \| ([^|]*) \|", PAGE, re.MULTILINE))


@pytest.mark.parametrize("name", sorted(Settings.model_fields))
def test_each_setting_has_a_row_with_its_default(name: str) -> None:
    default = Settings.model_fields[name].default
    shown = ROWS[f"MILLRACE_{name.upper()}"]
    if default in (None, ""):  # filled in from others, or none: said in words
        assert shown == "none" or "<data-dir>" in shown
    else:
        assert shown == f"`{default}`"


def test_no_row_is_of_a_setting_that_is_gone() -> None:
    assert {name.removeprefix("MILLRACE_").lower() for name in ROWS} == set(Settings.model_fields) | OF_AN_INSTANCE


def test_each_option_of_an_instance_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    assert options <= set(re.findall(r"^\| `(--[a-z-]+)`", PAGE, re.MULTILINE))
