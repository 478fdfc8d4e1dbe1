"""Publishing wake-ups to Valkey and RabbitMQ, and what is on the wire."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
import redis
from celery import Celery

from planq.shared.broker import names
from planq.shared.broker.celery_config import create_celery
from planq.shared.broker.messages import WakeMessage
from planq.shared.broker.publisher import CeleryPublisher
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.states import Pool, Priority, WakeQueue
from planq.shared.kernel.wakes import TaskLinks, Wake
from planq.shared.subjects.tenants.rate_counter import redis_py_url
from tests.support.waiting import eventually

JOB = UUID("01900000-0000-7000-8000-000000000001")

QUEUE = names.queue(WakeQueue("io"))


@pytest.fixture
def app(broker_url: str) -> Iterator[Celery]:
    celery = create_celery(broker_url)
    yield celery
    celery.close()


def take(app: Celery, queue: str, count: int) -> list[Any]:
    """Take `count` messages off a queue."""
    taken: list[Any] = []
    with app.connection_for_read() as connection, connection.channel() as channel:
        bound = app.amqp.queues[queue](channel)
        bound.declare()

        def more() -> bool:
            while (message := bound.get(no_ack=True)) is not None:
                taken.append(message)
            return len(taken) >= count

        eventually(more, what=f"{count} messages in {queue}")
        assert bound.get(no_ack=True) is None
    return taken


def test_a_wake_up_carries_ids_and_the_id_of_its_attempt(app: Celery) -> None:
    publisher = CeleryPublisher(app)
    step = Wake(StepRef(JOB, 0, 3), Pool.CPU, "crunch", attempt=2)
    assert publisher.publish_soon([Wake.plan(JOB)]).result(60)
    assert publisher.publish_soon([step, Wake.respond(JOB, 4)]).result(60)
    publisher.close()

    plan, respond = take(app, names.queue(WakeQueue("io")), 2)
    [crunch] = take(app, names.queue(WakeQueue("cpu")), 1)
    assert (plan.headers["task"], plan.headers["id"]) == (names.PLAN, f"{JOB}.plan.1")
    assert (respond.headers["task"], respond.headers["id"]) == (names.RESPOND, f"{JOB}.respond.4")
    assert (crunch.headers["task"], crunch.headers["id"]) == (names.STEP, f"{JOB}.r0.s3.2")
    assert crunch.headers["kwargsrepr"] == f"job={JOB} round=0 steps=[[3, 'crunch']] pool=cpu"
    _, keywords, _ = crunch.decode()
    assert keywords == {"job": str(JOB), "round": 0, "steps": [[3, "crunch"]], "pool": "cpu"}


def test_a_large_fan_out_arrives_whole(app: Celery) -> None:
    publisher = CeleryPublisher(app)
    wakes = [Wake(StepRef(JOB, 0, n), Pool.IO, "leaf") for n in range(2500)]
    assert publisher.publish_soon(wakes).result(60)
    publisher.close()
    ids = {message.headers["id"] for message in take(app, names.queue(WakeQueue("io")), 2500)}
    assert len(ids) == 2500


async def connected(publisher: CeleryPublisher) -> None:
    """Publish until the loop has a connection of its own."""
    async with asyncio.timeout(60):
        while publisher._direct is None:
            assert await publisher.publish([Wake.plan(JOB)])
            publisher._connected_at = -math.inf  # without the pause between two connections


def test_a_loop_writes_what_the_thread_would_have_written(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same JSON, but for the tag of the delivery."""
    links = TaskLinks(f"{JOB}.plan.1", f"{JOB}.plan.1", f"{JOB}.group").at(2)
    wake = Wake(StepRef(JOB, 0, 3), Pool.CPU, 'a "tool" of Zoë', 2, Priority.BULK, links, "acme")
    celery = create_celery(valkey_url)
    monkeypatch.setattr("planq.shared.broker.publisher._SILENT_SECONDS", 600.0)

    async def scenario() -> None:
        publisher = CeleryPublisher(celery, from_loop=True)
        assert await publisher.publish([wake])
        await connected(publisher)
        with patch.object(publisher._producer, "send", side_effect=AssertionError):
            assert await publisher.publish([wake, Wake.plan(JOB)])
            publisher.publish_soon([wake]).cancel()
            assert await publisher.publish([wake])
        await asyncio.to_thread(publisher.close)
        assert await publisher.publish([wake]) is False

    asyncio.run(scenario())
    celery.close()
    with redis.Redis.from_url(redis_py_url(valkey_url)) as client:
        entries = [json.loads(entry) for entry in client.lrange(names.queue(WakeQueue("cpu.bulk")), 0, -1)]
        client.delete(QUEUE, names.queue(WakeQueue("cpu.bulk")))
    tags = [entry["properties"].pop("delivery_tag") for entry in entries]
    assert len(set(tags)) == 4
    assert entries == entries[:1] * 4


def test_what_a_loop_cannot_write_the_thread_tells_of(valkey_url: str) -> None:
    """The server ends both connections; it refuses what comes over the new ones; it takes it again."""
    celery = create_celery(valkey_url)

    async def scenario(client: redis.Redis) -> None:
        others = {one["id"] for one in client.client_list()}
        publisher = CeleryPublisher(celery, from_loop=True)
        await connected(publisher)
        for one in client.client_list():
            if one["id"] not in others:
                client.client_kill_filter(_id=one["id"])
        assert await publisher.publish([Wake.plan(JOB)])
        await connected(publisher)
        client.delete(QUEUE)
        client.set(QUEUE, "no list")
        assert await publisher.publish([Wake.plan(JOB)]) is False
        client.delete(QUEUE)
        assert await publisher.publish([Wake.plan(JOB)])
        await asyncio.to_thread(publisher.close)

    with redis.Redis.from_url(redis_py_url(valkey_url)) as client:
        asyncio.run(scenario(client))
        client.delete(QUEUE)
    celery.close()


def test_an_unreachable_broker_is_reported_and_not_raised() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    for url in (f"redis://127.0.0.1:{port}/0", f"amqp://guest:guest@127.0.0.1:{port}//"):
        celery = create_celery(url)
        publisher = CeleryPublisher(celery)
        assert publisher.publish_soon([Wake.plan(JOB)]).result(60) is False
        publisher.close()
        celery.close()


class GatedPublisher(CeleryPublisher):
    """A publisher whose broker answers when the test says so."""

    def __init__(self) -> None:
        super().__init__(Celery("gated"))
        self.asked = threading.Event()
        self.answers = threading.Event()
        self.sent: list[str] = []
        self._producer.send = self._send

    def _send(self, messages: Sequence[WakeMessage]) -> None:
        self.asked.set()
        assert self.answers.wait(60)
        self.sent += [message.task_id for message in messages]


def test_a_cancelled_wait_neither_unsends_nor_stops_the_publisher() -> None:
    async def scenario() -> bool:
        waits = [asyncio.create_task(publisher.publish([Wake.plan(JOB, n)])) for n in (1, 2)]
        assert await asyncio.to_thread(publisher.asked.wait, 60)
        for wait in waits:
            wait.cancel()
        assert await asyncio.gather(*waits, return_exceptions=True)
        publisher.answers.set()
        return await asyncio.wait_for(publisher.publish([Wake.plan(JOB, 3)]), 60)

    publisher = GatedPublisher()
    assert asyncio.run(scenario())
    publisher.close()
    assert publisher.sent == [f"{JOB}.plan.{n}" for n in (1, 2, 3)]


def test_a_closed_publisher_takes_nothing_and_says_so() -> None:
    publisher = GatedPublisher()
    publisher.answers.set()
    assert publisher.publish_soon([Wake.plan(JOB)]).result(60)
    publisher.close()
    assert publisher.publish_soon([Wake.plan(JOB, 2)]).result(60) is False
    assert publisher.sent == [f"{JOB}.plan.1"]
