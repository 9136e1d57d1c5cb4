"""Light and dark: as the system has it, or as somebody chose, from the first thing that is painted on."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browsing import Open, heading
from tests.serving import Serving

GROUND = "getComputedStyle(document.body).backgroundColor"
DARK, LIGHT = "rgb(36, 36, 36)", "rgb(255, 255, 255)"


def ground(page: Page) -> str:
    return str(page.evaluate(GROUND))


@pytest.mark.parametrize(("system", "own", "other"), [("light", LIGHT, DARK), ("dark", DARK, LIGHT)])
def test_a_choice_is_kept_and_who_chooses_what_the_system_has_follows_it_again(
    working: Serving, open_page: Open, system: str, own: str, other: str
) -> None:
    page = open_page("/admin/streams", color_scheme=system)
    heading(page, "Streams")
    assert ground(page) == own
    page.get_by_role("button", name="show it").click()
    expect(page.locator("html")).not_to_have_attribute("data-mantine-color-scheme", system)
    assert ground(page) == other
    page.reload()
    heading(page, "Streams")
    assert ground(page) == other
    page.get_by_role("button", name="show it").click()
    expect(page.locator("html")).to_have_attribute("data-mantine-color-scheme", system)
    page.emulate_media(color_scheme="dark" if system == "light" else "light")
    expect(page.locator("html")).not_to_have_attribute("data-mantine-color-scheme", system)
    assert ground(page) == other


def test_nothing_is_painted_in_the_other_scheme_before_the_page_is_there(working: Serving, open_page: Open) -> None:
    page = open_page("/admin/streams", color_scheme="light")
    heading(page, "Streams")
    page.get_by_role("button", name="show it dark").click()
    expect(page.locator("html")).to_have_attribute("data-mantine-color-scheme", "dark")
    page.route("**/admin/assets/index-*.js", lambda route: route.fulfill(content_type="text/javascript", body=""))
    page.reload()
    assert page.locator("#root").inner_html() == ""
    assert ground(page) == DARK
