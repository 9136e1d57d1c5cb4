"""Slots that have nothing to do cost the catalog one statement for all of them, and are still heard, woken and lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from service import coordinator
from service.catalog.engine import Catalog
from service.notify import Hub
from service.streams.errors import InstanceGone
from tests.integration.catalog import world
from tests.integration.catalog.world import SlotDouble


class Asking:
    """What the route of polls does with a question: a kept answer, else a look."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog, self.hub = catalog, Hub()
        catalog.on_wake(self.hub.wake)
        self.quiet = coordinator.QuietPolls(catalog, self.hub.has_woken)

    def ask(self, slot: SlotDouble, *, is_other: bool = False) -> coordinator.PollOutcome:
        asked = ([] if is_other else list(slot.held),)
        seen = self.hub.seen
        found = self.quiet.kept(slot.id, asked)
        if found is None:
            found = slot.poll()
            self.quiet.keep(slot.id, asked, found, seen)
        return found


@pytest.fixture
def asking(catalog: Catalog) -> Iterator[Asking]:
    asking = Asking(catalog)
    yield asking
    asking.hub.close()


def idle(asking: Asking, slot: SlotDouble) -> None:
    """Ask until the answer is one to wait with."""
    while asking.ask(slot).is_ready:
        slot.run()
    asking.ask(slot)


def test_an_idle_slot_that_asks_again_costs_nothing(asking: Asking) -> None:
    _, slot = world.job_at_work(asking.catalog)
    idle(asking, slot)
    before = asking.ask(slot)
    with world.statements(asking.catalog) as seen:
        assert asking.ask(slot) is before
    assert seen == []


def test_a_record_ends_what_was_kept(asking: Asking) -> None:
    _, slot = world.job_at_work(asking.catalog)
    idle(asking, slot)
    world.post(asking.catalog, asking.catalog.read(world.streams.get_stream, "clicks"), {1: 5})
    found = asking.ask(slot)
    assert found.is_ready
    assert [task.name for task in found.answer.tasks if task.work] == ["0_1"]


def test_another_question_is_looked_at(asking: Asking) -> None:
    _, slot = world.job_at_work(asking.catalog)
    idle(asking, slot)
    with world.statements(asking.catalog) as seen:
        asking.ask(slot, is_other=True)
    assert seen


def test_what_is_to_be_looked_at_again_holds_until_then(asking: Asking) -> None:
    _, slot = world.job_at_work(asking.catalog, idle_close_after_ms=1)
    found = slot.poll()
    asking.quiet.keep(slot.id, 1, coordinator.PollOutcome(found.answer, False, found.topics, 0), asking.hub.seen)
    assert asking.quiet.kept(slot.id, 1) is None
    asking.quiet.keep(slot.id, 1, coordinator.PollOutcome(found.answer, False, found.topics, 60_000), asking.hub.seen)
    assert asking.quiet.kept(slot.id, 1) is not None


def test_leases_of_idle_slots_are_renewed_together(asking: Asking) -> None:
    job, slot = world.job_at_work(asking.catalog)
    other = world.slot(asking.catalog, world.join(asking.catalog, "two"), job)
    for each in (slot, other):
        idle(asking, each)
    for each in (slot, other):
        idle(asking, each)  # the second one's join took tasks from the first
        world.expire_slot(asking.catalog, each.id)
    with world.statements(asking.catalog) as seen:
        asking.ask(slot)
        asking.ask(other)
        asking.quiet.renew()
        asking.quiet.renew()
    assert seen == ["UPDATE slots"]
    assert all(world.lease_of(asking.catalog, each.id) > 0 for each in (slot, other))


def test_only_who_asks_keeps_a_lease_and_no_lease_is_shortened(asking: Asking) -> None:
    _, slot = world.job_at_work(asking.catalog)
    idle(asking, slot)
    asking.quiet.renew()
    before = world.lease_of(asking.catalog, slot.id)
    asking.catalog.write(coordinator.leases.renew_slots, [slot.id], 5_000)
    assert world.lease_of(asking.catalog, slot.id) == before
    world.expire_slot(asking.catalog, slot.id)
    asking.quiet.renew()
    assert world.lease_of(asking.catalog, slot.id) == 0


def test_a_slot_that_was_ended_hears_of_it(asking: Asking) -> None:
    _, slot = world.job_at_work(asking.catalog)
    idle(asking, slot)
    asking.ask(slot)
    slot.leave()
    asking.quiet.renew()
    with pytest.raises(InstanceGone):
        asking.ask(slot)
