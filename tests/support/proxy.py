"""A small TCP proxy before a server, which can make its connections fall silent: a half-open connection on demand.

It runs on a loop in a thread of its own, so that tests with and without an event loop use it alike. The server behind
it may listen on TCP or on a Unix socket (the embedded ones do); clients always speak TCP.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

_NOTHING_LINGERS = struct.pack("ii", 1, 0)
"""SO_LINGER that turns a close into a reset (socket(7))."""


class _Side(asyncio.Protocol):
    """One end of a connection; what it hears it passes on to the other end, `peer`, as soon as that is there.

    Pausing instead until it is there would not do: asyncio before 3.11.3 goes on reading then.
    """

    def __init__(self, made: Callable[[_Side, asyncio.Transport], None] | None = None) -> None:
        self.transport: asyncio.Transport | None = None
        self.peer: _Side | None = None
        self._made = made
        self._early = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self._early:
            transport.write(bytes(self._early))
        if self._made is not None:
            self._made(self, transport)

    def data_received(self, data: bytes) -> None:
        if self.peer is None:
            return
        if self.peer.transport is None:
            self.peer._early += data
        else:
            self.peer.transport.write(data)

    def pause_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.close()


class _Link:
    """A client's end and the server's end of one connection."""

    def __init__(self, client: _Side, server: _Side) -> None:
        self.client, self.server = client, server
        client.peer, server.peer = server, client

    @property
    def is_open(self) -> bool:
        return not any(side.transport is None or side.transport.is_closing() for side in (self.client, self.server))

    def freeze(self) -> None:
        """Pass nothing on any more, in either direction, and tell nobody."""
        for side in (self.client, self.server):
            side.peer = None
            if side.transport is not None and not side.transport.is_closing():
                side.transport.pause_reading()

    def reset(self) -> None:
        """End both connections with a reset, as a peer that came back without its memory does."""
        for side in (self.client, self.server):
            if side.transport is None:
                continue
            with contextlib.suppress(OSError):
                handle = side.transport.get_extra_info("socket")
                handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NOTHING_LINGERS)
            side.transport.abort()


class TcpProxy:
    """Forwards 127.0.0.1:`port` to `upstream`: a socket's path, or host and port. For use from any thread.

    `freeze` makes the connections of this moment half-open; new ones pass, unless `accepting` was switched off.
    """

    def __init__(self, upstream: Path | tuple[str, int]) -> None:
        self._upstream = upstream
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True)
        self._links: set[_Link] = set()
        self._frozen: set[_Link] = set()
        self._server: asyncio.Server | None = None
        self._work: set[asyncio.Task[None]] = set()
        self._is_accepting = True
        self.port = 0

    def __enter__(self) -> TcpProxy:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen on a free port, from now on `port`."""
        self._thread.start()
        self._do(self._listen())

    def stop(self) -> None:
        """Reset every connection and end the thread; idempotent."""
        if not self._thread.is_alive():
            return
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def freeze(self) -> int:
        """Make every open connection half-open: neither data nor an end passes; returns how many there were."""
        return self._call(self._freeze)

    def reset_frozen(self) -> int:
        """Reset the connections that are half-open; returns how many there were."""
        return self._call(lambda: self._reset(self._frozen))

    def reset(self) -> int:
        """Reset every connection; returns how many there were."""
        return self._call(lambda: self._reset(self._links) + self._reset(self._frozen))

    def accept(self, accepting: bool) -> None:
        """Pass new connections on (True, the beginning), or take them and never answer (False)."""
        self._is_accepting = accepting

    @property
    def connections(self) -> int:
        """How many connections pass data now."""
        return self._call(lambda: sum(link.is_open for link in self._links))

    def _freeze(self) -> int:
        links = {link for link in self._links if link.is_open}
        for link in links:
            link.freeze()
        self._frozen |= links
        self._links.clear()
        return len(links)

    def _reset(self, links: set[_Link]) -> int:
        count = len(links)
        for link in links:
            link.reset()
        links.clear()
        return count

    async def _listen(self) -> None:
        self._server = await self._loop.create_server(lambda: _Side(self._connected), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def _connected(self, client: _Side, transport: asyncio.Transport) -> None:
        task = self._loop.create_task(self._connect(_Link(client, _Side()), transport))
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _connect(self, link: _Link, transport: asyncio.Transport) -> None:
        server = link.server
        if not self._is_accepting:
            self._frozen.add(link)
            return
        try:
            if isinstance(self._upstream, Path):
                await self._loop.create_unix_connection(lambda: server, str(self._upstream))
            else:
                await self._loop.create_connection(lambda: server, *self._upstream)
        except OSError:
            link.reset()  # what a client without a proxy gets is a refusal; a reset is as close as we come
            return
        if transport.is_closing():
            link.reset()
            return
        self._links = {known for known in self._links if known.is_open} | {link}

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._reset(self._links)
        self._reset(self._frozen)
        for task in tuple(self._work):
            task.cancel()
        await asyncio.sleep(0)  # the transports close in the next turn of the loop

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def _call(self, action: Callable[[], int]) -> int:
        async def act() -> int:
            return action()

        return asyncio.run_coroutine_threadsafe(act(), self._loop).result(10)
