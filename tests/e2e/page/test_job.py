"""The page of one job in a browser: who ran what, and what is below it."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.e2e.page.test_pages import held, stands
from tests.support.browser import Visitor
from tests.support.stack import Stack


def test_an_attempt_names_its_worker_and_leads_to_it(stack: Stack, visitor: Visitor) -> None:
    job_id = held(stack, "Who holds it")
    stands(stack, job_id, "executing")
    page = visitor.page
    page.goto(f"/ui/jobs/{job_id}/steps/0")
    worker = page.locator("#step-0").get_by_role("link", name=re.compile("^planq-io-"))
    worker.click()
    expect(page).to_have_url(re.compile("/ui/workers#worker-"))
    row = page.locator(f"#{page.url.rpartition('#')[2]}")
    expect(row).to_have_attribute("open", "")
    expect(row.get_by_role("link", name="$0 test_hold")).to_have_attribute("href", f"/ui/jobs/{job_id}#step-0")
    page.get_by_role("link", name="$0 test_hold").click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#facts .state")).to_have_text("Cancelled")
