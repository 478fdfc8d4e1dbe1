"""A model request in planq's own form, as `ModelCall.exchange` keeps it and cassettes compare it.

PLAN is the conversation, the planning rules and one forced tool. RESPOND is the conversation and a message with the
findings and the task. A turn of `loop` or `react` is the conversation, its rules, the transcript, and the tools.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from planq.shared.agentic.models.call_settings import CallSettings
from planq.shared.agentic.models.exchange import (
    Ask,
    ChatMessage,
    Findings,
    Repair,
    ToolCallRequest,
    TurnForm,
    TurnPrompt,
)
from planq.shared.agentic.plan.errors import format_plan_errors
from planq.shared.agentic.plan.interpret import PLANNING_TOOL_NAME, planning_tool
from planq.shared.agentic.results.texts import format_summary
from planq.shared.agentic.rounds.block import rendered_prompt
from planq.shared.agentic.rounds.reading import loop_tool
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.agentic.turns.speakers import as_said
from planq.shared.kernel.steps import StepResult
from planq.shared.kernel.usage import Purpose
from planq.shared.platform.errors import capped
from planq.shared.platform.values.encoding import indented
from planq.shared.platform.values.preview import fair_share
from planq.worker.models.identity_cache import IdentityCache
from planq.worker.models.prompts import REFERENCE, fenced_data, render_prompt

_MAX_UNKNOWN_CHARS = 2_000


OfferedForm = Mapping[str, Any]
"""`{name, description, parameters}`."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One question to a model: `system` texts first, then `messages`, oldest first.

    `tool` is an `OfferedForm` and must be called when present. `tools` are offered in the same form,
    and the model may call several of them or none. There are never both; without either no tool is offered.
    The first `known` messages were in an earlier request of the same job.
    With `continues` a later request of the job probably begins with this one, so that a prompt cache pays.
    `names` are those of the tools that a reply may call, also where they are part of the forced `tool`.
    `answer_schema` is what the reply's text must satisfy; a provider without a means for it is sent `in_words()`.
    `as_turn` asks the same as one more turn, for a provider that has the turns before in its prompt cache.
    """

    purpose: Purpose
    system: Sequence[str]
    messages: Sequence[ChatMessage]
    tool: OfferedForm | None = None
    tools: Sequence[OfferedForm] = ()
    answer_schema: Mapping[str, Any] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    settings: CallSettings | None = None
    known: int = 0
    continues: bool = False
    names: Sequence[str] = ()
    as_turn: ModelRequest | None = None

    @property
    def offered(self) -> Sequence[OfferedForm]:
        return self.tools if self.tool is None else (self.tool,)

    def to_json(self) -> dict[str, Any]:
        """Return the form that exchanges and cassettes hold; unset fields are left out."""
        system = [{"role": "system", "content": text} for text in self.system]
        messages = [_message_json(message) for message in self.messages]
        tools = [dict(tool) for tool in self.offered]
        form: dict[str, Any] = {"purpose": self.purpose.value, "messages": system + messages, "tools": tools}
        asked = {
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "answer_schema": self.answer_schema,
            "settings": None if self.settings is None else self.settings.model_dump(exclude_none=True) or None,
        }
        return form | {key: value for key, value in asked.items() if value is not None}

    def to_keep(self) -> dict[str, Any]:
        """Return the form for a call's record: of a later turn only what is new."""
        form = replace(self, messages=self.messages[self.known :]).to_json()
        if not self.known:
            return form
        form["tools"] = [{"name": tool["name"]} for tool in form["tools"]]
        return {**form, "earlier_messages": self.known}

    def in_words(self) -> ModelRequest:
        """Return the same request with the answer's schema among the instructions."""
        if self.answer_schema is None:
            return self
        form = _answer_form(self.answer_schema)
        system = self.system if form in self.system else [*self.system, form]
        return replace(self, system=system, answer_schema=None)

    def with_tools_in_words(self) -> ModelRequest:
        """Return the same request with its tools among the instructions, and earlier calls of tools as texts."""
        if not self.offered:
            return self
        listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in self.offered)
        name = "react" if self.tool is None else "forced"
        words = render_prompt(f"tools_{name}", tools=fenced_data(listed))
        messages = [_in_words(message) for message in self.messages]
        return replace(self, system=[*self.system, words], messages=messages, tool=None, tools=())


def has_artifacts(request: ModelRequest) -> bool:
    return any(part.artifact_id is not None for message in request.messages for part in message.parts)


def without_artifacts(request: ModelRequest) -> ModelRequest:
    own = [[part for part in message.parts if part.artifact_id is None] for message in request.messages]
    messages = [replace(message, parts=parts) for message, parts in zip(request.messages, own, strict=True)]
    turn = None if request.as_turn is None else without_artifacts(request.as_turn)
    return replace(request, messages=messages, as_turn=turn)


def _in_words(message: ChatMessage) -> ChatMessage:
    if message.role == "tool":
        return ChatMessage("user", f"Result of {message.name}:\n{fenced_data(message.content)}", parts=message.parts)
    if not message.tool_calls:
        return message
    calls = [
        json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False, default=str)
        for call in message.tool_calls
    ]
    texts = [message.content, *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)]
    return ChatMessage("assistant", "\n".join(text for text in texts if text.strip()))


def _message_json(message: ChatMessage) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        shown["tool_calls"] = [
            {
                "id": call.id,
                "name": call.name,
                "arguments": raw if isinstance(raw := call.arguments, str) else dict(raw),
            }
            for call in message.tool_calls
        ]
    if message.call_id:
        shown |= {"tool_call_id": message.call_id, "name": message.name}
    if message.parts:
        shown["parts"] = [part.to_json() for part in message.parts]
    return shown


_planning_tool: IdentityCache[Sequence[ToolDefinition], dict[str, Any]] = IdentityCache(
    planning_tool, parts=lambda tools: tools
)
"""The forced tool over the same tools, made once: it takes as long as the rest of the request."""


_loop_tool: IdentityCache[Sequence[ToolDefinition], dict[str, Any]] = IdentityCache(
    loop_tool, parts=lambda tools: tools
)


def _offered(tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    return [{"name": tool.name, "description": tool.description, "parameters": tool.input_schema} for tool in tools]


_offered_tools: IdentityCache[Sequence[ToolDefinition], list[dict[str, Any]]] = IdentityCache(
    _offered, parts=lambda tools: tools
)


def plan_request(ask: Ask, tools: Sequence[ToolDefinition]) -> ModelRequest:
    """Return the PLAN stage's request: the conversation, with `__planning__` over `tools` as the forced tool."""
    system, messages = _conversation(ask)
    rules = [render_prompt("plan", reference=REFERENCE)]
    if ask.answer_schema is not None:
        # Only a direct answer must satisfy it, and no provider can express that of a part of a tool's arguments.
        rules.append(_answer_form(ask.answer_schema))
    request = _request(ask, Purpose.PLAN, [*system, *rules, *_insights(ask)], messages)
    return replace(request, tool=_planning_tool(tools), names=_names(tools))


def guide_request(ask: Ask, tools: Sequence[ToolDefinition]) -> ModelRequest:
    """Return the request for a guide: the conversation, and `tools` by name and description as data."""
    system, messages = _conversation(ask)
    listed = tool_lines(tools) or "No tools available"
    rules = render_prompt("guide", tools=fenced_data(listed))
    return _request(ask, Purpose.PLAN, [*system, rules, *_insights(ask)], messages)


def turn_request(
    ask: Ask, tools: Sequence[ToolDefinition], transcript: Sequence[ChatMessage], form: TurnForm
) -> ModelRequest:
    """Return the request of a turn; `transcript` is what was done after `ask.input`.

    The last answer has no tools, and its transcript is data in a text: some providers refuse tool calls in a
    conversation without tools. With the earlier turns' `tools`, `as_turn` is set, too.
    """
    if form is TurnForm.ANSWER:
        last = _last_request(ask, transcript)
        # A schema of the answer, and a caller's own prompt, cannot be combined with tools.
        if not tools or not transcript or ask.answer_schema is not None or ask.prompt is not None:
            return last
        is_loop = any(call.name == PLANNING_TOOL_NAME for message in transcript for call in message.tool_calls)
        ending = ChatMessage("user", render_prompt("last_turn"))
        turn = turn_request(ask, tools, [*transcript, ending], TurnForm.LOOP if is_loop else TurnForm.REACT)
        return replace(last, as_turn=replace(turn, purpose=Purpose.RESPOND))
    system, messages = _conversation(ask)
    forced = form is TurnForm.LOOP
    own = render_prompt("loop", reference=REFERENCE) if forced else render_prompt("react")
    rules = [own if ask.prompt is None else turn_prompt(ask, ask.prompt, tools, transcript)]
    if ask.answer_schema is not None:
        # Only an answer must satisfy it, and no provider can express that together with tools.
        rules.append(_answer_form(ask.answer_schema))
    # What differs from job to job comes last: prompt caches compare from the beginning.
    if ask.guide:
        rules.append(render_prompt("guided", guide=fenced_data(ask.guide)))
    rules += _insights(ask)
    return replace(
        _request(ask, Purpose.PLAN, [*system, *rules], [*messages, *transcript]),
        tool=_loop_tool(tools) if forced else None,
        tools=() if forced else _offered_tools(tools),
        known=_known(messages, transcript),
        continues=True,
        names=_names(tools),
    )


def _names(tools: Sequence[ToolDefinition]) -> tuple[str, ...]:
    return (PLANNING_TOOL_NAME, *(tool.name for tool in tools))


def _insights(ask: Ask) -> list[str]:
    return [render_prompt("insights", insights=fenced_data(ask.insights))] if ask.insights else []


def _known(messages: Sequence[ChatMessage], transcript: Sequence[ChatMessage]) -> int:
    replies = [number for number, message in enumerate(transcript) if message.role == "assistant"]
    return len(messages) + replies[-1] if replies else 0


def _last_request(ask: Ask, transcript: Sequence[ChatMessage]) -> ModelRequest:
    system, messages = _conversation(ask)
    findings = fenced_data(_as_text(transcript) or "Nothing was done.")
    parts = [part for message in transcript for part in message.parts]
    messages.append(ChatMessage("user", render_prompt("last_answer", findings=findings), parts=parts))
    return _answer_request(ask, system, messages)


def going_on(request: ModelRequest, begun: str, most: int | None = None) -> ModelRequest:
    """Return the request for the rest of a text that was cut off, of at most `most` tokens."""
    messages = [ChatMessage("assistant", begun), ChatMessage("user", render_prompt("go_on"))]
    limits = [limit for limit in (request.max_tokens, most) if limit is not None]
    max_tokens = min(limits) if limits else None
    return replace(request, messages=[*request.messages, *messages], max_tokens=max_tokens, as_turn=None)


def _as_text(transcript: Sequence[ChatMessage]) -> str:
    parts = []
    for message in transcript:
        if message.role == "tool":
            of = "" if message.name == PLANNING_TOOL_NAME else f" of {message.name}"
            parts.append(f"Result{of}: {message.content}")
        elif message.content.strip():
            parts.append(message.content)
        for name, raw in chain.from_iterable(map(_calls_in, message.tool_calls)):
            arguments = raw if isinstance(raw, str) else json.dumps(raw, ensure_ascii=False, default=str)
            parts.append(f"Call of {name}: {arguments}")
    return "\n\n".join(parts)


def _calls_in(call: ToolCallRequest) -> list[tuple[str, Any]]:
    """Return the names and arguments of the calls that a call means: those of its plan where it is `__planning__`."""
    planned = call.arguments.get("calls") if isinstance(call.arguments, Mapping) else None
    if call.name != PLANNING_TOOL_NAME or not isinstance(planned, list):
        return [(call.name, call.arguments)]
    return [(str(one.get("tool_name")), one.get("arguments")) for one in planned if isinstance(one, Mapping)]


def respond_request(ask: Ask, findings: Findings, max_chars: int) -> ModelRequest:
    """Return the RESPOND request from `plan_errors` or `results`, the longest of which are cut to `max_chars`."""
    system, messages = _conversation(ask)
    shown = _findings_text(findings, max_chars)
    if shown is not None:
        messages.append(ChatMessage("user", shown))
    if findings.repair is not None:
        messages += _repair(findings.repair)
        if ask.answer_schema is not None:
            # In words too, for the server may have paid no heed to the schema.
            system.append(_answer_form(ask.answer_schema))
    return _answer_request(ask, system, messages)


def _answer_request(ask: Ask, system: Sequence[str], messages: Sequence[ChatMessage]) -> ModelRequest:
    return replace(_request(ask, Purpose.RESPOND, system, messages), answer_schema=ask.answer_schema)


def _request(ask: Ask, purpose: Purpose, system: Sequence[str], messages: Sequence[ChatMessage]) -> ModelRequest:
    return ModelRequest(
        purpose,
        system,
        messages,
        temperature=ask.temperature,
        max_tokens=ask.max_tokens,
        settings=ask.settings,
    )


def _findings_text(findings: Findings, max_chars: int) -> str | None:
    if findings.plan_errors:
        return render_prompt("respond_errors", findings=fenced_data(plan_errors_text(findings.plan_errors)))
    if findings.is_direct:
        return None
    return render_prompt(
        "respond_results", findings=fenced_data(format_summary(shortened(findings.results, max_chars)))
    )


def plan_errors_text(errors: Sequence[Mapping[str, Any]]) -> str:
    """Return the defects of a refused plan as lines; those of another version's form as JSON. Nothing raises."""
    try:
        return format_plan_errors(errors)
    except (KeyError, TypeError, AttributeError, ValueError):
        shown = json.dumps(list(errors), ensure_ascii=False, default=str)
        return f"Plan validation failed:\n- {capped(shown, _MAX_UNKNOWN_CHARS)}"


def _repair(repair: Repair) -> list[ChatMessage]:
    errors = "\n".join(f"- {error}" for error in repair.errors)
    request = ChatMessage("user", render_prompt("respond_repair", errors=fenced_data(errors)))
    return [ChatMessage("assistant", repair.raw), request] if repair.raw.strip() else [request]


def _answer_form(schema: Mapping[str, Any]) -> str:
    return render_prompt("answer_form", schema=json.dumps(schema, ensure_ascii=False, indent=2))


def shortened(results: Sequence[StepResult], max_chars: int) -> list[StepResult]:
    """Return the results with the longest outputs and texts cut, so that all together have about `max_chars`."""
    texts = [json.dumps(result.output, ensure_ascii=False, default=str) for result in results]
    contents = [result.content for result in results if result.content is not None]
    share = fair_share([len(text) for text in (*texts, *contents)], max_chars)
    return [
        replace(
            result,
            output={"shortened": capped(text, share)} if len(text) > share else result.output,
            content=None if result.content is None else capped(result.content, share),
        )
        for result, text in zip(results, texts, strict=True)
    ]


def _conversation(ask: Ask) -> tuple[list[str], list[ChatMessage]]:
    """Split the conversation; blank messages are left out, for some providers refuse them."""
    history = [message for message in ask.history if message.content.strip() or message.tool_calls]
    # System messages of the history move to the front: not every provider takes one in the middle.
    system = [text for text in [*_prompt_stack(ask), *ask.instructions] if text.strip()]
    system += [message.content for message in history if message.role == "system"]
    messages = [message for message in history if message.role != "system"]
    text = ask.input if ask.speaker is None else as_said(ask.input, ask.speaker)
    parts = [text] if ask.input.strip() or ask.data is None else []
    if ask.data is not None:
        parts.append(render_prompt("data", data=fenced_data(indented(ask.data))))
    return system, [*messages, ChatMessage("user", "\n\n".join(parts), parts=ask.parts)]


def _prompt_stack(ask: Ask) -> list[str]:
    people = [render_prompt("people")] if ask.speaker is not None or ask.tells_people else []
    if ask.tenant_prompt is None:
        return people
    return [render_prompt("guardrails"), render_prompt("global"), *people, ask.tenant_prompt]


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
