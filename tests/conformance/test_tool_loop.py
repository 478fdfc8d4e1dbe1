"""Conformance of the reactive tool loop (`inbound_flow`, `tool_loop`): the real engine, on a database and in memory.

Reflection belongs to conversations, which are not there: `reflected` is not compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from planq import testing
from planq.shared.agentic.models.exchange import ToolCallRequest
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.states import Strategy
from planq.shared.platform.database import Database
from tests.conformance.cases import Case, load, mismatches, params
from tests.conformance.overrides import expectation
from tests.conformance.test_run import CaseTool
from tests.conformance.tool_loop_overrides import played
from tests.support.harness import Harness, ScriptedModel

CASES = [case for case in load("inbound_flow") if case.op == "tool_loop"]
_STEPS = b'SELECT * FROM steps WHERE job_id = %s ORDER BY "index"'


def script(given: Mapping[str, Any], turns_made: int) -> ScriptedModel:
    """Return the model of a case; where a rule ends the loop, it answers with what it would have said next."""
    turns = [
        [ToolCallRequest(name, {}, f"call_{number}") for number, name in enumerate(said["tool_calls"])]
        or said["text"]
        for said in given["llm"]
    ]
    answered = given["llm"][min(turns_made, len(turns) - 1)]["text"]
    return ScriptedModel(turns=turns, answered=answered)


async def run_case(database_url: str, case: Case) -> dict[str, Any]:
    given = case.input
    database = Database(database_url, max_connections=2)
    await database.open()
    try:
        model = script(given, played(case).turns)
        harness = Harness(database, model, [CaseTool(name, told, {}) for name, told in given["tools"].items()])
        await harness.open()
        limits = Limits(max_tool_steps=given["max_tool_steps"])
        job, _ = await harness.run(strategy=Strategy.REACT, limits=limits)
        async with database.connection() as connection:
            steps = await (await connection.execute(_STEPS, [job["id"]])).fetchall()
    finally:
        await database.close()
    return told(job, steps, model.told[-1][0])


def run_in_memory(case: Case) -> dict[str, Any]:
    """Carry a case out by `planq.testing`, without a database."""
    given = case.input
    scripted = script(given, played(case).turns)
    model = testing.ScriptedModel(turns=scripted.turns, answered=scripted.answered)
    tools = [CaseTool(name, behaviour, {}) for name, behaviour in given["tools"].items()]
    limits = {"max_tool_steps": given["max_tool_steps"]}
    run = testing.run_job("do it", strategy="react", tools=tools, model=model, limits=limits)
    shown = {name: getattr(run, name) for name in ("status", "stop_reason", "answer")}
    return told({**shown, "model_calls": len(model.asked)}, run.steps, model.asked[-1][1])


def told(job: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], transcript: Any) -> dict[str, Any]:
    # As a plan and a task (docs/decisions.md, D31).
    status = "failed" if job["stop_reason"] == "max_tool_steps" else job["status"]
    return {
        "llm_calls": job["model_calls"],
        "tool_calls_executed": sum(step["status"] == "succeeded" for step in steps),
        "execution_results": [_result(step) for step in steps],
        "tool_messages": sum(message.role == "tool" for message in transcript),
        "response_text": job["answer"],
        "plan_status": status,
        "task_status": status,
    }


def _result(step: Mapping[str, Any]) -> dict[str, Any]:
    told = {"step_number": step["round"] + 1, "tool_name": step["tool_name"]}
    if step["status"] == "succeeded":
        return {**told, "status": "success", "result": step["output"]}
    return {**told, "status": "failure", "error": step["error"]["message"]}


@pytest.mark.parametrize("case", params(CASES))
def test_tool_loop(case: Case, database_url: str) -> None:
    check(case, asyncio.run(run_case(database_url, case)))


@pytest.mark.parametrize("case", params(CASES))
def test_tool_loop_in_memory(case: Case) -> None:
    check(case, run_in_memory(case))


def check(case: Case, actual: Mapping[str, Any]) -> None:
    expected, used = expectation(case)
    compared = {key: value for key, value in expected.items() if key != "reflected"}

    by = "; ".join(f"D{rule.decision}: {rule.name}" for rule in used) or "the case itself"
    assert mismatches(compared, actual) == [], f"expected by {by}"
