"""Keys and the audit in the dashboard: a secret is shown once, a key ends at once, and each of both is in the audit."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import ViewportSize, expect

from service.catalog import keys
from tests.browsing import NARROW, WIDE, Open, check_fit, heading
from tests.serving import Serving


@pytest.fixture(scope="module")
def kept(working: Serving) -> Serving:
    """A service in which somebody made a stream, changed it, and deleted it."""
    _, secret = working.catalog.write(keys.create_key, "keys-ana", "writer")
    headers = {"Authorization": f"Bearer {secret}"}
    with httpx.Client(base_url=working.url, headers=headers, verify=False) as ana:
        made = ana.post("/v1/streams", json={"name": "keys-seen", "partitions": 3}).raise_for_status()
        change, tag = {"retention_ms": 60_000}, {"If-Match": made.headers["ETag"]}
        ana.patch("/v1/streams/keys-seen", json=change, headers=tag).raise_for_status()
        ana.delete("/v1/streams/keys-seen").raise_for_status()
    return working


def test_a_key_is_made_shown_once_and_revoked_and_the_audit_has_both(kept: Serving, open_page: Open) -> None:
    page = open_page("/admin/keys")
    page.get_by_role("button", name="make a key").click()
    asked = page.get_by_role("dialog", name="Make a key?")
    asked.get_by_label("What it is for").fill("keys-shop")
    asked.get_by_label("What its holder may do").select_option("writer")
    expect(asked).to_contain_text("makes, changes and deletes streams and jobs")
    expect(asked).to_contain_text('--json \'{"role":"writer","name":"keys-shop"}\'')
    asked.get_by_role("button", name="make").click()
    shown = page.get_by_role("dialog", name="The key keys-shop")
    secret = shown.get_by_label("The secret").inner_text().strip()
    expect(shown).to_contain_text("This is shown once")
    with httpx.Client(base_url=kept.url, headers={"Authorization": f"Bearer {secret}"}, verify=False) as shop:
        assert shop.get("/v1/streams").status_code == 200
        page.keyboard.press("Escape")
        expect(shown).to_be_visible()  # not to be lost by a slip
        shown.get_by_role("button", name="I have it").click()
        expect(shown).to_be_hidden()
        assert secret not in page.content()
        row = page.get_by_role("region", name="Keys", exact=True).get_by_role("row").filter(has_text="keys-shop")
        expect(row).to_contain_text("writer")
        expect(row).to_contain_text("within the last minute")
        row.get_by_role("button", name="revoke").click()
        dialog = page.get_by_role("dialog", name="revoke keys-shop?")
        expect(dialog).to_contain_text("It can not be made valid again.")
        expect(dialog).to_contain_text("-X DELETE")
        dialog.get_by_role("button", name="cancel").click()
        assert shop.get("/v1/streams").status_code == 200
        row.get_by_role("button", name="revoke").click()
        dialog.get_by_role("button", name="revoke").click()
        expect(row).to_have_count(0)
        assert shop.get("/v1/streams").status_code == 401
    page.get_by_role("button", name="revoked").click()
    expect(row).to_contain_text("revoked")
    assert "revoked=shown" in page.url
    token = next(
        each for each in kept.client().get("/v1/tokens?limit=1000").json()["items"] if each["name"] == "keys-shop"
    )
    page.goto(f"/admin/keys?resource=tokens/{token['id']}")
    entries = page.get_by_role("region", name="Who did what when").get_by_role("row")
    expect(entries).to_have_count(1 + 2)
    expect(entries.nth(1)).to_contain_text("revoke token")
    expect(entries.nth(2)).to_contain_text("create token")
    expect(entries.nth(2)).to_contain_text('"name": "keys-shop"')


def test_who_did_what_is_found_by_an_address_that_can_be_shared(kept: Serving, open_page: Open) -> None:
    page = open_page("/admin/keys")
    page.get_by_label("Who (key's name or id)").fill("keys-ana")
    page.get_by_role("button", name="find").click()
    entries = page.get_by_role("region", name="Who did what when").get_by_role("row")
    expect(entries).to_have_count(1 + 3)
    for place, words, status in ((1, "delete stream", "204"), (2, "update stream", "200"), (3, "create stream", "201")):
        cells = entries.nth(place).get_by_role("cell")
        expect(cells.nth(1)).to_have_text("keys-ana (writer)")
        expect(cells.nth(2)).to_have_text(words)
        expect(cells.nth(3)).to_have_text("streams/keys-seen")
        expect(cells.nth(5)).to_have_text(status)
    expect(entries.nth(2)).to_contain_text('{ "retention_ms": 60000 }')
    assert page.url.endswith("/admin/keys?who=keys-ana")
    page.get_by_label("What (operation)").fill("update_stream")
    page.get_by_role("button", name="find").click()
    expect(entries).to_have_count(1 + 1)
    page.reload()
    expect(entries).to_have_count(1 + 1)
    page.goto("/admin/keys?who=keys-nobody")
    expect(page.get_by_text("Nothing of that kind was done")).to_be_visible()
    page.get_by_role("button", name="copy as curl").last.click()
    expect(page.get_by_role("dialog", name="copy as curl")).to_contain_text("/v1/audit?who=keys-nobody&limit=50")


def test_who_is_no_admin_is_told_so(kept: Serving, open_page: Open) -> None:
    page = open_page("/admin/keys", key="writer")
    expect(page.get_by_text("Only an admin sees keys")).to_be_visible()
    assert page.locator("main button").count() == 0


@pytest.mark.parametrize(("viewport", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
def test_keys_are_for_everybody_and_fit(kept: Serving, open_page: Open, viewport: ViewportSize, scheme: str) -> None:
    page = open_page("/admin/keys", viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
    heading(page, "Keys")
    expect(page.get_by_role("region", name="Who did what when").get_by_role("row").nth(1)).to_be_visible()
    check_fit(page)
    page.get_by_role("button", name="make a key").click()
    dialog = page.get_by_role("dialog", name="Make a key?")
    expect(dialog).to_be_visible()
    expect(dialog).to_have_css("opacity", "1")  # it fades in, and what is half there has no contrast
    check_fit(page)
