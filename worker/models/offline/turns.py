"""The turns of `loop` and `react` by the offline rules, derived from the transcript alone.

`loop` plans every call in its first round. `react` has no references, so a call that needs an output waits for the
next turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from planq.shared.agentic.models.exchange import Ask, ChatMessage, Findings, ToolCallRequest, TurnForm
from planq.shared.agentic.plan.errors import invalid_plan
from planq.shared.agentic.plan.interpret import DIRECT, PLANNING_TOOL_NAME, TOOL_CALLS
from planq.shared.agentic.references.grammar import find_references
from planq.shared.agentic.references.resolution import resolve
from planq.shared.agentic.rounds.guard import DUPLICATE_OF
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.steps import StepResult
from planq.shared.platform.errors import InvalidArguments
from planq.worker.models.completion import NO_COST, Completion
from planq.worker.models.offline.planner import Draft, answer_without_calls, draft_again, planning_reply
from planq.worker.models.offline.responder import answer_offline


def turn_offline(
    ask: Ask, tools: Sequence[ToolDefinition], transcript: Sequence[ChatMessage], form: TurnForm
) -> Completion:
    """Return the rules' next turn; it costs nothing."""
    seen = _TranscriptFacts.of(transcript)
    if form is TurnForm.ANSWER:
        return _answer(ask, seen)
    draft = draft_again(ask, tools)
    if form is TurnForm.LOOP:
        return _plan(ask, draft, seen)
    # After a summary of early calls the rules could not tell which ones they had made.
    calls = [] if seen.is_partial or seen.is_refused else list(_due(draft, seen))
    if calls:
        made = [
            ToolCallRequest(name, arguments, f"call_{number}")
            for number, (name, arguments) in enumerate(calls, start=len(seen.results))
        ]
        return Completion(tool_calls=made, cost_usd=NO_COST)
    if seen.results or seen.is_refused:
        return _answer(ask, seen)
    return Completion(text=answer_without_calls(ask, draft), cost_usd=NO_COST)


def _plan(ask: Ask, draft: Draft, seen: _TranscriptFacts) -> Completion:
    if seen.results or seen.is_partial or seen.is_refused:
        return planning_reply({"type": DIRECT, "content": _answer(ask, seen).text}, "plan_1")
    if not draft.calls:
        return planning_reply({"type": DIRECT, "content": answer_without_calls(ask, draft)}, "plan_0")
    calls = [{"number": number, **call} for number, call in enumerate(draft.calls)]
    return planning_reply({"type": TOOL_CALLS, "reasoning": draft.reasoning, "calls": calls}, "plan_0")


def _answer(ask: Ask, seen: _TranscriptFacts) -> Completion:
    results = [result for result in seen.results if result.code != DUPLICATE_OF]
    errors = () if results or not seen.is_refused else (invalid_plan(seen.refusal).to_json(),)
    return answer_offline(ask, Findings(results, plan_errors=errors))


@dataclass(frozen=True, slots=True)
class _TranscriptFacts:
    results: Sequence[StepResult]
    is_partial: bool = False
    refusal: str = ""

    @property
    def is_refused(self) -> bool:
        """True when the last reply was refused: the rules would only say it again."""
        return bool(self.refusal)

    @classmethod
    def of(cls, transcript: Sequence[ChatMessage]) -> _TranscriptFacts:
        calls = {call.id: call for message in transcript for call in message.tool_calls}
        results: list[StepResult] = []
        refusal = ""
        for message in transcript:
            call = calls.get(message.call_id)
            if message.role != "tool" or call is None:
                continue
            content = _decoded(message.content)
            refusal = _refusal(content)
            if refusal:
                continue
            results += _planned(call, message.content) if call.name == PLANNING_TOOL_NAME else _called(call, content)
        is_partial = any(message.role == "user" for message in transcript)
        return cls(results, is_partial, refusal)


def _decoded(content: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return content


def _refusal(content: Any) -> str:
    is_one = (
        isinstance(content, Mapping) and content.keys() == {"error", "message"} and content["error"] == "invalid_plan"
    )
    return str(content["message"]) if is_one else ""


def _called(call: ToolCallRequest, content: Any) -> Iterator[StepResult]:
    arguments = call.arguments if isinstance(call.arguments, Mapping) else {}
    if isinstance(content, Mapping) and content.get("error") == "not_carried_out":
        return
    if isinstance(content, Mapping) and content.get("status") in _STATUSES and {"error", "output"} & content.keys():
        yield _result(call.name, arguments, content)
        return
    yield StepResult(call.name, arguments, content)


_STATUSES = ("succeeded", "failed", "skipped", "blocked")


def _planned(call: ToolCallRequest, content: str) -> Iterator[StepResult]:
    planned = call.arguments.get("calls") if isinstance(call.arguments, Mapping) else None
    written = [one for one in planned if isinstance(one, Mapping)] if isinstance(planned, list) else []
    for line, made in zip_longest(content.splitlines(), written, fillvalue=None):
        entry = _decoded(line) if line is not None else None
        if isinstance(entry, Mapping):
            arguments = made.get("arguments") if made is not None else None
            yield _result(str(entry.get("tool")), arguments if isinstance(arguments, Mapping) else {}, entry)


def _result(tool_name: str, arguments: Mapping[str, Any], entry: Mapping[str, Any]) -> StepResult:
    shortened = entry.get("shortened_from_bytes")
    if entry.get("status") == "succeeded":
        content = entry.get("content")
        return StepResult(tool_name, arguments, entry.get("output"), shortened_from=shortened, content=content)
    code = str(entry.get("error"))
    return StepResult(tool_name, arguments, error=str(entry.get("message") or code), code=code)


def _due(draft: Draft, seen: _TranscriptFacts) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the calls that were not made yet and whose arguments are known, with these filled in."""
    made: dict[str, list[StepResult]] = {}
    for result in seen.results:
        made.setdefault(_key(result.tool_name, result.arguments), []).append(result)
    outputs: dict[int, Any] = {}
    for index, call in enumerate(draft.calls):
        needed = {one.reference.step for one in find_references(call["arguments"]) if one.reference is not None}
        if not needed <= outputs.keys():
            continue  # one that it needs is not made yet, or has failed
        try:
            arguments = resolve(call["arguments"], outputs).arguments
        except InvalidArguments:
            continue
        results = made.get(_key(call["tool_name"], arguments), [])
        if not results:
            yield call["tool_name"], arguments
            continue
        # The same call made twice is one: the second was not carried out, or had the same output.
        found = next((one for one in results if one.succeeded), None)
        if found is not None:
            outputs[index] = found.output


def _key(tool_name: str, arguments: Mapping[str, Any]) -> str:
    return f"{tool_name} {json.dumps(arguments, sort_keys=True, default=str)}"
