"""The embedded Valkey: private, durable to a second, and usable by Celery's and Flower's clients through one URL."""

from __future__ import annotations

import os
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import kombu
import psutil
import pytest
import redis
from flower.utils.broker import Broker

from planq.deploy.local import valkey as module
from planq.deploy.local.valkey import EmbeddedValkey
from planq.shared.platform.errors import BrokerUnavailable, Misconfigured
from tests.support.torn import FATAL, HARMLESS
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
        first = queue.get(timeout=60)
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


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a server that has stopped with messages in its file."""
    folder = tmp_path_factory.mktemp("filled")
    server = EmbeddedValkey(folder)
    server.start()
    with client(server) as connection:
        for number in range(20):
            connection.lpush("queue", f"message {number}")
    server.stop()
    return folder


def fill(server: EmbeddedValkey, filled: Path) -> Path:
    """Give a server that has not started those messages, and return its data folder."""
    data = server.log.parent / "data"
    shutil.rmtree(data, ignore_errors=True)
    shutil.copytree(filled / "data", data)
    return data


@pytest.mark.parametrize("tear", [pytest.param(tear, id=name) for name, tear in FATAL.items()])
def test_a_file_that_cannot_be_read_is_set_aside_with_a_line_and_the_server_starts_empty(
    tmp_path: Path, filled: Path, tear: Callable[[Path], None]
) -> None:
    said: list[str] = []
    server = EmbeddedValkey(tmp_path / "vk", said.append)
    tear(fill(server, filled))

    try:
        server.start()

        with client(server) as connection:
            assert connection.llen("queue") == 0
            connection.lpush("queue", "again")
        (line,) = said
        assert str(server.aside) in line
        assert server.aside.exists()
        assert line in server.log.read_text("utf-8", "replace")
        server.stop()
        server.start()
        with client(server) as connection:
            assert connection.lrange("queue", 0, -1) == [b"again"]
        assert len(said) == 1
    finally:
        server.stop()


@pytest.mark.parametrize("tear", [pytest.param(tear, id=name) for name, tear in HARMLESS.items()])
def test_a_file_that_can_still_be_read_is_kept(tmp_path: Path, filled: Path, tear: Callable[[Path], None]) -> None:
    said: list[str] = []
    server = EmbeddedValkey(tmp_path / "vk", said.append)
    tear(fill(server, filled))

    try:
        server.start()
        assert said == []
    finally:
        server.stop()


def test_only_the_last_folder_that_was_set_aside_is_kept(tmp_path: Path, filled: Path) -> None:
    server = EmbeddedValkey(tmp_path / "vk")
    try:
        for tear in (FATAL["manifest empty"], FATAL["garbage"]):
            tear(fill(server, filled))
            server.start()
            server.stop()
        assert sorted(path.name for path in (tmp_path / "vk").glob("data*")) == ["data", "data.set-aside"]
        assert (server.aside / "appendonlydir" / "appendonly.aof.manifest").stat().st_size > 0
    finally:
        server.stop()


def test_a_server_that_dies_and_is_launched_again_by_a_supervisor_starts_empty_too(
    server: EmbeddedValkey, filled: Path
) -> None:
    FATAL["100 zero bytes at the end"](fill(server, filled))
    server.launch()
    eventually(server.has_died)
    server.launch()
    server.wait_ready()
    assert server.aside.exists()


def test_a_server_that_was_killed_while_it_ran_keeps_its_file(server: EmbeddedValkey) -> None:
    server.start()
    with client(server) as connection:
        connection.rpush("queue", "message")
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    eventually(server.has_died)
    server.launch()
    server.wait_ready()
    with client(server) as connection:
        assert connection.lrange("queue", 0, -1) == [b"message"]
    assert not server.aside.exists()


def test_a_server_that_cannot_start_empty_either_is_said_with_the_end_of_the_log(
    server: EmbeddedValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = server._flags
    monkeypatch.setattr(server, "_flags", lambda: [*flags(), "--no-such-flag", "x"])

    with pytest.raises(BrokerUnavailable, match="no-such-flag"):
        server.start()
