"""Signs of life: who is named as silent, and when the lease is kept beside a long batch."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from benchmarks.running import wait_until
from spark_jobs.pulse import LeaseKeeper, Pulse, signs_of_life, silent_attempts


def test_a_slot_that_ends_well_leaves_no_file(tmp_path: Path) -> None:
    with Pulse(tmp_path / "pulses"):
        assert len(list((tmp_path / "pulses").iterdir())) == 1
    assert not list((tmp_path / "pulses").iterdir())


def test_a_beating_slot_is_not_silent(tmp_path: Path) -> None:
    with Pulse(tmp_path) as slot:
        slot.beat()
        assert silent_attempts(tmp_path, 5.0) == []


def test_a_silent_attempt_is_named_once(tmp_path: Path) -> None:
    file = tmp_path / "17"
    file.touch()
    os.utime(file, (time.time() - 60, time.time() - 60))
    assert silent_attempts(tmp_path, 30.0) == [17]
    assert silent_attempts(tmp_path, 30.0) == []


def test_there_may_be_no_folder_yet(tmp_path: Path) -> None:
    assert silent_attempts(tmp_path / "none", 1.0) == []
    assert signs_of_life(tmp_path / "none", 1.0) == {}


def test_a_slot_that_has_joined_shows_when_it_gave_its_last_sign(tmp_path: Path) -> None:
    with Pulse(tmp_path) as process:
        assert signs_of_life(tmp_path, 60.0) == {}
        process.become("former")
        process.become("slot")
        [file] = tmp_path.iterdir()
        os.utime(file, (time.time() - 20, time.time() - 20))
        [(slot, age_ms)] = signs_of_life(tmp_path, 60.0).items()
        assert (slot, round(age_ms, -4)) == ("slot", 20_000)
        process.beat()
        assert signs_of_life(tmp_path, 60.0)["slot"] < age_ms
    assert signs_of_life(tmp_path, 60.0) == {}


def test_signs_that_are_old_or_of_another_clock_say_nothing(tmp_path: Path) -> None:
    with Pulse(tmp_path) as process:
        process.become("slot")
        [file] = tmp_path.iterdir()
        for since_s in (61, -30):
            os.utime(file, (time.time() - since_s, time.time() - since_s))
            assert signs_of_life(tmp_path, 60.0) == {}


def test_the_lease_is_renewed_while_the_loop_is_in_a_long_batch(tmp_path: Path) -> None:
    renewed = threading.Event()
    with Pulse(tmp_path) as slot, LeaseKeeper(renewed.set, slot, lease_ms=50, max_busy_ms=60_000):
        assert renewed.wait(30)


def test_nobody_renews_for_a_loop_that_hangs(tmp_path: Path) -> None:
    renewed = threading.Event()
    with Pulse(tmp_path) as slot, LeaseKeeper(renewed.set, slot, lease_ms=5, max_busy_ms=0):
        assert not renewed.wait(0.1)


def test_a_loop_that_waits_for_an_answer_needs_nobody_to_renew(tmp_path: Path) -> None:
    renewed = threading.Event()
    with Pulse(tmp_path) as slot:
        with slot.asking(), LeaseKeeper(renewed.set, slot, lease_ms=5, max_busy_ms=60_000):
            assert not renewed.wait(0.1)
        with LeaseKeeper(renewed.set, slot, lease_ms=5, max_busy_ms=60_000):
            assert renewed.wait(30)


def test_a_loop_that_waits_for_an_answer_lives_however_long_the_api_is_away(tmp_path: Path) -> None:
    with Pulse(tmp_path) as slot, slot.asking(), LeaseKeeper(lambda: None, slot, lease_ms=5, max_busy_ms=0):
        [file] = tmp_path.iterdir()
        os.utime(file, (0, 0))
        wait_until(lambda: file.stat().st_mtime > 0, "a sign of life")
