"""Where everything runs in the end: a group with its assignments carried out and its copies caught up, until nothing
moves.

It knows how a group changes by an assignment. It refuses to know how long that takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from service.streams.assignment.assignor import assign
from service.streams.assignment.group import Assignment, Group, Strategy

_ROUNDS: Final = 5
_ALL_AT_ONCE: Final = 1_000_000  # warm-ups: how many there may be at a time says how long it takes, not where it ends


def outlook(group: Group, strategy: Strategy) -> Mapping[str, str]:
    """Task id → the node that it comes to run on, if nobody else comes or goes."""
    group = replace(group, settings=replace(group.settings, max_warmup_replicas=_ALL_AT_ONCE))
    made = assign(group, strategy)
    for _ in range(_ROUNDS):
        if not made.probing:
            break
        group = carried_out(group, made)
        made = assign(group, strategy)
    return made.active


def carried_out(group: Group, made: Assignment) -> Group:
    """The group once everything is where it was put, and caught up."""
    nodes = []
    for node in group.nodes:
        copies = [task for held in (made.standby, made.warm_up) for task, where in held.items() if node.id in where]
        running = [task for task, where in made.active.items() if where == node.id]
        nodes.append(replace(node, running=running, lags=dict.fromkeys(copies, 0)))
    return replace(group, nodes=nodes)
