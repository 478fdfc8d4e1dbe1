"""The chat in a browser, over real processes: an answer that comes in pieces, a question in place, several tabs."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from planq.deploy.local.valkey import EmbeddedValkey
from tests.e2e.page.test_pages import HOSTILE
from tests.integration.llm.dialects import KEY, OPENAI_CHAT
from tests.integration.llm.wire import Reply, WireServer
from tests.support.browser import Visitor, check, lacking
from tests.support.lacking import require
from tests.support.servers import TestPostgres
from tests.support.stack import Stack

PORTER = {"name": "porter", "description": "Books rooms.", "tools": ["book_room", "calculate"], "strategy": "plan"}
IN_A_TALK = re.compile("/ui/chat/[0-9a-f-]{36}")


@pytest.fixture(scope="module")
def model() -> Iterator[WireServer]:
    """A provider that says what a test lets it say."""
    require(lacking())
    running = WireServer()
    yield running
    running.close()


@pytest.fixture(scope="module")
def stack(
    postgres: TestPostgres, valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory, model: WireServer
) -> Iterator[Stack]:
    """API and workers, with an agent whose tool asks a person."""
    url = postgres.create_migrated()
    env = {
        "PLANQ_TOOLS": "tests.support.client_tools",
        "PLANQ_MODEL_BASE_URL": f"{model.url}/v1",
        "OPENAI_API_KEY": KEY,
    }
    running = Stack(tmp_path_factory.mktemp("chat"), url, valkey.url, env=env)
    running.start()
    kept = httpx.put(f"{running.url}/agents/porter", json=PORTER, timeout=60)
    assert kept.status_code == 201, kept.text
    yield running
    running.end()
    postgres.drop(url)


def begin(page: Page, text: str, *, agent: str = "porter") -> str:
    """Begin a conversation with a message, as somebody who presses Enter; returns its address."""
    page.goto("/ui/chat")
    page.get_by_label("With whom").select_option(agent)
    page.get_by_label("Message").fill(text)
    page.get_by_label("Message").press("Enter")
    expect(page).to_have_url(IN_A_TALK)
    return page.url


def say(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.get_by_label("Message").press("Enter")


def test_a_talk_goes_on_in_its_page(stack: Stack, visitor: Visitor) -> None:
    page = visitor.page
    address = begin(page, "calculate 6 * 7")
    turns = page.locator("#turns .exchange")
    expect(turns.first.locator(".prose")).to_contain_text("6 * 7 = 42")
    say(page, "calculate 10 / 4")
    expect(turns).to_have_count(2)
    expect(turns.nth(1).locator(".prose")).to_contain_text("10 / 4 = 2.5")
    expect(page.get_by_label("Message")).to_be_focused()
    expect(page.get_by_label("Message")).to_have_value("")
    assert page.url == address, "nobody has left the page"

    turns.nth(1).locator("details.call summary").click()
    expect(turns.nth(1).locator("details.call")).to_contain_text('"expression": "10 / 4"')
    page.get_by_label("Message").fill("one line")
    page.get_by_label("Message").press("Shift+Enter")
    expect(turns).to_have_count(2)
    expect(page.get_by_label("Message")).to_have_value("one line\n")
    turns.nth(1).get_by_role("link", name="its job").click()
    expect(page.locator("#facts")).to_contain_text("porter v1")


def test_an_answer_is_shown_while_it_comes(stack: Stack, visitor: Visitor, model: WireServer) -> None:
    gate = threading.Event()
    words = "Twelve is three times four, and so it was before. " * 20
    model.script(Reply(OPENAI_CHAT.reply(words, None), count=6, gate=gate, then="rest"))
    page = visitor.page
    page.goto("/ui/chat")
    page.get_by_label("Model, without an agent").fill(OPENAI_CHAT.model)
    page.get_by_label("Message").fill("What is 3 * 4?")
    page.get_by_role("button", name="Begin").click()

    expect(page.locator("#said")).to_contain_text("Twelve is")
    expect(page.locator("#turn .state")).to_have_text("Planning")
    assert page.locator("#turns .prose").count() == 0
    gate.set()
    expect(page.locator("#turns .prose")).to_contain_text(words.strip())
    expect(page.locator("#said")).to_be_hidden()
    expect(page.locator("#turn .state")).to_have_text("Completed")
    expect(page.get_by_role("heading", level=1)).to_have_text(OPENAI_CHAT.model)

    say(page, "And again?")
    expect(page.locator("#turns .prose")).to_have_count(2)
    shown = model.requests[-1].body["messages"]
    assert "What is 3 * 4?" in str(shown), "the model is shown what was said before"


def test_a_question_is_answered_in_the_chat(stack: Stack, visitor: Visitor) -> None:
    page = visitor.page
    begin(page, "call book_room with {}")
    question = page.locator("#questions .question")
    expect(question).to_contain_text("Where to?")
    expect(page.locator("#turns")).to_contain_text("waits for an answer")
    page.get_by_label("Message").fill("what I have begun to write")
    question.get_by_label("city").fill("Bergen")
    expect(question.get_by_label("Who you are")).to_have_value("web")
    question.get_by_role("button", name="Answer").click()
    expect(question).to_have_count(0)
    expect(page.locator("#turns .prose")).to_contain_text("Bergen")
    expect(page.get_by_label("Message")).to_have_value("what I have begun to write")


def test_tabs_do_not_hinder_one_another(stack: Stack, visitor: Visitor) -> None:
    pages = [visitor.page, *(visitor.context.new_page() for _ in range(3))]
    for number, page in enumerate(pages):
        begin(page, f"calculate {number} + 100")
    for number, page in enumerate(pages):
        say(page, f"calculate {number} + 200")
    for number, page in enumerate(pages):
        expect(page.locator("#turns .prose").nth(1)).to_contain_text(f"{number} + 200 = {number + 200}")


def test_what_is_refused_is_told_and_not_lost(stack: Stack, visitor: Visitor) -> None:
    page = visitor.page
    address = begin(page, "calculate 1 + 1")
    expect(page.locator("#turns .prose")).to_have_count(1)
    talk = address.rpartition("/")[2]
    assert httpx.patch(f"{stack.url}/conversations/{talk}", json={"is_closed": True}).status_code == 200
    say(page, "calculate 2 + 2")
    expect(page.locator("#refused")).to_contain_text("closed")
    expect(page.get_by_label("Message")).to_have_value("calculate 2 + 2")
    del visitor.complaints[:]  # that it was refused, by its status


def test_a_chat_works_without_scripts(stack: Stack, browser: Browser) -> None:
    context = browser.new_context(base_url=stack.url, java_script_enabled=False)
    page = context.new_page()
    page.goto("/ui/chat")
    page.get_by_label("With whom").select_option("porter")
    page.get_by_label("Message").fill("calculate 20 + 1")
    page.get_by_role("button", name="Begin").click()
    expect(page).to_have_url(IN_A_TALK)
    page.get_by_label("Message").fill("calculate 20 + 2")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#turns .exchange")).to_have_count(2)
    context.close()


def test_a_conversation_is_read_with_its_jobs_and_erased(stack: Stack, visitor: Visitor) -> None:
    page = visitor.page
    page.on("dialog", lambda dialog: visitor.complaints.append(f"a script ran: {dialog.message}"))
    address = begin(page, HOSTILE)
    expect(page.locator("#turns .prose")).to_have_count(1)
    talk = address.rpartition("/")[2]
    page.get_by_role("link", name="Conversations").click()
    page.locator(f"a[href$='{talk}']").click()
    thread = page.locator(".thread")
    expect(thread).to_contain_text("<img src=x")
    expect(thread).not_to_contain_text("\u202e")
    assert page.locator("main img, main script, main a[href^='javascript:']").count() == 0
    expect(thread.get_by_role("link", name="its job")).to_have_count(1)

    page.get_by_role("button", name="Close").click()
    expect(page.get_by_role("button", name="Open again")).to_be_visible()
    page.get_by_text("Erase it…").click()
    page.get_by_role("button", name="Erase it now").click()
    expect(thread).to_contain_text("erased")
    expect(thread).not_to_contain_text("img")
    (said, *_) = httpx.get(f"{stack.url}/conversations/{talk}/messages").json()["items"]
    assert said["status"] == "erased"


@pytest.mark.parametrize("width", [360, 1440])
def test_everybody_can_use_the_chat(stack: Stack, browser: Browser, width: int) -> None:
    visitor = Visitor(browser, stack.url, width=width)
    talk = begin(visitor.page, "call book_room with {}").rpartition("/")[2]
    expect(visitor.page.locator("#questions .question")).to_have_count(1)
    for path in (f"/ui/chat/{talk}", "/ui/chat", "/ui/conversations", f"/ui/conversations/{talk}"):
        visitor.page.goto(path)
        check(visitor, width)
    visitor.close()
    assert visitor.complaints == []
