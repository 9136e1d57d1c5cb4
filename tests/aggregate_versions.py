"""Versions of an aggregate, one after another over the same store; and the oracle, which is told of each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from service.streams.operators.aggregate import AggregateSpec
from service.streams.topology.graph import Topology
from tests import naive, naive_windows
from tests.naive_windows import Function
from tests.task import Task, job

Record = dict[str, Any]

MISSING = object()


def versions_of(operator: Record, changes: Sequence[Record]) -> list[Topology]:
    """The topologies of a job whose operator is changed to have these fields instead, again and again."""
    found, layouts, old = [], None, AggregateSpec.model_validate(operator)
    for change in ({}, *changes):
        new = AggregateSpec.model_validate({**operator, **change})
        layouts, old = old.layouts_after(new, layouts), new
        stored = json.loads(json.dumps(job([new.model_dump(mode="json", exclude_none=True)]).to_json()))
        stored["sub_topologies"][0]["nodes"][0]["store"]["layouts"] = json.loads(json.dumps(layouts))
        found.append(Topology.from_json(stored))
    return found


def taking_over(task: Task, topology: Topology) -> Task:
    """A task of the next version: nothing of the former one but its changelog, replayed."""
    found = Task(topology, on_error=task.on_error, forget=task.forget)
    for changes in task.changelog:
        found.replay(changes)
    return found


class Versions(naive_windows.Aggregate):
    """The oracle: a group knows of its functions only those that saw all of it."""

    def __init__(self, operator: Record) -> None:
        super().__init__(operator, naive.EXPRESSIONS)
        self.operator, self.functions = operator, _lasting(operator)

    def change(self, fields: Record) -> None:
        """Another version of the operator, from here on."""
        was, self.operator = self.operator["aggregates"], {**self.operator, **fields}
        now = self.operator["aggregates"]
        self.functions = _lasting(self.operator)
        for group in self.groups.values():
            group[0] = {name: group[0][name] if was.get(name) == now[name] else MISSING for name in now}


class _Lasting(Function):
    """A function that knows of groups that it did not see all of."""

    def add(self, state: Any, record: Record) -> Any:
        return MISSING if state is MISSING else super().add(state, record)

    def merge(self, state: Any, other: Any) -> Any:
        return MISSING if MISSING in (state, other) else super().merge(state, other)

    def result(self, state: Any) -> Any:
        return None if state is MISSING else super().result(state)


def _lasting(operator: Record) -> dict[str, Function]:
    return {name: _Lasting(spec, naive.EXPRESSIONS) for name, spec in operator["aggregates"].items()}
