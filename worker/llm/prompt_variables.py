"""The variables that a caller's prompt template may use, and their values in one turn.

What a user, a tool or a planning model wrote is put between tags that it cannot close, as in planq's own prompts.
"""

from __future__ import annotations

from collections.abc import Sequence

from planq.shared.domain.models.exchange import Ask, ChatMessage, TurnPrompt
from planq.shared.domain.rounds.block import rendered_prompt
from planq.shared.domain.tools.definition import ToolDefinition
from planq.shared.domain.values.encoding import indented
from planq.worker.llm.prompts import REFERENCE, fenced_data


def turn_prompt(
    ask: Ask, prompt: TurnPrompt, tools: Sequence[ToolDefinition], transcript: Sequence[ChatMessage]
) -> str:
    """Return a template of the caller's, filled in; `transcript` is of the rounds before."""
    return rendered_prompt(prompt.template, prompt_values(ask, prompt, tools, transcript))


def prompt_values(
    ask: Ask, prompt: TurnPrompt, tools: Sequence[ToolDefinition], transcript: Sequence[ChatMessage]
) -> dict[str, str]:
    """Return the text of every variable of `PROMPT_VARIABLES`; see `turn_prompt`."""
    results = "\n".join(message.content for message in transcript if message.role != "assistant")
    return {
        "query": fenced_data(ask.input),
        "context": fenced_data(_context(ask)),
        "results": fenced_data(results),
        "vars": fenced_data(indented(dict(prompt.variables))),
        "tools": tool_lines(tools),
        "round": str(prompt.round_number),
        "rounds_left": str(prompt.rounds_left),
        "reference": REFERENCE,
    }


def _context(ask: Ask) -> str:
    if ask.data is None:
        return ""
    return ask.data if isinstance(ask.data, str) else indented(ask.data)


def tool_lines(tools: Sequence[ToolDefinition]) -> str:
    return "\n".join(f"- {tool.name}: {' '.join(tool.description.split())}".rstrip(": ") for tool in tools)
