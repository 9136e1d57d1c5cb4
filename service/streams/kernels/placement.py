"""Units of tasks on nodes at the least cost: a min-cost flow by shortest augmenting paths. Loops over arrays only.

`flow` is one tuple everywhere: costs[t, m] (>= 0, or NEVER); begins[g], where the tasks of group g begin; group_of[t];
slots[m]; shares[:, bin]: floor, ceiling and price of the remainder; domains[level, m], the domain of a node;
counts[t, level, domain], how many copies of a task are there; placed[t, m]; load[bin]. Bins: group g on node m is
g * M + m, node m itself G * M + m.
"""

from __future__ import annotations

import numba as nb
import numpy as np

FAR = np.int64(1 << 60)
NEVER: int = np.int64(-1)  # type: ignore[assignment]  # the cost of a node that a task may not be on
# What a unit beyond an even share costs, and a second one in one domain: more than all costs of tasks together.
UNEVEN = np.int64(12_000_000_000)
TOGETHER = np.int64(1000) * UNEVEN
_INT64S = nb.types.Array(nb.int64, 1, "C", readonly=True)
_TABLE = nb.types.Array(nb.int64, 2, "C", readonly=True)
_SIGNATURE = nb.void(
    _TABLE, _INT64S, _INT64S, _INT64S, _INT64S, _TABLE, nb.int64[:, ::1], nb.int64[:, :, ::1], nb.bool_[:, ::1]
)


@nb.njit(cache=True)
def _dear(level):  # type: ignore[no-untyped-def]
    """The price of sharing a domain, by level: the coarsest is the dearest."""
    return TOGETHER // (np.int64(8) ** level)


@nb.njit(cache=True)
def _together(task, node, flow):  # type: ignore[no-untyped-def]
    """The price of a copy on a node where other copies of its task share a domain."""
    _, _, _, _, _, domains, counts, _, _ = flow
    total = np.int64(0)
    for level in range(len(domains)):
        if counts[task, level, domains[level, node]] >= 1:
            total += _dear(level)
    return total


@nb.njit(cache=True)
def _price(at, more, flow):  # type: ignore[no-untyped-def]
    """Of one unit more in a bin (more = 1), or of the last one that is in it (more = 0). It rises with every unit."""
    slots, shares, load = flow[3], flow[4], flow[8]
    unit = load[at] + more
    if unit <= shares[0, at]:
        return np.int64(0)
    if unit <= shares[1, at]:
        return UNEVEN + shares[2, at]
    return UNEVEN + 2 * UNEVEN * (unit - shares[1, at]) // slots[at % len(slots)]


@nb.njit(cache=True)
def _put(task, node, by, flow):  # type: ignore[no-untyped-def]
    """One unit of a task more (by = 1) or less (by = -1) on a node."""
    _, _, group_of, slots, _, domains, counts, placed, load = flow
    placed[task, node] = by > 0
    load[group_of[task] * len(slots) + node] += by
    load[len(load) - len(slots) + node] += by
    for level in range(len(domains)):
        counts[task, level, domains[level, node]] += by


@nb.njit(cache=True)
def _is_path(end, before):  # type: ignore[no-untyped-def]
    """Whether the way back from a bin comes to its beginning."""
    steps = 0
    while end >= 0 and steps <= len(before):
        end, steps = before[end], steps + 1
    return end < 0


@nb.njit(cache=True)
def _relax(to, far, at, task, tail, work):  # type: ignore[no-untyped-def]
    """Reach a bin by a shorter way. Returns 1 where that queues it, else 0."""
    dist, before, moved, queue, is_queued = work
    if far >= dist[to]:
        return 0
    dist[to], before[to], moved[to] = far, at, task
    if is_queued[to]:
        return 0
    queue[tail % len(queue)], is_queued[to] = to, True
    return 1


@nb.njit(cache=True)
def _make_room(at, tail, work, flow):  # type: ignore[no-untyped-def]
    """Follow every unit of a group on a node to other nodes where it could be. Returns how many bins that queues."""
    costs, begins, _, slots, _, domains, counts, placed, _ = flow
    group, m = at // len(slots), at % len(slots)
    queued = 0
    for t in range(begins[group], begins[group + 1]):
        if not placed[t, m]:
            continue
        for n in range(len(slots)):
            if costs[t, n] == NEVER or placed[t, n]:
                continue
            far = work[0][at] - costs[t, m] + costs[t, n]
            for level in range(len(domains)):
                if domains[level, m] != domains[level, n]:
                    far += _dear(level) * (counts[t, level, domains[level, n]] >= 1)
                    far -= _dear(level) * (counts[t, level, domains[level, m]] >= 2)
            queued += _relax(group * len(slots) + n, far, at, t, tail + queued, work)
    return queued


@nb.njit(cache=True)
def _search(task, before, moved, flow):  # type: ignore[no-untyped-def]
    """The bin of a node where the shortest path for one more unit ends, or -1. `before` and `moved`: the bin that a bin
    is reached from, and the task that is moved for it (-1: none).
    """
    costs, _, group_of, slots, _, _, _, placed, load = flow
    nodes, bins = len(slots), len(load)
    dist = np.full(bins, FAR)
    queue, is_queued = np.empty(bins, np.int64), np.zeros(bins, np.bool_)
    work = (dist, before, moved, queue, is_queued)
    head, length = 0, 0
    for m in range(nodes):
        if costs[task, m] != NEVER and not placed[task, m]:
            far = costs[task, m] + _together(task, m, flow)
            length += _relax(group_of[task] * nodes + m, far, -1, task, head + length, work)
    visits = 0
    while length > 0 and visits < bins * bins:
        at = queue[head]
        head, length, visits = (head + 1) % bins, length - 1, visits + 1
        is_queued[at] = False
        if at < bins - nodes:
            far = dist[at] + _price(at, 1, flow)
            length += _relax(bins - nodes + at % nodes, far, at, -1, head + length, work)
            length += _make_room(at, head + length, work, flow)
        else:
            for other in range(at % nodes, bins - nodes, nodes):
                if load[other] > 0:
                    length += _relax(other, dist[at] - _price(other, 0, flow), at, -1, head + length, work)
    nearest, end = FAR, -1
    for at in range(bins - nodes, bins):
        if dist[at] < FAR and dist[at] + _price(at, 1, flow) < nearest:
            nearest, end = dist[at] + _price(at, 1, flow), at
    return end if _is_path(end, before) else -1


@nb.njit(cache=True)
def _cheapest(task, flow):  # type: ignore[no-untyped-def]
    """The node where one more unit costs least as things are, the least loaded among equals (or -1), and whether it
    could not cost less whatever else was moved.
    """
    costs, _, group_of, slots, _, _, _, placed, load = flow
    nodes = len(slots)
    whole = len(load) - nodes
    lowest, nearest, chosen = FAR, FAR, -1
    for m in range(nodes):
        if costs[task, m] == NEVER or placed[task, m]:
            continue
        lowest = min(lowest, costs[task, m])
        far = costs[task, m] + _together(task, m, flow)
        far += _price(group_of[task] * nodes + m, 1, flow) + _price(whole + m, 1, flow)
        is_emptier = chosen >= 0 and load[whole + m] * slots[chosen] < load[whole + chosen] * slots[m]
        if far < nearest or (far == nearest and is_emptier):
            nearest, chosen = far, m
    return chosen, nearest == lowest


@nb.njit(cache=True)
def _augment(end, before, moved, flow):  # type: ignore[no-untyped-def]
    """Move every unit along a path, from its end."""
    nodes = len(flow[3])
    while end >= 0:
        if moved[end] >= 0:
            if before[end] >= 0:
                _put(moved[end], before[end] % nodes, -1, flow)
            _put(moved[end], end % nodes, 1, flow)
        end = before[end]


@nb.njit(_SIGNATURE, cache=True)
def place(costs, begins, wants, order, slots, shares, domains, counts, placed):  # type: ignore[no-untyped-def]
    """Place wants[t] units of each task, or as many as there are nodes for, each on a node of its own: sets placed and
    counts. Tasks go in `order`.

    A unit that lies where it costs least, within all shares, needs no search. For the others the shortest path in the
    residual network says which units make room; its vertices are the bins, so that a search follows tasks × nodes.
    With domains a path may move two copies of one task, whose prices are then only nearly right: where such a path
    runs in a circle, the unit goes where it is cheapest as things are.
    """
    load = np.zeros(len(begins) * len(slots), np.int64)
    group_of = np.empty(len(costs), np.int64)
    for group in range(len(begins) - 1):
        group_of[begins[group] : begins[group + 1]] = group
    flow = (costs, begins, group_of, slots, shares, domains, counts, placed, load)
    before, moved = np.empty(len(load), np.int64), np.empty(len(load), np.int64)
    for task in order:
        for _ in range(wants[task]):
            node, is_best = _cheapest(task, flow)
            end = -1 if is_best or node < 0 else _search(task, before, moved, flow)
            if end >= 0:
                _augment(end, before, moved, flow)
            elif node >= 0:
                _put(task, node, 1, flow)
