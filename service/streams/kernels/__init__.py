"""Loops over arrays, nothing else: no Arrow, no bytes objects, no rules that are not in the arguments.

Each kernel states its signature, so loading it compiles it once and later takes it from the cache. Numba and all
kernels take 1.3 s of CPU to load, which a process that only serves or starts others does not spend: a module of kernels
is loaded by the first use of one of its names, not by its import.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import TYPE_CHECKING, Any

_NAMES = tuple(module.name for module in pkgutil.iter_modules(__path__))


class _LoadedByUse(ModuleType):
    """Stands for a module of kernels until one of its names is asked for, by whatever thread."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, found)  # the next use of it finds it without us
        return found


if not TYPE_CHECKING:
    globals().update({name: _LoadedByUse(f"{__name__}.{name}") for name in _NAMES})


def warm() -> None:
    """Load every kernel now (compiled at first use of the code): before a fork, and at install."""
    for name in _NAMES:
        importlib.import_module(f"{__name__}.{name}")
