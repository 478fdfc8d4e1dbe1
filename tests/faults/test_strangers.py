"""Somebody else writes to the broker: commands, bombs, deletions. Workers neither end nor grow nor go deaf."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from celery import Celery
from kombu import Connection, Producer

from planq.shared.broker import names
from planq.shared.broker.celery_config import OWN_EXCHANGES, create_celery
from planq.shared.broker.dead_letters import DeadLetters
from planq.shared.broker.messages import MOST_BYTES
from planq.shared.kernel.states import OWN_QUEUES, WakeQueue
from tests.faults.conftest import Stage
from tests.faults.scene import MIXED, PATIENCE, Scene
from tests.faults.striking import own_valkey
from tests.support.poison import HEADERS
from tests.support.rabbitmq import RabbitMQ
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)

BOMB_BYTES = 150_000_000
"""What a compressed message of 146 kB unpacks to; a worker has 80 MB."""

QUEUES = {name for queue in (WakeQueue("io"), WakeQueue("io.bulk")) for name in names.lists(queue)}

COMMANDS: Mapping[str, Mapping[str, Any]] = {
    "shutdown": {},
    "cancel_consumer": {"queue": names.queue(WakeQueue("io"))},
    "add_consumer": {"queue": "shop"},
    "pool_grow": {"n": 50},
    "pool_shrink": {"n": 1},
    "rate_limit": {"task_name": names.PLAN, "rate_limit": "1/h"},
    "time_limit": {"task_name": names.PLAN, "soft": 1, "hard": 1},
    "terminate": {"signal": "KILL", "task_id": "x"},
    "hello": {"from_node": "x", "revoked": ["x"]},
    "memdump": {},
}


@pytest.fixture(params=["valkey", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def own_broker(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a broker of the test's own."""
    if request.param == "valkey":
        with own_valkey() as valkey:
            yield valkey.url
        return
    shared: RabbitMQ = request.getfixturevalue("rabbitmq")
    url = shared.create()
    yield url
    shared.drop(url)


@contextmanager
def stranger(url: str, *, knows_our_names: bool) -> Iterator[Celery]:
    """Another project's Celery application on the same broker."""
    app = Celery("shop", broker=url, set_as_current=False)
    if knows_our_names:
        app.conf.update(OWN_EXCHANGES)
    yield app
    app.close()


def counted(scene: Scene, kind: str) -> int:
    query = "SELECT coalesce(sum((c->>1)::int), 0) AS n FROM workers, json_array_elements(counts) c WHERE c->>0 = %s"
    return int(scene.read(query, kind)[0]["n"])


def all_counted(scene: Scene, refused: int) -> bool:
    assert counted(scene, "control_refused") == refused
    return True


def a_job_goes_through(scene: Scene) -> None:
    job_id = scene.submit(*MIXED)
    scene.ends(job_id)
    scene.mixed_comes_out_right(job_id)


def test_a_strangers_commands_are_not_carried_out(stage: Stage, own_broker: str) -> None:
    with stage(broker_url=own_broker) as scene:
        name = scene.worker()
        a_job_goes_through(scene)
        with stranger(own_broker, knows_our_names=False) as shop:
            assert shop.control.ping(timeout=1) == [], "planq's workers are not its own"
            shop.control.shutdown()
        with stranger(own_broker, knows_our_names=True) as shop:
            for command, arguments in COMMANDS.items():
                shop.control.broadcast(command, arguments=dict(arguments))
            shop.control.broadcast("ping", pattern="(.*)*(.*)*x", matcher="pcre")
            shop.control.broadcast("ping", arguments={"surplus": 1})
            mailbox = shop.control.mailbox
            with shop.producer_pool.acquire() as producer:
                mailbox.exchange(producer.channel).declare()
                for body in ([], "x", {"method": ["x"]}, {"method": "ping", "destination": {"x": 1}}):
                    producer.publish(body, exchange=mailbox.exchange, headers={"clock": 2**62}, serializer="json")
                elsewhere = {"exchange": "", "routing_key": names.queue(WakeQueue("io"))}
                body = {"method": "ping", "arguments": {}, "reply_to": elsewhere, "ticket": "x"}
                producer.publish(body, exchange=mailbox.exchange, serializer="json")
            refused = len(COMMANDS) + 1 + 4 + 1
            eventually(partial(all_counted, scene, refused), 20, what="all are counted")
        a_job_goes_through(scene)
        assert scene.stack.processes[name].poll() is None
        planq = create_celery(own_broker)
        listening = {
            queue["name"] for queues in planq.control.inspect(timeout=5).active_queues().values() for queue in queues
        }
        assert listening == QUEUES
        assert counted(scene, "dead_letter") == 0, "no answer was written into a queue of wake-ups"
        planq.close()


def test_an_operator_may_allow_commands(stage: Stage, own_broker: str) -> None:
    with stage(broker_url=own_broker, env={"PLANQ_REMOTE_CONTROL": "shutdown"}) as scene:
        name = scene.worker()
        a_job_goes_through(scene)
        with stranger(own_broker, knows_our_names=True) as operator:
            operator.control.broadcast("pool_grow", arguments={"n": 1})
            operator.control.shutdown()
        scene.dies(name, 0)


def bombs() -> Mapping[str, tuple[bytes, Mapping[str, Any]]]:
    """Bodies and headers of messages that are larger than they look, or larger than any wake-up."""
    long = json.dumps([[], {"job": "x" * BOMB_BYTES}, {}]).encode()
    return {
        "compressed": (zlib.compress(long, 9), {**HEADERS, "compression": "application/x-gzip"}),
        "too large": (b" " * (2 * MOST_BYTES) + b"[]", HEADERS),
    }


def test_what_is_compressed_or_too_large_is_refused_unread(stage: Stage, own_broker: str) -> None:
    with stage(broker_url=own_broker) as scene:
        name = scene.worker()
        a_job_goes_through(scene)
        worker = psutil.Process(scene.pid(name))
        before = peak_bytes(worker)
        planq = create_celery(own_broker)
        with Connection(own_broker) as connection, connection.channel() as channel:
            producer = Producer(channel)
            pidbox = planq.control.mailbox.exchange(channel)
            pidbox.declare()
            for body, headers in bombs().values():
                for place in ({"routing_key": names.queue(WakeQueue("io"))}, {"exchange": pidbox}):
                    producer.publish(
                        body, headers=headers, content_type="application/json", content_encoding="utf-8", **place
                    )
        eventually(lambda: counted(scene, "dead_letter") == 2, 30, what="both wake-ups are counted")
        eventually(lambda: counted(scene, "control_refused") == 2, 30, what="both commands are counted")
        a_job_goes_through(scene)
        assert peak_bytes(worker) - before < BOMB_BYTES / 3
        assert scene.stack.processes[name].poll() is None
        letters = DeadLetters(planq)
        kept = eventually(lambda: letters.list(10) if letters.count() == 2 else None, PATIENCE, what="both are kept")
        assert sorted("compressed" in letter.reason for letter in kept) == [False, True]
        assert all(len(letter.message) < MOST_BYTES for letter in kept)
        letters.close()


def peak_bytes(process: psutil.Process) -> int:
    """The most memory that a process has had."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024


def deleted_on_rabbitmq(channel: Any) -> None:
    for queue in OWN_QUEUES:
        channel.queue_delete(names.queue(queue))
    channel.exchange_delete(f"{names.PREFIX}.pidbox")


def deleted_on_valkey(channel: Any) -> None:
    with channel.conn_or_acquire() as client:
        client.flushall()


def test_what_a_stranger_deletes_is_there_again_within_seconds(stage: Stage, own_broker: str) -> None:
    delete: Callable[[Any], None] = deleted_on_valkey if "redis" in own_broker else deleted_on_rabbitmq
    with stage(broker_url=own_broker) as scene:
        name = scene.worker()
        a_job_goes_through(scene)
        planq = create_celery(own_broker)
        with Connection(own_broker) as connection, connection.channel() as channel:
            delete(channel)
        a_job_goes_through(scene)
        eventually(partial(planq.control.ping, timeout=1), 15, what="the worker hears commands")
        listening = planq.control.inspect(timeout=5).active_queues()
        assert {queue["name"] for queues in listening.values() for queue in queues} == QUEUES
        assert scene.stack.processes[name].poll() is None
        planq.close()
