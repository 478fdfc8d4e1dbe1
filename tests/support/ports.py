"""Free TCP ports for processes that a test starts."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """Return `count` different loopback ports that were free a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def free_port() -> int:
    """Return one port of `free_ports`."""
    return free_ports(1)[0]
