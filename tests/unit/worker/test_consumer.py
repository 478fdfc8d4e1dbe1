"""Acknowledging where the work ends: the consumer is woken only when it may be pausing for want of a slot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kombu.common import QoS as PrefetchWindow
from kombu.transport.virtual import Message

from planq.shared.broker.transport import Channel, QoS, Reserve
from planq.worker.celery.consumer import Backoff, WakeConsumer


class Hub:
    """Notes what it is asked to call on the consumer's thread."""

    def __init__(self) -> None:
        self.called: list[Any] = []

    def call_soon(self, callback: Any, *args: Any) -> None:
        self.called.append((callback, args))


def channel(limit: int) -> Channel:
    """A channel without a connection."""
    bare = Channel.__new__(Channel)
    bare._qos = QoS(bare, limit)
    bare._qos._on_collect.cancel()
    bare.no_ack_consumers = None
    return bare


def taken(on: Channel, count: int) -> list[Message]:
    messages = []
    for number in range(count):
        payload = {"properties": {"delivery_tag": str(number), "delivery_info": {}}}
        message = Message(payload, channel=on)
        on.qos.append(message, message.delivery_tag)
        messages.append(message)
    return messages


def consumer() -> tuple[WakeConsumer, Hub]:
    bare = WakeConsumer.__new__(WakeConsumer)
    bare.hub = hub = Hub()
    return bare, hub


@pytest.mark.parametrize(("count", "wakes"), [(4, 1), (3, 0), (1, 0)])
def test_an_acknowledgement_wakes_the_consumer_only_from_a_full_house(count: int, wakes: int) -> None:
    on, (taking, hub) = channel(4), consumer()
    message, *_ = taken(on, count)
    taking.call_soon_ack(message.ack_log_error, None, (OSError,))
    assert len(hub.called) == wakes
    assert message.acknowledged
    assert on.qos.can_consume()
    assert len(on.qos._delivered) - len(on.qos._dirty) == count - 1


def test_a_rejection_and_other_brokers_go_through_the_consumers_thread() -> None:
    on, (taking, hub) = channel(4), consumer()
    [message] = taken(on, 1)
    taking.call_soon_ack(message.reject_log_error, None, (OSError,))
    assert not message.acknowledged
    foreign = SimpleNamespace(channel=object(), acknowledged=[])

    def ack_log_error(self: Any, *args: Any) -> None:
        self.acknowledged.append(args)

    foreign.ack_log_error = ack_log_error.__get__(foreign)
    taking.call_soon_ack(foreign.ack_log_error)
    assert foreign.acknowledged == []
    assert len(hub.called) == 2


def test_the_prefetch_window_is_widened_after_a_reconnect_on_the_consumers_thread() -> None:
    (taking, hub), asked = consumer(), list[int]()
    conf = SimpleNamespace(worker_enable_prefetch_count_reduction=True)
    taking.app = SimpleNamespace(conf=conf, planq_reserve=Reserve(8, 1, 2))
    taking.pool = SimpleNamespace(num_processes=8)
    taking.prefetch_multiplier = 1
    taking.qos = PrefetchWindow(lambda prefetch_count: asked.append(prefetch_count), 6)
    taking._maximum_prefetch_restored = False
    for number in (7, 8, 9, 10):
        taking._restore_prefetch_count_after_connection_restart(None)
        assert number not in asked, "the answer would be read from the socket that the consumer reads"
        [(restore, args)] = hub.called
        hub.called.clear()
        restore(*args)
        assert asked[-1] == number
    taking._restore_prefetch_count_after_connection_restart(None)
    assert hub.called == [], "the window is as wide as it was"


def test_connections_are_made_again_at_once_and_then_after_longer_and_longer_pauses() -> None:
    waited: list[float] = []
    now = [100.0]

    def wait(seconds: float) -> None:
        waited.append(seconds)
        now[0] += seconds

    backoff = Backoff(wait, lambda: now[0])
    for _ in range(7):
        now[0] += 0.01
        backoff.step()
    assert waited == [0.0, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    now[0] += 60
    backoff.step()
    assert waited[-1] == 0.0


def test_what_cannot_be_put_back_is_let_go_after_the_first_failure() -> None:
    on = channel(4)
    taken(on, 3)
    tried: list[Any] = []

    def away(message: Any) -> None:
        tried.append(message)
        raise ConnectionError("gone")

    on._restore = away
    assert on.qos.restore_unacked() == []
    assert len(tried) == 1
    assert on.qos.can_consume()
