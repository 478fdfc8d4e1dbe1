"""The connection for remote control: it is read without waiting, and its loss alone stops nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import billiard
import pytest
import redis
from kombu import Connection

from planq.deploy.local.valkey import EmbeddedValkey
from planq.shared.broker.transport import hardened
from tests.support.callers import Caller
from tests.support.stack import Stack
from tests.support.waiting import eventually

PLAN = {"calls": [{"tool_name": "calculate", "arguments": {"expression": "6*7"}}]}


def test_a_worker_lives_through_the_loss_of_its_pub_sub_connection_alone(
    make_stack: Callable[..., Stack], database_url: str, valkey: EmbeddedValkey, valkey_url: str
) -> None:
    """Pins: redis-py connects again by itself and then waits for ever, in the thread that takes the messages."""
    stack = make_stack(database_url, valkey_url)
    with (
        Caller(database_url, valkey_url) as caller,
        redis.Redis(unix_socket_path=str(valkey.socket_path)) as client,
    ):
        stack.run_worker("io")

        def listeners() -> set[str]:
            return {one["id"] for one in client.client_list(_type="pubsub")}

        for _ in range(3):
            before = eventually(listeners, 60, what="the worker listens for remote control")
            assert client.client_kill_filter(_type="pubsub") == len(before)
            job = caller.submit("", PLAN)
            eventually(lambda job=job: caller.status(job) == "completed", 60, what="the job has completed")
            eventually(lambda before=before: listeners() - before, 60, what="the worker listens again")


def test_reading_it_never_waits(valkey: EmbeddedValkey, valkey_url: str) -> None:
    """Pins: one event too many, and the thread that takes the messages waits for remote control for ever."""
    with (
        redis.Redis(unix_socket_path=str(valkey.socket_path)) as client,
        Connection(hardened(valkey_url)) as connection,
        ThreadPoolExecutor() as threads,
    ):
        channel: Any = connection.channel()
        listener = channel.subclient
        listener.psubscribe("planq-*")

        def read() -> Any:
            return threads.submit(listener.parse_response).result(60)

        assert eventually(read, what="the answer to the subscription")[0] == b"psubscribe"
        assert read() is None
        client.publish("planq-test", "heard")
        assert eventually(read, what="the message")[-1] == b"heard"
        client.client_kill_filter(_type="pubsub")
        with pytest.raises(redis.ConnectionError):
            eventually(read, what="the loss of the connection is told")
        channel.close()


def test_a_process_that_is_forked_while_a_thread_uses_the_broker_begins(valkey_url: str) -> None:
    # Pins: redis-py 8 waits in the fork for the lock of the pool, which that thread holds in the parent.
    with Connection(hardened(valkey_url)) as connection:
        channel: Any = connection.default_channel
        assert channel.client.ping()
        held, over = threading.Event(), threading.Event()

        def hold() -> None:
            with channel.pool._lock:
                held.set()
                over.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(60)
        process = billiard.Process(target=_nothing)
        try:
            process.start()
            process.join(20)
            assert process.exitcode == 0
        finally:
            over.set()
            thread.join()
            if process.exitcode is None:
                process.terminate()
        assert channel.client.ping(), "the parent goes on"


def _nothing() -> None:
    """Do nothing: what happens before this is the point."""
