"""Instances in the dashboard: what each runs, what became of one that was lost, draining one, and when the next is due.

A service of their own: instances are killed and drained.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import ViewportSize, expect

from benchmarks.running import wait_until
from tests.browsing import NARROW, WIDE, Open, check_fit, heading, without_events
from tests.forkserver import ForkServer
from tests.integration.dashboard.groups import Shared, shared
from tests.serving import Serving

JOB = "instances_once"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes, forks: ForkServer) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("instances")
    with shared(folder, migrated_sqlite, forks, JOB, ["east", "north", "south"]) as found:
        found.wait_until_settled(4)
        yield found


@pytest.fixture(scope="module")
def working(three: Shared) -> Serving:
    """What pages are opened of."""
    return three.service


def test_each_instance_with_its_slots_and_their_tasks(three: Shared, open_page: Open) -> None:
    page = open_page("/admin/instances")
    found = three.instances()
    assert sum(len(each["slots"]) for each in found.values()) == 4
    for name, instance in found.items():
        section = page.get_by_role("region", name=name, exact=True)
        expect(section.locator(".badge").first).to_have_text("live")
        expect(section).to_contain_text(instance["host"])
        for slot in instance["slots"]:
            [task] = slot["tasks"]
            row = page.get_by_role("region", name=f"Slots of {name}").get_by_role("row").filter(has_text=task)
            expect(row).to_contain_text(JOB)
            expect(row).to_contain_text("kept")
    expect(page.get_by_text(f"{JOB} 4", exact=True)).to_be_visible()  # who has the slots
    expect(
        page.get_by_text("Safe to take the next instance: every task has an owner, nothing moves, 3 are live.")
    ).to_be_visible()


def test_what_is_short_and_who_waits_is_said_with_what_to_do(three: Shared, open_page: Open) -> None:
    page = open_page("/admin/nowhere")
    without_events(page)
    east = three.ask("/v1/instances?limit=1000")
    job = three.ask(f"/v1/jobs/{JOB}")
    east["items"][0]["shortage"] = "no_cores"
    page.route("**/v1/instances?limit=1000", lambda route: route.fulfill(json=east))
    waiting = {"items": [job | {"name": "instances_waits", "shortage": "no_cores", "state": "starting"}], "next": None}
    page.route("**/v1/jobs?limit=1000", lambda route: route.fulfill(json=waiting))
    group = three.group()
    page.route("**/v1/groups/instances_waits", lambda route: route.fulfill(json=group))
    parts = {"status": "not_ready", "parts": {"database": "ok", "storage": "nearly full: 3 bytes are free"}}
    page.route("**/readyz", lambda route: route.fulfill(json=parts))  # 503, but browsers complain of that
    page.goto("/admin/instances")
    expect(page.get_by_role("alert").filter(has_text="Its Spark has no executors")).to_contain_text("add workers")
    expect(page.get_by_role("alert").filter(has_text="A job waits for a core")).to_contain_text("instances_waits")
    alert = page.get_by_role("alert").filter(has_text="The service is not ready")
    expect(alert).to_contain_text("storage: nearly full: 3 bytes are free. Records can not be written")


def test_a_reader_may_not_drain(open_page: Open) -> None:
    page = open_page("/admin/instances", key="writer")
    expect(page.get_by_role("region", name="Slots of east")).to_be_visible()
    assert page.get_by_role("button", name="drain").count() == 0


@pytest.mark.parametrize(("viewport", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
def test_instances_are_for_everybody_and_fit(open_page: Open, viewport: ViewportSize, scheme: str) -> None:
    page = open_page("/admin/instances", viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
    heading(page, "Instances")
    expect(page.get_by_text("Safe to take the next instance")).to_be_visible()
    check_fit(page)


def test_one_is_drained_and_the_next_one_has_to_wait_for_it(three: Shared, open_page: Open) -> None:
    page = open_page("/admin/instances")
    before = three.instances()["east"]
    tasks = [task for slot in before["slots"] for task in slot["tasks"]]
    section = page.get_by_role("region", name="east", exact=True)
    section.get_by_role("button", name="drain").click()
    dialog = page.get_by_role("dialog", name="drain east?")
    expect(dialog).to_contain_text(f"Its {len(tasks)} tasks go to the other 2 instances")
    expect(dialog).to_contain_text(f"/v1/instances/{before['id']}:drain")
    dialog.get_by_role("button", name="cancel").click()
    assert three.instances()["east"]["state"] == "live"
    section.get_by_role("button", name="drain").click()
    dialog.get_by_role("button", name="drain").click()
    expect(section).to_contain_text("It has handed everything over: stop its process")
    expect(page.get_by_text("east is drained, but not started again: restart its process")).to_be_visible()
    found = three.instances()
    assert (found["east"]["state"], found["east"]["slots"]) == ("leaving", [])
    where = {task for name in ("north", "south") for slot in found[name]["slots"] for task in slot["tasks"]}
    assert where == {"0_0", "0_1", "0_2", "0_3"}
    [entry] = three.ask("/v1/audit?what=drain_instance")["items"]
    assert (entry["who"], entry["resource"]) == ("admin", f"instances/{before['id']}")


def test_what_became_of_the_tasks_of_one_that_was_lost(three: Shared, open_page: Open) -> None:
    lost = [task for slot in three.instances()["north"]["slots"] for task in slot["tasks"]]
    three.processes["north"].kill()
    wait_until(lambda: three.instances()["north"]["state"] == "gone", "the end of its lease")
    [decided] = [each for each in three.rounds() if each["reason"] == "an instance was lost"]
    assert sorted(decided["moved"]) == sorted(lost)
    page = open_page("/admin/instances")
    gone = page.get_by_role("listitem").filter(has_text="north")
    expect(gone.locator(".badge")).to_have_text("lost")
    expect(gone).to_contain_text(f"{len(lost)} of its tasks went to others")
    gone.get_by_role("link", name=f"{JOB}, round {decided['generation']}").click()
    heading(page, JOB)
    expect(page.get_by_role("list", name="What moved and why").get_by_role("listitem")).not_to_have_count(0)
    assert page.url.endswith(f"/assignment?generation={decided['generation']}")


def test_where_none_is_left_it_says_how_to_start_one(three: Shared, open_page: Open) -> None:
    page = open_page("/admin/nowhere")
    without_events(page)
    page.route("**/v1/instances?limit=1000", lambda route: route.fulfill(json={"items": [], "next": None}))
    page.goto("/admin/instances")
    expect(page.get_by_text("No instance is here, so no job runs.")).to_be_visible()
    expect(page.get_by_text(f"millrace instance --api {three.service.url}")).to_be_visible()
