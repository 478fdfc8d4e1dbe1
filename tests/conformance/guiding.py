"""What operations on guides and prompts are in planq (`inbound_flow`), and where decisions override a case.

Everything is worked out from a case's input, so that cases nobody here has seen are judged the same way.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from pydantic_ai import exceptions as foreign

from planq.shared.agentic.models.circuit import Circuit
from planq.shared.agentic.models.exchange import Ask, Findings
from planq.shared.agentic.models.failure import error_class
from planq.shared.agentic.models.vocabulary import count_tokens
from planq.shared.agentic.plan.interpret import MalformedPlan
from planq.shared.agentic.rounds.guide import guide_text, read_guide
from planq.shared.agentic.turns.messages import Direction, HistoryMessage, MessageKind
from planq.shared.platform.errors import ExecutionFailed, InternalFault, ModelRefused, RateLimited
from planq.shared.subjects.conversations.rules import history_messages
from planq.worker.models.gateway import TryLimits
from planq.worker.models.prompts import render_prompt
from planq.worker.models.provider_errors import translated
from planq.worker.models.request import respond_request
from planq.worker.models.settings import ModelSettings
from tests.conformance.cases import Case
from tests.conformance.rule import Expected, Rule

Answer = Any
Adapter = Callable[[Any], Answer]


def parse_plan(given: Mapping[str, Any]) -> Answer:
    found = read_guide(given["text"], given["tools"])
    if isinstance(found, MalformedPlan):
        return {"ok": False, "error": found.errors[0]["error"]["message"]}
    steps = [{**step.to_json(), "tool_name": step.tool, "status": "pending"} for step in found.steps]
    for step in steps:
        del step["tool"]
    return {"ok": True, "steps": steps, "estimated_steps": found.estimated_steps, "complexity": found.complexity}


def plan_context(given: Mapping[str, Any]) -> Answer:
    # It stands in a text of its own among the system messages, which a provider joins by an empty line.
    return {"text": "\n\n" + guide_text(given["goal"], given["step_descriptions"])}


def build_messages(given: Mapping[str, Any]) -> Answer:
    lengths: dict[str, int] = {}
    rows = []
    for number, one in enumerate(given["history"]):
        text = one.get("text") or f"message {number}"
        lengths[text] = one.get("tokens") or count_tokens(text)
        direction = Direction.OUTBOUND if one["from"] == "bot" else Direction.INBOUND
        rows.append(HistoryMessage(number, MessageKind.MESSAGE, direction, text))
    budget = given.get("budget_tokens") or given.get("budget") or 2_000
    history = history_messages(rows[::-1], budget, lengths.__getitem__)
    ask = Ask("job-1", given["user"], "offline", tenant_prompt=given["tenant_prompt"] or "", history=history)
    messages = respond_request(ask, Findings(is_direct=True), 1_000).to_json()["messages"]
    named = {render_prompt("guardrails"): "guardrails", render_prompt("global"): "global"}
    layers = [named.get(message["content"], message["content"]) for message in messages]
    return {"layers": layers, "roles": [message["role"] for message in messages], "history_kept": len(history)}


def circuit(given: Mapping[str, Any]) -> Answer:
    found = Circuit(given["threshold"], given["recovery_s"])
    outcomes, states = [], []
    for job, event in enumerate(given["events"]):
        if found.admits(str(job), event["t"]):
            found.succeeded() if event["ok"] else found.failed(str(job), event["t"])
            outcomes.append("ok" if event["ok"] else "fail")
        else:
            outcomes.append("rejected")
        states.append(str(found.state))
    return {"outcomes": outcomes, "states": states}


def retry_delays(given: Mapping[str, Any]) -> Answer:
    settings = ModelSettings(
        max_attempts=given["max_retries"] + 1,
        backoff_base=given["initial"],
        backoff_cap=given["max"],
        retry_after_cap=given["max"],
    )
    failures, delays = list(given["failures"]), []

    async def attempt() -> None:
        if failures:
            told = failures.pop(0)
            wish = told["retry_after"]
            limited = RateLimited("later", None if wish is None else timedelta(seconds=wish))
            raise limited if told["retryable"] else ModelRefused("never")

    async def sleep(seconds: float) -> None:
        delays.append(seconds)

    try:
        asyncio.run(TryLimits(settings, sleep, lambda: 1.0).insist(attempt))
    except ExecutionFailed:
        return {"delays": delays, "raises": True}
    return {"delays": delays, "raises": False}


_RAISED: tuple[tuple[str, Callable[[str], Exception]], ...] = (
    (r"connection|timeout|network|dns|refused", lambda text: foreign.ModelConnectionError("m", text)),
    (
        r"rate limit|429|too many requests",
        lambda text: foreign.ModelRateLimitError("m", text, retry_after=_wish(text)),
    ),
    (r"40[13]|unauthorized|forbidden|auth", lambda text: foreign.ModelAuthenticationError("m", text)),
    (r"5\d\d", lambda text: foreign.ModelServerError("m", text)),
    (r"api|http", lambda text: foreign.UnexpectedModelBehavior(text)),
)
"""What the libraries of providers raise where such a message is all that is known; the first row that fits counts."""


def _wish(text: str) -> float | None:
    found = re.search(r"retry[_-]after[:\s]+(\d+)", text)
    return None if found is None else float(found[1])


def classify_error(given: Mapping[str, Any]) -> Answer:
    text = given["message"].lower()
    raised = next((make(text) for pattern, make in _RAISED if re.search(pattern, text)), None)
    error = InternalFault(text) if raised is None else translated(raised, secret="")
    wish = error.retry_after.total_seconds() if isinstance(error, RateLimited) and error.retry_after else None
    return {"category": str(error_class(error.code)), "retryable": error.retryable, "retry_after": wish}


GUIDING: dict[str, Adapter] = {
    "parse_plan": parse_plan,
    "plan_context": plan_context,
    "build_messages": build_messages,
    "circuit": circuit,
    "retry_delays": retry_delays,
    "classify_error": classify_error,
}


def _embedded(case: Case) -> Mapping[str, Any] | None:
    """Return the plan that stands in the middle of a text."""
    text, decoder = case.input["text"], json.JSONDecoder()
    for place in (at for at, char in enumerate(text) if char == "{"):
        try:
            found, _ = decoder.raw_decode(text, place)
        except ValueError:
            continue
        if isinstance(found, dict) and isinstance(found.get("steps"), list):
            return found
    return None


def _is_embedded(case: Case, expected: Expected) -> bool:
    is_unread = case.profile == "real" and not expected["ok"] and "json" in str(expected).lower()
    return is_unread and _embedded(case) is not None


def _read(case: Case, expected: Expected) -> Expected:
    plan = _embedded(case) or {}
    written = [step for step in plan["steps"] if "step_number" in step and "description" in step]
    if not written:
        return {"ok": False, "error_contains": "No valid steps"}
    steps = [
        {
            "step_number": step["step_number"],
            "description": step["description"],
            "tool_name": step.get("tool_name") if step.get("tool_name") in case.input["tools"] else None,
            "tool_arguments": step.get("tool_arguments") or {},
            "depends_on": step.get("depends_on") or [],
            "success_criteria": step.get("success_criteria", ""),
            "status": "pending",
        }
        for step in written
    ]
    return {"ok": True, "steps": steps, "estimated_steps": plan.get("estimated_steps", len(steps))}


def _too_long(case: Case) -> int | None:
    """Return which failure is the first that asks for a longer wait than the limit."""
    wishes = [one["retry_after"] if one["retryable"] else None for one in case.input["failures"]]
    return next((n for n, wish in enumerate(wishes) if wish is not None and wish > case.input["max"]), None)


GUIDE_RULES: tuple[Rule, ...] = (
    Rule("a plan in a text is a plan", 5, "parse_plan", _is_embedded, _read),
    Rule(
        "a longer wait than the limit ends the call",
        40,
        "retry_delays",
        lambda case, expected: case.profile == "real" and _too_long(case) is not None,
        lambda case, expected: {"delays": expected["delays"][: _too_long(case)], "raises": True},
    ),
    Rule(
        "a provider that fails may be there again",
        10,
        "classify_error",
        lambda case, expected: case.profile == "real" and re.search(r"http 5\d\d", case.input["message"]) is not None,
        lambda case, expected: {**expected, "category": "network", "retryable": True},
    ),
    Rule(
        "a reply that cannot be read may be whole the next time",
        62,
        "classify_error",
        lambda case, expected: case.profile == "real" and case.input["message"] == "API returned garbage",
        lambda case, expected: {**expected, "retryable": True},
    ),
    Rule(
        "the first probe that succeeds closes a circuit",
        62,
        "circuit",
        lambda case, expected: "half_open" in expected["states"],
        lambda case, expected: {
            **expected,
            "states": ["closed" if state == "half_open" else state for state in expected["states"]],
        },
    ),
    Rule(
        "the planning call goes to the job's model, where no other is configured",
        28,
        "planner_call",
        lambda case, expected: case.profile == "real",
        lambda case, expected: {**expected, "model": case.input["model"]},
    ),
)
