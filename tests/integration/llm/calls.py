"""Calls through the gateway to the wire server, shared by the tests of what is sent and of what goes wrong."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from planq.shared.agentic.models.call_settings import CallSettings, SettingsOfModels
from planq.shared.agentic.models.exchange import Ask, ChatMessage, Findings, ModelFailed, ModelReply
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.steps import StepResult
from planq.shared.kernel.usage import ModelCall
from planq.worker.models.gateway import ModelGateway, TryLimits
from planq.worker.models.settings import ModelSettings
from tests.integration.llm.dialects import DIALECTS, KEY, OPENAI_CHAT, STREAMS, Dialect
from tests.integration.llm.wire import WireRequest, WireServer
from tests.support.tiers import some

PLAN = {
    "type": "tool_calls",
    "reasoning": "arithmetic",
    "calls": [{"tool_name": "calculate", "arguments": {"expression": "2+2"}}],
}
TOOLS = [
    ToolDefinition(
        name="calculate",
        description="Evaluate an expression.",
        input_schema={"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
        output_schema={"type": "object", "properties": {"result": {"type": "number"}}, "required": ["result"]},
    )
]
RESULTS = Findings(results=[StepResult("calculate", {"expression": "2+2"}, {"result": 4})])
every_dialect = pytest.mark.parametrize("dialect", some(DIALECTS, *STREAMS, OPENAI_CHAT.whole), ids=repr)
one_dialect = pytest.mark.parametrize("dialect", some(DIALECTS, OPENAI_CHAT), ids=repr)
"""For what does not depend on the format of a provider; a whole run tries them all."""
one_stream = pytest.mark.parametrize("dialect", some(STREAMS, OPENAI_CHAT), ids=repr)
every_whole = pytest.mark.parametrize("dialect", [dialect.whole for dialect in STREAMS], ids=repr)
every_stream = pytest.mark.parametrize("dialect", STREAMS, ids=repr)


@dataclass
class Waits:
    """A sleep that takes no time and remembers what it was asked for."""

    seconds: list[float] = field(default_factory=list)

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def settings_for(dialect: Dialect, server: WireServer, **changes: Any) -> ModelSettings:
    base = ModelSettings(
        default_model=dialect.model,
        base_urls={dialect.provider: server.url + dialect.base_path},
        api_keys={dialect.provider: KEY},
        openai_api=dialect.api,
        stream=dialect.stream,
        request_timeout=10,
    )
    return replace(base, **changes)


def warm(temperature: float) -> SettingsOfModels:
    """Return an operator's settings that give every model a temperature."""
    return {"*": CallSettings(temperature=temperature)}


def ask_for(dialect: Dialect) -> Ask:
    history = [ChatMessage("user", "Hello"), ChatMessage("assistant", "Good day"), ChatMessage("user", " ")]
    return Ask("job-1", "What is 2+2?", dialect.model, instructions=["Be brief.", "Be kind."], history=history)


def plan(settings: ModelSettings, dialect: Dialect, waits: Waits | None = None) -> ModelReply:
    async def run() -> ModelReply:
        gateway = ModelGateway(settings, patience=TryLimits(settings, waits or Waits(), lambda: 0.5))
        try:
            return await gateway.plan(ask_for(dialect), TOOLS)
        finally:
            await gateway.aclose()

    return asyncio.run(run())


def respond(settings: ModelSettings, dialect: Dialect, findings: Findings = RESULTS) -> ModelReply:
    async def run() -> ModelReply:
        gateway = ModelGateway(settings, patience=TryLimits(settings, Waits()))
        try:
            return await gateway.respond(ask_for(dialect), findings)
        finally:
            await gateway.aclose()

    return asyncio.run(run())


def failure(settings: ModelSettings, dialect: Dialect, waits: Waits | None = None) -> tuple[str, str, ModelCall]:
    with pytest.raises(ModelFailed) as caught:
        plan(settings, dialect, waits)
    assert caught.value.call.error is not None
    assert caught.value.call.error.code == caught.value.error.code
    return caught.value.error.code, caught.value.error.message, caught.value.call


def received(server: WireServer) -> WireRequest:
    assert len(server.requests) == 1
    return server.requests[0]
