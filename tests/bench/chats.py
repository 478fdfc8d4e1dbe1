"""B23: replies to 200 chats of one bot, then the same while one of the chats never answers.

What one in twenty of the other chats waits for its reply is measured in both, in turns: from the commit that ends the
turn until the Bot API has taken the message.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from planq.shared.agentic.turns.channel_kinds import ChannelKind
from planq.shared.platform.database import Database
from planq.worker.channels.sending import ChannelSender
from planq.worker.channels.telegram import BotApi, TelegramChannel
from planq.worker.webhooks.posting import Poster
from planq.worker.webhooks.sender import DeliverySender
from tests.bench.context import Context
from tests.bench.figures import Bound, Figure
from tests.support.bot_api import SILENT, TOKEN, BotServer, Reply
from tests.support.channels import ChannelPost

CHATS = 200
MESSAGES, QUICK_MESSAGES = 5, 2
HANGS = 1
MOST = 1.2
_TIMEOUT = timedelta(seconds=20)
_CHAT = ChannelKind.TELEGRAM

_WAITS = """
SELECT extract(epoch FROM d.finished_at - d.created_at)::float8 * 1000 AS ms
FROM deliveries d JOIN conversations c ON c.id = d.conversation_id
WHERE c.thread <> %s AND d.status = 'sent' AND d.created_at >= %s
"""


class HangingBot(BotServer):
    """A server of the Bot API that says nothing to one chat, while it `is_hanging`."""

    is_hanging = False

    def take(self, token: str, method: str, given: dict[str, Any]) -> Reply:
        """Answer as the Bot API does, but for that chat."""
        reply = super().take(token, method, given)
        return SILENT if self.is_hanging and given.get("chat_id") == HANGS else reply


@contextmanager
def hanging_bot() -> Iterator[HangingBot]:
    """Run the server."""
    with HangingBot(()) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.stopping.set()
            server.shutdown()
            thread.join()


def measure(context: Context) -> list[Figure]:
    """Reply without and with the chat that hangs in turns, after a round that does not count."""
    url, count = context.create_migrated(), context.either(MESSAGES, QUICK_MESSAGES)
    with hanging_bot() as server:
        alone, beside = asyncio.run(_alternating(url, server, context.repeats, count))
    return [
        Figure(
            f"B23 p95 of replies to {CHATS} chats, one hangs",
            statistics.median(beside),
            "ms",
            limits={"none hangs": statistics.median(alone)},
            bounds=[Bound(MOST, "none hangs")],
            samples=beside,
        )
    ]


async def _alternating(url: str, server: HangingBot, rounds: int, count: int) -> tuple[list[float], list[float]]:
    alone: list[float] = []
    beside: list[float] = []
    for number in range(rounds + 1):
        for is_hanging in (False, True):
            server.is_hanging = is_hanging
            found = await _round(url, server, count)
            if number:
                (beside if is_hanging else alone).append(found)
    return alone, beside


async def _round(url: str, server: HangingBot, count: int) -> float:
    """Return the p95 of a worker of its own, in milliseconds; what hangs ends with its worker."""

    async def token(tenant_id: str, name: str) -> str:
        return TOKEN

    async def no_keys(tenant_id: str, endpoint_id: UUID | None) -> list[str]:
        return []

    async with Database(url, max_connections=8) as database:
        post = ChannelPost(database)
        await post.beat()
        await post.connect(_CHAT, bot_id=42, username="planq_bot")
        await post.thread.run(
            "UPDATE deliveries SET status = 'failed', finished_at = now() WHERE finished_at IS NULL"
        )
        (row,) = await post.thread.run("SELECT clock_timestamp() AS now")
        nobody = Poster(no_keys, _TIMEOUT, frozenset(), lambda: 0.0)
        channel = TelegramChannel(BotApi(server.url, _TIMEOUT), token, lambda: 0.0)
        sending = ChannelSender(nobody, {_CHAT: channel}, post.store)
        sender = DeliverySender(post.store, sending, {}, most=50)
        sender.start()
        for number in range(count):
            for chat in range(1, CHATS + 1):
                if chat % 20 == 0:
                    await post.beat()
                said = await post.says("x", _CHAT, thread=str(chat), source_id=f"{uuid4()}")
                await post.reply(said, f"reply {number}")
        expected = (CHATS - 1) * count
        waits: list[float] = []
        async with asyncio.timeout(300):
            while len(waits) < expected:
                await asyncio.sleep(0.1)
                await post.beat()
                waits = [found["ms"] for found in await post.thread.run(_WAITS, str(HANGS), row["now"])]
        await sender.close()
    return statistics.quantiles(waits, n=20)[-1]
