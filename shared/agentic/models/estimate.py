"""Estimate the tokens of a model call before it is made, to reserve them from a budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from planq.shared.agentic.models.exchange import Ask, ChatMessage, Findings
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.budget import ReservationRequest
from planq.shared.platform.values.encoding import measure
from planq.shared.platform.values.parts import part_tokens

CHARS_PER_TOKEN = 4
"""The providers' rule of thumb for English text (https://platform.openai.com/tokenizer)."""


OUTPUT_TOKENS = 4_096
"""Assumed length of a reply without a limit: the default of PLANQ_MODEL_MAX_OUTPUT_TOKENS."""


LEAST_OUTPUT_TOKENS = 64
"""With fewer tokens left no call is made: the reply would break off in its first sentence."""


_PROMPT_CHARS = 2_000
"""Length of planq's own words around a question."""


_MESSAGE_CHARS = 16
"""Overhead of a message in a provider's format."""

_MOST_CHARS = 100_000_000


def message_tokens(messages: Iterable[ChatMessage]) -> int:
    """Estimate the tokens of messages, with their tool calls and state."""
    return tokens_of(message_chars(messages))


def message_chars(messages: Iterable[ChatMessage]) -> int:
    """Estimate the characters of messages; `tokens_of` the sum is `message_tokens`."""
    return sum(map(_message_chars, messages))


def tokens_of(chars: int) -> int:
    return -(-chars // CHARS_PER_TOKEN)


def _message_chars(message: ChatMessage) -> int:
    if "chars" not in message.memo:
        message.memo["chars"] = _counted_chars(message)
    chars: int = message.memo["chars"]
    return chars


def _counted_chars(message: ChatMessage) -> int:
    chars = _MESSAGE_CHARS + len(message.content) + len(message.name) + len(message.call_id)
    for call in message.tool_calls:
        chars += _MESSAGE_CHARS + len(call.name) + len(call.id) + measure(call.arguments, _MOST_CHARS)
    chars += CHARS_PER_TOKEN * sum(map(part_tokens, message.parts))
    return chars if message.state is None else chars + measure(message.state, _MOST_CHARS)


def wanted_for(
    ask: Ask,
    findings: Findings,
    tools: Sequence[ToolDefinition] = (),
    transcript: Sequence[ChatMessage] = (),
) -> ReservationRequest:
    """Estimate a model call: the prompt by its length, the reply by its limit."""
    said = [*ask.instructions, ask.guide, ask.insights, ask.tenant_prompt or "", ask.input]
    shown = [ask.data, ask.answer_schema, *(result.output for result in findings.results), *findings.plan_errors]
    shown += [result.content for result in findings.results]
    shown += [schema for tool in tools for schema in (tool.input_schema, tool.output_schema)]
    chars = _PROMPT_CHARS + sum(map(len, said)) + sum(measure(value, 1_000_000) for value in shown)
    if findings.repair is not None:
        chars += len(findings.repair.raw) + sum(map(len, findings.repair.errors))
    asked = -(-chars // CHARS_PER_TOKEN) + message_tokens([*ask.history, *transcript])
    asked += sum(map(part_tokens, ask.parts))
    least = min(LEAST_OUTPUT_TOKENS, ask.max_tokens or LEAST_OUTPUT_TOKENS)
    return ReservationRequest(asked, ask.max_tokens or OUTPUT_TOKENS, least, model_calls=1)


def cut_to(ask: Ask, wanted: ReservationRequest, reply_tokens: int | None) -> Ask:
    """Return the question with the reservation's call id, and `max_tokens` if the reservation has fewer."""
    if reply_tokens is None or reply_tokens >= wanted.reply_tokens:
        return replace(ask, call_id=wanted.call_id)
    return replace(ask, call_id=wanted.call_id, max_tokens=reply_tokens)
