"""Jobs of several rounds as callers see them: every round with its plan and steps; and forks of such jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from planq.api.compat.executions import ExecutionDocument, execution_document
from planq.api.documents import job_document
from planq.api.http.exchange import json_bytes
from planq.api.jobs.commands.progress import ProgressPrinter
from planq.api.schemas import JobDocument
from planq.shared.agentic.models.exchange import ToolCallRequest
from planq.shared.agentic.tools.contract import Tool
from planq.shared.kernel.states import Effect, Strategy
from planq.shared.platform.errors import ToolFailed
from planq.worker.tools.declare import tool
from tests.support.harness import Harness, ScriptedModel, make_tool


@pytest.fixture
def tools() -> list[Tool]:
    @tool(name="note", effect=Effect.READ)
    async def note(text: str) -> dict[str, str]:
        return {"text": f"<{text}>"}

    @tool(name="fail", effect=Effect.READ, retries=0)
    async def fail(text: str) -> dict[str, str]:
        raise ToolFailed(f"no {text}")

    return [make_tool(note), make_tool(fail)]


def called(*calls: tuple[str, dict[str, Any]]) -> list[ToolCallRequest]:
    return [ToolCallRequest(name, arguments, f"id_{number}") for number, (name, arguments) in enumerate(calls)]


TURNS = [
    called(("note", {"text": "$0.output.text"}), ("fail", {"text": "luck"}), ("nobody", {})),
    called(("note", {"text": "b"})),
    "done",
]


def test_every_round_is_shown_with_what_became_of_its_calls(play: Callable[..., Any], tools: list[Tool]) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("do it", strategy=Strategy.REACT)
        await harness.drain()
        view = await harness.requests.view("default", job_id)
        return job_document(view), execution_document(view)

    job, execution = play(scenario, ScriptedModel(turns=TURNS), tools)

    shown = JobDocument.model_validate(json.loads(json_bytes(job)))
    assert (shown.status, shown.stop_reason, shown.answer, shown.round) == ("completed", "answered", "done", 2)
    assert [(one.round, one.source, one.steps) for one in shown.rounds] == [
        (0, "model", [0, 1, 2]),
        (1, "model", [3]),
    ]
    assert [(step.index, step.round, step.status) for step in shown.steps] == [
        (0, 0, "succeeded"),
        (1, 0, "failed"),
        (2, 0, "failed"),
        (3, 1, "succeeded"),
    ]
    assert shown.steps[0].arguments == {"text": "$0.output.text"}  # as data: it says what the model said
    assert shown.plan == shown.rounds[0].plan
    assert ExecutionDocument.model_validate(json.loads(json_bytes(execution))).stop_reason == "answered"


def test_a_guide_is_shown_as_the_first_round(play: Callable[..., Any], tools: list[Tool]) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("do it", strategy=Strategy.GUIDED)
        await harness.drain()
        return job_document(await harness.requests.view("default", job_id))

    guide = {"steps": [{"step_number": 1, "description": "Note it [bold]", "tool_name": "note"}]}
    said = ScriptedModel(guided=json.dumps(guide), turns=[called(("note", {"text": "a"})), "done"])
    shown = json.loads(json_bytes(play(scenario, said, tools)))
    refused = json.loads(json_bytes(play(scenario, ScriptedModel(guided="no", turns=["done"]), tools)))

    document = JobDocument.model_validate(shown)
    assert [(one.round, one.source, one.steps) for one in document.rounds] == [(0, "guide", []), (1, "model", [0])]
    assert shown["plan"]["steps"][0]["description"] == "Note it [bold]"
    assert [(one.source, len(one.plan_errors or ())) for one in JobDocument.model_validate(refused).rounds] == [
        ("guide", 1)
    ]
    told = Console(file=StringIO(), width=100, markup=False)
    for job in (shown, refused):
        ProgressPrinter(told).update(job)
    printed = told.file.getvalue()  # type: ignore[attr-defined]
    assert "1. Note it [bold]" in printed
    assert "no guide" in printed


def test_a_fork_of_a_loop_takes_over_outcomes_of_any_round_and_then_its_planner_goes_on(
    play: Callable[..., Any], tools: list[Tool]
) -> None:
    async def scenario(harness: Harness) -> Any:
        source = await harness.submit("do it", strategy=Strategy.REACT)
        await harness.drain()
        plan = {"calls": [{"tool_name": "note", "arguments": {"text": text}} for text in ("b", "c")]}
        fork = await harness.submit(
            "do it", strategy=Strategy.REACT, plan=plan, forked_from=source, reuse={0: 3}, model="offline"
        )
        await harness.drain()
        return source, job_document(await harness.requests.view("default", fork)), harness.model.told[-1]

    source, job, (transcript, _) = play(scenario, ScriptedModel(turns=TURNS), tools)

    assert (job["status"], job["stop_reason"]) == ("completed", "answered")
    assert [(one["source"], one["steps"]) for one in job["rounds"]] == [("caller", [0, 1]), ("model", [2])]
    first, second, _ = job["steps"]
    assert [(step["attempt"], step["output"]["text"]) for step in (first, second)] == [(0, "<b>"), (1, "<c>")]
    assert job["steps"][0]["reused_from"] == {"job_id": str(source), "index": 3}
    assert "<b>" in str(transcript)
    assert "<c>" in str(transcript)
