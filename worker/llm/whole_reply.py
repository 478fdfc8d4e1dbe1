"""Chat completions that come whole although a stream was asked for, shown to the SDK as a stream.

Some OpenAI-compatible servers do not know `stream` and answer with one JSON body. The SDK would find no events in it;
as an event of its own it is read with its usage, and nothing has to be asked, or paid for, twice.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2


class _AsEvents(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner
        self._is_read = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._is_read:
            return  # the SDK looks once more for what may follow the last event
        body = b"".join([piece async for piece in self._inner])
        self._is_read = True
        yield as_events(body)

    async def aclose(self) -> None:
        await self._inner.aclose()


def accept_whole_replies(client: httpx2.AsyncClient) -> httpx2.AsyncClient:
    """Let JSON bodies that `client` receives be read as event streams; returns the client.

    Use it for a client that only asks for streams, and after `bounded.bound`: the body is kept in memory.
    """

    async def shown_as_stream(response: httpx2.Response) -> None:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.is_success and kind == "application/json":
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _AsEvents(response.stream)
            response.headers["content-type"] = "text/event-stream"

    hooks = client.event_hooks
    client.event_hooks = {**hooks, "response": [*hooks.get("response", []), shown_as_stream]}
    return client


def as_events(body: bytes) -> bytes:
    """Return a chat completion as the events of a stream that says all of it at once.

    What is no chat completion (an error object, say) becomes one event as it is, for the SDK to judge.
    """
    try:
        chunk = _chunk(json.loads(body))
    except (ValueError, RecursionError, TypeError, KeyError):
        return b"data: " + b" ".join(body.split()) + b"\n\n"
    return f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode("ascii")


def _chunk(completion: Mapping[str, Any]) -> dict[str, Any]:
    choices = [{**choice, "delta": _delta(choice["message"])} for choice in completion["choices"]]
    for choice in choices:
        del choice["message"]
    return {**completion, "object": "chat.completion.chunk", "choices": choices}


def _delta(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls") or []
    return {**message, "tool_calls": [{**call, "index": index} for index, call in enumerate(calls)]}
