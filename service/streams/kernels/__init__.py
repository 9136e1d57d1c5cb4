"""Loops over arrays, nothing else: no Arrow, no bytes objects, no rules that are not in the arguments.

Each kernel states its signature, so importing it compiles it once and later loads it from the cache.
"""

from __future__ import annotations

import importlib
import pkgutil


def warm() -> None:
    """Load every kernel now (compiled at first use of the code): before a fork, and at install."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)
