"""Six small calls that show what a model's server can do, and what planq sends instead."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from planq.shared.agentic.models.adaptations import MEANING
from planq.shared.agentic.models.exchange import ChatMessage
from planq.shared.agentic.models.names import ModelName
from planq.shared.kernel.usage import Purpose
from planq.shared.platform.errors import ExecutionFailed
from planq.worker.models.adapting import KnownAdaptations
from planq.worker.models.clients import load_sdk
from planq.worker.models.completion import BrokenTryUsage, Completion
from planq.worker.models.providers import Providers
from planq.worker.models.request import ModelRequest
from planq.worker.models.settings import ModelSettings

_ADD = {
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}
_SUM = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
_SYSTEM = ["You are asked by a program that checks what you can do. Do exactly what it says."]


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of one probe: `is_ok` if the reply was as asked, `instead` what planq had to change for it."""

    probe: str
    is_ok: bool
    found: str
    instead: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class _Probe:
    name: str
    request: ModelRequest
    is_met: Callable[[Completion], bool]
    expected: str
    is_stream: bool = True


def _request(text: str, **more: Any) -> ModelRequest:
    return ModelRequest(Purpose.RESPOND, _SYSTEM, [ChatMessage("user", text)], **more)


def _has_calls(count: int) -> Callable[[Completion], bool]:
    return lambda reply: len([call for call in reply.tool_calls if call.name == "add"]) >= count


def _is_sum(reply: Completion) -> bool:
    try:
        found = json.loads(reply.text)
    except ValueError:
        return False
    return isinstance(found, Mapping) and isinstance(found.get("sum"), int)


_PROBES = (
    _Probe("plain", _request("Say ok."), lambda reply: bool(reply.text.strip()), "a text", is_stream=False),
    _Probe("stream", _request("Say ok."), lambda reply: bool(reply.text.strip()), "a text"),
    _Probe("one tool", _request("Call the tool `add` with 1 and 2.", tools=(_ADD,)), _has_calls(1), "a call"),
    _Probe(
        "parallel tools",
        _request("Call the tool `add` twice in one reply: with 1 and 2, and with 3 and 4.", tools=(_ADD,)),
        _has_calls(2),
        "two calls in one reply",
    ),
    _Probe("forced tool", _request("Say ok, with any numbers.", tool=_ADD), _has_calls(1), "a call"),
    _Probe("JSON schema", _request("What is the sum of 1 and 2?", answer_schema=_SUM), _is_sum, "JSON of the schema"),
)


async def probe_model(settings: ModelSettings, name: ModelName) -> AsyncIterator[ProbeResult]:
    """Yield what each call to a model shows, one after the other. Nothing is remembered."""
    if name.provider is None:
        raise AssertionError(f"{name.full} is no provider's model")
    load_sdk(name.provider)
    for probe in _PROBES:
        known = KnownAdaptations(None, monotonic)
        providers = Providers(replace(settings, stream=probe.is_stream), known)
        try:
            reply = await providers.complete(name, probe.request, BrokenTryUsage())
        except ExecutionFailed as error:
            yield ProbeResult(probe.name, False, error.message)
            continue
        finally:
            await providers.aclose()
        instead = [MEANING[one] for one in sorted(known.learned(name.model))]
        is_ok = probe.is_met(reply)
        yield ProbeResult(probe.name, is_ok, probe.expected if is_ok else _found(probe, reply), instead)


def _found(probe: _Probe, reply: Completion) -> str:
    calls = f"{len(reply.tool_calls)} calls" if reply.tool_calls else "no call"
    return f"expected {probe.expected}, found {calls} and a text of {len(reply.text)} characters"
