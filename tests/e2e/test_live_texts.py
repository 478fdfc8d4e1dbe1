"""What a model says reaches who follows over HTTP while it is said, and once only, whatever breaks meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.integration.llm.dialects import KEY, OPENAI_CHAT
from tests.integration.llm.wire import Reply, WireServer
from tests.support.sse import Frame, frames
from tests.support.stack import Stack

FOUR = "It is four, and here is why: " + "two and two \U0001f600 make four.\n" * 20
FIVE = "It is five, and here is why: " + "two and two make five. " * 20
OPENING = "It is f"


class Page:
    """Shows the text of a job by the rule of the docs."""

    def __init__(self) -> None:
        self.text = ""
        self.epochs: list[tuple[int, int]] = []
        self.job: Any = None

    def take(self, frame: Frame) -> bool:
        """Take a frame; say whether it was a piece of text."""
        if frame.event == "job":
            self.job = frame.data
        if frame.event != "text":
            return False
        said = frame.data
        epoch = (said["attempt"], said["try"])
        if not self.epochs or epoch > self.epochs[-1]:
            self.epochs.append(epoch)
            self.text = ""
        assert epoch == self.epochs[-1], "no text comes back that was replaced"
        self.text = self.text[: said["offset"]] + said["text"]
        return True


@pytest.fixture
def model() -> Iterator[WireServer]:
    running = WireServer()
    yield running
    running.close()


@pytest.fixture
def stack(make_stack: Callable[..., Stack], database_url: str, valkey_url: str, model: WireServer) -> Stack:
    settings = {
        "PLANQ_MODEL": OPENAI_CHAT.model,
        "PLANQ_MODEL_BASE_URL": f"{model.url}/v1",
        "OPENAI_API_KEY": KEY,
        "PLANQ_SWEEP_SECONDS": "0.2",
    }
    stack = make_stack(database_url, valkey_url, env=settings)
    stack.start()
    return stack


def submit(stack: Stack) -> str:
    answer = httpx.post(f"{stack.url}/jobs", json={"input": "What is 2+2?"}, timeout=60)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


@contextmanager
def followed(stack: Stack, job_id: str) -> Iterator[Iterator[Frame]]:
    with httpx.stream("GET", f"{stack.url}/jobs/{job_id}/events", timeout=60) as response:
        assert response.status_code == 200
        yield frames(response.iter_bytes())


def speaking(page: Page, coming: Iterator[Frame], opening: str) -> None:
    """Read on until a text is shown that begins so."""
    while not (page.take(next(coming)) and page.text.startswith(opening)):
        pass


def direct(content: str) -> Any:
    """Return a planner's answer as it comes, inside the forced tool."""
    return OPENAI_CHAT.reply("", {"type": "direct_response", "content": content})


def test_a_model_server_that_breaks_off_is_asked_again_and_no_text_is_shown_twice(
    stack: Stack, model: WireServer
) -> None:
    shown, late = threading.Event(), threading.Event()
    model.script(
        Reply(direct(FIVE), count=6, gate=shown, then="break"), Reply(direct(FOUR), count=6, gate=late, then="rest")
    )
    job_id = submit(stack)
    page, latecomer = Page(), Page()
    with followed(stack, job_id) as coming:
        speaking(page, coming, OPENING + "ive")
        shown.set()
        speaking(page, coming, OPENING + "our")
        with followed(stack, job_id) as coming_late:
            speaking(latecomer, coming_late, OPENING + "our")
            late.set()
            for reader, rest in ((page, coming), (latecomer, coming_late)):
                for frame in rest:
                    reader.take(frame)

    assert page.job["status"] == "completed"
    assert page.text == latecomer.text == page.job["answer"] == FOUR
    assert [attempt for attempt, _ in page.epochs] == [1, 1]
    assert latecomer.epochs == page.epochs[1:], "who comes late sees the text that stands"


def test_a_worker_that_is_killed_while_its_model_speaks_leaves_nothing_in_the_text_of_the_next(
    stack: Stack, model: WireServer
) -> None:
    shown = threading.Event()
    model.script(Reply(direct(FIVE), count=6, then="hang"), Reply(direct(FOUR), count=6, gate=shown, then="rest"))
    page = Page()
    with followed(stack, submit(stack)) as coming:
        speaking(page, coming, OPENING + "ive")
        stack.kill("io-1")
        stack.run_worker("io", 2)
        speaking(page, coming, OPENING + "our")
        shown.set()
        for frame in coming:
            page.take(frame)

    assert page.job["status"] == "completed"
    assert page.text == page.job["answer"] == FOUR
    assert [attempt for attempt, _ in page.epochs] == [1, 2]
