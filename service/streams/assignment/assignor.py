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
    """Every task on one node, its standbys on others, as many as there are nodes for; nothing without nodes.

    Equal groups get equal answers. Which slot of its node runs a task is a second step: `sticky.deal`.
    """
    return _STRATEGIES[strategy](group) if group.nodes else Assignment({}, {}, {}, probing=False)
