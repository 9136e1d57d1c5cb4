"""What an operator is to those around it: its specification declares it, so that nobody else has to know any operator.

It knows which questions are asked of one: how it runs, what it keeps, how that is looked up and measured, what it makes
of what goes downstream. It refuses to know the answers.

An operator is a module of this package: a class of OperatorSpec or StatefulSpec under `@operator`, and the step that
it runs. Nothing else has to name it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Self, TypeVar, get_args

import numpy as np
import numpy.typing as npt
from pydantic import Field

from service.streams.errors import Problem
from service.streams.operators.fields import OperatorName, Spec, is_absent
from service.streams.operators.step import OnError, Stateful, Stateless
from service.streams.operators.upstream import Upstream
from service.streams.records import Handover, Layout, StoreSpec, StoreType
from service.streams.samples import LATENESS, Measure
from service.streams.stores.reading import Form

S = TypeVar("S", bound="OperatorSpec")

DECLARED: Final[dict[str, type[OperatorSpec]]] = {}


class FanOut(NamedTuple):
    """How many rows one row becomes: so many `for_certain`, and no more than `most`; whether all may have its value."""

    for_certain: int = 1
    most: int = 1
    has_values: bool = False


class Kept(NamedTuple):
    """What a store holds: how it is looked up, how it lies in bytes, and how long, in stream time (ms), an entry lives
    after its own time (None: until it is deleted).
    """

    type: StoreType
    layout: Layout
    interval_ms: int | None = None


class Condition(NamedTuple):
    """What must be so of a buffer when a version begins: it holds no more than this (None: any number)."""

    max_records: int | None
    max_bytes: int | None
    detail: str


class OperatorSpec(Spec):
    """The specification of an operator, as people write it. `op` is a literal of each."""

    op: str
    name: OperatorName | None = None
    after: Annotated[
        OperatorName | None,
        Field(
            exclude_if=is_absent,
            description="The operator before it in the list whose results it gets; `source`: it gets the records as "
            "they are read. Absent: the one right before it. One may have several behind it, all with all its results.",
        ),
    ] = None

    changes_key: ClassVar[bool] = False
    """Equal keys may lie in several partitions behind it: who keeps state there needs them repartitioned."""

    def runner(self, name: str, on_error: OnError, upstream: Upstream) -> Stateless | Stateful:
        """What runs it on what `upstream` makes of its rows. `name` is what its errors and dropped records carry."""
        raise NotImplementedError

    def downstream(self, upstream: Upstream) -> Upstream:
        """What it makes of what reaches it for those behind it."""
        return upstream

    def contradictions(self, upstream: Upstream) -> Iterator[Problem]:
        """What is wrong with it in this place; pointers are relative to the operator."""
        yield from ()

    def fan_out(self, timestamps: npt.NDArray[np.int64]) -> FanOut:
        """How many rows one becomes, where all have these timestamps (ms)."""
        return FanOut()

    @property
    def sees_batches(self) -> bool:
        """Whether its output depends on how records are cut into batches."""
        return False


class StatefulSpec(OperatorSpec):
    """The specification of an operator that keeps state: a store, under a name."""

    name: OperatorName

    kind: ClassVar[str]
    """What its store holds, as lookups and metrics call it."""
    measures: ClassVar[tuple[Measure, ...]] = (LATENESS,)
    """Under which names people see what it measures."""
    lets_through: ClassVar[bool] = False
    """Whether a record that it does not drop goes on itself, at once; else it is in what the operator keeps."""
    may_change: ClassVar[frozenset[str]] = frozenset()
    """The fields that a later version may have otherwise over the same store."""

    @property
    def partitioned_by(self) -> str | None:
        """The expression whose equal results must lie in one partition; None: equal keys must."""
        return None

    def windows_at(self, timestamp: int) -> int:
        """How many windows a record of this time (ms) falls into: so often it is dropped where all have closed."""
        return 1

    def runner_over(self, store: StoreSpec, name: str, on_error: OnError, upstream: Upstream) -> Stateless | Stateful:
        """`runner`, over a store in which former versions of the operator may have written otherwise."""
        return self.runner(name, on_error, upstream)

    @property
    def kept(self) -> Kept:
        """What its store holds."""
        raise NotImplementedError

    @classmethod
    def form(cls, name: str, spec: Mapping[str, Any], upstream: Upstream, store: StoreSpec) -> Form:
        """How its store is read. `spec` is its JSON: who looks need not have all installed that it needs to run."""
        raise NotImplementedError

    def handover(self) -> Handover:
        """What a later version over the same store must know of this one."""
        return Handover(kept_ms=self.kept.interval_ms)

    def unkept(self, new: Self) -> Iterator[Problem]:
        """Why its store can not go on under a later version of it; pointers are relative to the operator."""
        for name in type(self).model_fields.keys() - self.may_change - {"op", "name", "after"}:
            if getattr(self, name) != getattr(new, name):
                yield Problem(f"/{name}", "what is stored was found by the former one")

    def conditions(self, new: Self | None) -> Iterator[Condition]:
        """What must be so in its store when a later version of it begins; None: one without it."""
        yield from ()

    def layouts_after(self, new: Self, former: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        """The layouts of entries that its store has once a later version has taken it over, given those that it has
        (`StoreSpec.layouts`).
        """
        return former


def operator(spec: type[S]) -> type[S]:
    """Declare an operator. Raises ValueError where its `op` is taken."""
    (op,) = get_args(spec.model_fields["op"].annotation)
    if op in DECLARED:
        raise ValueError(f"{op!r} is declared by {DECLARED[op].__module__} already")
    DECLARED[op] = spec
    return spec
