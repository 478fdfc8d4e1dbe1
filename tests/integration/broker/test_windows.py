"""A queue with a window is left out while that is full, comes last otherwise, and is waited for again at once."""

from __future__ import annotations

from typing import Any

import pytest
from kombu import Connection, Consumer, Queue

from planq.shared.broker.celery_config import transport_options
from planq.shared.broker.transport import Reserve, hardened

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


def test_the_reserve_is_for_queues_of_which_little_is_unacknowledged(valkey_url: str) -> None:
    """One queue has taken all that there is; the next messages come from another, in their turn, and end there."""
    few, many = "reserve.few", "reserve.many"
    taken: list[Any] = []
    with Connection(hardened(valkey_url), transport_options=transport_options(valkey_url)) as connection:
        channel = connection.channel()
        channel.brpop_timeout = 3_600
        channel.reserve = Reserve(most=3, few=2, more=4)
        consumer = Consumer(channel, [Queue(many), Queue(few)], on_message=taken.append, accept=["json"])
        for name in [many] * 5:
            connection.Producer().publish(name, routing_key=name, serializer="json")
        consumer.consume()

        def takes(*expected: str) -> None:
            taken_before = len(taken)
            for _ in expected:
                connection.drain_events(timeout=60)
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=0.05)
            assert [message.payload for message in taken[taken_before:]] == list(expected)

        takes(many, many, many)
        for _ in range(4):
            connection.Producer().publish(few, routing_key=few, serializer="json")
        takes(few, few)
        taken[0].ack()
        channel.look_again()
        takes()
        for message in taken[1:3]:
            message.ack()
        channel.look_again()
        takes(many, many)
        for message in taken[3:]:
            message.ack()
        channel.look_again()
        takes(few, few)
        for message in taken[7:]:
            message.ack()
