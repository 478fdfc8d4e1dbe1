"""The page of one job in a browser: who ran what, and what is below it."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.e2e.page.test_pages import HOSTILE, held, stands, submit
from tests.support.browser import Visitor
from tests.support.stack import Stack


def orchestrated(agent: str, action: str, count: int = 1) -> dict[str, Any]:
    """The arguments of a call that lets an agent work, several times one after the other."""
    told = {"agent_id": agent, "action_id": action}
    steps = [{"id": f"a{n}", "type": "agent", "status": "pending", "agent": told} for n in range(count)]
    return {"plan": {"id": "p", "steps": steps}, "timeout_ms": 300_000}


def handed(agent: str, action: str) -> str:
    return f"call cp__agent_orchestrate with {json.dumps(orchestrated(agent, action))}"


def test_an_attempt_names_its_worker_and_leads_to_it(stack: Stack, visitor: Visitor) -> None:
    job_id = held(stack, "Who holds it")
    stands(stack, job_id, "executing")
    page = visitor.page
    page.goto(f"/ui/jobs/{job_id}/steps/0")
    worker = page.locator("#step-0").get_by_role("link", name=re.compile("^planq-io-"))
    task = page.get_by_role("link", name="in Flower")
    expect(task).to_have_attribute("href", f"http://127.0.0.1:5555/task/{job_id}.r0.s0.1")
    worker.click()
    expect(page).to_have_url(re.compile("/ui/workers#worker-"))
    row = page.locator(f"#{page.url.rpartition('#')[2]}")
    expect(row).to_have_attribute("open", "")
    expect(row.get_by_role("link", name="$0 test_hold")).to_have_attribute("href", f"/ui/jobs/{job_id}#step-0")
    page.get_by_role("link", name="$0 test_hold").click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#facts .state")).to_have_text("Cancelled")


def test_child_jobs_open_where_they_stand(stack: Stack, visitor: Visitor) -> None:
    ask = {"prompt": f"call now with {{}} {HOSTILE}"}
    for document in (
        {"name": "clerk", "tools": ["now"], "actions": {"go": {"prompt": "call now with {}"}, "odd": ask}},
        {"name": "office", "tools": ["cp__agent_orchestrate"], "actions": {"go": {"prompt": handed("clerk", "go")}}},
    ):
        answer = httpx.put(f"{stack.url}/agents/{document['name']}", json=document, timeout=60)
        assert answer.status_code in (200, 201), answer.text
    calls = [
        {"tool_name": "cp__agent_orchestrate", "arguments": orchestrated("office", "go")},
        {"tool_name": "cp__agent_orchestrate", "arguments": orchestrated("clerk", "odd", 12)},
    ]
    job_id = submit(stack, input="Ask below", plan={"calls": calls}, respond="none")
    stands(stack, job_id, "completed")
    page = visitor.page
    page.on("dialog", lambda dialog: visitor.complaints.append(f"a script ran: {dialog.message}"))
    page.goto(f"/ui/jobs/{job_id}")
    page.locator("#step-0 > summary").click()
    at = page.locator("#step-0")
    for _ in range(4):  # the plan of agents, the office, its own plan, the clerk: by keys alone
        child = at.locator("details.child").first
        child.locator("> summary").focus()
        page.keyboard.press("Enter")
        expect(child.locator("> .below[data-over]")).to_be_visible()
        at = child.locator("> .below")
        expect(at.get_by_role("link", name="Its page")).to_have_attribute(
            "href", re.compile("/ui/jobs/[0-9a-f-]{36}")
        )
    expect(at).to_contain_text("now")
    assert page.url.endswith(job_id)

    page.goto(f"/ui/jobs/{job_id}")
    page.locator("#step-1 > summary").click()
    plan = page.locator("#step-1 details.child").first
    plan.locator("> summary").click()
    expect(plan.locator("> .below details.child")).to_have_count(12)
    odd = plan.locator("> .below details.child").first
    odd.locator("> summary").click()
    expect(odd.locator("> .below")).to_contain_text("<img src=x")
    assert odd.locator("img, script, a[href^='javascript:']").count() == 0
    found = Axe().run(page).response["violations"]
    assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []
    page.goto(f"/ui/jobs/{job_id}/children?step=1")
    expect(page.locator("#children details.child")).to_have_count(1)
    page.get_by_role("link", name="Completed").click()
    expect(page.locator("#children details.child")).to_have_count(1)
    page.goto(f"/ui/jobs/{job_id}/children?state=Failed")
    expect(page.locator("#children")).to_contain_text("There is none")


def test_a_plan_is_checked_while_it_is_typed(stack: Stack, visitor: Visitor) -> None:
    job_id = submit(
        stack, plan={"calls": [{"tool_name": "calculate", "arguments": {"expression": "6 * 7"}}]}, respond="none"
    )
    stands(stack, job_id, "completed")
    page = visitor.page
    page.goto(f"/ui/jobs/{job_id}/fork")
    field = page.get_by_label("Plan", exact=True)
    good = field.input_value()
    field.fill(good.replace('"expression"', f'"{json.dumps(HOSTILE)[1:-1]}"'))
    wrong = page.locator("#checked .defects")
    expect(wrong).to_contain_text("<img src=x")
    assert page.locator("#checked img, #checked script").count() == 0
    expect(page.locator(".gutter .is-bad")).to_have_text("4")
    expect(page.locator("#changes")).to_contain_text("+++ edited")
    wrong.get_by_role("link", name="line 4").first.click()
    expect(field).to_be_focused()
    field.fill(good + "}")
    expect(wrong).to_contain_text("expected JSON")
    field.fill(good.replace("6 * 7", "6 * 8"))
    expect(page.locator("#preview")).to_contain_text("$0 calculate")
    expect(page.locator("#changes")).to_contain_text('+        "expression": "6 * 8"')
    page.get_by_role("button", name="Fork", exact=True).click()
    expect(page.locator("#facts .state")).to_have_text("Completed")
    expect(page.locator("#steps")).to_contain_text("48")
