"""What an expression can cost, bounded from its text alone.

It knows how the bytes of values add up from node to node, and what a regular expression takes; it refuses to
know syntax. The bound lets `gate` refuse texts that explode and `run` cut batches so that no query explodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from service.streams.expressions.allowed import AllowedFunction


@dataclass(frozen=True, slots=True)
class Cost:
    """What a node can cost, from its text alone: the bytes of its value, and of all values below it.

    Both are `per_byte` × the bytes of the record + `fixed`. `nodes` counts the nodes DuckDB will plan.
    """

    per_byte: int = 0
    fixed: int = 0
    work_per_byte: int = 0
    work_fixed: int = 0
    nodes: int = 0
    is_json: bool = False


SMALL = 64  # bytes that any number, date, digest or boolean fits in, as a value and as text


def value(per_byte: int = 0, fixed: int = 0, *, is_json: bool = False) -> Cost:
    return Cost(per_byte, fixed, per_byte, fixed, 1, is_json)


def over(below: Iterable[Cost], per_byte: int, fixed: int, *, is_json: bool = False, passes: int = 0) -> Cost:
    """The cost of a node with these below it. It reads their values `passes` more times than once."""
    costs = list(below)
    work_per_byte = per_byte + sum(cost.work_per_byte + passes * cost.per_byte for cost in costs)
    work_fixed = fixed + sum(cost.work_fixed + passes * cost.fixed for cost in costs)
    return Cost(per_byte, fixed, work_per_byte, work_fixed, 1 + sum(cost.nodes for cost in costs), is_json)


def pick(candidates: list[Cost], others: Iterable[Cost] = ()) -> Cost:
    """A node that gives one of its candidates."""
    per_byte = max((cost.per_byte for cost in candidates), default=0)
    fixed = max((cost.fixed for cost in candidates), default=0)
    is_json = all(cost.is_json for cost in candidates)
    return over([*candidates, *others], per_byte, fixed + SMALL, is_json=is_json)


def calling(function: AllowedFunction, growth: int, arguments: list[Cost], passes: int) -> Cost:
    """A function over its arguments, which it reads `passes` more times than once."""
    weights = [growth * (6 if function.escapes and not cost.is_json else 1) for cost in arguments]
    per_byte = sum(weight * cost.per_byte for weight, cost in zip(weights, arguments, strict=True))
    fixed = sum(weight * cost.fixed for weight, cost in zip(weights, arguments, strict=True))
    return over(arguments, per_byte, fixed + SMALL, is_json=function.is_json, passes=passes)


def replacing(found: int, put: int) -> int:
    """How much `replace` grows a text, from the bytes of its two literals."""
    return max(1, -(-put // max(1, found)))


def states(pattern: str) -> int:
    """About how many states RE2 keeps of a pattern; it follows 50 M of them a second when its cache overflows."""
    size, times = len(pattern), 1
    for group, low, high in re.findall(r"(\)?)\{(\d{1,9})(?:,(\d{0,9}))?\}", pattern):
        count = max(1, int(low), int(high or 0))
        size, times = (size, times * count) if group else (size + count, times)
    return size * times * (50 if re.search(r"\\[pP]", pattern) else 1)
