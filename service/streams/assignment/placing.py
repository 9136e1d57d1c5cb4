"""Evenly and at the least cost: tasks on nodes, as `kernels.placement` wants it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from service.streams.assignment.group import ReplicaNode, Task
from service.streams.kernels import placement

_REMAINDER = 1_000  # the price of a unit that an even share does not divide into, at most twice: less than any move


def place(
    tasks: Sequence[Task],
    nodes: Sequence[ReplicaNode],
    costs: NDArray[np.int64],
    copies: int = 1,
    rack_tags: Sequence[str] = (),
    beside: NDArray[np.int64] | None = None,
    *,
    by_sub_topology: bool = True,
) -> NDArray[np.bool_]:
    """Whether task t is placed on node m, as a table; each task on `copies` nodes, or as many as it may be on.

    `tasks` by sub-topology. `costs[t, m]` >= 0, or `placement.NEVER`, as on every node without slots. First of all
    copies of a task share no domain of `rack_tags` (the coarsest first; with the copy that is `beside`, a node for each
    task) where they need not; then every node has its share of all, and of each sub-topology if asked, by its slots,
    rounded down or up; then costs are least.
    """
    slots = np.array([node.slots for node in nodes], np.int64)
    sub_topologies = np.array([task.sub_topology if by_sub_topology else 0 for task in tasks], np.int64)
    begins = np.append(np.flatnonzero(np.diff(sub_topologies, prepend=-1)), len(tasks)).astype(np.int64)
    totals = np.append(np.diff(begins), len(tasks)) * copies
    even = totals[:, None] * slots
    floors, rest = even // slots.sum(), even % slots.sum()
    # The unit beyond the floor goes where it brings loads by slot nearer to each other: the gain in squares.
    remainder = _REMAINDER * (slots.sum() * (slots + 1) - 2 * rest) // (slots.sum() * np.maximum(slots, 1))
    shares = np.stack([each.reshape(-1) for each in (floors, floors + (rest > 0), remainder)]).astype(np.int64)
    domains = _domains(nodes, rack_tags)
    counts = np.zeros((len(tasks), len(domains), len(nodes)), np.int64)
    if beside is not None:
        for level, domain in enumerate(domains):
            counts[np.arange(len(tasks)), level, domain[beside]] = 1
    least = np.where(costs == placement.NEVER, placement.FAR, costs).min(axis=1)
    order = np.argsort(least, kind="stable").astype(np.int64)
    wants = np.full(len(tasks), copies, np.int64)
    placed = np.zeros(costs.shape, np.bool_)
    placement.place(np.ascontiguousarray(costs), begins, wants, order, slots, shares, domains, counts, placed)
    return placed


def _domains(nodes: Sequence[ReplicaNode], rack_tags: Sequence[str]) -> NDArray[np.int64]:
    """The domain of each node at each level: nodes are together where all tags so far are equal."""
    found = np.zeros((len(rack_tags), len(nodes)), np.int64)
    for level in range(len(rack_tags)):
        values = [tuple(node.tags.get(tag, "") for tag in rack_tags[: level + 1]) for node in nodes]
        ranks = {value: rank for rank, value in enumerate(sorted(set(values)))}
        found[level] = [ranks[value] for value in values]
    return found
