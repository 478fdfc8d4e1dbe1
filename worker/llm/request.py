"""A model request in planq's own words: what a stage says, before any provider's format.

PLAN is the conversation plus the planning rules and one forced tool. RESPOND is the original conversation plus one
further user message with two headed parts: the findings, and what to do with them. The same form is what
`ModelCall.exchange` keeps and what cassettes compare.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shared.domain.encoding import indented
from shared.domain.errors import capped
from shared.domain.model import Ask, ChatMessage, Findings, Purpose, Repair, StepResult
from shared.domain.planning import planning_tool
from shared.domain.preview import fair_share
from shared.domain.results import format_summary
from shared.domain.tool import ToolDefinition
from worker.llm.plan_errors import told_plan_errors
from worker.llm.prompts import fenced, render
from worker.llm.remembered import Remembered


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One question to a model: `system` texts first, then `messages` (`user` or `assistant`), oldest first.

    `tool` is `{name, description, parameters}` and must be called when present; no tool is offered when it is None.
    `answer_schema` is what the reply's text must satisfy; a provider that cannot be told is sent `in_words()`.
    """

    purpose: Purpose
    system: Sequence[str]
    messages: Sequence[ChatMessage]
    tool: Mapping[str, Any] | None = None
    answer_schema: Mapping[str, Any] | None = None
    temperature: float | None = None
    max_tokens: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the form that exchanges and cassettes hold; what is not asked for is left out."""
        system = [{"role": "system", "content": text} for text in self.system]
        messages = [{"role": message.role, "content": message.content} for message in self.messages]
        tools = [] if self.tool is None else [dict(self.tool)]
        told: dict[str, Any] = {"purpose": self.purpose.value, "messages": system + messages, "tools": tools}
        asked = {
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "answer_schema": self.answer_schema,
        }
        return told | {key: value for key, value in asked.items() if value is not None}

    def in_words(self) -> ModelRequest:
        """Return the same request with the answer's schema among the instructions."""
        if self.answer_schema is None:
            return self
        form = _answer_form(self.answer_schema)
        system = self.system if form in self.system else [*self.system, form]
        return replace(self, system=system, answer_schema=None)


_planning_tool: Remembered[Sequence[ToolDefinition], dict[str, Any]] = Remembered(
    planning_tool, parts=lambda tools: tools
)
"""The forced tool over the same tools, made once: it takes as long as the rest of the request."""


def plan_request(ask: Ask, tools: Sequence[ToolDefinition]) -> ModelRequest:
    """Return the PLAN stage's request: the conversation, with `__planning__` over `tools` as the forced tool."""
    system, messages = _conversation(ask)
    # The reference syntax is filled in, for the template's own braces are placeholders.
    rules = [render("plan", reference="{{ $N.output.<path> }}")]
    if ask.answer_schema is not None:
        # Only a direct answer must satisfy it, and no provider can be told so of a part of a tool's arguments.
        rules.append(_answer_form(ask.answer_schema))
    return ModelRequest(
        Purpose.PLAN,
        [*system, *rules],
        messages,
        _planning_tool(tools),
        temperature=ask.temperature,
        max_tokens=ask.max_tokens,
    )


def respond_request(ask: Ask, findings: Findings, max_chars: int) -> ModelRequest:
    """Return the RESPOND stage's request; `plan_errors` win over `results`, for a refused plan has none.

    Results that are longer than `max_chars` together are shortened, the longest ones first, and say so.
    """
    system, messages = _conversation(ask)
    told = _told(findings, max_chars)
    if told is not None:
        messages.append(ChatMessage("user", told))
    if findings.repair is not None:
        messages += _repair(findings.repair)
        if ask.answer_schema is not None:
            # In words too, for the server may have paid no heed to the schema.
            system.append(_answer_form(ask.answer_schema))
    return ModelRequest(
        Purpose.RESPOND,
        system,
        messages,
        answer_schema=ask.answer_schema,
        temperature=ask.temperature,
        max_tokens=ask.max_tokens,
    )


def _told(findings: Findings, max_chars: int) -> str | None:
    if findings.plan_errors:
        return render("respond_errors", findings=fenced(told_plan_errors(findings.plan_errors)))
    if findings.is_direct:
        return None
    return render("respond_results", findings=fenced(format_summary(shortened(findings.results, max_chars))))


def _repair(repair: Repair) -> list[ChatMessage]:
    errors = "\n".join(f"- {error}" for error in repair.errors)
    asked = ChatMessage("user", render("respond_repair", errors=fenced(errors)))
    return [ChatMessage("assistant", repair.raw), asked] if repair.raw.strip() else [asked]


def _answer_form(schema: Mapping[str, Any]) -> str:
    return render("answer_form", schema=json.dumps(schema, ensure_ascii=False, indent=2))


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
    asked = [ask.input] if ask.input.strip() or ask.data is None else []
    if ask.data is not None:
        asked.append(render("data", data=fenced(indented(ask.data))))
    return system, [*messages, ChatMessage("user", "\n\n".join(asked))]
