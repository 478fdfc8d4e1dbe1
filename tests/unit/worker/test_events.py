"""Events for monitors: noted as they happen, sent in lists, and not even made where nobody listens."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from planq.worker.celery.events import TaskEvents


class Producer:
    """Takes lists of events; `heard_by` is what a Redis channel knows, None what RabbitMQ's does."""

    def __init__(self, heard_by: int | None) -> None:
        self.channel = SimpleNamespace() if heard_by is None else SimpleNamespace(heard_by=heard_by)
        self.sent: list[Any] = []

    def publish(self, body: Any, **_: Any) -> None:
        self.sent.append(body)


def dispatcher(heard_by: int | None, **options: Any) -> tuple[TaskEvents, Producer]:
    app = Celery("events", broker="memory://", set_as_current=False)
    events = TaskEvents(app=app, hostname="io@here", **options)
    producer = Producer(heard_by)
    events.producer = producer
    return events, producer


@pytest.mark.parametrize("heard_by", [None, 1])
def test_all_that_was_noted_goes_out_in_one_list_after_the_first(heard_by: int | None) -> None:
    events, producer = dispatcher(heard_by)
    for number in range(100):
        events.send("task-started", uuid=str(number))
    assert producer.sent == []
    events.flush()
    assert [len(batch) for batch in producer.sent] == [1, 99]
    told = [event for batch in producer.sent for event in batch]
    assert [event["uuid"] for event in told] == [str(number) for number in range(100)]
    assert {event["type"] for event in told} == {"task-started"}
    assert {"timestamp", "clock", "hostname", "pid", "utcoffset"} <= told[0].keys()
    events.send("task-succeeded", uuid="100")
    events.send("task-succeeded", uuid="101")
    events.flush()
    assert len(producer.sent) == 3


def test_nothing_is_made_for_nobody_until_somebody_comes() -> None:
    events, producer = dispatcher(0)
    made: list[int] = []

    def fields(number: int) -> dict[str, Any]:
        made.append(number)
        return {"uuid": str(number)}

    for number in range(10):
        events.note(("task-started", partial(fields, number)))
    events.flush()
    assert made == [0]
    producer.channel.heard_by = 1
    for number in range(10, 20):
        events.note(("task-started", partial(fields, number)))
    events.flush()
    assert made == [0, *range(10, 20)]


def test_what_is_noted_while_a_list_is_made_goes_out_with_the_next() -> None:
    """Pins: the loop's thread noted an event while the consumer's went through them, and that ended the worker."""
    events, producer = dispatcher(1)

    def fields(number: int) -> dict[str, Any]:
        if number < 3:
            events.note(("task-started", partial(fields, number + 10)))
        return {"uuid": str(number)}

    for number in range(5):
        events.note(("task-started", partial(fields, number)))
    events.flush()
    told = [event["uuid"] for batch in producer.sent for event in batch]
    assert told == [str(number) for number in (*range(5), *range(10, 13))]


def test_what_could_not_be_made_is_kept_in_its_order() -> None:
    events, producer = dispatcher(1)
    events._is_heard = True
    broken = True

    def fields(number: int) -> dict[str, Any]:
        if broken and number == 1:
            raise RuntimeError("not now")
        return {"uuid": str(number)}

    for number in range(3):
        events.note(("task-started", partial(fields, number)))
    with pytest.raises(RuntimeError):
        events.flush()
    broken = False
    events.flush()
    assert [event["uuid"] for batch in producer.sent for event in batch] == ["0", "1", "2"]


def test_task_events_that_are_off_are_not_noted() -> None:
    events, producer = dispatcher(1, groups=["worker"])
    events.send("task-started", uuid="1")
    events.flush()
    assert producer.sent == []


def test_what_a_lost_connection_left_is_sent_by_the_next_one() -> None:
    lost, _ = dispatcher(1)
    lost.send("task-started", uuid="1")
    events, producer = dispatcher(1)
    events.send("task-started", uuid="2")
    events.extend_buffer(lost)
    events.flush()
    assert [event["uuid"] for batch in producer.sent for event in batch] == ["1", "2"]


def test_events_of_the_worker_itself_do_not_wait() -> None:
    events, producer = dispatcher(1)
    events.send("worker-heartbeat", freq=2.0)
    [heartbeat] = producer.sent
    assert heartbeat["type"] == "worker-heartbeat"
