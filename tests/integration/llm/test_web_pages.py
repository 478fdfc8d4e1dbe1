"""A server that answers 200 with a web page, as a wrong base URL or a login wall does."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from planq.shared.domain.models.exchange import ModelFailed
from planq.shared.domain.models.names import Provider
from planq.worker.llm.gateway import ModelGateway, TryLimits
from planq.worker.llm.settings import ModelSettings
from tests.integration.llm.calls import RESULTS, Waits, ask_for
from tests.integration.llm.dialects import ANTHROPIC, GOOGLE, KEY, OPENAI_CHAT, Dialect

MISTRAL = replace(OPENAI_CHAT, name="mistral", model="mistral:mistral-large-latest", provider=Provider.MISTRAL)
CLIENTS = [
    one for dialect in (OPENAI_CHAT, MISTRAL, ANTHROPIC, GOOGLE) for one in (dialect, replace(dialect, stream=False))
]
PAGE = f"<html><title>Log in</title><p class=x>Welcome to nginx, {KEY}" + "<b>!" * 100_000


@pytest.mark.parametrize("dialect", CLIENTS, ids=repr)
def test_the_error_says_what_the_page_says(dialect: Dialect) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(PAGE)}\r\n\r\n"
        writer.write(head.encode() + PAGE.encode())
        await writer.drain()
        writer.close()

    async def run() -> ModelFailed:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{dialect.base_path}"
        settings = ModelSettings(
            dialect.model,
            {dialect.provider: address},
            {dialect.provider: KEY},
            openai_api=dialect.api,
            stream=dialect.stream,
            max_attempts=1,
        )
        gateway = ModelGateway(settings, patience=TryLimits(settings, Waits(), lambda: 0.5))
        try:
            with pytest.raises(ModelFailed) as failed:
                await gateway.respond(ask_for(dialect), RESULTS)
        finally:
            await gateway.aclose()
            server.close()
        return failed.value

    error = asyncio.run(run()).error

    assert error.code == "unreadable_reply"
    assert "web page in place of a reply; check its base URL: Log in Welcome to nginx, [API key]" in error.message
    assert len(error.message) < 500
