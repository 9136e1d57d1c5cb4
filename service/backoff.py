"""How long a retry waits: a random time, of a range that doubles with each attempt.

The random numbers are its own: whoever seeds the common ones gets the sequence that was asked for, whatever is retried
in the same process.
"""

import os
import random
from collections.abc import Callable

from tenacity import RetryCallState

_RANDOM = random.Random()  # noqa: S311  no secret
os.register_at_fork(after_in_child=_RANDOM.seed)  # slots are forked: with one sequence they would retry in step


def exponential(first_s: float, most_s: float) -> Callable[[RetryCallState], float]:
    """Tenacity's `wait`: from nothing to `first_s` after the first attempt, twice as much after each, `most_s` at most.

    As `tenacity.wait_random_exponential`, which takes from the common random numbers.
    """
    return lambda state: _RANDOM.uniform(0, min(most_s, first_s * 2.0 ** (state.attempt_number - 1)))


def up_to(most_s: float) -> float:
    """A wait of anything up to `most_s`: for several who would get into each other's way again and again."""
    return _RANDOM.uniform(0, most_s)
