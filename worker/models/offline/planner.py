"""Commands to a plan: which tool, with which arguments, and which references between the calls.

Only tools that are offered are planned. What the user wrote stays text: it is escaped where it could be read as a
reference (docs/decisions.md, D2).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from planq.shared.agentic.models.exchange import Ask, ToolCallRequest
from planq.shared.agentic.plan.interpret import DIRECT, PLANNING_TOOL_NAME, TOOL_CALLS
from planq.shared.agentic.references.grammar import escaped, find_references
from planq.shared.agentic.rounds.guide import COMPLEXITIES
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.platform.errors import capped
from planq.worker.models.completion import NO_COST, Completion
from planq.worker.models.offline.grammar import (
    Calculate,
    CallTool,
    Command,
    Fetch,
    Search,
    TellTime,
    UnknownCommand,
    Wait,
    WriteReport,
    help_text,
    read_commands,
)
from planq.worker.models.offline.structured import SIGNATURE, structured_text

_MAX_HEADING = 80


@dataclass(frozen=True, slots=True)
class _Source:
    """A planned call that a report can draw on; `content` holds the reference to its output."""

    heading: str
    content: str


@dataclass(slots=True)
class Draft:
    """A plan while it grows; `missing` are tools that it would need and that are not offered, `unread` parts."""

    offered: frozenset[str]
    data: Mapping[str, Any] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)
    sources: list[_Source] = field(default_factory=list)
    last_sum: int | None = None
    missing: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    @property
    def reasoning(self) -> str:
        names = ", ".join(call["tool_name"] for call in self.calls)
        return f"planq's offline rules recognised {len(self.calls)} command(s): {names}."

    def add_source(self, tool: str, arguments: dict[str, Any], heading: str, field_name: str) -> None:
        index = self.add(tool, arguments)
        if index is not None:
            self.sources.append(_Source(heading, f"${index}.output.{field_name}"))

    def add(self, tool: str, arguments: dict[str, Any]) -> int | None:
        """Plan a call and return its index; None when the tool is not offered."""
        if tool not in self.offered:
            if tool not in self.missing:
                self.missing.append(tool)
            return None
        self.calls.append({"tool_name": tool, "arguments": arguments})
        return len(self.calls) - 1


def plan_offline(ask: Ask, tools: Sequence[ToolDefinition]) -> Completion:
    """Return one call of `__planning__`, a direct answer unless all of `ask` is recognised and offered."""
    draft = draft_of(ask, tools)
    if not draft.calls:
        return planning_reply({"type": DIRECT, "content": answer_without_calls(ask, draft)})
    return planning_reply({"type": TOOL_CALLS, "reasoning": draft.reasoning, "calls": draft.calls})


def guide_offline(ask: Ask, tools: Sequence[ToolDefinition]) -> Completion:
    """Return the rules' guide: a step for each command that they recognise, or one that says there is none."""
    calls = draft_of(ask, tools).calls
    steps = [_guide_step(number, call) for number, call in enumerate(calls, start=1)]
    steps = steps or [{"step_number": 1, "description": "Answer without a tool", "depends_on": []}]
    complexity = COMPLEXITIES[min(len(steps) // 3, 2)]
    guide = {"steps": steps, "estimated_steps": len(steps), "complexity": complexity}
    return Completion(text=json.dumps(guide, ensure_ascii=False), cost_usd=NO_COST)


def _guide_step(number: int, call: Mapping[str, Any]) -> dict[str, Any]:
    needed = {one.reference.step for one in find_references(call["arguments"]) if one.reference is not None}
    return {
        "step_number": number,
        "description": f"Call {call['tool_name']}",
        "tool_name": call["tool_name"],
        # A guide has no references.
        "tool_arguments": {} if needed else call["arguments"],
        "depends_on": [index + 1 for index in sorted(needed)],
        "success_criteria": f"{call['tool_name']} returns an output",
    }


def draft_of(ask: Ask, tools: Sequence[ToolDefinition]) -> Draft:
    return _drafted(ask.input, frozenset(tool.name for tool in tools), ask.data)


def draft_again(ask: Ask, tools: Sequence[ToolDefinition]) -> Draft:
    """Return a cached, unchangeable `draft_of` for a question that is asked in every turn."""
    return draft_of(ask, tools) if ask.data else _drafted_once(ask.input, frozenset(tool.name for tool in tools))


def _drafted(text: str, offered: frozenset[str], data: Any) -> Draft:
    draft = Draft(offered, data if isinstance(data, Mapping) else {})
    for command in read_commands(text):
        _ADDERS[type(command)](draft, command)
    if draft.missing or draft.unread:
        draft.calls.clear()  # a part of what was asked for is not done in the place of all
    return draft


@lru_cache(maxsize=32)
def _drafted_once(text: str, offered: frozenset[str]) -> Draft:
    return _drafted(text, offered, None)


def planning_reply(arguments: dict[str, Any], call_id: str = "") -> Completion:
    return Completion(tool_calls=(ToolCallRequest(PLANNING_TOOL_NAME, arguments, call_id),), cost_usd=NO_COST)


def answer_without_calls(ask: Ask, draft: Draft) -> str:
    if ask.answer_schema is not None:
        return structured_text(ask.answer_schema, ask)
    if draft.unread:
        parts = ", ".join(f"“{capped(part, 130)}”" for part in draft.unread[:5])
        opening = f"I ran nothing, because my rules cannot read this part of what you ask for: {parts}."
    elif draft.missing:
        wanted = ", ".join(capped(name, 130) for name in draft.missing)
        opening = f"I understood what you ask for, but it needs tools that are not offered here: {wanted}."
    else:
        heard = capped(" ".join(ask.input[:400].split()), 120)
        opening = f"Hello! I read “{heard}”, but found no command in it that my rules know, so I ran nothing."
    return f"{opening}\n\n{help_text(draft.offered)}\n\n{SIGNATURE}"


def _add_search(draft: Draft, command: Search) -> None:
    draft.add_source("knowledge_search", {"query": escaped(command.query)}, command.query, "text")


def _add_sum(draft: Draft, command: Calculate) -> None:
    earlier = None if draft.last_sum is None else f"({{{{ ${draft.last_sum}.output.result }}}})"
    # Without an earlier calculation the word stays, and the tool says what is wrong with the expression.
    expression = "".join((earlier or "it") if part is None else escaped(part) for part in command.parts)
    index = draft.add("calculate", {"expression": expression})
    if index is not None:
        shown = "".join("the result" if part is None else part for part in command.parts)
        draft.sources.append(_Source(shown, f"{expression} = {{{{ ${index}.output.result }}}}"))
        draft.last_sum = index


def _add_wait(draft: Draft, command: Wait) -> None:
    whole = command.seconds.is_integer()
    draft.add("wait", {"seconds": int(command.seconds) if whole else command.seconds})


def _add_report(draft: Draft, command: WriteReport) -> None:
    if "write_report" not in draft.offered:
        draft.add("write_report", {})
        return
    if command.about and not draft.sources:
        _add_search(draft, Search(command.about))
    sources = draft.sources[-1:] if command.last_only else draft.sources
    if not sources:
        # Nothing to report from: an empty report would only look like an answer.
        draft.missing.append("something to report from (say what to search, fetch or calculate first)")
        return
    sections = [{"heading": escaped(capped(each.heading, _MAX_HEADING)), "content": each.content} for each in sources]
    title = command.title or command.about or f"Report on {' and '.join(each.heading for each in sources)}"
    draft.add("write_report", {"title": escaped(capped(title, _MAX_HEADING)), "sections": sections})


def _add_call(draft: Draft, command: CallTool) -> None:
    # Arguments given as JSON are the user's own plan: references in them are meant. Input data is not.
    draft.add(command.tool, {name: _filled(value, draft.data) for name, value in command.arguments.items()})


_WITH = re.compile(r"\{\{\s*with\.(\w{1,100})\s*\}\}")


def _filled(value: Any, data: Mapping[str, Any]) -> Any:
    """Return arguments in which each `{{ with.NAME }}` is replaced by input data, escaped to stay text."""
    if isinstance(value, Mapping):
        return {name: _filled(inner, data) for name, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, data) for inner in value]
    if not isinstance(value, str):
        return value
    alone = _WITH.fullmatch(value)
    if alone is not None and alone[1] in data:
        return _as_text(data[alone[1]])
    filled = _WITH.sub(lambda found: _shown(found, data), value)
    meant = [one.template for one in find_references(value)]
    # The text around the data may turn it into a reference: then the whole is escaped.
    return filled if [one.template for one in find_references(filled)] == meant else escaped(filled)


def _as_text(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _as_text(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_as_text(inner) for inner in value]
    return escaped(value) if isinstance(value, str) else value


def _shown(found: re.Match[str], data: Mapping[str, Any]) -> str:
    if found[1] not in data:
        return found[0]
    value = data[found[1]]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.replace("{{", "\\{{")


_ADDERS: dict[type[Command], Callable[[Draft, Any], None]] = {
    Search: _add_search,
    Calculate: _add_sum,
    Fetch: lambda draft, command: draft.add_source("http_fetch", {"url": escaped(command.url)}, command.url, "text"),
    TellTime: lambda draft, _: draft.add_source("now", {}, "Time", "iso"),
    Wait: _add_wait,
    WriteReport: _add_report,
    CallTool: _add_call,
    UnknownCommand: lambda draft, command: draft.unread.append(command.text),
}
