"""What a model says is shown while it says it: by every provider's stream, once, and never what it took back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from planq.shared.agentic.models.exchange import Ask, ModelFailed, ModelReply, StageAttempt, TurnForm
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import JobStatus
from planq.shared.platform.errors import DatabaseUnavailable
from planq.shared.subjects.streams.contract import Epoch, TextPiece
from planq.worker.models.gateway import ModelGateway, TryLimits
from planq.worker.models.live import LiveTexts
from tests.integration.llm.calls import PLAN, RESULTS, TOOLS, Waits, ask_for, every_stream, settings_for
from tests.integration.llm.dialects import OPENAI_CHAT, Dialect
from tests.integration.llm.wire import Reply, WireServer

FOUR = "It is four, and here is why: " + "two and two \u00a0make \U0001f600 four.\n" * 20
FIVE = "It is five, and here is why: " + "two and two make five. " * 20
DIRECT = {"type": "direct_response", "content": FOUR}

Asking = Callable[[ModelGateway, Ask], Awaitable[ModelReply]]


class Page:
    """Somebody who follows a job and shows its text; `seen` is set once `is_seen` holds of it."""

    def __init__(self, is_seen: Callable[[str], bool] = bool, *, follows: bool = True, outages: int = 0) -> None:
        self.text = ""
        self.epochs: list[Epoch] = []
        self.asked = 0
        self.seen = threading.Event()
        self._is_seen = is_seen
        self._follows = follows
        self._outages = outages

    async def followed(self, job_ids: Collection[UUID]) -> Collection[UUID]:
        self.asked += 1
        self._may_be_away()
        if not self._follows:
            self.seen.set()
            return ()
        return job_ids

    async def write(self, pieces: Sequence[TextPiece]) -> Mapping[Epoch, int]:
        self._may_be_away()
        for piece in pieces:
            self._show(piece)
        return {piece.epoch: len(self.text) for piece in pieces}

    def _may_be_away(self) -> None:
        if self._outages:
            self._outages -= 1
            raise DatabaseUnavailable("away")

    def _show(self, piece: TextPiece) -> None:
        if not self.epochs or piece.epoch != self.epochs[-1]:
            newest = self.epochs[-1] if self.epochs else piece.epoch
            assert (piece.epoch.attempt, piece.epoch.number) >= (newest.attempt, newest.number), "epochs only grow"
            self.epochs.append(piece.epoch)
            self.text = ""
        assert piece.text
        assert piece.start == len(self.text), "no gap, and nothing twice"
        self.text += piece.text
        if self._is_seen(self.text):
            self.seen.set()


async def plans(gateway: ModelGateway, ask: Ask) -> ModelReply:
    return await gateway.plan(ask, TOOLS)


async def responds(gateway: ModelGateway, ask: Ask) -> ModelReply:
    return await gateway.respond(ask, RESULTS)


async def turns(gateway: ModelGateway, ask: Ask) -> ModelReply:
    return await gateway.turn(ask, TOOLS, [], TurnForm.REACT)


async def guides(gateway: ModelGateway, ask: Ask) -> ModelReply:
    return await gateway.guide(ask, TOOLS)


def shown(dialect: Dialect, server: WireServer, page: Page, asking: Asking, **ask: Any) -> ModelReply:
    """Return what is replied to a stage of a job that a page follows."""
    settings = settings_for(dialect, server)
    stage = {"job_id": str(new_id()), "stage": StageAttempt(JobStatus.PLANNING, 3), **ask}

    async def run() -> ModelReply:
        texts = LiveTexts(page, every_seconds=0.01)
        gateway = ModelGateway(settings, patience=TryLimits(settings, Waits(), lambda: 0.5), texts=texts)
        try:
            return await asking(gateway, replace(ask_for(dialect), **stage))
        finally:
            await texts.aclose()
            await gateway.aclose()

    return asyncio.run(run())


@pytest.mark.parametrize("asking", [plans, responds, turns])
@every_stream
def test_words_are_shown_while_they_come_and_all_of_them_in_the_end(
    server: WireServer, dialect: Dialect, asking: Asking
) -> None:
    page = Page()
    server.script(Reply(dialect.reply(FOUR, None), count=6, gate=page.seen, then="rest"))

    reply = shown(dialect, server, page, asking)

    assert page.seen.is_set(), "the reply went on once a part of it was there"
    assert (page.text, len(page.epochs), page.epochs[0].attempt) == (reply.text, 1, 3)


@pytest.mark.parametrize(
    ("text", "texts"),
    [("<think>" + "Add. " * 90 + "</think>\n\n" + FOUR, 1), ("Add. " * 90 + "\n</think>\n\n" + FOUR, 2)],
    ids=["opened", "closing mark alone"],
)
@pytest.mark.parametrize("asking", [plans, responds, turns])
def test_thoughts_in_a_text_are_not_shown(server: WireServer, asking: Asking, text: str, texts: int) -> None:
    page = Page()
    # The rest comes once something is shown: the beginning of the answer, or thoughts that no mark has opened.
    events = 3 if texts == 2 else 7
    server.script(Reply(OPENAI_CHAT.reply(text, None), count=events, gate=page.seen, then="rest"))

    reply = shown(OPENAI_CHAT, server, page, asking)

    assert (page.text, reply.text, len(page.epochs)) == (FOUR, FOUR, texts)


@every_stream
def test_of_the_planning_tool_the_direct_answer_is_shown(server: WireServer, dialect: Dialect) -> None:
    page = Page(lambda text: text == FOUR)
    server.script(Reply(dialect.reply("", DIRECT), gate=page.seen))

    shown(dialect, server, page, plans)

    assert page.text == FOUR
    assert page.seen.is_set(), "all of it was there before the stream had ended"


@pytest.mark.parametrize(("asking", "text"), [(plans, ""), (guides, FOUR)])
@every_stream
def test_no_plan_is_shown_and_no_guide(server: WireServer, dialect: Dialect, asking: Asking, text: str) -> None:
    page = Page()
    server.script(Reply(dialect.reply(text, None if text else PLAN)))

    shown(dialect, server, page, asking)

    assert page.epochs == []


@pytest.mark.parametrize("then", ["break", "end"])
@every_stream
def test_a_reply_that_breaks_off_is_replaced_by_the_next_one(server: WireServer, dialect: Dialect, then: Any) -> None:
    broken = Page()
    server.script(
        Reply(dialect.reply(FIVE, None), count=6, gate=broken.seen, then=then), Reply(dialect.reply(FOUR, None))
    )

    reply = shown(dialect, server, broken, responds)

    first, second = broken.epochs
    assert (first.attempt, second.attempt) == (3, 3)
    assert first.number < second.number
    assert broken.text == reply.text == FOUR


def test_a_fallback_model_begins_anew(server: WireServer) -> None:
    page = Page()
    server.script(
        Reply(OPENAI_CHAT.reply(FIVE, None), count=6, gate=page.seen, then="break"),
        Reply({"error": {"message": "no"}}, status=400),
        Reply(OPENAI_CHAT.reply(FOUR, None)),
    )

    reply = shown(OPENAI_CHAT, server, page, responds, fallback_models=["openai:gpt-other"])

    assert reply.call.model == "openai:gpt-other"
    assert (page.text, len(page.epochs)) == (FOUR, 2)


def test_nothing_leaves_the_process_where_nobody_follows(server: WireServer) -> None:
    page = Page(follows=False)
    server.script(Reply(OPENAI_CHAT.reply(FOUR, None), count=6, gate=page.seen, then="rest"))

    assert shown(OPENAI_CHAT, server, page, responds).text == FOUR

    assert page.asked > 0
    assert page.epochs == []


def test_a_call_beside_the_stages_is_shown_to_nobody(server: WireServer) -> None:
    page = Page()
    server.script(Reply(OPENAI_CHAT.reply(FOUR, None)))

    assert shown(OPENAI_CHAT, server, page, responds, stage=None).text == FOUR

    assert page.asked == 0


def test_what_the_database_did_not_take_is_written_again(server: WireServer) -> None:
    page = Page(lambda text: text == FOUR, outages=3)
    server.script(Reply(OPENAI_CHAT.reply(FOUR, None), gate=page.seen))

    assert shown(OPENAI_CHAT, server, page, responds).text == FOUR

    assert page.text == FOUR


def test_after_the_last_call_nobody_is_asked_any_more(server: WireServer) -> None:
    page = Page()
    server.script(Reply(OPENAI_CHAT.reply("", None), status=500))
    settings = settings_for(OPENAI_CHAT, server, max_attempts=1)

    async def run() -> bool:
        texts = LiveTexts(page, every_seconds=0.0)
        gateway = ModelGateway(settings, texts=texts)
        stage = StageAttempt(JobStatus.RESPONDING, 1)
        with pytest.raises(ModelFailed):
            await gateway.respond(replace(ask_for(OPENAI_CHAT), job_id=str(new_id()), stage=stage), RESULTS)
        await gateway.aclose()
        writers = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        await asyncio.wait_for(asyncio.gather(*writers), 30)
        return True

    assert asyncio.run(run()), "the writer has ended by itself"
