"""Commands to a plan: which tool, with which arguments, and which references between the calls.

Only tools that are offered are planned. What the user wrote stays text: it is escaped where it could be read as a
reference (docs/decisions.md, D2).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shared.domain.errors import capped
from shared.domain.model import Ask, ToolCallRequest
from shared.domain.planning import DIRECT, PLANNING_TOOL_NAME, TOOL_CALLS
from shared.domain.references import escaped, find_references
from shared.domain.tool import ToolDefinition
from worker.llm.backend import FREE, Completion
from worker.llm.offline.grammar import Calculate, Call, Command, Fetch, Now, Report, Search, Wait, parse
from worker.llm.offline.structured import structured_text
from worker.llm.offline.texts import SIGNATURE, help_text

MAX_HEADING_CHARS = 80


@dataclass(frozen=True, slots=True)
class _Source:
    """A planned call that a report can draw on; `content` holds the reference to its output."""

    heading: str
    content: str


@dataclass(slots=True)
class _Draft:
    """A plan while it grows."""

    offered: frozenset[str]
    data: Mapping[str, Any] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)
    sources: list[_Source] = field(default_factory=list)
    last_sum: int | None = None
    missing: list[str] = field(default_factory=list)

    def add(self, tool: str, arguments: dict[str, Any]) -> int | None:
        """Plan a call and return its index; None when the tool is not offered."""
        if tool not in self.offered:
            if tool not in self.missing:
                self.missing.append(tool)
            return None
        self.calls.append({"tool_name": tool, "arguments": arguments})
        return len(self.calls) - 1


def plan_offline(ask: Ask, tools: Sequence[ToolDefinition]) -> Completion:
    """Return the rules' reply to `ask`: always one call of `__planning__`, and it costs nothing.

    It is a direct answer when no command is recognised or none of the tools they need is offered.
    """
    draft = _Draft(frozenset(tool.name for tool in tools), ask.data if isinstance(ask.data, Mapping) else {})
    commands = parse(ask.input)
    for command in commands:
        _ADDERS[type(command)](draft, command)
    if not draft.calls:
        structured = ask.answer_schema is not None
        content = structured_text(ask.answer_schema or {}, ask) if structured else _direct_answer(ask, draft)
        return _reply({"type": DIRECT, "content": content})
    names = ", ".join(call["tool_name"] for call in draft.calls)
    reasoning = f"planq's offline rules recognised {len(draft.calls)} command(s): {names}."
    if draft.missing:
        reasoning += f" Left out, because no such tool is offered: {', '.join(draft.missing)}."
    return _reply({"type": TOOL_CALLS, "reasoning": reasoning, "calls": draft.calls})


def _reply(arguments: dict[str, Any]) -> Completion:
    return Completion(tool_calls=(ToolCallRequest(PLANNING_TOOL_NAME, arguments),), cost_usd=FREE)


def _direct_answer(ask: Ask, draft: _Draft) -> str:
    if draft.missing:
        wanted = ", ".join(capped(name, 130) for name in draft.missing)
        opening = f"I understood what you ask for, but it needs tools that are not offered here: {wanted}."
    else:
        heard = capped(" ".join(ask.input[:400].split()), 120)
        opening = f"Hello! I read “{heard}”, but found no command in it that my rules know, so I ran nothing."
    return f"{opening}\n\n{help_text(draft.offered)}\n\n{SIGNATURE}"


def _add_search(draft: _Draft, command: Search) -> None:
    index = draft.add("knowledge_search", {"query": escaped(command.query)})
    if index is not None:
        draft.sources.append(_Source(command.query, f"${index}.output.text"))


def _add_sum(draft: _Draft, command: Calculate) -> None:
    earlier = None if draft.last_sum is None else f"({{{{ ${draft.last_sum}.output.result }}}})"
    # Without an earlier calculation the word stays, and the tool says what is wrong with the expression.
    expression = "".join((earlier or "it") if part is None else escaped(part) for part in command.parts)
    index = draft.add("calculate", {"expression": expression})
    if index is not None:
        shown = "".join("the result" if part is None else part for part in command.parts)
        draft.sources.append(_Source(shown, f"{expression} = {{{{ ${index}.output.result }}}}"))
        draft.last_sum = index


def _add_fetch(draft: _Draft, command: Fetch) -> None:
    index = draft.add("http_fetch", {"url": escaped(command.url)})
    if index is not None:
        draft.sources.append(_Source(command.url, f"${index}.output.text"))


def _add_now(draft: _Draft, _command: Now) -> None:
    index = draft.add("now", {})
    if index is not None:
        draft.sources.append(_Source("Time", f"${index}.output.iso"))


def _add_wait(draft: _Draft, command: Wait) -> None:
    whole = command.seconds.is_integer()
    draft.add("wait", {"seconds": int(command.seconds) if whole else command.seconds})


def _add_report(draft: _Draft, command: Report) -> None:
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
    sections = [
        {"heading": escaped(capped(each.heading, MAX_HEADING_CHARS)), "content": each.content} for each in sources
    ]
    title = command.title or command.about or f"Report on {' and '.join(each.heading for each in sources)}"
    draft.add("write_report", {"title": escaped(capped(title, MAX_HEADING_CHARS)), "sections": sections})


def _add_call(draft: _Draft, command: Call) -> None:
    # Arguments given as JSON are the user's own plan: references in them are meant. Input data is not.
    draft.add(command.tool, {name: _filled(value, draft.data) for name, value in command.arguments.items()})


_WITH = re.compile(r"\{\{\s*with\.(\w{1,100})\s*\}\}")


def _filled(value: Any, data: Mapping[str, Any]) -> Any:
    """Return arguments with input data in the place of each `{{ with.NAME }}`: as a value where it stands alone.

    What is inserted is escaped, so that it is nothing but text; a name that the data does not have is left as it is.
    """
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
    # What stands beside the data may make a reference of it: then none of it is one.
    return filled if [one.template for one in find_references(filled)] == meant else escaped(filled)


def _as_text(value: Any) -> Any:
    """Return a value whose strings the reference grammar takes as plain text."""
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


_ADDERS: dict[type[Command], Callable[[_Draft, Any], None]] = {
    Search: _add_search,
    Calculate: _add_sum,
    Fetch: _add_fetch,
    Now: _add_now,
    Wait: _add_wait,
    Report: _add_report,
    Call: _add_call,
}
