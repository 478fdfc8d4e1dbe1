"""What planq writes to the broker is what Celery itself would have sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from celery import Celery

from shared.broker.celery_config import create_celery
from shared.broker.messages import encode_wake
from shared.broker.publisher import CeleryPublisher
from shared.domain.jobs.ids import StepRef
from shared.domain.jobs.states import Lane
from shared.ports import PlanWake, StepWake, Wake
from tests.support.waiting import eventually

JOB = UUID("01900000-0000-7000-8000-000000000001")

DIFFERENT = {"delivery_tag", "reply_to", "argsrepr", "kwargsrepr"}
"""Properties of each message of its own, for a result backend (planq has none), or only a copy of the header's."""


@pytest.fixture
def app(broker_url: str) -> Iterator[Celery]:
    celery = create_celery(broker_url)
    yield celery
    celery.close()


def take(app: Celery, queue: str) -> Any:
    """Take one message off a queue."""
    with app.connection_for_read() as connection, connection.channel() as channel:
        bound = app.amqp.queues[queue](channel)
        bound.declare()
        return eventually(lambda: bound.get(no_ack=True), what=f"a message in {queue}")


def sent_by_celery(app: Celery, wake: Wake) -> Any:
    message = encode_wake(wake)
    app.signature(message.task, kwargs=message.kwargs, app=app).set(
        task_id=message.task_id, queue=message.queue, argsrepr="()", kwargsrepr=message.kwargs_repr
    ).apply_async(retry=False)
    return take(app, message.queue)


@pytest.mark.parametrize(
    "wake", [PlanWake(JOB, 2), StepWake(StepRef(JOB, 0, 3), Lane.CPU, 'a "tool" of Zoë', 1)], ids=["stage", "step"]
)
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "in a batch"])
def test_a_message_is_what_apply_async_sends(app: Celery, wake: Wake, alone: bool) -> None:
    theirs = sent_by_celery(app, wake)
    publisher = CeleryPublisher(app)
    other = (
        PlanWake(JOB, 9) if encode_wake(wake).queue == "planq.cpu" else StepWake(StepRef(JOB, 0, 0), Lane.CPU, "t")
    )
    assert publisher.publish_soon([wake] if alone else [wake, other]).result(60)
    publisher.close()
    ours = take(app, encode_wake(wake).queue)

    assert ours.headers == theirs.headers
    assert ours.body == theirs.body
    assert (ours.content_type, ours.content_encoding) == (theirs.content_type, theirs.content_encoding)
    assert ours.delivery_info == theirs.delivery_info
    shared = theirs.properties.keys() - DIFFERENT
    assert shared
    assert {key: ours.properties.get(key) for key in shared} == {key: theirs.properties[key] for key in shared}
    assert ours.properties.keys() <= theirs.properties.keys()
