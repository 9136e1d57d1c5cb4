"""Who should run what, and where copies should be: one pure function, two strategies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from service.streams.assignment import high_availability, previous_owner
from service.streams.assignment.group import Assignment, Group, Strategy

_STRATEGIES: Final[Mapping[Strategy, Callable[[Group], Assignment]]] = {
    "high_availability": high_availability.assign,
    "sticky": previous_owner.assign,
}


def assign(group: Group, strategy: Strategy = "high_availability") -> Assignment:
    """Every task on one node, its standbys on others, as many as there are nodes for. A node without slots is leaving:
    it keeps what runs there until that can run elsewhere, and gets nothing. Where no node has slots, what runs stays.

    Equal groups get equal answers. Which slot of its node runs a task is a second step: `sticky.deal`.
    """
    if any(node.slots for node in group.nodes):
        return _STRATEGIES[strategy](group)
    running = {task: node.id for node in group.nodes for task in node.running}
    return Assignment({task.id: running[task.id] for task in group.tasks if task.id in running}, {}, {}, probing=False)
