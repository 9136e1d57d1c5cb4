"""A job's assignment in the dashboard: who has what of each task, what moved when and why, what would.

A service of its own: an instance joins, and one is killed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import ViewportSize, expect

from benchmarks.running import wait_until
from tests.browsing import NARROW, WIDE, Open, check_fit, heading, without_events
from tests.forkserver import ForkServer
from tests.integration.dashboard.groups import Shared, shared
from tests.serving import Serving

JOB = "assignment_once"
PAGE = f"/admin/jobs/{JOB}/assignment"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes, forks: ForkServer) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("assignment")
    with shared(folder, migrated_sqlite, forks, JOB, ["east", "west"]) as found:
        found.wait_until_settled(4)
        yield found


@pytest.fixture(scope="module")
def working(two: Shared) -> Serving:
    """What pages are opened of."""
    return two.service


def test_who_has_what_of_each_task(two: Shared, open_page: Open) -> None:
    page = open_page(PAGE)
    expect(page.get_by_text("Every task has an owner, no standby is missing, nothing moves.")).to_be_visible()
    table = page.get_by_role("region", name="Tasks by nodes", exact=True)
    names = table.get_by_role("columnheader")
    group = two.group()
    nodes = {each["node"]: each["instances"][0] for each in group["nodes"]}
    columns = ["task", *nodes.values(), "now"]
    expect(names).to_have_count(len(columns))
    for task, slot in group["assignment"].items():
        owner = next(nodes[each["node"]] for each in group["members"] if each["slot"] == slot)
        row = table.get_by_role("row").filter(has=page.get_by_role("rowheader", name=task))
        for place, name in enumerate(nodes.values()):
            said = "runs" if name == owner else re.compile(r"^standby(caught up|[0-9,]+ behind)")
            expect(row.get_by_role("cell").nth(place)).to_have_text(said)
        expect(row.get_by_role("cell").nth(len(nodes))).to_have_text("stays")


def test_a_round_says_what_moved_and_why(two: Shared, open_page: Open) -> None:
    page = open_page(PAGE)
    decided = next(each for each in two.rounds() if len(each["moved"]) > 0)
    case = two.ask(f"/v1/groups/{JOB}/rebalances/{decided['generation']}")
    rounds = page.get_by_role("region", name="Rebalances", exact=True).last
    rounds.get_by_role("link", name=str(decided["generation"]), exact=True).click()
    assert page.url.endswith(f"?generation={decided['generation']}")
    moved = page.get_by_role("list", name="What moved and why")
    before = {task for member in case["case"]["members"] for task in member["active"]}
    fresh = [task for tasks in case["answer"]["active"].values() for task in tasks if task not in before]
    assert fresh
    for task in fresh:
        expect(moved.get_by_role("listitem").filter(has_text=task).first).to_contain_text("nobody ran it")
    page.reload()
    expect(moved).to_be_visible()


def test_a_plan_is_shown_in_the_same_matrix_and_changes_nothing(two: Shared, open_page: Open) -> None:
    before = two.group()
    east = two.node_of("east")
    mine = [task for member in before["members"] if member["instance"] == "east" for task in member["tasks"]]
    page = open_page(PAGE)
    page.get_by_role("checkbox", name="east").check()
    page.get_by_role("button", name="what would move").click()
    planned = page.get_by_role("list", name="What would move").get_by_role("listitem")
    expect(planned).to_have_count(len(mine))
    for task in mine:
        expect(planned.filter(has_text=task)).to_contain_text("from east to west, at once: its copy there is caught up")
    expect(
        page.get_by_text(f"{len(mine)} of 4 tasks would move in the end, {len(mine)} of them at once.")
    ).to_be_visible()
    end = page.get_by_role("region", name="Tasks by nodes in the end")
    expect(end.get_by_text("runs (new)")).to_have_count(len(mine))
    assert page.url.endswith(f"?remove={east}")
    page.goto(f"{PAGE}?add=2")
    expect(page.get_by_role("listitem").filter(has_text="to new 1, once a copy is built there").first).to_be_visible()
    page.get_by_role("button", name="copy as curl").nth(1).click()
    expect(page.get_by_role("dialog", name="copy as curl")).to_contain_text(f"/v1/groups/{JOB}:plan")
    after = two.group()
    for kept in ("generation", "members", "assignment", "standby"):  # copies go on meanwhile
        assert after[kept] == before[kept]


def test_a_hand_over_and_a_copy_on_its_way_are_said_in_words(two: Shared, open_page: Open) -> None:
    page = open_page("/admin/nowhere")
    group = two.group()
    task, owner = next(iter(group["assignment"].items()))
    other = next(each for each in group["members"] if each["slot"] != owner and each["instance"] == "west")
    behind = next(each for each in group["copies"] if each["role"] == "standby")
    copy = behind | {"role": "warm-up", "state": "restoring", "lag_records": 1_200, "lag_s": 3.5}
    copies = [copy if each is behind else each for each in group["copies"]]
    copies += [copy | {"task": f"9_{n}", "lag_records": 1_100} for n in range(6)]
    changed = group | {"moving": {task: other["slot"]}, "probing": True, "missing_standbys": 1, "copies": copies}
    without_events(page)
    page.route(f"**/v1/groups/{JOB}", lambda route: route.fulfill(json=changed))
    page.goto(PAGE)
    said = page.get_by_role("status").filter(has_text="On its way")
    expect(said).to_contain_text(f"{task} is being handed over")
    expect(said).to_contain_text("1 standby is not caught up")
    expect(said).to_contain_text(f"the copy of {behind['task']} on")
    expect(said).to_contain_text("is 1,200 behind, 3.5 s")
    expect(said).to_contain_text("2 more copies are behind, by less")


def test_why_each_task_moved_is_said_in_words(two: Shared, open_page: Open) -> None:
    page = open_page("/admin/nowhere")
    without_events(page)
    east, west = two.node_of("east"), two.node_of("west")
    none: dict[str, object] = {"tags": {}, "active": [], "lags": {}}
    members = [
        none | {"id": east, "slots": 2, "active": ["0_0", "0_1", "0_2"]},
        none | {"id": west, "slots": 2, "lags": {"0_1": 0, "0_2": 12}},
        none | {"id": "third", "slots": 0, "active": ["0_3"]},
    ]
    known = two.ask(f"/v1/groups/{JOB}/rebalances/1")
    settings = {"assignor": "high_availability", "standby_replicas": 1, "max_warmup_replicas": 2, "rack_tags": []}
    case = settings | {"members": members, "tasks": [f"0_{n}" for n in range(5)], "acceptable_recovery_lag": 100}
    case["stateful"] = ["0_0", "0_1", "0_2", "0_3"]
    answer = {
        "active": {east: ["0_0"], west: ["0_1", "0_2", "0_3", "0_4"]},
        "standby": {west: ["0_0"]},
        "probing": True,
    }
    moved = {"0_1": {"from": "s", "to": "t"}}
    decided = known | {"reason": "a slot joined", "took_ms": 120, "moved": moved, "case": case, "answer": answer}
    page.route(f"**/v1/groups/{JOB}/rebalances/1", lambda route: route.fulfill(json=decided))
    page.goto(f"{PAGE}?generation=1")
    said = page.get_by_role("list", name="What moved and why").get_by_role("listitem")
    evened = "from east to west: evened: east ran 3 and west 0, now 1 and 4; west's copy was caught up"
    expect(said).to_have_text(
        [
            f"0_1{evened}",
            f"0_2{evened} but for 12 records",
            "0_3from third to west: third leaves; no copy was on west: its stores are restored there",
            "0_4to west: nobody ran it; it keeps no stores",
            "0_0a copy is built on west",
            "1 task stays where it runs.",
        ]
    )
    expect(
        page.get_by_text("a slot joined: there is one more to share with. Hands changed within 120 ms.")
    ).to_be_visible()
    expect(page.get_by_text("Something moves once those copies have caught up")).to_be_visible()


@pytest.mark.parametrize(("viewport", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
def test_assignments_are_for_everybody_and_fit(
    two: Shared, open_page: Open, viewport: ViewportSize, scheme: str
) -> None:
    latest = two.group()["generation"]
    path = f"{PAGE}?generation={latest}&remove={two.node_of('east')}"
    page = open_page(path, viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
    heading(page, JOB)
    expect(page.get_by_role("region", name="Tasks by nodes in the end")).to_be_visible()
    expect(page.get_by_role("heading", name=f"Round {latest}")).to_be_visible()
    check_fit(page)


def test_one_is_lost_and_its_tasks_run_where_their_copies_were(two: Shared, open_page: Open) -> None:
    lost = [task for member in two.group()["members"] if member["instance"] == "east" for task in member["tasks"]]
    two.processes["east"].kill()

    def decided() -> list[dict[str, object]]:
        return [each for each in two.rounds() if each["reason"] == "an instance was lost"]

    wait_until(lambda: bool(decided()), "the end of its lease")
    [it] = decided()
    page = open_page(f"{PAGE}?generation={it['generation']}")
    moved = page.get_by_role("list", name="What moved and why").get_by_role("listitem")
    expect(page.get_by_text("an instance was lost: it was not heard of for a lease.")).to_be_visible()
    for task in lost:
        expect(moved.filter(has_text=task)).to_contain_text("to west: who ran it was lost; west's copy was caught up")
    expect(moved.last).to_contain_text(f"{4 - len(lost)} tasks stay where they run.")
