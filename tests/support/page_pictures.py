"""`python -m tests.support.page_pictures URL`: takes the pictures of docs/ of the pages of a running planq.

It asks that planq for a few jobs, so give it one that holds nothing else (`planq up --sample`). It needs Debian's
chromium.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import APIResponse, Page, sync_playwright

from planq import Client

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"

FAN_OUT = {
    "calls": [
        *({"tool_name": "calculate", "arguments": {"expression": f"{n} * {n}"}} for n in range(1, 5)),
        {
            "tool_name": "json_query",
            "arguments": {"data": [f"${n}.output.result" for n in range(4)], "expression": "sum(@)"},
        },
        {"tool_name": "calculate", "arguments": {"expression": "{{ $4.output.result }} / 4"}},
    ]
}

ASKING = {
    "kind": "elicitation",
    "message": "Which city is the trip to?",
    "requested_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "by": {"enum": ["train", "ship"]}},
        "required": ["city"],
    },
}


def ask(url: str) -> str:
    """Ask for what the pictures show; returns the job whose page is one of them."""
    with Client(url) as client:
        client.submit("calculate 6 * 7, then calculate it + 3").result(timeout=120)
        client.submit(plan={"calls": [{"tool_name": "calculate", "arguments": {"expression": "1 / 0"}}]}).wait(
            timeout=120
        )
        shown = client.submit("Squares of the first four numbers", plan=FAN_OUT)
        shown.wait(timeout=120)
        client.submit(plan={"calls": [{"tool_name": "wait", "arguments": {"seconds": 3600}}]})
        client.submit("Book the trip", plan={"calls": [ASKING]})
        return str(shown.id)


def talk(page: Page, url: str) -> str:
    """Talk with the sample's agent; returns the path of the chat once it has answered."""
    page.goto(f"{url}/ui/chat")
    page.get_by_label("With whom").select_option("helper")
    page.get_by_label("Message").fill("calculate 6 * 7, then calculate it / 4")
    page.get_by_label("Message").press("Enter")
    page.wait_for_url("**/ui/chat/*-*")
    page.get_by_text("composed by planq").first.wait_for(timeout=120_000)
    return page.url.removeprefix(url)


LINES = "".join(
    json.dumps({"custom_id": f"order-{n}", "body": {"input": f"calculate {n} * 19"}}) + "\n" for n in range(1, 41)
)
PROMPTS = ("Answer what customers ask.", "Answer what customers ask, in one sentence. Compute sums by the tool.")


def fill(page: Page, url: str) -> str:
    """Let there be an agent in two versions and a batch; returns the path of the batch that has ended."""
    for prompt in PROMPTS:
        document = {"name": "clerk", "description": "Answers customers.", "tools": ["calculate"], "prompt": prompt}
        told(page.request.put(f"{url}/agents/clerk", data=document))
    headers = {"Content-Type": "application/jsonl"}
    made = told(page.request.post(f"{url}/batches?name=Orders", data=LINES, headers=headers))
    page.goto(f"{url}/ui/batches/{made['id']}")
    page.locator("#facts .state").get_by_text("Completed").wait_for(timeout=120_000)
    return f"/ui/batches/{made['id']}"


def told(answer: APIResponse) -> Any:
    """Return what an answer says; raises `RuntimeError` for a refusal."""
    if not answer.ok:
        raise RuntimeError(answer.text())
    return answer.json()


def take(page: Page, url: str, path: str, name: str) -> None:
    """Keep what a page shows as a picture."""
    page.goto(f"{url}{path}")
    page.wait_for_load_state("load")
    page.screenshot(path=str(PICTURES / f"{name}.png"), full_page=True)


def main(url: str) -> int:
    """Take the pictures of a planq that answers at `url`."""
    job = ask(url)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1120, "height": 640})
        take(page, url, "/ui/jobs", "page-jobs")
        take(page, url, f"/ui/jobs/{job}", "page-job")
        take(page, url, talk(page, url), "page-chat")
        take(page, url, "/ui/elicitations", "page-inbox")
        take(page, url, fill(page, url), "page-batch")
        take(page, url, "/ui/agents/clerk", "page-agent")
        take(page, url, "/ui/workers", "page-workers")
        take(page, url, "/ui/manual?q=job+stuck+in+queued", "page-manual")
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
