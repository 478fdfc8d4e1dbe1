"""Counting the broker's messages, on Valkey and RabbitMQ, and when there is no broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from uuid import UUID

import pytest
from celery import Celery
from kombu import Connection

from planq.shared.broker.celery_config import create_celery
from planq.shared.broker.depth import BrokerQueues
from planq.shared.broker.publisher import CeleryPublisher
from planq.shared.kernel.states import OWN_QUEUES, WakeQueue
from planq.shared.kernel.wakes import Wake
from tests.support.ports import free_port

JOB = UUID("01900000-0000-7000-8000-000000000001")


@pytest.fixture
def app(broker_url: str) -> Iterator[Celery]:
    celery = create_celery(broker_url)
    yield celery
    celery.close()


def test_a_queue_is_empty_before_its_first_message_and_not_after_it(app: Celery) -> None:
    queues = BrokerQueues(app)
    assert set(asyncio.run(queues.empty(OWN_QUEUES))) == set(OWN_QUEUES)
    assert asyncio.run(queues.empty([])) == []
    publisher = CeleryPublisher(app)
    assert publisher.publish_soon([Wake.plan(JOB)]).result(60)
    publisher.close()
    assert asyncio.run(queues.empty(OWN_QUEUES)) == [queue for queue in OWN_QUEUES if queue != WakeQueue("io")]
    queues.close()


def test_nothing_is_known_while_there_is_no_broker() -> None:
    app = create_celery(f"redis://127.0.0.1:{free_port()}/0")
    assert list(asyncio.run(BrokerQueues(app).empty(OWN_QUEUES))) == []
    app.close()


def test_looking_again_opens_nothing_anew(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker looks every second; a channel for each look made a hundred objects a second that only the collector,
    which comes seldom, could free."""
    opened: list[Connection] = []
    channel = Connection.channel
    monkeypatch.setattr(Connection, "channel", lambda self: opened.append(self) or channel(self))
    queues = BrokerQueues(app)
    for _ in range(3):
        assert set(asyncio.run(queues.empty(OWN_QUEUES))) == set(OWN_QUEUES)
    assert len(opened) == 1
    queues.close()
    assert set(asyncio.run(queues.empty(OWN_QUEUES))) == set(OWN_QUEUES)
    assert len(opened) == 2
    queues.close()
