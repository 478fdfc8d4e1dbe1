"""Closing the connection of a reply the moment its call ends, however it ends.

An SDK may leave that to the garbage collector (google-genai 2 nests asynchronous generators), which comes when it
likes; until then a provider writes on, and bills, for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

import httpx2

_replies: ContextVar[list[httpx2.Response] | None] = ContextVar("planq_replies", default=None)


def watch(client: httpx2.AsyncClient) -> httpx2.AsyncClient:
    """Let `closing_replies` know what `client` receives; returns the client."""

    async def received(response: httpx2.Response) -> None:
        replies = _replies.get()
        if replies is not None:
            replies.append(response)

    hooks = client.event_hooks
    client.event_hooks = {**hooks, "response": [*hooks.get("response", []), received]}
    return client


@asynccontextmanager
async def closing_replies() -> AsyncIterator[None]:
    """Close what watched clients receive within the block, in this asyncio task, when the block ends."""
    replies: list[httpx2.Response] = []
    token = _replies.set(replies)
    try:
        yield
    finally:
        _replies.reset(token)
        for response in replies:
            if not response.is_closed:
                await asyncio.shield(response.aclose())
