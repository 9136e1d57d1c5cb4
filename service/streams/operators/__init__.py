"""One file an operator: its specification, which declares what others have to know of it, and its state machine.

Every module of this package is looked through for operators, and so is what is installed beside Millrace: Python
entry points of the group `millrace.operators`, each naming the class of a specification (docs/installed-operators.md).
Code is taken from nowhere else, over HTTP least of all.
"""

from __future__ import annotations

import importlib
import pkgutil
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated, Final, Union

from pydantic import Field

from service.streams.operators.declaration import DECLARED, OperatorSpec, StatefulSpec

GROUP: Final = "millrace.operators"


def _find() -> dict[str, type[OperatorSpec]]:
    """All operators, by `op`. Raises ImportError for an installed one that can not be used."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)
    for point in sorted(entry_points(group=GROUP)):
        try:
            found = point.load()
        except Exception as error:
            raise ImportError(f"The installed operator {point.value} can not be loaded: {error}") from error
        if found not in DECLARED.values():
            raise ImportError(f"The installed operator {point.value} is not under @operator")
    return dict(sorted(DECLARED.items()))


SPECS: Final = _find()
AVAILABLE: Final = tuple(SPECS)

if TYPE_CHECKING:
    AnyOperator = OperatorSpec
else:
    AnyOperator = Annotated[Union[tuple(SPECS.values())], Field(discriminator="op")]  # noqa: UP007  not known before

__all__ = ["AVAILABLE", "GROUP", "SPECS", "AnyOperator", "OperatorSpec", "StatefulSpec"]
