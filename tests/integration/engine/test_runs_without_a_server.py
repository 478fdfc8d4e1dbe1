"""What `planq.testing` runs in memory comes to the same, event for event, as the engine over PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from planq.shared.kernel.states import Respond, Strategy
from planq.shared.platform.errors import Transient
from planq.testing import Run, ScriptedModel, run_job, run_plan
from planq.worker.tools import ToolContext, ToolError, tool
from tests.support.harness import Harness, make_tool


@tool(effect="pure")
async def echo(text: str) -> str:
    """Say it again."""
    return text


@tool(effect="read")
async def look(text: str) -> dict[str, Any]:
    """Look, and fail where there is nothing."""
    if text == "nothing":
        raise ToolError("nothing there")
    return {"text": text, "more": [1, {"deep": text}]}


@tool(effect="read", retries=3)
async def third(context: ToolContext) -> int:
    """Succeed at the third attempt."""
    if context.attempt < 3:
        raise ToolError("not yet", retryable=True)
    return context.attempt


@tool(effect="unsafe")
async def write(text: str) -> str:
    """Write."""
    if text == "full":
        raise ToolError("full", retryable=False)
    return f"wrote {text}"


@tool(effect="unsafe")
async def odd(text: str) -> dict[str, int]:
    """Break its own schema."""
    return {"text": text}  # type: ignore[dict-item]


TOLD = ("status", "answer", "stop_reason", "output", "error")
Play = Callable[..., Any]
TOOLS = [echo, look, third, write, odd]

PLANS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "references": [
        ("look", {"text": "a"}),
        ("echo", {"text": "$0.output.more.1.deep"}),
        ("write", {"text": "{{ $0.output.text }}!"}),
    ],
    "retries": [("third", {}), ("echo", {"text": "x"})],
    "halts": [
        ("look", {"text": "nothing"}),
        ("echo", {"text": "$0.output.text"}),
        ("write", {"text": "a"}),
        ("echo", {"text": "free"}),
    ],
    "a write in the middle": [("write", {"text": "a"}), ("write", {"text": "full"}), ("write", {"text": "b"})],
    "an output that breaks its schema": [("odd", {"text": "a"}), ("write", {"text": "b"})],
    "a reference to nothing": [("look", {"text": "a"}), ("write", {"text": "$0.output.more.7"})],
}


def calls(given: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    return {"calls": [{"tool_name": name, "arguments": arguments} for name, arguments in given]}


def shown_steps(steps: Any) -> list[dict[str, Any]]:
    return [
        {
            **{name: step[name] for name in ("index", "round", "tool_name", "status", "attempt", "depends_on")},
            "arguments": step.get("called_arguments", step.get("arguments")),
            "output": step["output"] if step["status"] == "succeeded" else None,
            "error": step["error"] if step["status"] == "failed" else None,
        }
        for step in steps
    ]


def in_order(events: Any) -> list[str]:
    """Return the events as text, in an order that is not chance, and without the ids that only real workers have."""

    def shared(data: Any) -> Any:
        return {name: data[name] for name in data if name != "worker_id"} if isinstance(data, dict) else data

    return sorted(json.dumps([kind, shared(data)], sort_keys=True) for kind, data in events)


async def over_postgres(harness: Harness, text: str, fields: dict[str, Any]) -> dict[str, Any]:
    job_id = await harness.submit(text, **fields)
    while True:
        await harness.drain()
        job, steps = await harness.requests.job("default", job_id)
        if job["finished_at"] is not None:
            break
        await harness.sweeper.sweep()  # a retry is due
    async with harness.requests.opened.connection() as connection:
        found = await connection.execute("SELECT kind, data FROM events WHERE job_id = %s", (job_id,))
        events = await found.fetchall()
    return {
        **{name: job[name] for name in TOLD},
        "steps": shown_steps(steps),
        "events": in_order((event["kind"], event["data"]) for event in events),
    }


def in_memory(run: Run) -> dict[str, Any]:
    return {
        **{name: getattr(run, name) for name in TOLD},
        "steps": shown_steps(run.steps),
        "events": in_order(run.events),
    }


@pytest.mark.parametrize(("number", "name"), list(enumerate(PLANS)))
@pytest.mark.parametrize(("shift", "on_failure"), list(enumerate(["fail", "answer", "continue"])))
def test_a_callers_plan(play: Play, number: int, name: str, shift: int, on_failure: str) -> None:
    plan = {**calls(PLANS[name]), "on_failure": on_failure}
    respond = list(Respond)[(number + shift) % len(Respond)]

    async def scenario(harness: Harness) -> Any:
        return await over_postgres(harness, "", {"plan": plan, "respond": respond})

    expected = play(scenario, ScriptedModel(answered="done"), [make_tool(one) for one in TOOLS])
    run = run_plan(plan, tools=TOOLS, model=ScriptedModel(answered="done"), respond=str(respond))
    assert in_memory(run) == expected


SCRIPTS: dict[str, dict[str, Any]] = {
    "a direct answer": {"planned": "hello"},
    "a plan": {"planned": PLANS["references"]},
    "a plan with defects": {"planned": [("nothing", {}), ("echo", {"text": "$5.output.text"})]},
    "a model that fails": {"planned": Transient("away")},
    "an answer that fails": {"planned": PLANS["halts"], "answered": Transient("away")},
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_plan_of_the_model(play: Play, name: str) -> None:
    async def scenario(harness: Harness) -> Any:
        return await over_postgres(harness, "do it", {})

    model = ScriptedModel(**SCRIPTS[name])
    expected = play(scenario, model, [make_tool(one) for one in TOOLS])
    assert in_memory(run_job("do it", tools=TOOLS, model=ScriptedModel(**SCRIPTS[name]))) == expected


TURNS: dict[str, list[Any]] = {
    "two turns": [[("look", {"text": "a"}), ("echo", {"text": "b"})], [("write", {"text": "c"})], "done"],
    "a failure on the way": [[("look", {"text": "nothing"}), ("write", {"text": "a"})], "done"],
    "an unknown tool": [[("nothing", {}), ("echo", {"text": "a"})], "done"],
    "in circles": [[("echo", {"text": "a"})]] * 9,
}


@pytest.mark.parametrize("name", TURNS)
def test_rounds_of_the_model(play: Play, name: str) -> None:
    async def scenario(harness: Harness) -> Any:
        return await over_postgres(harness, "do it", {"strategy": Strategy.REACT})

    expected = play(scenario, ScriptedModel(turns=TURNS[name]), [make_tool(one) for one in TOOLS])
    run = run_job("do it", tools=TOOLS, strategy="react", model=ScriptedModel(turns=TURNS[name]))
    assert in_memory(run) == expected
