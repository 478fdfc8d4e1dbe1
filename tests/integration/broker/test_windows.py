"""A queue with a window is left out while that is full, comes last otherwise, and is waited for again at once."""

from __future__ import annotations

from typing import Any

import pytest
from kombu import Connection, Consumer, Queue

from shared.broker.celery_config import transport_options
from shared.broker.transport import hardened

ALL, BULK = "windows", "windows.bulk"


def test_a_full_window_leaves_a_queue_out_until_there_is_room(valkey_url: str) -> None:
    taken: list[Any] = []
    with Connection(hardened(valkey_url), transport_options=transport_options(valkey_url)) as connection:
        channel = connection.channel()
        channel.brpop_timeout = 3_600  # a wait that nobody ends does not end by itself
        channel.windows = {BULK: 1}
        consumer = Consumer(channel, [Queue(BULK), Queue(ALL)], on_message=taken.append, accept=["json"])
        for name in (BULK, BULK, ALL):
            connection.Producer().publish(name, routing_key=name, serializer="json")
        consumer.consume()

        connection.drain_events(timeout=60)
        connection.drain_events(timeout=60)
        assert [message.payload for message in taken] == [ALL, BULK]
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.05)
        assert channel.leaves_out
        connection.Producer().publish(ALL, routing_key=ALL, serializer="json")
        connection.drain_events(timeout=60)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.05)
        channel.look_again()
        assert channel.leaves_out, "there is no room yet"
        taken[1].ack()
        channel.look_again()
        while len(taken) < 4:
            connection.drain_events(timeout=60)
        assert [message.payload for message in taken] == [ALL, BULK, ALL, BULK]
        for message in (taken[0], *taken[2:]):
            message.ack()
