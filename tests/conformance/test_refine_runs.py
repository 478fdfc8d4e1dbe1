"""Conformance of the refine loop as a whole: operations `run_plan` and `loop`, on the real engine and database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from planq.shared.agentic.models.contract import CutOff
from planq.shared.agentic.models.exchange import Ask, ChatMessage, ModelReply, TurnForm
from planq.shared.agentic.plan.compile import ANSWER_SCHEMA
from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.states import Effect, StepKind, StepStatus, Strategy
from planq.shared.kernel.usage import ModelCall, Purpose
from planq.shared.platform.database import Database
from planq.shared.platform.errors import ToolFailed
from tests.conformance.cases import Case, load, mismatches, params
from tests.conformance.overrides import expectation
from tests.conformance.refine_loop import output_of
from tests.support.harness import Harness, ScriptedModel

OPERATIONS = ("run_plan", "loop")


CASES = [case for case in load("agently_plan") if case.op in OPERATIONS]


class PrintingTool:
    """A tool of a case: it prints texts one after the other, the last again and again, and notes its calls."""

    def __init__(self, name: str, outcomes: Sequence[Mapping[str, Any]], schema: Any, called: list[str]) -> None:
        self.definition = ToolDefinition(
            name=name,
            input_schema={"type": "object", **(schema or {})},
            output_schema={"type": "object", "additionalProperties": True},
            effect=Effect.UNSAFE,  # keeps the order of the sequence, and is called once
            source="case",
        )
        self._outcomes, self._called, self._number = outcomes, called, 0

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        outcome = self._outcomes[min(self._number, len(self._outcomes) - 1)]
        self._number += 1
        self._called.append(self.definition.name)
        if "error" in outcome:
            raise ToolFailed(outcome["error"])
        return output_of(outcome["ok"])


class InTurns(ScriptedModel):
    """A planner that says one thing after the other, whatever it is told."""

    async def turn(
        self,
        ask: Ask,
        tools: Sequence[ToolDefinition],
        transcript: Sequence[ChatMessage],
        form: TurnForm,
        *,
        cut_off: CutOff | None = None,
    ) -> ModelReply:
        assert form is TurnForm.LOOP
        self.told.append((transcript, form))
        return self._say(self.turns[len(self.told) - 1], _spent(ask))


def _spent(ask: Ask) -> ModelCall:
    return ModelCall(Purpose.PLAN, ask.model, 5, 11, 7)


def tools_of(given: Mapping[str, Any], called: list[str]) -> list[PrintingTool]:
    """The tools of a case; those of earlier results say these first."""
    outcomes: dict[str, list[Mapping[str, Any]]] = {}
    for result in given.get("results", ()):
        said = {"error": result["error"]} if "error" in result else {"ok": result["result"]}
        outcomes.setdefault(result["name"], []).append(said)
    for name, behaviour in given.get("tools", {}).items():
        outcomes.setdefault(name, []).extend(behaviour if isinstance(behaviour, list) else [behaviour])
    definitions = given.get("definitions") or {}
    return [PrintingTool(name, said, definitions.get(name), called) for name, said in outcomes.items()]


def turns_of(given: Mapping[str, Any]) -> list[str]:
    """What the planner says: earlier results are a round of their own; a plan that lacks arguments comes twice."""
    if "turns" in given:
        return [turn["answer"] if "answer" in turn else json.dumps(turn) for turn in given["turns"]] + ["the end"]
    plan = json.dumps(given["plan"])
    earlier = [{"type": "tool", "name": one["name"], "args": one["args"]} for one in given["results"]]
    lacking = [
        step
        for step in given["plan"]["steps"]
        if set((given.get("definitions") or {}).get(step.get("name"), {}).get("required", ()))
        - set(step.get("args", ()))
    ]
    return [*([json.dumps({"steps": earlier})] if earlier else []), plan, *([plan] if lacking else []), "the end"]


async def carried_out(database_url: str, given: Mapping[str, Any]) -> tuple[Any, list[Any], InTurns, list[str]]:
    """Run a case as a job of the strategy `loop`, over all that a plan of it names and that is known."""
    called: list[str] = []
    model = InTurns(turns=turns_of(given))
    database = Database(database_url, max_connections=2)
    await database.open()
    try:
        tools = tools_of(given, called) or [PrintingTool("unused", [{"ok": ""}], None, called)]
        denied = dict.fromkeys((given.get("policy") or {}).get("block", ()), "deny")
        harness = Harness(database, model, tools, policy=denied)
        await harness.open()
        job, steps = await harness.run(strategy=Strategy.LOOP)
        return job, steps, model, called
    finally:
        await database.close()


def run_plan(database_url: str, given: Mapping[str, Any]) -> dict[str, Any]:
    _, steps, _, called = asyncio.run(carried_out(database_url, given))
    return {
        "results": [_result(step) for step in steps if step["kind"] == StepKind.TOOL and _is_result(step)],
        "elicitation": _asked(steps),
        "called": called[len(given["results"]) :],
    }


def loop(database_url: str, given: Mapping[str, Any]) -> dict[str, Any]:
    job, steps, model, called = asyncio.run(carried_out(database_url, given))
    results = [step for step in steps if step["kind"] == StepKind.TOOL]
    asked = _asked(steps)
    rounds = {step["round"] for step in steps if step["kind"] == StepKind.TOOL}
    return {
        "planner_calls": len(model.told),
        "executor_calls": len(rounds),
        "outcome": {"answer": job["answer"]} if asked is None else {"elicitation": asked},
        "tool_runs": len(called),
        "last_result_error": results[-1]["error"]["code"] if results and results[-1]["error"] else None,
        "results_kept": len(results),
    }


def _is_result(step: Mapping[str, Any]) -> bool:
    return step["status"] in (StepStatus.SUCCEEDED, StepStatus.FAILED)


def _result(step: Mapping[str, Any]) -> dict[str, Any]:
    shown = {"name": step["tool_name"], "args": step["called_arguments"]}
    if step["status"] == StepStatus.FAILED:
        return {**shown, "error": step["error"]["message"]}
    output = step["output"]
    is_text = set(output) == {"text"}
    return {**shown, "result": output["text"] if is_text else json.dumps(output, separators=(",", ":"))}


def _asked(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    asked = [step["called_arguments"] for step in steps if step["kind"] == StepKind.QUESTION]
    if not asked:
        return None
    schema = {} if asked[0]["schema"] == ANSWER_SCHEMA else {"requestedSchema": asked[0]["schema"]}
    return {"message": asked[0]["message"], **schema}


@pytest.mark.parametrize("case", params(CASES))
def test_run(case: Case, database_url: str) -> None:
    expected, used = expectation(case)

    actual = (run_plan if case.op == "run_plan" else loop)(database_url, case.input)

    by = "; ".join(f"D{rule.decision}: {rule.name}" for rule in used) or "the case itself"
    assert mismatches(expected, actual) == [], f"expected by {by}"
