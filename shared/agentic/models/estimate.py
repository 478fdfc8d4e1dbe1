"""What a model call is taken to use before it is made, for the budget of its tree of jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from planq.shared.agentic.models.exchange import Ask, ChatMessage, Findings
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.budget import ReservationRequest
from planq.shared.platform.values.encoding import measure
from planq.shared.platform.values.parts import part_tokens

CHARS_PER_TOKEN = 4
"""A rule of thumb of the providers for English text (https://platform.openai.com/tokenizer)."""


OUTPUT_TOKENS = 4_096
"""What a reply is taken to need where the agent names no limit: the default of PLANQ_MODEL_MAX_OUTPUT_TOKENS."""


LEAST_OUTPUT_TOKENS = 64
"""With less left a call is not begun: its reply would break off in its first sentence."""


_PROMPT_CHARS = 2_000
"""planq's own words around a question."""


_MESSAGE_CHARS = 16
"""What a provider's format puts around a message."""

_MOST_CHARS = 100_000_000


def message_tokens(messages: Iterable[ChatMessage]) -> int:
    """Return how many tokens messages are taken to have, with their tool calls and what goes back unread."""
    return tokens_of(message_chars(messages))


def message_chars(messages: Iterable[ChatMessage]) -> int:
    """Return how many characters messages are taken to have: `tokens_of` those of all is `message_tokens`."""
    return sum(map(_message_chars, messages))


def tokens_of(chars: int) -> int:
    """Return how many tokens a text of so many characters is taken to have."""
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
    """Return what a model call is taken to need: its question by its length, its reply by its limit."""
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
    """Return the question as the call of the reservation, its reply cut where that is less than it wanted."""
    if reply_tokens is None or reply_tokens >= wanted.reply_tokens:
        return replace(ask, call_id=wanted.call_id)
    return replace(ask, call_id=wanted.call_id, max_tokens=reply_tokens)
