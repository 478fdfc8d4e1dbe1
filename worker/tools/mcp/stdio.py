"""MCP servers over stdio: a process, one message a line, and a bound for each line.

The SDK's own transport keeps a line in memory however long it is, and drops one that it cannot read, so that its call
waits until its time-out. Imported only when a server is configured.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
from anyio.abc import AsyncResource, Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client._transport import TransportStreams
from mcp.client.stdio import get_default_environment
from mcp.os.posix.utilities import terminate_posix_process_tree
from mcp.shared.message import SessionMessage

from planq.worker.tools.mcp.config import McpServer
from planq.worker.tools.mcp.reading import Reading

_CHUNK_BYTES = 64 * 1024
_END_BYTES = 4 * 1024
_MOST_SKIPPED = 4
"""A line is skipped up to this many times the length that is read; then the connection ends."""

_FLUSH_SECONDS = 0.5
_EXIT_SECONDS = 2.0
_POLL_SECONDS = 0.01

Sent = MemoryObjectSendStream[SessionMessage | Exception]


@asynccontextmanager
async def stdio_transport(server: McpServer, reading: Reading) -> AsyncIterator[TransportStreams]:
    """Start the server's process and exchange messages until the context ends it; raise OSError or ValueError."""
    assert server.command is not None
    process = await anyio.open_process(
        [server.command, *server.args],
        env=get_default_environment() | server.env,
        # Not `sys.stderr`: Celery puts a logger in its place, which is no file that a child process could write to.
        stderr=sys.__stderr__ or sys.stderr,
        cwd=server.cwd,
        start_new_session=True,
    )
    # No `await` until the task group is entered: a cancellation there would leave the process alone.
    to_session, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    flushed = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read, process, reading, to_session)
        tasks.start_soon(_write, process, from_session, to_session, flushed)
        try:
            yield read, write
        finally:
            with anyio.CancelScope(shield=True):
                read.close()
                write.close()
                with anyio.move_on_after(_FLUSH_SECONDS):
                    await flushed.wait()
                await _stop(process)
                for stream in (to_session, from_session):
                    stream.close()
            tasks.cancel_scope.cancel()


async def _read(process: Process, reading: Reading, to_session: Sent) -> None:
    try:
        with to_session, suppress(anyio.EndOfStream):
            await _read_lines(process, reading, to_session)
    except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        pass  # the session or the process has ended
    # A process that waits until its output is read would not see that its input has ended.
    with suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        assert process.stdout is not None
        while True:
            await process.stdout.receive(_CHUNK_BYTES)


async def _read_lines(process: Process, reading: Reading, to_session: Sent) -> None:
    assert process.stdout is not None
    line, skipped = bytearray(), 0
    while True:
        chunk = await process.stdout.receive(_CHUNK_BYTES)
        while chunk:
            part, ends, chunk = chunk.partition(b"\n")
            line += part
            if len(line) > reading.most:  # only its beginning and its end say which request it answers
                skipped += len(line) - 2 * _END_BYTES
                del line[_END_BYTES:-_END_BYTES]
            is_endless = skipped > _MOST_SKIPPED * reading.most
            if not ends and not is_endless:
                break
            if skipped:
                message = reading.too_long(bytes(line[:_END_BYTES]), bytes(line[-_END_BYTES:]))
            else:
                message = reading.read_line(bytes(line))
            if message is not None:
                await to_session.send(message)
            elif line:
                await reading.pace(skipped + len(line))
            if is_endless:
                return
            line, skipped = bytearray(), 0


async def _write(
    process: Process, from_session: MemoryObjectReceiveStream[SessionMessage], to_session: Sent, flushed: anyio.Event
) -> None:
    assert process.stdin is not None
    try:
        async for item in from_session:
            text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            await process.stdin.send(text.encode() + b"\n")
    except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        to_session.close()  # so that no request waits for an answer
    finally:
        flushed.set()


async def _stop(process: Process) -> None:
    """End the process as the protocol says: close its input, wait, then end all of its group."""
    assert process.stdin is not None
    assert process.stdout is not None
    await _close(process.stdin)
    if not await _has_ended(process):
        await terminate_posix_process_tree(process, _EXIT_SECONDS)
        await _has_ended(process)
    await _close(process.stdout)
    # A surviving child may hold the pipe; nothing public closes asyncio's transport then.
    transport = getattr(getattr(process, "_process", None), "_transport", None)
    if transport is not None:
        with suppress(PermissionError):
            transport.close()


async def _close(stream: AsyncResource) -> None:
    with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        await stream.aclose()


async def _has_ended(process: Process) -> bool:
    """Return whether the process ends in time; `Process.wait` would also wait for children that hold its pipes."""
    with anyio.move_on_after(_EXIT_SECONDS):
        while process.returncode is None:  # noqa: ASYNC110 - asyncio notes the end of a process here alone
            await anyio.sleep(_POLL_SECONDS)
    return process.returncode is not None
