"""Replies on their way to Telegram: what is sent, and what becomes of it where the Bot API, or nobody, answers."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from telegram import InlineKeyboardMarkup, MessageEntity

from planq.shared.agentic.turns.channel_kinds import ChannelKind
from planq.shared.kernel.ids import Attempt, StepRef
from planq.shared.platform.database import Database
from planq.shared.subjects.channels.telegram import pressed
from planq.shared.subjects.webhooks.rules import LADDER
from planq.worker.channels.sending import ChannelSender
from planq.worker.channels.telegram import BotApi, TelegramChannel
from planq.worker.channels.typing import TypingNotices
from planq.worker.webhooks.posting import Poster
from planq.worker.webhooks.sender import DeliverySender
from tests.support.bot_api import CUT, SILENT, TOKEN, BotServer, Reply, bot_server, refused
from tests.support.channels import ChannelPost
from tests.support.clock import move_clock

CHAT = ChannelKind.TELEGRAM
FLOOD = refused(429, "Too Many Requests: retry after 3", retry_after=3)


class House(ChannelPost):
    """A worker's sender beside the conversations, and the tokens of its tenants."""

    def __init__(self, database: Database, server: BotServer, seconds: float) -> None:
        super().__init__(database)
        self.server = server
        self.token: str | None = TOKEN
        channel = TelegramChannel(BotApi(server.url, timedelta(seconds=seconds)), self._token, lambda: 0.0)
        nobody = Poster(self._no_keys, timedelta(seconds=seconds), frozenset(), lambda: 0.0)
        self.channel = channel
        sending = ChannelSender(nobody, {CHAT: channel}, self.store)
        self.counts = Counter[tuple[str, ...]]()
        self.sender = DeliverySender(self.store, sending, self.counts, most=50)

    async def _token(self, tenant_id: str, name: str) -> str | None:
        assert (tenant_id, name) == ("default", "telegram_token")
        return self.token

    async def _no_keys(self, tenant_id: str, endpoint_id: Any) -> list[str]:
        return []

    async def pass_over(self, times: int = 1) -> None:
        """Send what is due, and wait for it."""
        for _ in range(times):
            await self.sender.fill()
            await self.sender.settle()

    async def later(self, by: timedelta) -> None:
        """Let so much time pass since the test began, and a little more."""
        await move_clock(self.database, by + timedelta(seconds=1))
        await self.beat()

    async def answered(self, text: str, *, chat: int = 7, **fields: Any) -> None:
        """Let somebody in a chat say something, and answer it."""
        metadata = {"telegram": {"message_id": 11}}
        await self.reply(await self.says("x", CHAT, thread=str(chat), metadata=metadata, **fields), text)


Work = Callable[[House], Awaitable[None]]


def play(url: str, work: Work, *replies: Reply, seconds: float = 20.0) -> None:
    async def inside(server: BotServer) -> None:
        async with Database(url, max_connections=4) as database:
            house = House(database, server, seconds)
            await house.beat()
            await house.connect(CHAT, bot_id=42, username="planq_bot")
            await work(house)

    with bot_server(*replies) as server:
        asyncio.run(inside(server))


def test_a_reply_is_a_message_with_entities(database_url: str) -> None:
    async def work(house: House) -> None:
        await house.answered("😀 **bold** and [a link](https://a.example)")
        await house.pass_over()
        (given,) = house.server.sent
        assert (given["chat_id"], given["text"]) == (7, "😀 bold and a link")
        entities = [MessageEntity.de_json(one, None) for one in given["entities"]]
        assert [(one.type, one.offset, one.length) for one in entities] == [("bold", 3, 4), ("text_link", 12, 6)]
        assert "reply_parameters" not in given
        (row,) = await house.rows()
        assert (row["status"], row["external_id"] is not None, row["response_status"]) == ("sent", True, 200)

    play(database_url, work)


def test_in_a_group_the_reply_is_to_a_message_and_in_its_topic(database_url: str) -> None:
    async def work(house: House) -> None:
        said = await house.says("x", CHAT, thread="-5/3", metadata={"telegram": {"message_id": 11}})
        await house.reply(said, "hi")
        await house.pass_over()
        (given,) = house.server.sent
        assert (given["chat_id"], given["message_thread_id"]) == (-5, 3)
        assert given["reply_parameters"] == {"message_id": 11, "allow_sending_without_reply": True}

    play(database_url, work)


def test_nine_thousand_emoji_arrive_in_parts_and_in_order(database_url: str) -> None:
    async def work(house: House) -> None:
        await house.answered("😀" * 9_000)
        await house.pass_over()
        assert [len(given["text"]) for given in house.server.sent] == [2_048] * 4 + [808]

    play(database_url, work)


def test_a_part_that_has_arrived_is_not_sent_again(database_url: str) -> None:
    async def work(house: House) -> None:
        await house.answered("\n\n".join(letter * 3_000 for letter in "abc"))
        await house.pass_over()
        assert [given["text"][0] for given in house.server.sent] == ["a", "b"]
        await house.later(LADDER[0])
        await house.pass_over()
        assert [given["text"][0] for given in house.server.sent] == ["a", "b", "b", "c"]
        assert await house.statuses() == ["sent"]

    play(database_url, work, Reply(), refused(500, "Internal"))


def test_an_answer_that_says_nothing_sends_nothing(database_url: str) -> None:
    async def work(house: House) -> None:
        await house.answered(" \n ")
        await house.pass_over()
        assert house.server.sent == []
        assert await house.statuses() == ["sent"]

    play(database_url, work)


def test_formats_that_are_not_taken_are_left_out(database_url: str) -> None:
    async def work(house: House) -> None:
        await house.answered("**x**")
        await house.pass_over()
        assert ["entities" in given for given in house.server.sent] == [True, False]
        assert await house.statuses() == ["sent"]

    play(database_url, work, refused(400, "Bad Request: can't parse entities"))


def test_a_flood_is_waited_for_by_the_whole_bot(database_url: str) -> None:
    async def work(house: House) -> None:
        await house.answered("one", chat=7)
        await house.pass_over()
        await house.answered("two", chat=8)
        await house.pass_over()
        assert len(house.server.sent) == 1, "all chats of the bot wait"
        await house.later(timedelta(seconds=3))
        await house.pass_over()
        assert sorted(given["text"] for given in house.server.sent[1:]) == ["one", "two"]

    play(database_url, work, FLOOD)


def test_a_flood_in_a_group_is_waited_for_by_the_group_alone(database_url: str) -> None:
    async def work(house: House) -> None:
        await house.answered("group", chat=-7)
        await house.pass_over()
        await house.answered("chat", chat=8)
        await house.pass_over()
        assert [given["text"] for given in house.server.sent] == ["group", "chat"]
        assert await house.statuses() == ["pending", "sent"]

    play(database_url, work, FLOOD)


def test_what_was_sent_and_not_answered_is_repeated(database_url: str) -> None:
    async def work(house: House) -> None:
        await house.answered("one")
        await house.answered("two")
        await house.pass_over(3)
        await house.later(LADDER[0])
        await house.pass_over(2)
        texts = [given["text"] for given in house.server.sent]
        rows = await house.rows()
        assert texts == ["one", "one", "two"]
        assert [(row["status"], row["doubts"]) for row in rows] == [("sent", 1), ("sent", 0)]
        assert house.counts[("delivery", "again")] == 1

    play(database_url, work, CUT)


def test_a_silent_server_leaves_a_doubt(database_url: str) -> None:
    async def work(house: House) -> None:
        await house.answered("one")
        await house.pass_over()
        assert [(row["status"], row["error"]["code"]) for row in await house.rows()] == [("pending", "uncertain")]

    play(database_url, work, SILENT, seconds=0.5)


def test_one_who_has_blocked_the_bot_gets_nothing_more_and_others_do(database_url: str) -> None:
    async def work(house: House) -> None:
        await house.answered("one", chat=7)
        await house.answered("two", chat=8)
        await house.pass_over()
        rows = await house.rows()
        assert sorted(row["status"] for row in rows) == ["failed", "sent"]
        (failed,) = [row for row in rows if row["status"] == "failed"]
        assert failed["error"]["code"] == "receiver_refused"
        assert "blocked by the user" in failed["error"]["message"]

    play(database_url, work, refused(403, "Forbidden: bot was blocked by the user"))


def test_a_group_that_has_migrated_is_followed(database_url: str) -> None:
    async def work(house: House) -> None:
        await house.answered("hi", chat=-5)
        await house.pass_over(2)
        assert [given["chat_id"] for given in house.server.sent] == [-5, -1005]
        assert await house.statuses() == ["sent"]
        await house.conversation_of("-1005")

    moved = refused(400, "Bad Request: group chat was upgraded", migrate_to_chat_id=-1005)
    play(database_url, work, moved)


@pytest.mark.parametrize("token", ["43:revoked-revoked", None, "no token\n/../x"])
def test_a_token_that_is_not_good_is_told_of_its_channel_and_stands_nowhere(
    database_url: str, token: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(house: House) -> None:
        house.token = token
        await house.answered("one")
        with caplog.at_level(logging.DEBUG, "planq"):
            await house.pass_over()
        (row,) = await house.rows()
        assert (row["status"], row["error"]["code"]) == ("failed", "auth")
        (channel,) = await house.channels.list("default")
        assert channel.problem is not None
        assert "telegram_token" in channel.problem or "address" in channel.problem
        if token is not None:
            assert token not in f"{row}{channel}{[record.__dict__ for record in caplog.records]}"
        house.token = TOKEN
        await house.answered("two")
        await house.pass_over()
        (channel,) = await house.channels.list("default")
        assert channel.problem is None

    play(database_url, work)


def test_nobody_listening_is_tried_again_and_names_no_token(database_url: str) -> None:
    async def work(house: House) -> None:
        house.server.server_close()
        await house.answered("one")
        await house.pass_over()
        (row,) = await house.rows()
        assert (row["status"], row["error"]["code"]) == ("pending", "transient")
        assert TOKEN not in str(row)

    play(database_url, work)


def test_a_question_has_buttons(database_url: str) -> None:
    async def work(house: House) -> None:
        said = await house.says("x", CHAT, thread="7")
        await house.thread.run(
            "INSERT INTO questions (id, tenant_id, job_id, root_job_id, round, step_index, attempt, kind, message,"
            " schema) VALUES (gen_random_uuid(), 'default', %s, %s, 0, 0, 1, 'form', '**Which**?', %s)",
            *(said.job_id, said.job_id, '{"properties": {"colour": {"enum": ["red", "blue", "green"]}}}'),
        )
        (question,) = await house.thread.run("SELECT id FROM questions")
        await house.pass_over()
        (given,) = house.server.sent
        assert given["text"] == "Which?"
        markup = InlineKeyboardMarkup.de_json(given["reply_markup"], None)
        buttons = [button for row in markup.inline_keyboard for button in row]
        assert [button.text for button in buttons] == ["red", "blue", "green"]
        assert [pressed(str(button.callback_data)) for button in buttons] == [(question["id"], n) for n in range(3)]

    play(database_url, work)


def test_a_chat_is_shown_typing_while_its_turn_or_a_job_below_it_is_in_flight(database_url: str) -> None:
    async def work(house: House) -> None:
        turn, other = await house.says("x", CHAT, thread="-100/7"), await house.says("y", CHAT, thread="8")
        next_turn = await house.says("and", CHAT, thread="-100/7")
        child = (await house.says("below", "api")).job_id
        await house.thread.run("UPDATE jobs SET root_job_id = %s WHERE id = %s", turn.job_id, child)
        here: list[Attempt] = []
        notices = TypingNotices(lambda: here, house.store.chats_of, {CHAT: house.channel.show_typing})

        async def shown(*jobs: UUID | None) -> list[dict[str, Any]]:
            here[:] = [Attempt(StepRef(job, 0, 0), 1) for job in jobs if job is not None]
            house.server.calls.clear()
            await notices.renew()
            assert {method for method, _ in house.server.calls} <= {"sendChatAction"}
            return sorted((given for _, given in house.server.calls), key=str)

        topic = {"chat_id": -100, "message_thread_id": 7, "action": "typing"}
        assert await shown() == []
        assert await shown(turn.job_id, child) == [topic]
        assert await shown(child, other.job_id) == [topic, {"chat_id": 8, "action": "typing"}]
        assert await shown(next_turn.job_id) == [], "it has not begun"
        house.server.tokens.clear()
        assert await shown(turn.job_id) == [], "nobody is told by this"
        await house.thread.run("UPDATE channels SET problem = 'refused'")
        house.server.tokens.add(TOKEN)
        assert await shown(turn.job_id) == []

    play(database_url, work)


def test_a_chat_that_hangs_keeps_no_other_from_being_shown() -> None:
    async def work() -> None:
        shown: list[str] = []

        async def chats(jobs: Any, kinds: Any, limit: int) -> list[tuple[str, str, str]]:
            return [(kind, *chat) for kind in kinds for chat in (("a", "hangs"), ("a", "1"), ("b", "2"))]

        async def show(tenant: str, thread: str) -> None:
            if thread == "hangs":
                await asyncio.Event().wait()
            shown.append(thread)

        attempts = [Attempt(StepRef(uuid4(), 0, 0), 1)]
        notices = TypingNotices(lambda: attempts, chats, {CHAT: show}, most_seconds=0.05)
        async with asyncio.timeout(60):
            await notices.renew()
        assert shown == ["1", "2"]

    asyncio.run(work())


def test_waits_that_telegram_asks_for_use_up_no_attempts(database_url: str) -> None:
    """Twelve 429s were all the attempts there are: one 500 after them gave a reply up."""
    waits = len(LADDER) + 1

    async def work(house: House) -> None:
        await house.answered("hello")
        for number in range(waits + 2):
            await house.later(number * timedelta(seconds=10))
            await house.pass_over()
        assert house.counts == {("delivery", "again"): waits + 1, ("delivery", "sent"): 1}

    play(database_url, work, *[FLOOD] * waits, refused(500, "Internal Server Error"))
