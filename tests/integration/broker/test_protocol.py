"""What planq writes to the broker is what Celery itself would have sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from celery import Celery, Signature, group

from planq.shared.broker.celery_config import create_celery
from planq.shared.broker.messages import encode_wake
from planq.shared.broker.publisher import CeleryPublisher
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.states import Pool
from planq.shared.kernel.wakes import TaskLinks, Wake
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


def signature(app: Celery, wake: Wake) -> Signature:
    message = encode_wake(wake)
    return app.signature(message.task, kwargs=message.kwargs, app=app).set(
        task_id=message.task_id,
        queue=message.queue,
        argsrepr="()",
        kwargsrepr=message.kwargs_repr,
        shadow=message.shadow,
    )


def sent_by_celery(app: Celery, wake: Wake) -> Any:
    signature(app, wake).apply_async(retry=False, root_id=f"{JOB}.plan.1")
    return take(app, encode_wake(wake).queue)


def sent_within(app: Celery, task_id: str, sent: Signature) -> None:
    """Let Celery send a signature as a task does that it runs, which then is its parent."""

    @app.task(shared=False)
    def outer() -> None:
        sent.apply_async()

    outer.apply(task_id=task_id, throw=True)


def shown(message: Any) -> Any:
    """Return all headers but the arguments for people, where planq names the group."""
    return {name: value for name, value in message.headers.items() if name != "kwargsrepr"}


@pytest.mark.parametrize(
    "wake",
    [Wake.plan(JOB, 1, name="host"), Wake(StepRef(JOB, 0, 3), Pool.CPU, 'a "tool" of Zoë', 1)],
    ids=["stage", "step"],
)
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "in a batch"])
def test_a_message_is_what_apply_async_sends(app: Celery, wake: Wake, alone: bool) -> None:
    theirs = sent_by_celery(app, wake)
    publisher = CeleryPublisher(app)
    other = Wake.plan(JOB, 9) if encode_wake(wake).queue == "planq.cpu" else Wake(StepRef(JOB, 0, 0), Pool.CPU, "t")
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


@pytest.mark.parametrize("is_group", [True, False], ids=["group", "what follows"])
def test_a_fan_out_and_what_follows_are_what_canvas_sends(app: Celery, is_group: bool) -> None:
    """Celery's group, and a task that its parent sends as the next of a chain is sent."""
    root = f"{JOB}.plan.1"
    links = TaskLinks(root, root, f"{root}.group" if is_group else None)
    steps = [Wake(StepRef(JOB, 0, n), Pool.CPU, "crunch") for n in range(3 if is_group else 1)]
    sent = [signature(app, step) for step in steps]
    sent_within(app, root, group(sent).set(task_id=links.group) if is_group else sent[0])
    theirs = [take(app, "planq.cpu") for _ in steps]
    publisher = CeleryPublisher(app)
    assert publisher.publish_soon([replace(step, links=links.at(n)) for n, step in enumerate(steps)]).result(60)
    publisher.close()
    ours = [take(app, "planq.cpu") for _ in steps]

    assert [shown(message) for message in ours] == [shown(message) for message in theirs]
    assert [message.body for message in ours] == [message.body for message in theirs]
    told = [(m.headers["shadow"], m.headers["root_id"], m.headers["parent_id"]) for m in ours]
    assert told == [("planq.step[crunch]", root, root)] * len(steps)
    assert [m.headers["group"] for m in ours] == [f"{root}.group" if is_group else None] * len(steps)
