"""Tools to be tried, agents with their versions, and webhooks, in a browser over real processes."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator

import httpx
import psycopg
import pytest
from playwright.sync_api import Browser, expect

from planq.deploy.local.valkey import EmbeddedValkey
from tests.e2e.page.test_pages import HOSTILE
from tests.support.browser import Visitor, check, lacking
from tests.support.insights import Execute, ended, learned, taught
from tests.support.lacking import require
from tests.support.receiver import Receiver, receiving
from tests.support.servers import TestPostgres
from tests.support.stack import Stack

IN_A_JOB = re.compile("/ui/jobs/[0-9a-f-]{36}$")


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    """Somebody who is told."""
    require(lacking())
    with receiving() as running:
        yield running


@pytest.fixture(scope="module")
def stack(
    postgres: TestPostgres, valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory, receiver: Receiver
) -> Iterator[Stack]:
    """API and workers that may tell this machine."""
    url = postgres.create_migrated()
    env = {
        "PLANQ_TOOLS": "tests.support.tools",
        "PLANQ_WEBHOOK_ALLOW_HOSTS": receiver.host,
        "PLANQ_SECRET_KEYS": b64encode(b"k" * 32).decode(),
    }
    running = Stack(tmp_path_factory.mktemp("catalogue"), url, valkey.url, env=env)
    running.start()
    yield running
    running.end()
    postgres.drop(url)


def test_a_tool_is_tried_by_a_form(stack: Stack, visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/ui/tools")
    page.get_by_role("searchbox").fill("ARITHMETIC")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="calculate").click()
    page.get_by_label("expression").fill("6 * 7")
    page.get_by_role("button", name="Call it").click()
    expect(page).to_have_url(IN_A_JOB)
    expect(page.locator("#answer")).to_contain_text('"result": 42')


def test_an_unsafe_tool_is_called_once_somebody_has_approved_it(stack: Stack, visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/ui/tools/test_raise")
    page.get_by_label("message").fill("a fault of its own")
    page.get_by_role("button", name="Ask to call it").click()
    expect(page).to_have_url(IN_A_JOB)
    expect(page.locator("#questions")).to_contain_text("May test_raise be called")
    page.get_by_role("button", name="Approve").click()
    expect(page.locator("#first")).to_contain_text("a fault of its own")


def test_versions_of_an_agent_are_compared_and_one_is_talked_to(stack: Stack, visitor: Visitor) -> None:
    for description in ("Counts.", "Counts well.", HOSTILE):
        document = {"name": "clerk", "description": description, "tools": ["calculate"], "strategy": "plan"}
        assert httpx.put(f"{stack.url}/agents/clerk", json=document, timeout=60).status_code == 201
    page = visitor.page
    page.goto("/ui/agents/clerk")
    expect(page.locator("#changes .is-bad")).to_contain_text("Counts well.")
    expect(page.locator("#changes .is-ok")).to_contain_text("<img src=x")
    assert page.locator("main img, main script").count() == 0
    page.get_by_label("from").select_option("v1")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#changes .is-bad")).to_contain_text('"Counts."')
    page.get_by_role("link", name="v2").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("clerk v2")
    page.get_by_role("link", name="Talk to it").click()
    expect(page.get_by_label("With whom")).to_have_value("clerk")


def test_an_endpoint_is_stored_tested_paused_and_removed(stack: Stack, visitor: Visitor, receiver: Receiver) -> None:
    page = visitor.page
    page.goto("/ui/endpoints")
    page.get_by_label("Address").fill(receiver.url)
    page.get_by_label("What people call it").fill("the ledger")
    page.get_by_label("job.completed").check()
    page.get_by_role("button", name="Store it").click()
    expect(page.locator("#secret")).to_contain_text("whsec_")
    page.get_by_role("button", name="Send a test").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("endpoint.test")
    delivery = page.url.rpartition("/")[2]
    sent = f"/ui/deliveries/{delivery}"
    expect_state(visitor, sent, "Sent")
    page.get_by_role("button", name="Send it again").click()
    expect_state(visitor, sent, "Sent")
    expect(page.locator("pre")).to_contain_text("endpoint.test")

    page.goto("/ui/deliveries?status=sent")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="Failed").click()
    expect(page.locator("main")).to_contain_text("Nothing stands here")
    page.get_by_role("link", name="Webhooks", exact=True).first.click()
    page.locator("tbody a").click()
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("main")).to_contain_text("It is told nothing")
    page.get_by_role("button", name="Go on").click()
    page.get_by_text("More…").click()
    page.get_by_role("button", name="Remove it").click()
    expect(page.locator("main")).to_contain_text("Nobody is told of anything yet")


def test_workers_show_what_they_do_and_what_waits(stack: Stack, visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/ui/workers")
    expect(page.locator("#pools")).to_contain_text("1 alive")
    call = {"tool_name": "test_hold", "arguments": {"seconds": 50}}
    sent = httpx.post(f"{stack.url}/jobs", json={"plan": {"calls": [call]}, "respond": "none"}, timeout=60)
    running = page.locator("#workers").get_by_role("link", name="$0 test_hold")
    expect(running).to_have_count(1)
    running.click()
    expect(page).to_have_url(re.compile(f"/ui/jobs/{sent.json()['id']}#step-0$"))
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#facts .state")).to_have_text("Cancelled")


def executing(stack: Stack) -> Execute:
    """What runs a statement in the stack's database, at once."""

    def execute(statement: str, *given: object) -> None:
        with psycopg.connect(stack.env["DATABASE_URL"], autocommit=True) as connection:
            connection.execute(statement, given)

    return execute


def test_insights_are_found_pinned_retired_and_forgotten(stack: Stack, visitor: Visitor) -> None:
    execute = executing(stack)
    first, _ = learned(execute, HOSTILE, "`convert` failed with amount: a decimal text.")
    job = taught(execute, first)
    ended(execute, "offered", [first], [True] * 20)
    ended(execute, "held_out", [first], [False] * 20)
    page = visitor.page
    page.goto("/ui/jobs")
    page.get_by_role("link", name="Insights").click()
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_label("Kind").select_option("course")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("main")).to_contain_text("No insight fits")
    page.get_by_role("link", name="Show all insights").click()
    page.get_by_role("link", name="<img src=x").click()
    expect(page.locator("main")).to_contain_text(str(job))
    page.get_by_role("button", name="Pin").click()
    expect(page.locator(".facts .state")).to_have_text("Pinned")
    page.get_by_role("button", name="Unpin").click()
    expect(page.locator(".facts .state")).to_have_text("In use")
    page.get_by_role("button", name="Retire").click()
    expect(page.locator(".facts .state")).to_have_text("Retired")
    page.get_by_role("link", name="Insights").first.click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_label("retired ones").check()
    page.get_by_role("button", name="Search").click()
    page.get_by_role("link", name="<img src=x").click()
    page.get_by_role("button", name="Offer it again").click()
    expect(page.locator(".facts .state")).to_have_text("In use")
    page.get_by_role("link", name="Insights").first.click()
    page.get_by_role("link", name="Do they help?").click()
    expect(page.locator("#verdict")).to_contain_text("Helps.")
    expect(page.get_by_role("row").filter(has_text="Success").first).to_contain_text("100.0 %")
    page.get_by_role("link", name="Insights").first.click()
    page.get_by_text("More…").click()
    page.get_by_role("button", name="Forget everything").click()
    expect(page.locator("main")).to_contain_text("Nothing was learned yet")


def expect_state(visitor: Visitor, path: str, word: str) -> None:
    """Look until a delivery stands there."""
    page = visitor.page
    for _ in range(120):
        page.goto(path)
        if page.locator(".facts .state").inner_text() == word:
            return
        page.wait_for_timeout(500)
    expect(page.locator(".facts .state")).to_have_text(word)


@pytest.mark.parametrize("width", [360, 1440])
def test_everybody_can_use_these_pages(stack: Stack, browser: Browser, width: int) -> None:
    for description in (f"One of {width}.", f"Another of {width}."):
        document = {"name": "usher", "description": description}
        assert httpx.put(f"{stack.url}/agents/usher", json=document, timeout=60).status_code in (200, 201)
    execute = executing(stack)
    (insight,) = learned(execute, HOSTILE)
    taught(execute, insight)
    ended(execute, "offered", [insight], [True] * 12)
    ended(execute, "held_out", [insight], [False] * 12)
    insights = ("/ui/insights", f"/ui/insights/{insight}", "/ui/insights/report")
    visitor = Visitor(browser, stack.url, width=width)
    tools = ("/ui/tools", "/ui/tools/test_raise", "/ui/tools/json_query", "/ui/tools?q=nothing-has-this-name")
    for path in (*tools, "/ui/agents/usher", "/ui/endpoints", "/ui/deliveries", "/ui/workers", *insights):
        visitor.page.goto(path)
        check(visitor, width)
    visitor.close()
    assert visitor.complaints == []
