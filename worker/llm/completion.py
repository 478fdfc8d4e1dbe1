"""From pydantic-ai's responses, whole or broken off, to ours: text, tool calls, tokens, price."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart

from shared.domain.model import ToolCallRequest
from shared.domain.planning import decoded
from worker.llm.backend import Completion
from worker.llm.request import ModelRequest

_MOST_TOKENS = 2**31 - 1

_BYTES_PER_TOKEN = 4
"""A rule of thumb of the providers for English text (https://platform.openai.com/tokenizer); JSON and other languages
have fewer. Only used for what a broken stream did not tell."""


def completion_of(response: ModelResponse) -> Completion:
    """Return a whole reply."""
    texts = [part.content for part in response.parts if isinstance(part, TextPart)]
    calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
    return Completion(
        text="\n\n".join(texts),
        tool_calls=[ToolCallRequest(call.tool_name, _arguments(call.args)) for call in calls],
        input_tokens=_count(response.usage.input_tokens),
        output_tokens=_count(response.usage.output_tokens),
        cost_usd=_cost(response),
        finish_reason=response.finish_reason,
    )


def partial_of(response: ModelResponse, request: ModelRequest) -> Completion:
    """Return as much of a reply as had come, with the tokens that it has probably cost.

    The provider's own numbers count where it told them; while a reply runs they may lag behind (Anthropic begins with
    the tokens of the question), so that the output is never less than the text that came.
    """
    told = response.usage
    asked = told.input_tokens or _estimated(json.dumps(request.to_json(), ensure_ascii=False))
    said = max(told.output_tokens, _estimated("".join(_received(response))))
    usage = replace(told, input_tokens=asked, output_tokens=said, unmeasured_requests=0)
    return completion_of(replace(response, usage=usage))


def _received(response: ModelResponse) -> list[str]:
    texts = [part.content for part in response.parts if isinstance(part, (TextPart, ThinkingPart))]
    calls = [part.args for part in response.parts if isinstance(part, ToolCallPart)]
    return texts + [args if isinstance(args, str) else json.dumps(args or "") for args in calls]


def _estimated(text: str) -> int:
    return -(-len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN)


def _count(tokens: int) -> int:
    """Return a number of tokens that can be stored, whatever the server claims."""
    return min(max(tokens, 0), _MOST_TOKENS)


def _arguments(raw: Any) -> Mapping[str, Any] | str:
    """Return a JSON object, or the provider's text where it is none; the planning extractor judges it.

    Some SDKs decode the arguments themselves, and let NaN and infinities pass.
    """
    try:
        text = json.dumps(raw) if isinstance(raw, Mapping) else str(raw or "")
    except RecursionError:
        return "{… nested too deeply"
    value = decoded(text)
    return value if isinstance(value, dict) else text


def _cost(response: ModelResponse) -> Decimal | None:
    """Return the price by genai-prices, or None when it knows no price for the model or no usage was told."""
    if not (response.usage.input_tokens or response.usage.output_tokens):
        return None
    try:
        return response.cost().total_price
    except (LookupError, ValueError, AssertionError):
        return None
