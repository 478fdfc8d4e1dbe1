"""A model request in planq's own words: what a stage says, before any provider's format.

PLAN is the conversation plus the planning rules and one forced tool. RESPOND is the original conversation plus one
further user message with two headed parts: the findings, and what to do with them (specification S0; facts.md, 000
"RESPOND"). The same form is what `ModelCall.exchange` keeps and what cassettes compare.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shared.domain.errors import capped
from shared.domain.model import Ask, ChatMessage, Findings, Purpose, StepResult
from shared.domain.planning import planning_tool
from shared.domain.preview import fair_share
from shared.domain.results import format_summary
from shared.domain.tool import ToolDefinition
from worker.llm.plan_errors import told_plan_errors
from worker.llm.prompts import fenced, render


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One question to a model: `system` texts first, then `messages` (`user` or `assistant`), oldest first.

    `tool` is `{name, description, parameters}` and must be called when present; no tool is offered when it is None.
    """

    purpose: Purpose
    system: Sequence[str]
    messages: Sequence[ChatMessage]
    tool: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the form that exchanges and cassettes hold."""
        system = [{"role": "system", "content": text} for text in self.system]
        messages = [{"role": message.role, "content": message.content} for message in self.messages]
        tools = [] if self.tool is None else [dict(self.tool)]
        return {"purpose": self.purpose.value, "messages": system + messages, "tools": tools}


def plan_request(ask: Ask, tools: Sequence[ToolDefinition]) -> ModelRequest:
    """Return the PLAN stage's request: the conversation, with `__planning__` over `tools` as the forced tool."""
    system, messages = _conversation(ask)
    # The reference syntax is filled in, for the template's own braces are placeholders.
    rules = render("plan", reference="{{ $N.output.<path> }}")
    return ModelRequest(Purpose.PLAN, [*system, rules], messages, planning_tool(tools))


def respond_request(ask: Ask, findings: Findings, max_chars: int) -> ModelRequest:
    """Return the RESPOND stage's request; `plan_errors` win over `results`, for a refused plan has none.

    Results that are longer than `max_chars` together are shortened, the longest ones first, and say so.
    """
    system, messages = _conversation(ask)
    if findings.plan_errors:
        told = render("respond_errors", findings=fenced(told_plan_errors(findings.plan_errors)))
    else:
        told = render("respond_results", findings=fenced(format_summary(shortened(findings.results, max_chars))))
    return ModelRequest(Purpose.RESPOND, system, [*messages, ChatMessage("user", told)])


def shortened(results: Sequence[StepResult], max_chars: int) -> list[StepResult]:
    """Return the results with the longest outputs cut, so that all their JSON together has about `max_chars`."""
    texts = [json.dumps(result.output, ensure_ascii=False, default=str) for result in results]
    share = fair_share([len(text) for text in texts], max_chars)
    return [
        replace(result, output={"shortened": capped(text, share)}) if len(text) > share else result
        for result, text in zip(results, texts, strict=True)
    ]


def _conversation(ask: Ask) -> tuple[list[str], list[ChatMessage]]:
    """Split the conversation; blank messages are left out, for some providers refuse them."""
    history = [message for message in ask.history if message.content.strip()]
    # System messages of the history move to the front: not every provider takes one in the middle.
    system = [text for text in ask.instructions if text.strip()]
    system += [message.content for message in history if message.role == "system"]
    messages = [message for message in history if message.role != "system"]
    return system, [*messages, ChatMessage("user", ask.input)]
