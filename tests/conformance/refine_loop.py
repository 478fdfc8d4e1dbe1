"""What the operations of the refine loop's cases are in planq: the suites `agently_plan` and `duplicate_guard`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from planq.shared.agentic.models.exchange import ToolCallRequest, TurnForm
from planq.shared.agentic.plan.document import Call, Plan
from planq.shared.agentic.plan.forms import ReadPlan, is_without_steps, read_any_form
from planq.shared.agentic.plan.interpret import Direct, MalformedPlan
from planq.shared.agentic.references.resolution import resolve
from planq.shared.agentic.rounds.block import parse_block
from planq.shared.agentic.rounds.compile import CompiledRound, compile_round
from planq.shared.agentic.rounds.guard import (
    DUPLICATE_CALL_BLOCKED,
    MODEL_SOURCE,
    GuardLimits,
    call_key,
    canonical_arguments,
    judged,
    past_calls,
)
from planq.shared.agentic.rounds.reading import TurnCalls, TurnQuestion, interpret_turn
from planq.shared.agentic.rounds.transcript import transcript
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.agentic.tools.policy import Permission, rule_of
from planq.shared.kernel.claims import StepClaim
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.questions import FailStep, QuestionAnswer, SucceedStep, after_answer
from planq.shared.kernel.retry import Phase, RetryTerms, RunAgain, after_error
from planq.shared.kernel.states import (
    Effect,
    QuestionKind,
    QuestionStatus,
    StepKind,
    StepStatus,
)
from planq.shared.kernel.steps import RoundRecord, StepResult
from planq.shared.platform.errors import ErrorRecord, Transient
from planq.shared.subjects.questions.answering import action_of

Answer = Any
Adapter = Callable[[Any], Answer]


def output_of(text: str) -> Any:
    """Return the output of a tool that prints this: what it says as JSON, else the text as planq wraps it."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"text": text}


def past(results: Sequence[Mapping[str, Any]]) -> list[RoundRecord]:
    """Return one round whose steps had these results."""
    found = [
        StepResult(
            tool_name=item.get("name", item.get("tool")),
            arguments=item.get("args") or {},
            output=None if item.get("error") else output_of(item.get("result", "")),
            error=item.get("error"),
            index=index,
            code=item.get("error") and str(item["error"]),
        )
        for index, item in enumerate(results)
    ]
    return [RoundRecord(0, MODEL_SOURCE, None, None, 0, found)]


def plan_predicates(given: Mapping[str, Any]) -> Answer:
    plan = given["plan"] or {"steps": []}
    read = read_any_form(plan, from_model=True)
    calls = read.plan.calls if isinstance(read, ReadPlan) else []
    return {
        "is_empty": is_without_steps(plan),
        "is_refined": len(calls) > 1 or any(call.kind is None for call in calls),
    }


def parse_answer(given: Mapping[str, Any]) -> Answer:
    native = [ToolCallRequest(call["name"], call["arguments"]) for call in given.get("native_tool_calls") or ()]
    turn = interpret_turn(given["text"], native, TurnForm.LOOP)
    if isinstance(turn, MalformedPlan):
        return {"error": True}
    if isinstance(turn, Direct):
        return {"steps": [], "elicitation": None, "answer": turn.content}
    if isinstance(turn, TurnQuestion):
        schema = {"requestedSchema": dict(turn.schema)} if turn.schema else {}
        return {"steps": [], "elicitation": {"message": turn.message} | schema}
    calls = turn.plan.calls if isinstance(turn, TurnCalls) else []
    reasoning = turn.plan.reasoning if isinstance(turn, TurnCalls) else None
    return {"steps": [_step(call, reasoning) for call in calls], "elicitation": None}


def _step(call: Call, reasoning: str | None) -> dict[str, Any]:
    """Return a call as a step of the original's plans."""
    if call.kind is not None:
        return {"type": call.kind}
    step = {"type": "tool", "name": call.tool_name, "args": call.arguments}
    reason = call.reason or reasoning
    return step | ({"reason": reason} if reason else {})


def refine(given: Mapping[str, Any]) -> Answer:
    found = _compiled(given["steps"], given["prior"])
    kept = [
        step
        for step, compiled in zip(given["steps"], found.steps, strict=False)
        if compiled.known is None or compiled.known.status is StepStatus.SUCCEEDED
    ]
    return {"steps": kept}


def _compiled(steps: Sequence[Mapping[str, Any]], prior: Sequence[Mapping[str, Any]] = ()) -> CompiledRound:
    read = read_any_form({"steps": list(steps)}, from_model=True)
    assert isinstance(read, ReadPlan)
    tools = {call.tool_name: ToolDefinition(name=call.tool_name) for call in read.plan.calls if call.kind is None}
    return compile_round(read.plan, tools, past(prior), base=len(prior), max_steps=len(steps))


def placeholders(given: Mapping[str, Any]) -> Answer:
    outputs = dict(enumerate(map(output_of, given["results"])))
    return {"args": resolve(given["args"], outputs).arguments}


def validate_args(given: Mapping[str, Any]) -> Answer:
    schema = {"type": "object", "properties": given["properties"], "required": given["required"]}
    plan = Plan(calls=[Call(tool_name="t", arguments=given["args"])])
    found = compile_round(plan, {"t": ToolDefinition(name="t", input_schema=schema)}, [], base=0, max_steps=1)
    names = [name for one in found.missing for name in one.names]
    return {"args": dict(found.steps[0].arguments), "missing": names}


def policy(given: Mapping[str, Any]) -> Answer:
    tools = {"block": given.get("block") or []} | ({"allow": given["allow"]} if given.get("allow") else {})
    block = parse_block({"tools": tools})
    permission = rule_of(given["tool"], [{"*": given["mode"]}]).permission
    return {"allowed": permission is not Permission.DENY and block.tool_names([given["tool"]]) == [given["tool"]]}


def retries(given: Mapping[str, Any]) -> Answer:
    """Take each outcome for that of one attempt at a read, every error for one that may pass."""
    for number, outcome in enumerate(given["outcomes"], 1):
        if "ok" in outcome:
            return {"attempts": number, "result": outcome["ok"]}
        error = ErrorRecord.of(Transient(outcome["error"]))
        decided = after_error(_attempt(number, given["retries"]), error, phase=Phase.CALLING, jitter=0.0)
        if not isinstance(decided, RunAgain):
            return {"attempts": number, "error": outcome["error"]}
        assert decided.delay >= timedelta(0)
    raise AssertionError("the case has fewer outcomes than attempts")


def _attempt(number: int, retries: int) -> StepClaim:
    ref = StepRef(UUID(int=1), 0, 0)
    limits = {"attempt": number, "tries": number, "worker_losses": 0, "timeout_seconds": 1.0}
    limits["retry"] = RetryTerms(retries=retries)
    call = {"tool_name": "t", "effect": Effect.READ, "arguments": {}, "outputs": {}}
    return StepClaim(ref=ref, tenant_id="default", **call, **limits)  # type: ignore[arg-type]


_ACTIONS = {
    QuestionStatus.ACCEPTED: ("accept", "accepted"),
    QuestionStatus.DECLINED: ("decline", "rejected"),
    QuestionStatus.CANCELLED: ("cancel", "cancel"),
}
"""What the original calls an action, and its outcome."""


def normalize_action(given: Mapping[str, Any]) -> Answer:
    return {"action": _ACTIONS[action_of(given["action"])][0]}


def resolve_question(given: Mapping[str, Any]) -> Answer:
    """Answer a question that is a step, and say what the planner of the next round reads."""
    status = action_of(given["action"])
    content = given.get("payload", {}) if status is QuestionStatus.ACCEPTED else None
    after = after_answer(QuestionAnswer(QuestionKind.FORM, status, content, given.get("reason")), StepKind.QUESTION)
    assert isinstance(after, SucceedStep | FailStep)
    result = StepResult("elicitation", {"message": "?"})
    if isinstance(after, SucceedStep):
        result = replace(result, output=after.output)
    else:
        result = replace(result, error=after.error.message, code=after.error.code)
    body = {"calls": [{"kind": "elicitation", "tool_name": "elicitation", "arguments": {}, "message": "?"}]}
    told = transcript([RoundRecord(0, MODEL_SOURCE, body, None, 0, [result])], max_tokens=2_000, form=TurnForm.LOOP)
    return {"status": _ACTIONS[status][1], "user_message": "\n".join(message.content for message in told)}


def sequence(given: Mapping[str, Any]) -> Answer:
    history = past_calls(past(given["prior"]), {})
    verdicts = judged([(call["tool"], call["args"]) for call in given["calls"]], history, GuardLimits())
    return {"blocked": [number for number, verdict in enumerate(verdicts) if verdict.is_blocked]}


def key(given: Mapping[str, Any]) -> Answer:
    one, other = (call_key(given[name]["tool"], given[name]["args"]) for name in ("a", "b"))
    return {"same": one == other}


def blocked_result(given: Mapping[str, Any]) -> Answer:
    call, results = given["call"], given["results"]
    history = past_calls(past(results), {})
    verdict = judged([(call["name"], call["args"])], history, GuardLimits())[0]
    assert verdict.is_blocked
    shown = "" if verdict.output_of is None else results[verdict.output_of]["result"]
    return {**call, "error": DUPLICATE_CALL_BLOCKED, "result": shown}


REFINE_LOOP: dict[str, dict[str, Adapter]] = {
    "agently_plan": {
        "plan_predicates": plan_predicates,
        "elicitation_empty": lambda given: {
            "is_empty": is_without_steps({"steps": [], "elicitation": given["elicitation"]})
        },
        "parse_answer": parse_answer,
        "refine": refine,
        "placeholders": placeholders,
        "validate_args": validate_args,
        "policy": policy,
        "retries": retries,
        "normalize_action": normalize_action,
        "resolve_elicitation": resolve_question,
    },
    "duplicate_guard": {
        "sequence": sequence,
        "key": key,
        "canonical": lambda given: {"text": canonical_arguments(given["args"])},
        "blocked_result": blocked_result,
    },
}
