"""How long a retry waits: a random time, of a range that doubles with each attempt.

The random numbers are its own: whoever seeds the common ones gets the sequence that was asked for, whatever is retried
in the same process.
"""

import os
import random
from collections.abc import Callable
from typing import Final

from tenacity import RetryCallState

_MOST_DOUBLINGS: Final = 60  # a float knows no more than 1,023, and what is away for days is tried more often than that
_RANDOM = random.Random()  # noqa: S311  no secret
os.register_at_fork(after_in_child=_RANDOM.seed)  # slots are forked: with one sequence they would retry in step


def exponential(first_s: float, most_s: float) -> Callable[[RetryCallState], float]:
    """Tenacity's `wait`: from nothing to `first_s` after the first attempt, twice as much after each, `most_s` at most.

    As `tenacity.wait_random_exponential`, which takes from the common random numbers.
    """
    return lambda state: _RANDOM.uniform(0, doubled(first_s, most_s, state.attempt_number))


def doubled(first_s: float, most_s: float, attempts: int) -> float:
    """`first_s` after the first attempt, twice as much after each more, `most_s` at most."""
    return min(most_s, first_s * 2.0 ** min(attempts - 1, _MOST_DOUBLINGS))


def up_to(most_s: float) -> float:
    """A wait of anything up to `most_s`: for several who would get into each other's way again and again."""
    return _RANDOM.uniform(0, most_s)
