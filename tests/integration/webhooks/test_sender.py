"""Deliveries on their way from the commit that writes them to a real receiver."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from standardwebhooks import Webhook

from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.platform.database import Database, as_json
from planq.shared.platform.errors import Misconfigured
from planq.shared.subjects.tenants.master_keys import read_master_keys
from planq.shared.subjects.tenants.secrets import SecretStore
from planq.shared.subjects.webhooks.deliveries import PostgresDeliveries
from planq.shared.subjects.webhooks.endpoints import WebhookStore
from planq.shared.subjects.webhooks.rules import HAND_BACK_PAUSE, LADDER, LONGEST_WAITED
from planq.shared.subjects.webhooks.signing import SigningSecrets
from planq.worker.webhooks.posting import Poster
from planq.worker.webhooks.sender import EACH, DeliverySender
from tests.support.clock import move_clock
from tests.support.receiver import OK, SILENT, Answer, Receiver, receiving

OLD, NEW = (read_master_keys(base64.b64encode(bytes([number]) * 32).decode()) for number in (1, 2))
LEASE = timedelta(seconds=15)


class House:
    """A database and what sends from it, to receivers on this machine."""

    def __init__(self, database: Database, *, seconds: float = 20.0, most: int = 50) -> None:
        self.database = database
        self.worker_id = new_id()
        self.hooks = WebhookStore(database)
        self.secrets = SigningSecrets(database, OLD)
        self.counts = Counter[tuple[str, ...]]()
        store = PostgresDeliveries(database, self.worker_id, LEASE, timedelta(seconds=60))
        poster = Poster(self.secrets.of, timedelta(seconds=seconds), frozenset({"127.0.0.1"}), lambda: 0.0)
        self.sender = DeliverySender(store, poster, self.counts, most=most, tick_seconds=0.05)

    async def beat(self) -> None:
        registry = WorkerRegistry(self.database, LEASE)
        await registry.register(self.worker_id, "w", ["io"], [], 1, "1")

    async def add(self, callback: str | None, count: int = 1) -> None:
        for number in range(count):
            data = as_json({"id": str(number)})
            await self.database.call("planq_add_deliveries", "default", "job.completed", None, None, callback, data)

    async def endpoint(self, receiver: Receiver) -> UUID:
        made = await self.hooks.create("default", receiver.url, ["job.*"], "", most=5)
        assert made is not None
        id_: UUID = made["id"]
        return id_

    async def later(self, by: timedelta) -> None:
        """Let so much time pass since the test began, and a little more."""
        await move_clock(self.database, by + timedelta(seconds=1))
        await self.beat()

    async def pass_over(self) -> None:
        """Send what is due, and wait for it."""
        await self.sender.fill()
        await self.sender.settle()

    async def log(self) -> list[tuple[str, int]]:
        rows = await self.hooks.deliveries("default", limit=100)
        return [(row["status"], row["attempt"]) for row in rows]


def play(url: str, work: Callable[[House], Awaitable[None]], **given: Any) -> None:
    async def inside() -> None:
        async with Database(url, max_connections=4) as database:
            house = House(database, **given)
            await house.beat()
            await work(house)

    asyncio.run(inside())


def test_a_delivery_climbs_the_ladder_until_it_is_taken(database_url: str) -> None:
    async def work(house: House) -> None:
        with receiving(Answer(500), Answer(503), OK) as receiver:
            endpoint_id = await house.endpoint(receiver)
            await house.add(None)
            await house.pass_over()
            await house.pass_over()
            assert await house.log() == [("pending", 1)], "not before its time"
            await house.later(LADDER[0])
            await house.pass_over()
            await house.later(LADDER[0] + LADDER[1])
            await house.pass_over()
            assert await house.log() == [("sent", 3)]
            assert house.counts == {("delivery", "again"): 2, ("delivery", "sent"): 1}
            assert len({seen.headers["webhook-id"] for seen in receiver.seen}) == 1
            assert len({seen.body for seen in receiver.seen}) == 1
            (secret,) = await house.secrets.of("default", endpoint_id)
            told = Webhook(secret).verify(receiver.seen[-1].body, receiver.seen[-1].headers)
            assert told == json.loads(receiver.seen[-1].body)

    play(database_url, work)


def test_a_receiver_that_is_gone_is_asked_no_more(database_url: str) -> None:
    async def work(house: House) -> None:
        with receiving(Answer(410)) as receiver:
            id_ = await house.endpoint(receiver)
            await house.add(None)
            await house.pass_over()
            await house.add(None)
            await house.pass_over()
            assert len(receiver.seen) == 1
        assert (await house.hooks.endpoint("default", id_))["is_disabled"]
        assert house.counts == {("delivery", "failed"): 1}

    play(database_url, work)


def test_a_receiver_that_hangs_holds_up_nobody_else(database_url: str) -> None:
    async def work(house: House) -> None:
        with receiving(SILENT) as silent, receiving() as receiver:
            await house.add(silent.url, 3 * EACH)
            await house.add(receiver.url)
            await house.sender.fill()
            while ("sent", 1) not in await house.log():
                pass
            assert len(receiver.seen) == 1
            assert Counter(await house.log())["pending", 0] == 2 * EACH
            await house.sender.settle()

    play(database_url, work, seconds=5.0)


def test_what_one_process_cannot_sign_another_one_sends_however_often_it_was_tried(database_url: str) -> None:
    """A worker without PLANQ_SECRET_KEYS used up the tries of deliveries that others could have sent."""

    async def work(house: House) -> None:
        masters, house.secrets._masters = house.secrets._masters, []
        with receiving() as receiver:
            await house.add(receiver.url)
            for _ in range(len(LADDER) + 2):
                await house.pass_over()
                await move_clock(house.database, HAND_BACK_PAUSE)
            assert receiver.seen == []
            ((status, _),) = await house.log()
            assert status == "pending"
            house.secrets._masters = masters
            await house.pass_over()
            assert len(receiver.seen) == 1
        assert [status for status, _ in await house.log()] == ["sent"]


def test_what_cannot_be_signed_waits_for_the_operator(database_url: str) -> None:
    async def work(house: House) -> None:
        house.secrets._masters = []
        with receiving() as receiver:
            await house.add(receiver.url)
            await house.pass_over()
            assert receiver.seen == []
        ((status, _),) = await house.log()
        assert status == "pending"
        (row,) = await house.hooks.deliveries("default", limit=1)
        assert row["error"]["code"] == "misconfigured"
        assert "PLANQ_SECRET_KEYS is not set" in row["error"]["message"]

    play(database_url, work)


def test_secrets_are_made_once_rotated_with_an_overlap_and_sealed_anew(database_url: str) -> None:
    async def work(house: House) -> None:
        first = await asyncio.gather(*(house.secrets.of("default", None) for _ in range(3)))
        assert len({tuple(found) for found in first}) == 1
        ((old,), *_) = first
        assert old.startswith("whsec_")
        new = await house.secrets.rotate("default", None)
        assert await house.secrets.of("default", None) == [new, old]
        newest = await house.secrets.rotate("default", None)
        assert await house.secrets.of("default", None) == [newest, new], "the oldest signs no more"
        assert (await SecretStore(house.database, [*NEW, *OLD]).rotate()).resealed == 2
        with pytest.raises(Misconfigured, match="cannot be opened"):
            await house.secrets.of("default", None)
        anew = SigningSecrets(house.database, NEW)
        assert await anew.of("default", None) == [newest, new]
        await move_clock(house.database, timedelta(hours=25))
        assert await anew.of("default", None) == [newest]

        with receiving() as receiver:
            id_ = await house.endpoint(receiver)
        own = await anew.of("default", id_)
        assert own != [newest]
        await house.hooks.delete("default", id_)
        listed = await SecretStore(house.database, NEW).list("default")
        assert all(str(id_) not in one.name for one in listed)

    play(database_url, work)


def test_waits_that_a_receiver_asks_for_use_up_no_attempts(database_url: str) -> None:
    """Twelve 429s were all the attempts there are: one 500 after them gave the delivery up."""
    waits = len(LADDER) + 1

    async def work(house: House) -> None:
        busy = [Answer(status, {"Retry-After": "60"}) for status in (429, 503)] * (waits // 2)
        with receiving(*busy, Answer(500), OK) as receiver:
            await house.add(receiver.url)
            for number in range(waits + 2):
                await house.later(number * LADDER[3])
                await house.pass_over()
            assert await house.log() == [("sent", waits + 2)]
            assert house.counts == {("delivery", "again"): waits + 1, ("delivery", "sent"): 1}

    play(database_url, work)


def test_waits_of_an_old_delivery_are_attempts(database_url: str) -> None:
    async def work(house: House) -> None:
        with receiving(Answer(429, {"Retry-After": "1"})) as receiver:
            await house.add(receiver.url)
            await house.later(LONGEST_WAITED)
            await house.pass_over()
            await house.later(LONGEST_WAITED + LADDER[0])
            await house.pass_over()
            for rung in range(2, len(LADDER) + 1):
                await house.later(LONGEST_WAITED + sum(LADDER[:rung], timedelta()))
                await house.pass_over()
            assert await house.log() == [("failed", len(LADDER) + 1)]

    play(database_url, work)
