"""A real worker process on each broker: jobs end, and go on ending after the broker was away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
import redis
from celery import Celery

from planq.deploy.local.valkey import EmbeddedValkey
from planq.shared.broker import names
from planq.shared.broker.celery_config import create_celery
from planq.shared.broker.dead_letters import DeadLetters
from planq.shared.broker.depth import patient_connection, waiting_count
from planq.shared.kernel.states import WakeQueue
from planq.shared.subjects.tenants.rate_counter import redis_py_url
from tests.support.callers import Caller
from tests.support.rabbitmq import RabbitMQ
from tests.support.stack import Stack
from tests.support.waiting import eventually

MakeStack = Callable[..., Stack]

PLAN = {"calls": [{"tool_name": "calculate", "arguments": {"expression": "6*7"}} for _ in range(3)]}


class Broker(Protocol):
    """A broker that a test may take away."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


@pytest.fixture(params=["valkey", pytest.param("rabbitmq", marks=[pytest.mark.rabbitmq, pytest.mark.whole])])
def own_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Broker, str]]:
    """A broker of the test's own, and its URL; `faults/test_rabbitmq.py` restarts a node in each run."""
    if request.param == "valkey":
        valkey = EmbeddedValkey(tmp_path / "vk")
        valkey.start()
        yield valkey, valkey.url
        valkey.stop()
        return
    shared: RabbitMQ = request.getfixturevalue("rabbitmq")
    url = shared.create()
    yield shared, url
    shared.drop(url)


def ended(caller: Caller, job_id: object) -> Callable[[], bool]:
    return lambda: caller.status(job_id) in ("completed", "failed")  # type: ignore[arg-type]


def test_jobs_run_on_either_broker(make_stack: MakeStack, database_url: str, broker_url: str) -> None:
    stack = make_stack(database_url, broker_url)
    with Caller(database_url, broker_url) as caller:
        stack.run_worker("io")
        jobs = [caller.submit("", PLAN) for _ in range(20)]
        for job_id in jobs:
            eventually(ended(caller, job_id), 60, what="job ended")
            job, steps = caller.job(job_id)
            assert job["status"] == "completed"
            assert [step["output"] for step in steps] == [{"result": 42}] * 3
            assert [step["attempt"] for step in steps] == [1, 1, 1]


def test_all_names_begin_with_the_prefix(make_stack: MakeStack, database_url: str, tmp_path: Path) -> None:
    """Another project's Celery may use the same server: neither takes a message of the other's, nor counts them."""
    prefix = "shop:"
    valkey = EmbeddedValkey(tmp_path / "vk")
    valkey.start()
    try:
        stack = make_stack(database_url, valkey.url, env={"PLANQ_BROKER_PREFIX": prefix, "PLANQ_TASK_EVENTS": "true"})
        io = WakeQueue("io")
        with Caller(database_url, valkey.url) as caller, redis.Redis.from_url(redis_py_url(valkey.url)) as client:
            client.lpush(f"{prefix}{names.queue(io)}", "no message")
            jobs = [caller.submit("", PLAN) for _ in range(20)]  # published without the prefix, and so never taken
            alien = len(jobs)
            eventually(lambda: waiting(create_celery(valkey.url), io) == alien, 60, what="they were published")
            stack.run_worker("io")
            app = create_celery(valkey.url, prefix=prefix)
            for job_id in jobs:
                eventually(ended(caller, job_id), 120, what="the sweep has woken the job under the prefix")
            eventually(lambda: DeadLetters(app).list(5), 60, what="what was no message is a dead letter")
            assert app.control.inspect(timeout=10).ping()
            assert waiting(create_celery(valkey.url), io) == alien
            foreign = {key for key in client.scan_iter() if not key.startswith(prefix.encode())}
            assert all(key.startswith((b"planq.", b"_kombu.")) for key in foreign), foreign
            assert all(channel.startswith(prefix.encode()) for channel in client.pubsub_channels())
    finally:
        valkey.stop()


def waiting(app: Celery, queue: WakeQueue) -> int:
    """How many messages wait, for an application."""
    with patient_connection(app, 30) as connection, connection.channel() as channel:
        count = waiting_count(connection, channel, queue)
    assert count is not None
    return count


def test_a_worker_outlives_the_loss_of_its_broker(
    make_stack: MakeStack, database_url: str, own_broker: tuple[Broker, str]
) -> None:
    """The broker goes while messages are unacknowledged (stock Celery on Redis dies there) and comes back."""
    broker, url = own_broker
    stack = make_stack(database_url, url, env={"PLANQ_SWEEP_SECONDS": "0.2", "PLANQ_TOOLS": "tests.support.tools"})
    waiting = {"calls": [{"tool_name": "test_hold", "arguments": {"seconds": 2.0}}]}
    with Caller(database_url, url) as caller:
        worker = stack.run_worker("io")
        first = caller.submit("", PLAN)
        eventually(ended(caller, first), 60, what="first job ended")
        held = caller.submit("", waiting)
        eventually(lambda: caller.status(held) == "executing", 60, what="the step runs, its message unacknowledged")
        broker.stop()
        lost = caller.submit("", PLAN)
        broker.start()
        eventually(ended(caller, held), 90, what="the job that ran meanwhile")
        eventually(ended(caller, lost), 90, what="the job submitted while the broker was away")
        assert worker.poll() is None, "the same process is still there"
        assert [step["attempt"] for step in caller.job(held)[1]] == [1]
        assert caller.job(lost)[0]["status"] == "completed"
