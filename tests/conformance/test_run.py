"""Conformance of the whole strategy (operation `run`): the real engine on a database and in memory, with scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from planq import testing
from planq.shared.agentic.models.exchange import Findings, ToolCallRequest
from planq.shared.agentic.plan.errors import format_plan_errors
from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.states import Effect
from planq.shared.platform.database import Database
from planq.shared.platform.errors import InternalFault, ToolFailed, Transient
from planq.testing import run_job
from tests.conformance.cases import Case, load, mismatches, params
from tests.support.harness import Harness, ScriptedModel

CASES = [case for case in load("plan_execute_respond") if case.op == "run"]

ANYTHING = {"type": "object"}


class CaseTool:
    """A tool of a case: answers with its structured output or fails with its error, and remembers its calls."""

    def __init__(self, name: str, behaviour: Mapping[str, Any] | None, schemas: Mapping[str, Any]) -> None:
        # A case without schemas says nothing of outputs; `unsafe` keeps the order of the sequence.
        declared = schemas.get(name) or {"type": "object", "additionalProperties": True}
        self.definition = ToolDefinition(
            name=name, input_schema=ANYTHING, output_schema=declared, effect=Effect.UNSAFE, source="case"
        )
        self._behaviour = behaviour
        self.executed: list[str] = []

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        self.executed.append(self.definition.name)
        if self._behaviour is None:
            raise InternalFault("the tool is not there")
        if "error" in self._behaviour:
            raise ToolFailed(self._behaviour["error"])
        return self._behaviour["ok"]


def script(given: Mapping[str, Any]) -> ScriptedModel:
    response = given.get("response")
    answered: Any = Transient("the model failed") if isinstance(response, Mapping) else response or "unused"
    if "plan_error" in given:
        return ScriptedModel(Transient(given["plan_error"]), answered)
    plan = given["plan"]
    if plan["type"] == "direct_response":
        return ScriptedModel(plan["content"], answered)
    return ScriptedModel([ToolCallRequest("__planning__", plan)], answered)


def tools_of(given: Mapping[str, Any]) -> list[CaseTool]:
    """The tools that a case lists; others in its plan are unknown (docs/decisions.md, D4)."""
    listed = dict(given.get("tools", {}))
    return [CaseTool(name, behaviour, given.get("tool_schemas") or {}) for name, behaviour in listed.items()]


async def run_case(database_url: str, given: Mapping[str, Any]) -> dict[str, Any]:
    database = Database(database_url, max_connections=2)
    await database.open()
    try:
        tools, model = tools_of(given), script(given)
        harness = Harness(database, model, tools)
        await harness.open()
        job, steps = await harness.run()
    finally:
        await database.close()
    return told(job, steps, model)


def run_in_memory(given: Mapping[str, Any]) -> dict[str, Any]:
    """Carry a case out by `planq.testing`, without a database."""
    model = script(given)
    run = run_job("do it", tools=tools_of(given), model=testing.ScriptedModel(model.planned, model.answered))
    job = {"answer": run.answer, "error": run.error, "model_calls": len(run.model.asked)}
    return told(job, run.steps, run.model)


def told(job: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], model: Any) -> dict[str, Any]:
    executed = [step for step in steps if step["status"] in ("succeeded", "failed")]
    found = next((asked for _, asked in model.asked if isinstance(asked, Findings)), Findings())
    summary = format_plan_errors(found.plan_errors) if found.plan_errors else ""
    return {
        "text": job["answer"],
        "error": (job["error"] or {}).get("message", ""),
        "executed": [step["tool_name"] for step in executed],
        "ai_calls": job["model_calls"],
        "tool_calls_returned": len(steps),
        "tool_results_returned": len(executed),
        "summary": summary,
    }


@pytest.mark.parametrize("case", params(CASES))
def test_run(case: Case, database_url: str) -> None:
    check(case, asyncio.run(run_case(database_url, case.input)))


@pytest.mark.parametrize("case", params(CASES))
def test_run_in_memory(case: Case) -> None:
    check(case, run_in_memory(case.input))


def check(case: Case, actual: Mapping[str, Any]) -> None:
    expected = dict(case.winner.expected)
    starts = expected.pop("summary_starts_with", "")
    lines = expected.pop("summary_line_count", None)

    assert actual["summary"].startswith(starts)
    if lines is not None:
        # Unknown tools are reported beside the references (docs/decisions.md, D4): more lines, never fewer.
        assert len(actual["summary"].splitlines()) >= lines
    assert mismatches(expected, actual) == []
