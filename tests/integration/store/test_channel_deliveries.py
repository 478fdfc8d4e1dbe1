"""What conversations say over channels: written with the end of a turn, in order, repeated where wanted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from planq.shared.agentic.turns.channel_kinds import ChannelKind
from planq.shared.platform.database import Database
from planq.shared.platform.errors import ErrorRecord, NotFound
from planq.shared.subjects.webhooks.rules import DeliveryOutcome
from tests.support.channels import HOLD, ChannelPost
from tests.support.clock import move_clock

CHAT, HOOK = ChannelKind.TELEGRAM, ChannelKind.WEBHOOK
SENT = DeliveryOutcome(external_id="77")
LATER = DeliveryOutcome(ErrorRecord("receiver_failed", "500", retryable=True), timedelta(seconds=5), 500)


def play(url: str, work: Callable[[ChannelPost], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with Database(url, max_connections=4) as database:
            post = ChannelPost(database)
            await post.beat()
            await post.connect(CHAT, username="bot")
            await work(post)

    asyncio.run(inside())


def test_a_reply_is_written_with_the_end_of_its_turn_and_says_what_the_conversation_does(database_url: str) -> None:
    async def work(post: ChannelPost) -> None:
        fetched = await post.says("hello", "api", user_id="7")
        await post.reply(fetched)
        assert await post.rows() == [], "nobody sends to that channel"
        said = await post.says("hello", CHAT, user_id="7", source_id="b:1", metadata={"telegram": "\x00"})
        assert await post.rows() == []
        await post.reply(said, "**hi**")
        (delivery,) = await post.take()
        assert (delivery.kind, delivery.channel, delivery.channel_kind) == ("message", "telegram", "telegram")
        assert delivery.config == {"username": "bot"}
        assert not delivery.is_doubtful
        body = json.loads(delivery.body)
        assert (body["text"], body["thread"], body["to"], body["question"]) == ("**hi**", "t", "7", None)
        assert body["in_reply_to"]["source_message_id"] == "b:1"
        assert body["in_reply_to"]["metadata"] == {"telegram": "\x00"}
        assert (await post.rows())[0]["body"] == "", "its text stands in the conversation alone"
        assert await post.store.finish(delivery, SENT)
        assert await post.statuses() == ["sent"]
        assert (await post.rows())[0]["external_id"] == "77"

    play(database_url, work)


def test_of_one_conversation_the_oldest_goes_first_and_no_other_waits_for_it(database_url: str) -> None:
    async def work(post: ChannelPost) -> None:
        for number in range(3):
            await post.reply(await post.says(f"a{number}", CHAT, thread="a"), f"a{number}")
        await post.reply(await post.says("b0", CHAT, thread="b"), "b0")
        heads = await post.take()
        assert [json.loads(one.body)["text"] for one in heads] == ["a0", "b0"]
        assert await post.take() == []
        assert await post.store.finish(heads[0], LATER)
        assert await post.take() == [], "the first is tried again before what follows"
        await move_clock(post.database, timedelta(seconds=6))
        await post.beat()
        (again,) = await post.take()
        assert (json.loads(again.body)["text"], again.tries) == ("a0", 2)
        assert await post.store.finish(again, SENT)
        (second,) = await post.take()
        assert await post.store.finish(second, DeliveryOutcome(ErrorRecord("receiver_refused", "403")))
        (third,) = await post.take()
        assert json.loads(third.body)["text"] == "a2", "what has failed for good holds up nothing"

    play(database_url, work)


def test_what_a_lost_worker_may_have_sent_is_repeated(database_url: str) -> None:
    async def work(post: ChannelPost) -> None:
        await post.reply(await post.says("x", CHAT), "one")
        await post.reply(await post.says("y", CHAT), "two")
        (first,) = await post.take()
        await move_clock(post.database, HOLD + timedelta(seconds=1))
        await post.beat()
        due = await post.take()
        assert not await post.store.finish(first, SENT), "it comes too late"
        assert [(one.id, one.is_doubtful) for one in due] == [(first.id, True)]
        assert await post.statuses() == ["sending", "pending"]
        assert [row["doubts"] for row in await post.rows()] == [1, 0]

    play(database_url, work)


def test_a_receiver_that_knows_repeats_leaves_no_doubt(database_url: str) -> None:
    async def work(post: ChannelPost) -> None:
        await post.connect(HOOK, url="https://example.com/")
        await post.reply(await post.says("x", HOOK), "one")
        await post.take()
        await move_clock(post.database, HOLD + timedelta(seconds=1))
        await post.beat()
        (again,) = await post.take()
        assert not again.is_doubtful
        assert [(row["status"], row["doubts"]) for row in await post.rows()] == [("sending", 0)]

    play(database_url, work)


def test_parts_that_have_arrived_are_not_sent_again(database_url: str) -> None:
    async def work(post: ChannelPost) -> None:
        await post.reply(await post.says("x", CHAT))
        (first,) = await post.take()
        assert await post.store.note_part(first, 1, "5")
        assert not await post.store.note_part(first, 1, "5")
        assert await post.store.finish(first, LATER)
        assert not await post.store.note_part(first, 2, "6"), "it has ended"
        await move_clock(post.database, timedelta(seconds=6))
        await post.beat()
        assert [(one.parts, one.attempt) for one in await post.take()] == [(1, 2)]

    play(database_url, work)


def test_a_channel_that_asks_for_a_pause_is_sent_nothing_and_others_are(database_url: str) -> None:
    async def work(post: ChannelPost) -> None:
        await post.connect(HOOK, url="https://example.com/")
        for thread in "ab":
            await post.reply(await post.says("x", CHAT, thread=thread))
        (first, _) = await post.take()
        busy = DeliveryOutcome(
            ErrorRecord("rate_limited", "429", retryable=True), timedelta(), pause=timedelta(seconds=30)
        )
        assert await post.store.finish(first, busy)
        await post.reply(await post.says("x", CHAT, thread="c"))
        await post.reply(await post.says("x", HOOK))
        assert [one.channel for one in await post.take()] == [HOOK]
        await move_clock(post.database, timedelta(seconds=31))
        await post.beat()
        assert len([one for one in await post.take() if one.channel == CHAT]) >= 2

    play(database_url, work)


def test_a_problem_of_a_channel_is_shown_and_its_tenant_told_once_until_something_is_sent(database_url: str) -> None:
    told: list[dict[str, Any]] = []

    async def finish(post: ChannelPost, outcome: DeliveryOutcome) -> None:
        """End the one message that is due, and note what endpoints are told of it."""
        told.clear()
        await post.reply(await post.says("x", CHAT))
        for delivery in await post.take():
            if delivery.kind == "message":
                assert await post.store.finish(delivery, outcome)
        for hook in await post.take():
            told.append({"tenant": hook.tenant_id, **json.loads(hook.body)})

    async def work(post: ChannelPost) -> None:
        await post.thread.run(
            "INSERT INTO tenants (id, name, created_at, updated_at) VALUES ('b', 'b', now(), now())"
        )
        await post.thread.run(
            "INSERT INTO endpoints (id, tenant_id, url, events) SELECT planq_new_id(), t.id, 'https://a.example', %s"
            " FROM tenants t",
            ["channel.*"],
        )
        await post.channels.connect("b", str(CHAT), CHAT, {"username": "another"})
        refused = DeliveryOutcome(ErrorRecord("auth_failed", "401"), problem="the token is refused")
        await finish(post, refused)
        (one,) = told
        assert (one["tenant"], one["type"]) == ("default", "channel.problem")
        assert one["data"] == {"channel": "telegram", "kind": "telegram", "problem": "the token is refused"}
        assert [one.problem for one in await post.channels.list("default")] == ["the token is refused"]
        assert [one.problem for one in await post.channels.list("b")] == [None]
        found = [(row["tenant_id"], row["name"], row["n"]) for row in await post.channels.troubled(3)]
        assert found == [("default", "telegram", 1)]
        await finish(post, DeliveryOutcome(ErrorRecord("rate_limited", "429"), pause=timedelta()))
        assert [one.problem for one in await post.channels.list("default")] == [
            "the token is refused"
        ]  # a 429 unsaid it
        await finish(post, refused)
        assert told == [], "it knows"
        await finish(post, SENT)
        assert [one.problem for one in await post.channels.list("default")] == [None]
        assert await post.channels.troubled(3) == []
        await finish(post, refused)
        assert len(told) == 1

    play(database_url, work)


def test_what_is_erased_is_not_sent_and_what_was_disconnected_says_so(database_url: str) -> None:
    async def work(post: ChannelPost) -> None:
        await post.reply(await post.says("x", CHAT), "secret words")
        await post.thread.store.erase("default", await post.conversation_of("t"))
        (delivery,) = await post.take()
        assert delivery.body == ""
        await post.reply(await post.says("x", CHAT, thread="u"))
        await post.channels.disconnect("default", CHAT)
        (other,) = [one for one in await post.take() if one.body]
        assert (other.channel_kind, other.config) == (None, None)
        with pytest.raises(NotFound):
            await post.channels.disconnect("default", CHAT)
        with pytest.raises(NotFound):
            await post.channels.connect("nobody", CHAT, CHAT, {})

    play(database_url, work)


def test_a_thread_moves_with_its_topics_unless_the_new_name_is_taken(database_url: str) -> None:
    async def work(post: ChannelPost) -> None:
        for thread in ("-5", "-5/2", "-55", "-7", "-100"):
            await post.reply(await post.says("x", CHAT, thread=thread))
        (delivery, *_) = await post.take()
        await post.store.move_thread(delivery, "-5", "-1005")
        await post.store.move_thread(delivery, "-7", "-100")
        rows = await post.thread.run("SELECT thread FROM conversations ORDER BY thread")
        assert sorted(row["thread"] for row in rows) == sorted(["-1005", "-1005/2", "-55", "-7", "-100"])

    play(database_url, work)
