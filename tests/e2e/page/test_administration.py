"""The log-in by key, and what operators see: tenants with their keys, and costs; in a browser over real processes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg
import pytest
from playwright.sync_api import Browser, expect

from planq.deploy.local.valkey import EmbeddedValkey
from tests.support.browser import Visitor, check, lacking
from tests.support.lacking import require
from tests.support.servers import TestPostgres
from tests.support.stack import Stack
from tests.support.waiting import eventually

KEY = "a-key-of-the-settings"
SPENT = """
    INSERT INTO daily_costs
        (tenant_id, day, agent, model, calls, unpriced_calls, input_tokens, output_tokens, cost_usd)
    VALUES ('default', '2026-11-10', 'clerk', 'openai:gpt-5', 3, 0, 900, 70, 1.25),
           ('default', '2026-11-12', '', '<img src=x onerror=alert(1)>', 1, 1, 10, 5, 0)"""


@pytest.fixture(scope="module")
def stack(
    postgres: TestPostgres, valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """API and workers that ask everybody for a key."""
    require(lacking())
    url = postgres.create_migrated()
    running = Stack(tmp_path_factory.mktemp("keyed"), url, valkey.url, env={"PLANQ_API_KEYS": KEY})
    running.start()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(SPENT)
    yield running
    running.end()
    postgres.drop(url)


def log_in(visitor: Visitor, key: str, path: str) -> None:
    """Ask for a page, and bring the key that it wants."""
    page = visitor.page
    page.goto(path)
    expect(page).to_have_url(re.compile("/ui/login"))
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Log in").click()


def test_a_tenants_key_is_made_used_and_revoked_in_the_browser(
    stack: Stack, visitor: Visitor, browser: Browser
) -> None:
    log_in(visitor, KEY, "/ui/tenants")
    page = visitor.page
    page.get_by_label("Id").fill("acme")
    page.get_by_label("Name, for people").fill("Acme <b>")
    page.get_by_role("button", name="Create it").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Acme <b>")
    page.get_by_label("What it is for").fill("web shop")
    page.get_by_role("button", name="Make it").click()
    key = page.locator("#secret code").inner_text()

    shop = Visitor(browser, stack.url)
    log_in(shop, key, "/ui/jobs")
    expect(shop.page.get_by_role("heading", level=1)).to_have_text("Jobs")
    assert shop.page.get_by_role("link", name="Tenants").count() == 0
    shop.page.goto("/ui/costs")
    expect(shop.page.locator("main")).to_contain_text("No model was called in these days")
    assert shop.complaints == []
    assert shop.page.request.get("/ui/tenants").status == 403

    page.goto("/ui/tenants/acme")
    page.get_by_text("How much at once").click()
    page.get_by_label("max_endpoints").fill("3")
    page.get_by_role("button", name="Store the configuration").click()
    expect(page.locator(".uses")).to_contain_text("set here")
    page.get_by_text("Revoke…").click()
    page.get_by_role("button", name="Revoke it").click()
    expect(page.locator("#keys .state")).to_have_text("Revoked")

    def is_led_out() -> bool:
        shop.page.goto("/ui/jobs")
        return "/ui/login" in shop.page.url

    eventually(is_led_out, 60, what="the session has ended with its key")
    shop.page.get_by_label("API key").fill(key)
    shop.page.get_by_role("button", name="Log in").click()
    expect(shop.page.get_by_role("alert")).to_contain_text("revoked")
    shop.close()


@pytest.mark.parametrize("width", [360, 1440])
def test_everybody_can_use_these_pages(stack: Stack, browser: Browser, width: int) -> None:
    visitor = Visitor(browser, stack.url, width=width)
    page = visitor.page
    page.goto("/ui/login")
    check(visitor, width)
    log_in(visitor, KEY, "/ui/tenants")
    days = "from=2026-11-10&to=2026-11-12"
    for path in ("/ui/tenants", "/ui/tenants/default", f"/ui/costs?{days}", f"/ui/costs?{days}&by=model&tenant=*"):
        page.goto(path)
        page.evaluate("for (const one of document.querySelectorAll('main details')) one.open = true")
        check(visitor, width)
    assert page.locator("main img, main script").count() == 0
    visitor.close()
    assert visitor.complaints == []
