"""The embedded Valkey: private, durable to a second, and usable by Celery's and Flower's clients through one URL."""

from __future__ import annotations

import os
import shutil
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import kombu
import psutil
import pytest
import redis
from flower.utils.broker import Broker

from shared.domain.errors import BrokerUnavailable, Misconfigured
from shared.embedded import valkey as module
from shared.embedded.valkey import EmbeddedValkey
from tests.support.waiting import eventually


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    one = EmbeddedValkey(tmp_path / "vk")
    yield one
    one.stop()


def client(server: EmbeddedValkey) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(server.socket_path))


def test_it_listens_on_a_private_socket_and_never_evicts(server: EmbeddedValkey) -> None:
    server.start()

    with client(server) as connection:
        assert connection.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert connection.config_get("port") == {"port": "0"}
        assert connection.config_get("appendfsync") == {"appendfsync": "everysec"}
    assert stat.S_IMODE(server.socket_path.parent.stat().st_mode) == 0o700


def test_celery_and_flower_read_the_same_url(server: EmbeddedValkey) -> None:
    server.start()

    with kombu.Connection(server.url) as connection, connection.SimpleQueue("planq.probe") as queue:
        queue.put({"id": 1})
        queue.put({"id": 2})
        import asyncio

        seen = asyncio.run(Broker(server.url).queues(["planq.probe"]))
        first = queue.get(timeout=5)
        first.ack()

    assert seen == [{"name": "planq.probe", "messages": 2}]
    assert first.payload == {"id": 1}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_messages_survive_the_end_of_the_server(server: EmbeddedValkey, number: signal.Signals) -> None:
    server.start()
    with client(server) as connection:
        connection.rpush("queue", "message")
    assert server.pid is not None
    pid = server.pid

    os.kill(pid, number)
    eventually(server.has_died)
    server.start()

    with client(server) as connection:
        assert connection.lrange("queue", 0, -1) == [b"message"]
    server.stop()
    assert not psutil.pid_exists(pid)
    assert server.pid is None


def test_a_second_server_on_the_same_folder_is_refused(server: EmbeddedValkey, tmp_path: Path) -> None:
    server.start()

    with pytest.raises(Misconfigured, match="already in use by process"):
        EmbeddedValkey(tmp_path / "vk").start()


def test_a_binary_that_may_not_be_executed_is_copied_not_changed(
    server: EmbeddedValkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "installed"
    shutil.copyfile(module.installed_binary(), installed)
    installed.chmod(0o644)
    monkeypatch.setattr(module, "installed_binary", lambda: installed)

    server.start()

    with client(server) as connection:
        assert connection.ping()
    assert stat.S_IMODE(installed.stat().st_mode) == 0o644


def test_a_broken_file_is_said_with_the_end_of_the_log(server: EmbeddedValkey, tmp_path: Path) -> None:
    server.start()
    with client(server) as connection:
        connection.set("key", "value")
    server.stop()
    for part in (tmp_path / "vk" / "data" / "appendonlydir").glob("*.incr.aof"):
        part.write_bytes(b"no append-only file at all\r\n")

    with pytest.raises(BrokerUnavailable, match="Bad file format"):
        server.start()
