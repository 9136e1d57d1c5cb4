"""A module that is not installed is not searched for again and again."""

import sys
from types import ModuleType

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from service.absent import MODULE, remember_absence


class Searches:
    """A finder that finds nothing and keeps what was asked of it."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> None:
        self.names.append(name)


def _infer_types() -> None:
    pa.scalar("a")
    pa.array([1, 2])
    pc.equal(pa.array(["a"], pa.utf8()), "null")


def test_arrow_infers_types_without_a_search_for_a_module_that_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    _infer_types()  # pyarrow looks for pandas once
    searches = Searches()
    monkeypatch.setattr(sys, "meta_path", [searches, *sys.meta_path])
    _infer_types()
    assert searches.names == []


def test_a_package_that_is_installed_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    monkeypatch.setattr("service.absent.find_spec", lambda name: object())
    remember_absence()
    assert MODULE not in sys.modules
