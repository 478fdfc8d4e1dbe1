"""The channel `webhook`: what conversations say is posted in their order, signed, and part of no event of a job."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta

from standardwebhooks import Webhook

from planq.shared.agentic.turns.channel_kinds import ChannelKind
from planq.shared.platform.database import Database
from planq.shared.subjects.tenants.master_keys import read_master_keys
from planq.shared.subjects.webhooks.rules import LADDER
from planq.shared.subjects.webhooks.signing import SigningSecrets
from planq.worker.channels.sending import ChannelSender
from planq.worker.channels.webhook import WebhookChannel
from planq.worker.webhooks.posting import Poster
from planq.worker.webhooks.sender import DeliverySender
from tests.integration.api.conftest import SECRET_KEY
from tests.support.channels import ChannelPost
from tests.support.clock import move_clock
from tests.support.receiver import OK, Answer, receiving

HOOK = ChannelKind.WEBHOOK


class House(ChannelPost):
    """A worker's sender beside the conversations."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.secrets = SigningSecrets(database, read_master_keys(SECRET_KEY))
        poster = Poster(self.secrets.of, timedelta(seconds=20), frozenset({"127.0.0.1"}), lambda: 0.0)
        sending = ChannelSender(poster, {HOOK: WebhookChannel(poster)}, self.store)
        self.counts = Counter[tuple[str, ...]]()
        self.sender = DeliverySender(self.store, sending, self.counts, most=50)

    async def pass_over(self, times: int = 1) -> None:
        """Send what is due, and wait for it."""
        for _ in range(times):
            await self.sender.fill()
            await self.sender.settle()


def play(url: str, work: Callable[[House], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with Database(url, max_connections=4) as database:
            house = House(database)
            await house.beat()
            await work(house)

    asyncio.run(inside())


def test_replies_are_posted_in_their_order_signed_and_again_under_their_id(database_url: str) -> None:
    async def work(house: House) -> None:
        with receiving(Answer(500), OK) as receiver:
            await house.connect(HOOK, url=receiver.url)
            for number in range(2):
                said = await house.says(f"question {number}", HOOK, user_id="ada", source_id=f"m{number}")
                await house.reply(said, f"answer {number}")
            await house.pass_over(2)
            assert len(receiver.seen) == 1, "the second waits for the first"
            await move_clock(house.database, LADDER[0] + timedelta(seconds=1))
            await house.beat()
            await house.pass_over(2)
            (secret,) = await house.secrets.of("default", None)
            told = [Webhook(secret).verify(seen.body, seen.headers) for seen in receiver.seen]
            assert [one["data"]["text"] for one in told] == ["answer 0", "answer 0", "answer 1"]
            assert told[0] == told[1]
            assert receiver.seen[0].headers["webhook-id"] == receiver.seen[1].headers["webhook-id"]
            assert told[2]["type"] == "conversation.message"
            data = told[2]["data"]
            assert (data["thread"], data["to"], data["in_reply_to"]) == ("t", "ada", "m1")
            assert (data["question"], data["error_code"]) == (None, None)
            assert await house.statuses() == ["sent", "sent"]
            assert house.counts == {("delivery", "again"): 1, ("delivery", "sent"): 2}

    play(database_url, work)


def test_a_turn_that_failed_is_told_in_words_for_people(database_url: str) -> None:
    async def work(house: House) -> None:
        with receiving() as receiver:
            await house.connect(HOOK, url=receiver.url)
            said = await house.says("do it", HOOK)
            await house.database.call("planq_cancel_job", said.job_id, "default")
            assert said.job_id is not None
            await house.thread.store.settle(said.job_id)
            await house.pass_over()
            (seen,) = receiver.seen
            data = json.loads(seen.body)["data"]
            assert (data["text"], data["error_code"]) == ("This request was stopped.", "cancelled")

    play(database_url, work)


def test_what_was_erased_or_disconnected_is_not_posted(database_url: str) -> None:
    async def work(house: House) -> None:
        with receiving() as receiver:
            await house.connect(HOOK, url=receiver.url)
            await house.reply(await house.says("x", HOOK), "secret words")
            await house.thread.store.erase("default", await house.conversation_of("t"))
            await house.pass_over()
            await house.reply(await house.says("x", HOOK, thread="u"), "others")
            await house.channels.disconnect("default", HOOK)
            await house.pass_over()
            assert receiver.seen == []
            assert [row["error"]["code"] for row in await house.rows()] == ["erased", "channel_disconnected"]
            assert await house.statuses() == ["failed", "failed"]

    play(database_url, work)
