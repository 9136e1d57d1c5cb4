"""How long a retry waits."""

import random
import subprocess
import sys

from tenacity import RetryCallState, Retrying

from service import backoff

FORKED_TWICE = """
import os
from service import backoff
for _ in range(2):
    if os.fork() == 0:
        print(backoff.up_to(1.0), flush=True)
        os._exit(0)
    os.wait()
"""


def attempt(number: int) -> RetryCallState:
    state = RetryCallState(Retrying(), None, (), {})
    state.attempt_number = number
    return state


def test_the_range_doubles_with_each_attempt_up_to_the_most() -> None:
    wait = backoff.exponential(0.05, 1.0)
    for number, most in enumerate((0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0), start=1):
        waits = [wait(attempt(number)) for _ in range(200)]
        assert all(0 <= each <= most for each in waits)
        assert max(waits) > most / 2


def test_however_many_attempts_there_were_the_range_is_known() -> None:
    assert backoff.doubled(0.5, 300.0, 3) == 2.0
    assert backoff.doubled(0.5, 300.0, 10_000) == 300.0


def test_a_wait_of_anything_is_bounded() -> None:
    waits = [backoff.up_to(0.05) for _ in range(200)]
    assert 0 <= min(waits) < max(waits) <= 0.05


def test_it_takes_nothing_from_the_common_random_numbers() -> None:
    """Who seeds those gets the sequence that was asked for, whatever a service in the same process tries again."""
    wait, before = backoff.exponential(0.05, 1.0), random.getstate()
    assert len({wait(attempt(3)) for _ in range(9)}) > 1
    assert len({backoff.up_to(0.05) for _ in range(9)}) > 1
    assert random.getstate() == before


def test_processes_of_one_parent_do_not_wait_in_step() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED_TWICE], capture_output=True, text=True, check=True)
    assert len(set(done.stdout.split())) == 2
