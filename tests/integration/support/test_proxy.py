"""The proxy of the fault tests: it passes everything on, or nothing at all, and ends what it silenced."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.proxy import TcpProxy
from tests.support.waiting import eventually


@pytest.fixture
def echo(tmp_path: Path) -> Iterator[Path]:
    """A server on a Unix socket that says everything back."""
    path = tmp_path / "echo"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve(connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(65_536):
                connection.sendall(data)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept)
    thread.start()
    yield path
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


@pytest.fixture
def proxy(echo: Path) -> Iterator[TcpProxy]:
    with TcpProxy(echo) as running:
        yield running


def dial(proxy: TcpProxy) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", proxy.port), timeout=60)
    connection.settimeout(5)
    return connection


def said_back(connection: socket.socket, data: bytes) -> bytes:
    threading.Thread(target=connection.sendall, args=(data,), daemon=True).start()
    heard = b""
    while len(heard) < len(data):
        heard += connection.recv(65_536)
    return heard


def test_everything_passes_in_order(proxy: TcpProxy) -> None:
    data = bytes(range(256)) * 8_000  # more than the buffers between the two ends hold
    with dial(proxy) as connection:
        assert said_back(connection, data) == data
        assert proxy.connections == 1
    eventually(lambda: proxy.connections == 0, what="the closed connection is forgotten")


def test_a_frozen_connection_says_nothing_until_it_is_reset_and_new_ones_pass(proxy: TcpProxy) -> None:
    with dial(proxy) as old:
        said_back(old, b"before")
        assert proxy.freeze() == 1
        old.sendall(b"into nothing")
        old.settimeout(0.2)
        with pytest.raises(TimeoutError):
            old.recv(1)
        with dial(proxy) as fresh:
            assert said_back(fresh, b"after") == b"after"
        assert proxy.reset_frozen() == 1
        old.settimeout(5)
        with pytest.raises(ConnectionResetError):
            old.recv(1)


def test_who_does_not_accept_takes_connections_and_never_answers(proxy: TcpProxy) -> None:
    proxy.accept(False)
    with dial(proxy) as connection:
        connection.sendall(b"hello?")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)


def test_a_server_that_is_away_resets_its_clients(tmp_path: Path) -> None:
    # Connecting itself fails when the reset comes first.
    with TcpProxy(tmp_path / "nobody") as proxy, pytest.raises(ConnectionResetError), dial(proxy) as connection:
        connection.recv(1)
