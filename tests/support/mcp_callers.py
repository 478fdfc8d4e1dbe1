"""Clients of `/mcp`, made of the official SDK, and a tool that such tests wait with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

from planq import ToolContext, ToolResponse, tool
from tests.support.waiting import eventually

ERAS = ("legacy", "auto")
"""How a client begins: with the handshake of protocols until 2025-11-25, or as those since 2026-07-28 do."""


@asynccontextmanager
async def mcp_client(url: str, headers: Mapping[str, str] | None = None, era: str = "auto") -> AsyncIterator[Client]:
    """A client that is connected to the API at `url`."""
    timeout = httpx2.Timeout(60.0)
    async with (
        httpx2.AsyncClient(headers=dict(headers or {}), timeout=timeout, trust_env=False) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=era) as client,
    ):
        yield client


def text_of(result: CallToolResult) -> str:
    """The text of a result that has one text."""
    (only,) = result.content
    assert isinstance(only, TextContent), only
    return only.text


def job_of(result: CallToolResult) -> Any:
    """The id of the job that carried a call out."""
    return (result.meta or {})["dev.planq/job"]


@tool(effect="idempotent", timeout_seconds=120)
async def until_there(path: str, context: ToolContext) -> dict[str, Any]:
    """Tell that half is done, and return once a file is there."""
    await context.progress(0.5, "half of it")
    await asyncio.to_thread(eventually, Path(path).exists, 100, every=0.05)
    return {"found": path}


@tool(effect="read")
async def two_readers() -> ToolResponse[dict[str, Any]]:
    """Say one thing to models, and give another to what refers to it."""
    return ToolResponse(content="three of them", structured={"count": 3})
