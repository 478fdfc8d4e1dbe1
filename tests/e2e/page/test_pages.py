"""The pages in a browser, over real processes: submit, watch, answer, act; a complaint of the browser is a fault."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from planq.api.page import words
from planq.api.page.rendering import assets
from tests.support.browser import MOST_JUMP, Visitor, check
from tests.support.stack import Stack
from tests.support.waiting import eventually

HOSTILE = '<img src=x onerror="alert(1)"> [a](javascript:alert(2)) \u202etxt.exe <script>alert(3)</script>'
QUESTION = {
    "kind": "elicitation",
    "message": "Where to?",
    "requested_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "by": {"enum": ["train", "ship"]}},
        "required": ["city"],
    },
}


def submit(stack: Stack, **body: Any) -> str:
    answer = httpx.post(f"{stack.url}/jobs", json=body, timeout=60)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def job_of(stack: Stack, job_id: str, **params: Any) -> Any:
    return httpx.get(f"{stack.url}/jobs/{job_id}", params=params, timeout=120).json()


def stands(stack: Stack, job_id: str, status: str) -> None:
    eventually(lambda: job_of(stack, job_id)["status"] == status, 120, what=f"{job_id} is {status}")


def nested(levels: int) -> Any:
    value: Any = "innermost"
    for _ in range(levels):
        value = [value]
    return value


def held(stack: Stack, name: str) -> str:
    """Submit a job that runs until it is told to end."""
    call = {"tool_name": "test_hold", "arguments": {"seconds": 50}}
    return submit(stack, input=name, plan={"calls": [call]}, respond="none")


def test_a_newcomer_runs_the_sample_and_reads_its_answer(stack: Stack, visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/")
    expect(page).to_have_url(re.compile("/ui/jobs$"))
    page.get_by_role("button", name="Run the sample job").click()

    expect(page.locator("#facts .state")).to_have_text("Completed")
    expect(page.locator("#answer")).to_contain_text("How planq keeps a job alive")
    expect(page.locator("#steps details.step")).to_have_count(3)
    expect(page.locator("#called details.step")).to_have_count(2)
    page.locator("#call-1 > summary").click()
    expect(page.locator("#call-1")).to_contain_text("knowledge_search")
    page.locator("#step-2 > summary").click()
    expect(page.locator("#step-2")).to_contain_text('"title": "How planq keeps a job alive"')
    expect(page.locator("#step-2 a.ref[data-from='from $0.output.text']")).to_be_visible()
    expect(page.locator("#artifacts .prose h1")).to_have_text("How planq keeps a job alive")
    assert page.request.get(page.locator("#artifacts header a").last.get_attribute("href") or "").ok
    page.get_by_role("link", name="Events").click()
    expect(page.get_by_role("row").filter(has_text="job_completed")).to_have_count(1)


def test_a_list_shows_what_comes_and_goes_by_itself(stack: Stack, visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/ui/jobs")
    job_id = submit(stack, input="Count to a crocodile", plan={"calls": [QUESTION]})

    row = page.locator(f"#job-{job_id}")
    expect(row).to_contain_text("Needs a person")
    expect(row).to_contain_text("$0 elicitation waits for an answer")
    page.locator("#counts a").filter(has_text="Needs a person").click()
    expect(page).to_have_url(re.compile("status=input_required"))
    expect(row).to_be_visible()
    assert httpx.post(f"{stack.url}/jobs/{job_id}/cancel").status_code == 200
    expect(row).to_have_count(0)

    page.goto("/ui/jobs")
    page.get_by_role("searchbox").fill("CROCODILE")
    page.get_by_role("button", name="Search").click()
    expect(page).to_have_url(re.compile("q=CROCODILE"))
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("searchbox").fill(job_id)
    page.get_by_role("button", name="Search").click()
    expect(page).to_have_url(re.compile(f"/ui/jobs/{job_id}$"))


def test_a_question_is_answered_where_it_is_read(stack: Stack, visitor: Visitor) -> None:
    job_id = submit(stack, input="Book a trip", plan={"calls": [QUESTION]}, respond="output")
    page = visitor.page
    page.goto(f"/ui/jobs/{job_id}")

    expect(page.locator("#why")).to_contain_text("$0 elicitation waits for an answer")
    page.get_by_label("city").fill("Porto")
    page.get_by_label("days").fill("3")
    page.get_by_label("by", exact=True).select_option("train")
    page.get_by_label("Who you are").fill("ann")
    page.get_by_role("button", name="Answer").click()

    expect(page.locator("#facts .state")).to_have_text("Completed")
    assert job_of(stack, job_id)["output"] == {"city": "Porto", "days": 3, "by": "train"}
    (question,) = httpx.get(f"{stack.url}/jobs/{job_id}/elicitations").json()["items"]
    assert (question["answered_by"], question["channel"]) == ("ann", "web")


def test_the_inbox_takes_answers_and_an_agent_is_asked(stack: Stack, visitor: Visitor) -> None:
    document = {"name": "host", "description": "Welcomes guests.", "tools": ["calculate"]}
    assert httpx.put(f"{stack.url}/agents/host", json=document, timeout=60).status_code in (200, 201)
    page = visitor.page
    page.goto("/ui/elicitations")
    job_id = submit(
        stack, input="a", plan={"calls": [{**QUESTION, "message": "Which way, captain?"}]}, respond="output"
    )
    asked = page.locator(".question").filter(has_text="Which way, captain?")
    asked.get_by_label("city").fill("Bergen")
    asked.get_by_role("button", name="Answer").click()
    expect(asked).to_have_count(0)
    stands(stack, job_id, "completed")
    page.get_by_role("link", name="Tools").click()
    expect(page.get_by_role("row").filter(has_text="test_hold")).to_be_visible()
    page.get_by_role("link", name="Agents", exact=True).click()
    page.get_by_role("link", name="host").click()
    page.get_by_label("What is to be done").fill("calculate 6*7")
    page.get_by_role("button", name="Submit").click()
    expect(page.locator("#facts")).to_contain_text("host v1")
    expect(page.locator("#facts .state")).to_have_text("Completed")


_DROP = """(form, lines) => {
  const dropped = new DataTransfer();
  dropped.items.add(new File([lines], "Trips.jsonl"));
  form.dispatchEvent(new DragEvent("drop", { dataTransfer: dropped, bubbles: true, cancelable: true }));
}"""


def test_a_batch_is_dropped_estimated_begun_watched_and_cancelled(stack: Stack, visitor: Visitor) -> None:
    body = {"input": "a", "plan": {"calls": [QUESTION]}}
    lines = "".join(json.dumps({"custom_id": name, "body": body}) + "\n" for name in (HOSTILE, "b", "b"))
    page = visitor.page
    page.goto("/ui/batches")
    page.locator("#send").evaluate(_DROP, lines)
    expect(page.locator("#file-told")).to_contain_text("3 lines")
    page.get_by_label("Most tokens").fill("no")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("max_tokens: Input should be a valid integer")
    visitor.complaints.clear()  # of the 422
    page.get_by_label("Most tokens").fill("9000000")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator("h1")).to_have_text("Trips.jsonl")
    expect(page.locator("#estimate")).to_contain_text("of 2 valid lines")
    expect(page.locator("#errors")).to_contain_text("line 2 has the same custom_id")
    page.get_by_label("Most tokens").fill("8000000")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("button", name="Change the budget")).to_be_visible()
    expect(page.get_by_label("Most tokens")).to_have_value("8000000")
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name=re.compile("Start|Resume")).click()  # as no line was begun, or some were
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    serious = [one for one in Axe().run(page).response["violations"] if one["impact"] in ("serious", "critical")]
    assert serious == []
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#facts .state")).to_have_text("Cancelled")
    with page.expect_download() as saved:
        page.get_by_role("link", name="Save what has come of its lines").click()
    assert len(saved.value.path().read_text().splitlines()) == 2


def test_a_job_is_paused_resumed_and_cancelled(stack: Stack, visitor: Visitor) -> None:
    job_id = held(stack, "Hold on")
    page = visitor.page
    page.goto(f"/ui/jobs/{job_id}")
    expect(page.locator("#why")).to_contain_text("$0 test_hold has been running for")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#why")).to_contain_text("It has been paused")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#why")).to_contain_text("$0 test_hold")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#facts .state")).to_have_text("Cancelled")
    assert job_of(stack, job_id)["status"] == "cancelled"


def test_a_plan_is_seen_as_a_graph_and_forked_with_an_edit(stack: Stack, visitor: Visitor) -> None:
    hold = {"tool_name": "test_hold", "arguments": {"seconds": 0}}
    fan = [{**hold, "depends_on": [0]} for _ in range(8)]
    join = {"tool_name": "test_raise", "arguments": {"message": "no"}, "depends_on": list(range(1, 9))}
    job_id = submit(stack, input="Fan out", plan={"calls": [hold, *fan, join]}, respond="none")
    page = visitor.page
    page.goto(f"/ui/jobs/{job_id}")
    expect(page.locator("#plan .node")).to_have_count(3)
    expect(page.locator("#plan .node.is-bad")).to_have_count(1)
    expect(page.locator("#plan")).to_contain_text("8 × test_hold8 succeeded")
    expect(page.locator("#timeline .gantt a")).to_have_count(10)
    expect(page.locator("#timeline")).to_contain_text("critical path")
    expect(page.locator("#timeline .gantt .mark")).to_have_count(3)
    page.get_by_role("link", name="8 × test_hold: 8 succeeded").click()
    expect(page.locator("#step-1")).to_have_attribute("open", "")

    page.goto(f"/ui/jobs/{job_id}?finished=fold")
    expect(page.locator("#plan .node")).to_have_count(2)
    page.goto(f"/ui/jobs/{job_id}/steps/9")
    expect(page.locator("#step-9")).to_contain_text('"message": "no"')
    page.get_by_role("link", name=job_id).click()
    page.get_by_role("link", name="Fork…").click()
    plan = page.get_by_label("Plan", exact=True)
    good = plan.input_value().replace("test_raise", "test_hold").replace('"message": "no"', '"seconds": 0')
    plan.fill(good.replace('"seconds"', '"minutes"'))
    page.get_by_role("button", name="Look first").click()
    expect(page.get_by_role("alert")).to_contain_text("minutes")
    plan.fill(good)
    page.get_by_role("button", name="Look first").click()
    expect(page.locator("#preview")).to_contain_text("$9 test_hold")
    expect(page.locator("#changes pre")).to_contain_text('-      "tool_name": "test_raise"')
    page.get_by_role("button", name="Fork", exact=True).click()
    expect(page.locator("#facts .state")).to_have_text("Completed")
    assert page.url.rpartition("/")[2] != job_id
    del visitor.complaints[:]  # that the plan was refused, by its status


def test_a_palette_leads_from_every_page_by_keys_alone(stack: Stack, visitor: Visitor) -> None:
    job_id = submit(stack, input="Find the flamingo", plan={"calls": [QUESTION]})
    page, keys = visitor.page, visitor.page.keyboard
    palette = page.get_by_role("dialog", name="Palette")
    field = palette.get_by_role("combobox")
    page.goto("/ui/workers")
    page.get_by_role("link", name="Inbox").focus()
    keys.press("/")
    expect(field).to_be_focused()
    expect(palette.get_by_role("option").filter(has_text="Find the flamingo")).to_be_visible()
    for _ in range(3):
        keys.press("Tab")
        assert page.evaluate("document.activeElement === document.body || !!document.activeElement.closest('dialog')")
    keys.press("Escape")
    expect(page.get_by_role("link", name="Inbox")).to_be_focused()
    keys.press("Control+k")
    keys.type("agen")
    expect(palette.get_by_role("option", selected=True)).to_contain_text("Agents")
    keys.press("Enter")
    expect(page).to_have_url(re.compile("/ui/agents$"))
    page.wait_for_load_state("load")  # with its scripts
    keys.press("/")
    keys.type(job_id)
    keys.press("Enter")
    expect(page).to_have_url(re.compile(f"/ui/jobs/{job_id}$"))
    page.wait_for_load_state("load")
    keys.press("Control+k")
    keys.type("cancel")
    expect(palette.get_by_role("option", selected=True)).to_contain_text("Cancel")
    keys.press("ArrowUp")
    expect(palette.get_by_role("option", selected=True)).to_contain_text("Find “cancel”")
    keys.press("ArrowDown")
    keys.press("Enter")
    expect(page.locator("#facts .state")).to_have_text("Cancelled")


def test_what_strangers_wrote_stays_text(stack: Stack, visitor: Visitor) -> None:
    call = {"tool_name": "test_raise", "arguments": {"message": HOSTILE}}
    job_id = submit(stack, input=HOSTILE, plan={"calls": [call]}, metadata={"note": HOSTILE})
    stands(stack, job_id, "failed")
    asks = {**QUESTION, "message": HOSTILE, "requested_schema": {"type": "object", "properties": {HOSTILE: {}}}}
    asking = submit(stack, input="x", plan={"calls": [asks]})
    stands(stack, asking, "input_required")
    odd = {"text": HOSTILE, "large": "x" * 900_000, "deep": nested(90), HOSTILE: [{HOSTILE: HOSTILE}, {HOSTILE: 1}]}
    query = {"tool_name": "json_query", "arguments": {"data": odd, "expression": "@"}}
    telling = submit(stack, input="x", plan={"calls": [query]}, respond="output")
    stands(stack, telling, "completed")
    page = visitor.page
    page.on("dialog", lambda dialog: visitor.complaints.append(f"a script ran: {dialog.message}"))

    for path in ("/ui/jobs", *(f"/ui/jobs/{one}" for one in (job_id, f"{job_id}/log", asking, telling))):
        page.goto(path)
        expect(page.locator("main")).to_contain_text("<img src=x")
        expect(page.locator("main")).not_to_contain_text("\u202e")
        assert page.locator("main img, main script, main a[href^='javascript:']").count() == 0
    page.goto(f"/ui/jobs/{job_id}")
    expect(page.locator("#first")).to_contain_text("$0 test_raise has failed")


def test_a_page_goes_on_when_the_api_is_back(stack: Stack, browser: Browser) -> None:
    visitor = Visitor(browser, stack.url)  # a browser complains of what does not answer
    page = visitor.page
    page.goto("/ui/jobs")
    job_id = submit(stack, input="Before the fall", plan={"calls": [QUESTION]})
    expect(page.locator(f"#job-{job_id}")).to_be_visible()
    stack.kill("api")
    expect(page.locator("#cut")).to_be_visible()
    stack.run("api", "-m", "planq.api")
    stack.wait_ready()
    expect(page.locator("#cut")).to_be_hidden()
    later = submit(stack, input="After it", plan={"calls": [QUESTION]})
    expect(page.locator(f"#job-{later}")).to_be_visible()
    visitor.close()


@pytest.mark.parametrize("width", [360, 1440])
def test_everybody_can_use_the_pages(stack: Stack, browser: Browser, width: int) -> None:
    asking = submit(stack, input="Book a trip", plan={"calls": [QUESTION]})
    failed = submit(stack, input="a", plan={"calls": [{"tool_name": "test_raise", "arguments": {"message": "no"}}]})
    stands(stack, asking, "input_required")
    stands(stack, failed, "failed")
    texts = ("6*7", "{{ $0.output.result }}", *("1",) * 40)
    chained = [{"tool_name": "calculate", "arguments": {"expression": one}} for one in texts]
    computed = submit(stack, input="a", plan={"calls": chained}, respond="output")
    stands(stack, computed, "completed")
    visitor = Visitor(browser, stack.url, width=width)
    of_failed = (f"/ui/jobs/{failed}", f"/ui/jobs/{failed}/log", f"/ui/jobs/{failed}/fork")
    others = (
        "/ui/elicitations",
        "/ui/agents",
        "/ui/tools",
        "/ui/batches",
        "/ui/schedules",
        "/ui/jobs/x",
        "/ui/manual",
    )
    for path in (
        "/ui/jobs",
        f"/ui/jobs/{asking}",
        f"/ui/jobs/{computed}",
        f"/ui/jobs/{computed}/steps/1",
        *of_failed,
        *others,
    ):
        visitor.page.goto(path)
        assert visitor.jumped() <= MOST_JUMP, path
        visitor.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        check(visitor, width)
    visitor.page.keyboard.press("/")
    expect(visitor.page.get_by_role("dialog", name="Palette").get_by_role("option").first).to_be_visible()
    check(visitor, width)
    visitor.close()
    assert [one for one in visitor.complaints if "404" not in one] == []


def test_a_long_word_in_a_quotation_wraps(browser: Browser) -> None:
    css = next(file.body for name, file in assets().items() if name.endswith(".css")).decode()
    page = browser.new_page(viewport={"width": 360, "height": 900})
    word = "x" * 400
    answer = words.markdown(f"> {word}\n\n{word}\n\n- {word}\n\n| a |\n|---|\n| {word} |")
    page.set_content(f"<style>{css}</style><main><div class=prose>{answer}</div><div class=said>{word}</div></main>")
    all_of = "[...document.querySelectorAll('.prose, .prose *, .said')]"
    assert page.evaluate(f"{all_of}.filter(e => e.scrollWidth > 360).map(e => e.tagName)") == []
    page.close()
