"""How long polls wait: no longer than a lease bears, but for slots for which their instance vouches meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.coordinator import WaitingPolls
from tests.integration.test_slot_protocol import Member, held, later
from tests.serving import serving

LEASE_MS = 5_000  # a poll waits 2 s of it alone, and 3 s from when its instance vouched for it


@pytest.fixture
def member(tmp_path: Path, migrated_sqlite: bytes) -> Iterator[Member]:
    (tmp_path / "catalog.db").write_bytes(migrated_sqlite)
    with serving(tmp_path, f"sqlite:///{tmp_path}/catalog.db", lease_ms=LEASE_MS) as service:
        yield Member(service)


def seconds_of_a_poll(member: Member, timeout_ms: int, age_ms: int | None) -> float:
    """That has nothing to hear, while its instance says again and again that its last sign of life is so old."""
    holds = held(member.poll([]))
    member.poll(holds)
    began_s = time.monotonic()
    thread, answers = later(lambda: (member.poll(holds, timeout_ms=timeout_ms), time.monotonic()))
    while thread.is_alive():
        member.heartbeat(pulses={} if age_ms is None else {member.slot: age_ms})
        thread.join(0.1)
    [(answer, ended_s)] = answers
    assert held(answer) == holds
    return float(ended_s - began_s)


def test_a_poll_waits_on_while_its_instance_vouches_for_the_slot(member: Member) -> None:
    assert seconds_of_a_poll(member, 2_600, age_ms=0) >= 2.6
    assert member.ask(":poll", {"timeout_ms": 0}).status_code == 200


@pytest.mark.parametrize("age_ms", [None, 2_000])
def test_a_poll_that_nobody_vouches_for_is_answered_while_its_lease_lasts(member: Member, age_ms: int | None) -> None:
    assert seconds_of_a_poll(member, 60_000, age_ms) < LEASE_MS / 1_000


class Clock:
    """Its time in place of the machine's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)


def test_until_when_a_poll_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, polls = Clock(monkeypatch), WaitingPolls(10_000)
    with polls.wait("i", "s") as poll:
        assert poll.until_s == 104.0
        clock.now_s = 103.0
        polls.vouch("i", polls.living("i", {"s": 3_000}), clock.now_s)
        assert poll.until_s == 109.0
        polls.vouch("i", ["s"], 90.0)  # a heartbeat that was overtaken
        assert poll.until_s == 109.0


def test_only_young_signs_of_slots_that_wait_here_count() -> None:
    polls = WaitingPolls(10_000)
    assert polls.living("i", {"s": 0}) == {}
    with polls.wait("i", "s"):
        assert polls.living("i", {"s": 3_001}) == {}
        assert polls.living("other", {"s": 0}) == {}
        assert polls.living("i", {"s": 10, "unknown": 0}) == {"s": 10}
    assert polls.living("i", {"s": 0}) == {}


def test_a_slot_that_was_vouched_for_just_now_need_not_renew_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, polls = Clock(monkeypatch), WaitingPolls(10_000)
    with polls.wait("i", "s") as first:
        assert not first.is_vouched_for
        polls.vouch("i", polls.living("i", {"s": 0}), clock.now_s)
    clock.now_s += 5
    with polls.wait("i", "s") as second, polls.wait("i", "another") as another:
        assert second.is_vouched_for
        assert not another.is_vouched_for
    clock.now_s += 2
    with polls.wait("i", "s") as late:
        assert not late.is_vouched_for
    clock.now_s -= 2
    polls.vouch("i", {}, clock.now_s)
    with polls.wait("i", "s") as unseen:
        assert not unseen.is_vouched_for


def test_of_two_polls_of_one_slot_the_later_one_counts() -> None:
    polls = WaitingPolls(10_000)
    with polls.wait("i", "s") as lost:
        alone_s = lost.until_s
        with polls.wait("i", "s") as later_one:
            polls.vouch("i", ["s"], later_one.asked_s + 60)
            assert (lost.until_s, later_one.until_s) == (alone_s, later_one.asked_s + 66)
        assert polls.living("i", {"s": 0}) == {}
