"""Single steps: timeouts, retries, timers, bad outputs, artifacts, cancellation, a worker that stops."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from planq.shared.agentic.tools.contract import Suspended
from planq.shared.kernel.ids import PLAN, StepRef
from planq.shared.kernel.states import JobStatus, Pool
from planq.shared.kernel.wakes import Wake
from planq.worker.engine.slots import Party
from planq.worker.tools import ToolError, tool
from tests.support.harness import Harness, ScriptedModel, make_tool

Play = Callable[..., Any]


def plan(*calls: Any) -> dict[str, Any]:
    return {"calls": [{"tool_name": name, "arguments": arguments} for name, arguments in calls]}


def run_plan(play: Play, tools: list[Any], *calls: Any) -> Any:
    async def scenario(harness: Harness) -> Any:
        return await harness.run("", plan=plan(*calls))

    return play(scenario, ScriptedModel(), [make_tool(t) for t in tools])


def test_a_tool_that_hangs_is_cut_off_at_its_timeout(play: Play) -> None:
    @tool(effect="unsafe", timeout_seconds=0.05)
    async def hang() -> dict[str, int]:
        """Never answer."""
        await asyncio.Event().wait()
        return {}

    job, steps = run_plan(play, [hang], ("hang", {}))
    assert (job["status"], steps[0]["status"], steps[0]["error"]["code"]) == ("completed", "failed", "timeout")


def test_a_tool_that_swallows_its_cancellation_is_abandoned(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planq.worker.handlers.tool_call._ABANDON_SECONDS", 0.05)
    freed = asyncio.Event()

    @tool(effect="unsafe", timeout_seconds=0.05)
    async def stubborn() -> dict[str, int]:
        """Ignore the first cancellation."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await freed.wait()
        return {}

    job, steps = run_plan(play, [stubborn], ("stubborn", {}))
    assert (job["status"], steps[0]["error"]["code"]) == ("completed", "timeout")


def test_what_breaks_the_output_schema_fails_the_step(play: Play) -> None:
    @tool(
        effect="pure", output_schema={"type": "object", "required": ["x"], "properties": {"x": {"type": "integer"}}}
    )
    async def wrong() -> dict[str, str]:
        """Return text for a number."""
        return {"x": "not a number"}

    _, steps = run_plan(play, [wrong], ("wrong", {}))
    assert steps[0]["error"]["code"] == "invalid_output"
    assert "/x" in steps[0]["error"]["message"]


def test_an_output_over_the_limit_fails_the_step_and_is_not_stored(play: Play) -> None:
    @tool(effect="pure")
    async def huge() -> str:
        """Return twenty megabytes."""
        return "x" * 20_000_000

    _, steps = run_plan(play, [huge], ("huge", {}))
    assert steps[0]["error"]["code"] == "invalid_output"
    assert "20000011 bytes" in steps[0]["error"]["message"]
    assert steps[0]["output"] is None


def test_text_that_utf8_cannot_carry_fails_the_step_and_nul_does_not(play: Play) -> None:
    @tool(effect="pure")
    async def odd(text: str) -> dict[str, str]:
        """Return what stands in for the text."""
        return {"text": {"nul": "a\x00b", "surrogate": "a\ud800b"}[text]}

    _, steps = run_plan(play, [odd], ("odd", {"text": "nul"}), ("odd", {"text": "surrogate"}))
    assert (steps[0]["status"], steps[0]["output"]) == ("succeeded", {"text": "a\x00b"})
    assert (steps[1]["status"], steps[1]["error"]["code"]) == ("failed", "invalid_output")


def test_a_defect_while_storing_ends_the_step_with_a_reason(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    @tool(effect="read")
    async def fine() -> dict[str, int]:
        """Return something."""
        return {"n": 1}

    async def refuse(*_: Any, **named: Any) -> Any:
        raise KeyError("a defect")

    monkeypatch.setattr("planq.shared.kernel.store.transitions.PostgresJobStore.succeed_step", refuse)
    job, steps = run_plan(play, [fine], ("fine", {}))
    assert (job["status"], steps[0]["status"], steps[0]["error"]["code"]) == ("completed", "failed", "internal")


def test_a_tool_that_cancels_its_own_task_fails_once(play: Play) -> None:
    @tool(effect="pure")
    async def odd() -> dict[str, int]:
        """Cancel whatever runs this."""
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()
        return {"n": 1}

    job, steps = run_plan(play, [odd], ("odd", {}))
    assert (job["status"], steps[0]["status"], steps[0]["attempt"]) == ("completed", "failed", 1)
    assert (steps[0]["error"]["code"], steps[0]["releases"]) == ("internal", 0)


def test_a_missing_field_names_the_reference_and_what_was_there(play: Play) -> None:
    @tool(effect="pure", output_schema={"type": "object", "properties": {"a": {}, "b": {}}})
    async def give() -> dict[str, int]:
        """Return only b."""
        return {"b": 1}

    @tool(effect="pure")
    async def need(text: str) -> dict[str, str]:
        """Need a text."""
        return {"text": text}

    _, steps = run_plan(play, [give, need], ("give", {}), ("need", {"text": "$0.output.a"}))
    error = steps[1]["error"]
    assert error["code"] == "invalid_arguments"
    assert "$0.output.a" in error["message"]
    assert "'b'" in error["message"]


def test_a_passing_fault_is_retried_by_the_sweeper_until_it_passes(play: Play) -> None:
    tries = iter([ToolError("busy", retryable=True), ToolError("busy", retryable=True), None])

    @tool(effect="read")
    async def flaky() -> dict[str, str]:
        """Fail twice."""
        error = next(tries)
        if error is not None:
            raise error
        return {"ok": "yes"}

    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("", plan=plan(("flaky", {})))
        await harness.drain()
        for _ in range(2):
            await harness.sweeper.sweep()
            await harness.drain()
        return await harness.requests.job("default", job_id)

    job, steps = play(scenario, ScriptedModel(), [make_tool(flaky)])
    assert (job["status"], steps[0]["status"], steps[0]["attempt"]) == ("completed", "succeeded", 3)


def test_retries_end(play: Play) -> None:
    @tool(effect="read", retries=1)
    async def busy() -> dict[str, str]:
        """Always busy."""
        raise ToolError("busy", retryable=True)

    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("", plan=plan(("busy", {})))
        await harness.drain()
        await harness.sweeper.sweep()
        await harness.drain()
        return await harness.requests.job("default", job_id)

    job, steps = play(scenario, ScriptedModel(), [make_tool(busy)])
    assert (job["status"], steps[0]["status"], steps[0]["attempt"]) == ("completed", "failed", 2)


def test_a_timer_holds_no_worker_and_fires(play: Play) -> None:
    @tool(effect="pure", output_schema={"type": "object", "properties": {"waited": {"type": "integer"}}})
    async def sleepless() -> Suspended:
        """Wait without a worker."""
        return Suspended(timedelta(seconds=0), {"waited": 1})

    @tool(effect="pure")
    async def after(number: int) -> dict[str, int]:
        """Use what the timer left."""
        return {"number": number}

    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("", plan=plan(("sleepless", {}), ("after", {"number": "$0.output.waited"})))
        await harness.drain()
        _, waiting = await harness.requests.job("default", job_id)
        assert harness.dispatcher.in_flight.count == 0
        await harness.sweeper.sweep()
        await harness.drain()
        return waiting, await harness.requests.job("default", job_id)

    waiting, (job, steps) = play(scenario, ScriptedModel(), [make_tool(sleepless), make_tool(after)])
    assert [s["status"] for s in waiting] == ["waiting", "pending"]
    assert (job["status"], steps[0]["output"], steps[1]["output"]) == ("completed", {"waited": 1}, {"number": 1})


def test_artifacts_are_stored_in_the_commit_of_their_step(play: Play) -> None:
    wrapper = {"artifact_id": "a-1", "artifact": {"title": "T"}, "_metadata": {"skill_id": "blog"}}

    @tool(effect="idempotent")
    async def publish() -> dict[str, Any]:
        """Make an artifact."""
        return wrapper

    async def scenario(harness: Harness) -> Any:
        job, _ = await harness.run("", plan=plan(("publish", {})))
        return job, await harness.requests.artifact("default", "a-1")

    job, artifact = play(scenario, ScriptedModel(), [make_tool(publish)])
    assert (artifact["job_id"], artifact["skill_id"], json.loads(artifact["body"])) == (job["id"], "blog", wrapper)


def test_an_artifact_that_a_later_step_makes_again_belongs_to_that_step(play: Play) -> None:
    @tool(effect="idempotent")
    async def draft(text: str) -> dict[str, Any]:
        """Write the draft."""
        return {"artifact_id": "draft", "artifact": {"text": text}, "_metadata": {"skill_id": "blog"}}

    async def scenario(harness: Harness) -> Any:
        await harness.run("", plan=plan(("draft", {"text": "first"}), ("draft", {"text": "second"})))
        return await harness.requests.artifact("default", "draft")

    kept = play(scenario, ScriptedModel(), [make_tool(draft)])
    assert (kept["step_index"], json.loads(kept["body"])["artifact"]) == (1, {"text": "second"})


def test_a_cancelled_job_stops_what_runs_and_takes_no_late_result(play: Play) -> None:
    started = asyncio.Event()
    stopped = []

    @tool(effect="read")
    async def slow() -> dict[str, int]:
        """Wait to be stopped."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(True)
        return {}

    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("", plan=plan(("slow", {})))
        running = asyncio.create_task(harness.drain())
        await asyncio.wait_for(started.wait(), 60)
        assert await harness.requests.cancel("default", job_id) == ([job_id], JobStatus.CANCELLED)
        harness.dispatcher.interrupt(job_id)
        await asyncio.wait_for(running, 60)
        assert await harness.requests.cancel("default", job_id) == ([], JobStatus.CANCELLED)
        return await harness.requests.job("default", job_id)

    job, steps = play(scenario, ScriptedModel(), [make_tool(slow)])
    assert (job["status"], steps[0]["status"], stopped) == ("cancelled", "cancelled", [True])


@pytest.mark.parametrize(
    ("effect", "status", "code"), [("read", "ready", None), ("unsafe", "failed", "outcome_unknown")]
)
def test_a_stopping_worker_gives_back_what_may_run_again(play: Play, effect: str, status: str, code: Any) -> None:
    started = asyncio.Event()

    @tool(name="slow", effect=effect)
    async def slow() -> dict[str, int]:
        """Wait to be stopped."""
        started.set()
        await asyncio.Event().wait()
        return {}

    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("", plan=plan(("slow", {})))
        running = asyncio.create_task(harness.dispatcher.run(harness.published.pop()))
        await asyncio.wait_for(started.wait(), 60)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return job_id, harness.published, await harness.requests.job("default", job_id)

    job_id, published, (_, steps) = play(scenario, ScriptedModel(), [make_tool(slow)])
    assert steps[0]["status"] == status
    assert (steps[0]["error"] or {}).get("code") == code
    if status == "ready":
        assert published == [Wake(StepRef(job_id, 0, 0), Pool.IO, "slow", 2)]
    else:
        assert published == [Wake.respond(job_id, 2)]


def test_what_this_process_has_no_slots_for_goes_out_in_one_batch(play: Play) -> None:
    @tool(effect="pure")
    async def leaf(n: int) -> dict[str, int]:
        """Return n."""
        return {"n": n}

    @tool(effect="pure")
    async def join(ns: list[int]) -> dict[str, int]:
        """Add up."""
        return {"sum": sum(ns)}

    calls: list[Any] = [("leaf", {"n": n}) for n in range(20)]
    calls.append(("join", {"ns": [f"${n}.output.n" for n in range(20)]}))

    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("", plan=plan(*calls))
        wake = harness.published.pop()
        assert wake.ref.index == PLAN
        harness.dispatcher.slots.reserve(290, Party("default"))
        await harness.run_one(wake)
        fanned_out = list(harness.published)
        await harness.drain()
        return fanned_out, await harness.requests.job("default", job_id)

    fanned_out, (job, steps) = play(scenario, ScriptedModel(), [make_tool(leaf), make_tool(join)])
    assert [[one.ref.index for one in wake.each] for wake in fanned_out] == [list(range(10, 20))]
    assert (job["status"], steps[20]["output"], steps[20]["attempt"]) == ("completed", {"sum": 190}, 1)
