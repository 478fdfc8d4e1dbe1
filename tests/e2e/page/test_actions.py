"""What is done to all jobs of a filter: counted, confirmed, watched; a closed page and a dead worker stop nothing."""

from __future__ import annotations

import re
from uuid import uuid4

import httpx
import psycopg
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect
from typer.testing import CliRunner

from planq.deploy.cli.main import create_app
from tests.e2e.page.test_pages import QUESTION, held, job_of, stands, submit
from tests.support.browser import Visitor
from tests.support.stack import Stack
from tests.support.waiting import eventually


def asking(stack: Stack, text: str, count: int) -> list[str]:
    ids = [submit(stack, input=text, plan={"calls": [QUESTION]}) for _ in range(count)]
    for one in ids:
        stands(stack, one, "input_required")
    return ids


def test_all_jobs_that_fit_are_cancelled_after_a_look_at_their_number(stack: Stack, visitor: Visitor) -> None:
    word = f"herd{uuid4().hex}"
    ids, other = asking(stack, f"a {word}", 3), asking(stack, "another", 1)
    page = visitor.page
    page.goto(f"/ui/jobs?q={word}")
    page.get_by_role("link", name="Change all").click()
    page.get_by_label("What is to be done").select_option("cancel")
    page.get_by_role("button", name="Count them").click()
    expect(page.locator("#counted")).to_contain_text("3 jobs fit")
    page.get_by_role("button", name="Cancel them").click()
    expect(page).to_have_url(re.compile("/ui/job-actions/"))
    expect(page.locator("#facts")).to_contain_text("status completed")
    expect(page.locator("#facts dd").first).to_have_text("3")
    for one in ids:
        assert job_of(stack, one)["status"] == "cancelled"
    assert job_of(stack, other[0])["status"] == "input_required"

    page.goto("/ui/job-actions?act=cancel&status=completed")
    expect(page.get_by_role("alert")).to_contain_text("expected one that cancel can change")
    page.goto(f"/ui/job-actions?act=cancel&words={word}")
    expect(page.locator("#counted")).to_contain_text("No job fits")


def test_a_worker_that_is_killed_leaves_the_rest_to_another(stack: Stack, visitor: Visitor) -> None:
    word = f"herd{uuid4().hex}"
    ids = asking(stack, word, 40)
    stack.kill("io-1")
    page = visitor.page
    page.goto(f"/ui/job-actions?act=cancel&words={word}")
    expect(page.locator("#counted")).to_contain_text("40 jobs fit")
    with psycopg.connect(stack.env["DATABASE_URL"], autocommit=True) as connection:

        def done() -> int:
            row = connection.execute("SELECT max(done) FROM job_actions WHERE status = 'running'").fetchone()
            return row[0] if row and row[0] else 0

        # Whoever is at it stands still where it wants the thirtieth job, and is killed there.
        with connection.transaction():
            connection.execute("SELECT FROM jobs WHERE id = %s FOR UPDATE", [ids[29]])
            stack.run_worker("io", 1)
            page.get_by_role("button", name="Cancel them").click()
            expect(page).to_have_url(re.compile("/ui/job-actions/[0-9a-f-]{36}"))
            address = page.url
            page.close()
            eventually(lambda: done() == 29, 120, what="it waits for the thirtieth job")
            stack.kill("io-1")
        stack.run_worker("io", 1)
    action = address.rpartition("/")[2]

    def document() -> dict[str, object]:
        found: dict[str, object] = httpx.get(f"{stack.url}/job-actions/{action}", timeout=60).json()
        return found

    eventually(lambda: document()["status"] == "completed", 150, what="another worker goes on")
    ended = document()
    assert (ended["done"], ended["unchanged"], ended["refused"]) == (40, 0, 0)
    assert {job_of(stack, one)["status"] for one in ids} == {"cancelled"}


def test_the_command_line_does_the_same(stack: Stack) -> None:
    word = f"herd{uuid4().hex}"
    job_id = held(stack, word)
    stands(stack, job_id, "executing")

    def planq(*arguments: str, given: str = "") -> tuple[int, str]:
        result = CliRunner().invoke(
            create_app(), ["act", *arguments, "--words", word, "--url", stack.url], input=given
        )
        return result.exit_code, result.stdout

    assert planq("cancel", "--dry-run") == (0, "1 to cancel\n")
    assert planq("cancel", given="n\n")[0] == 1
    assert planq("pause", "--yes") == (0, "completed: 1 changed, 0 had gone on, 0 refused\n")
    assert job_of(stack, job_id)["paused_at"] is not None
    code, told = planq("cancel", given="y\n")
    assert (code, told.splitlines()[-1]) == (0, "completed: 1 changed, 0 had gone on, 0 refused")
    assert job_of(stack, job_id)["status"] == "cancelled"


def test_everybody_can_change_all_that_fit(stack: Stack, browser: Browser) -> None:
    submit(stack, input="x", plan={"calls": [QUESTION]})
    visitor = Visitor(browser, stack.url, width=360, scheme="dark")
    visitor.page.goto("/ui/job-actions?act=pause&words=nothing-has-this")
    for path in ("/ui/job-actions?act=pause", "/ui/job-actions?act=pause&older_than_hours=soon"):
        visitor.page.goto(path)
        found = Axe().run(visitor.page).response["violations"]
        assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == [], path
        assert visitor.page.evaluate("document.documentElement.scrollWidth") <= 360, path
    visitor.close()
    assert visitor.complaints == []
