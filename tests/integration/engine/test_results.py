"""What a job comes to: its outcome, what it answers with, and an end that the database refuses at first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from planq.shared.kernel.states import Effect, Respond
from planq.shared.platform.errors import AuthFailed
from planq.worker.tools.declare import tool
from tests.integration.engine.test_outages import document, time_passes
from tests.support.agents import rows, submit_agent
from tests.support.harness import Harness, ScriptedModel, make_tool

Play = Callable[..., Any]


@tool(effect=Effect.PURE)
async def echo(text: str) -> dict[str, str]:
    """Say it."""
    return {"text": text}


@tool(effect=Effect.PURE)
async def count(text: str) -> dict[str, Any]:
    """Count its letters."""
    return {"letters": len(text), "nul": "\x00" * text.count("nul")}


@tool(effect=Effect.READ, retries=0)
async def lost(text: str) -> dict[str, str]:
    """Never find it."""
    raise LookupError(text)


TOOLS = [make_tool(echo), make_tool(count), make_tool(lost)]


def plan(*calls: tuple[str, str], **fields: Any) -> dict[str, Any]:
    """Return a caller's plan, which fails with its first step unless it says otherwise."""
    made = [{"tool_name": name, "arguments": {"text": text}} for name, text in calls]
    return {"on_failure": "fail", "calls": made, **fields}


class Silent(ScriptedModel):
    """A model that must not be asked."""

    async def plan(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("asked for a plan")

    async def respond(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("asked for an answer")


def run(play: Play, model: ScriptedModel, **fields: Any) -> dict[str, Any]:
    """Return a job as its caller sees it, once it has ended, and the events of its end as `told`."""

    async def scenario(harness: Harness) -> dict[str, Any]:
        job_id = await harness.submit(**fields)
        await harness.drain()
        assert await harness.worker_registry.broken_invariants() == []
        told = await rows(
            harness, "SELECT kind, data FROM events WHERE job_id = %s ORDER BY sequence DESC LIMIT 1", job_id
        )
        return {**await document(harness, job_id), "told": told}

    found: dict[str, Any] = play(scenario, model, TOOLS)
    return found


@pytest.mark.parametrize(
    ("call", "output", "answer"),
    [
        (("echo", "hello"), {"text": "hello"}, "hello"),
        (("count", "four"), {"letters": 4, "nul": ""}, '{"letters":4,"nul":""}'),
        (("count", "nul"), {"letters": 3, "nul": "\x00"}, '{"letters":3,"nul":"\\u0000"}'),
    ],
)
def test_a_job_answers_with_the_output_of_its_last_step_and_asks_no_model(
    play: Play, call: tuple[str, str], output: Any, answer: str
) -> None:
    job = run(play, Silent(), plan=plan(("echo", "first"), call), respond=Respond.OUTPUT)

    assert (job["status"], job["outcome"], job["error"]) == ("completed", "succeeded", None)
    assert (job["output"], job["answer"], job["output_ref"]) == (output, answer, None)
    assert job["model_calls"] == 0
    assert job["told"] == [{"kind": "job_completed", "data": {"outcome": "succeeded"}}]


def test_a_job_may_answer_with_nothing(play: Play) -> None:
    job = run(play, Silent(), plan=plan(("echo", "a")), respond=Respond.NONE)

    assert (job["outcome"], job["output"], job["answer"]) == ("succeeded", None, None)
    assert job["steps"][0]["output"] == {"text": "a"}


def test_a_large_output_is_referred_to_and_a_part_of_it_is_the_preview(play: Play) -> None:
    job = run(play, Silent(), plan=plan(("echo", "x" * 200_000)), respond=Respond.OUTPUT)

    assert (job["outcome"], job["output"], job["answer"]) == ("succeeded", None, None)
    assert job["output_ref"] == job["steps"][0]["output_ref"] is not None
    assert 0 < len(job["preview"]) < 200_000


def test_a_large_output_that_holds_nul_has_a_preview_too(play: Play) -> None:
    job = run(play, Silent(), plan=plan(("count", "nul" * 20_000)), respond=Respond.OUTPUT)

    assert (job["outcome"], job["output"], job["answer"]) == ("succeeded", None, None)
    assert "\\u0000" in job["preview"]


def test_all_steps_of_many_may_end_a_job_at_once(play: Play) -> None:
    job = run(play, Silent(), plan=plan(*(("echo", str(n)) for n in range(40))), respond=Respond.OUTPUT)

    assert (job["outcome"], job["answer"]) == ("succeeded", "39")


@pytest.mark.parametrize("respond", [Respond.OUTPUT, Respond.MODEL])
def test_a_failed_step_of_a_callers_plan_fails_its_job_and_the_results_stay(play: Play, respond: Respond) -> None:
    # Pins: such a job was completed, without an error, and its model was asked to answer from what there was.
    job = run(play, Silent(), plan=plan(("echo", "a"), ("lost", "b"), ("echo", "c")), respond=respond)

    assert (job["status"], job["outcome"], job["answer"], job["output"]) == ("failed", "failed", None, None)
    assert (job["error"]["step"], job["error"]["tool_name"]) == (1, "lost")
    assert job["error"]["code"] == job["steps"][1]["error"]["code"]
    assert job["steps"][0]["output"] == {"text": "a"}
    (told,) = job["told"]
    assert (told["kind"], told["data"]["outcome"], told["data"]["step"]) == ("job_failed", "failed", 1)


def test_a_plan_may_want_an_answer_from_what_there_is(play: Play) -> None:
    model = ScriptedModel(answered="as far as it went")
    job = run(play, model, plan=plan(("lost", "b"), ("echo", "$0.output.text"), on_failure="answer"))

    assert (job["status"], job["outcome"], job["answer"]) == ("completed", "partial", "as far as it went")
    assert (job["error"]["step"], job["steps"][1]["status"]) == (0, "skipped")
    assert (job["told"][0]["kind"], job["told"][0]["data"]["outcome"]) == ("job_completed", "partial")


def test_a_plan_may_go_on_with_what_does_not_need_the_failed_step(play: Play) -> None:
    calls = plan(("lost", "b"), ("echo", "$0.output.text"), ("echo", "c"), on_failure="continue")
    job = run(play, Silent(), plan=calls, respond=Respond.OUTPUT)

    assert (job["status"], job["outcome"], job["answer"]) == ("completed", "partial", "c")
    assert [step["status"] for step in job["steps"]] == ["failed", "skipped", "succeeded"]
    assert job["error"]["step"] == 0


def test_a_models_plan_with_a_failed_step_is_partial(play: Play) -> None:
    job = run(play, ScriptedModel.planning(("lost", {"text": "a"})))

    assert (job["status"], job["outcome"], job["answer"]) == ("completed", "partial", "the answer")
    assert (job["error"]["step"], job["error"]["tool_name"]) == (0, "lost")


def test_a_models_plan_that_is_refused_is_partial(play: Play) -> None:
    job = run(play, ScriptedModel.planning(("echo", {})))

    assert (job["status"], job["outcome"], job["answer"]) == ("completed", "partial", "the answer")
    assert job["error"]["code"] == "plan_invalid"


@pytest.mark.parametrize("respond", [Respond.OUTPUT, Respond.MODEL])
def test_a_plan_whose_tools_have_gone_fails_unless_a_model_is_to_answer(play: Play, respond: Respond) -> None:
    job = run(play, ScriptedModel(answered="no such tool"), plan=plan(("gone", "a")), respond=respond)

    assert job["outcome"] == ("failed" if respond is Respond.OUTPUT else "partial")
    assert (job["error"]["code"], job["model_calls"]) == ("plan_invalid", int(respond is Respond.MODEL))


def test_where_the_model_is_away_the_results_stand_and_a_resumed_job_asks_for_the_answer_alone(play: Play) -> None:
    model = ScriptedModel(answered=AuthFailed("401"))
    calls = 0

    @tool(effect=Effect.UNSAFE)
    async def pay(text: str) -> dict[str, str]:
        """Pay."""
        nonlocal calls
        calls += 1
        return {"text": text}

    async def scenario(harness: Harness) -> None:
        job_id = await harness.submit(plan=plan(("pay", "a")))
        await harness.drain()
        before = await document(harness, job_id)
        assert (before["outcome"], before["error"]["code"]) == ("failed", "auth")
        assert before["steps"][0]["output"] == {"text": "a"}
        model.answered = "paid"
        asked = await harness.requests.resume("default", job_id, after=0)
        assert asked.applied
        harness.published += asked.wakes
        await harness.drain()
        after = await document(harness, job_id)
        assert (after["outcome"], after["answer"], after["error"]) == ("succeeded", "paid", None)
        assert (after["steps"][0]["attempt"], calls) == (1, 1)

    play(scenario, model, [make_tool(pay)])


def test_a_resumed_job_of_a_callers_plan_runs_what_has_failed_and_ends_without_a_model(play: Play) -> None:
    fails = [True]

    @tool(effect=Effect.READ, retries=0)
    async def find(text: str) -> dict[str, str]:
        """Find it the second time."""
        if fails.pop():
            fails.append(False)
            raise LookupError(text)
        return {"text": f"found {text}"}

    async def scenario(harness: Harness) -> None:
        job_id = await harness.submit(plan=plan(("echo", "a"), ("find", "b")), respond=Respond.OUTPUT)
        await harness.drain()
        assert (await document(harness, job_id))["outcome"] == "failed"
        harness.published += (await harness.requests.resume("default", job_id, after=0)).wakes
        await harness.drain()
        job = await document(harness, job_id)
        assert (job["outcome"], job["answer"], job["error"]) == ("succeeded", "found b", None)
        assert [step["attempt"] for step in job["steps"]] == [1, 2]

    play(scenario, Silent(), [*TOOLS, make_tool(find)])


REFUSING = """
CREATE FUNCTION refuse_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'no end today' USING ERRCODE = 'undefined_function'; END $$;
CREATE TRIGGER refuse_end AFTER UPDATE OF status ON jobs FOR EACH ROW WHEN (NEW.finished_at IS NOT NULL)
EXECUTE FUNCTION refuse_end()"""

ALLOWING = "DROP TRIGGER refuse_end ON jobs; DROP FUNCTION refuse_end()"


async def execute(harness: Harness, statements: str) -> None:
    async with harness.database.connection() as connection:
        await connection.execute(statements.encode())


class Counting(ScriptedModel):
    """Counts how often it is asked."""

    times = 0

    async def plan(self, *given: Any, **more: Any) -> Any:
        self.times += 1
        return await super().plan(*given, **more)

    async def respond(self, *given: Any, **more: Any) -> Any:
        self.times += 1
        return await super().respond(*given, **more)


@pytest.mark.parametrize("how", ["answered at once", "answered from results", "the model failed", "by an agent"])
def test_an_end_that_the_database_refuses_is_tried_again_and_no_model_is_asked_again(play: Play, how: str) -> None:
    # Pins: a trigger of deliveries failed on an old server, and the job asked its model again and again.
    model = Counting("the answer")
    if how == "answered from results":
        model = Counting.planning(("echo", {"text": "a"}))
    elif how == "the model failed":
        model = Counting(AuthFailed("401"))
    elif how == "by an agent":
        model.answered = "the answer"

    async def scenario(harness: Harness) -> None:
        agent = {"name": "clerk", "description": "You answer."}
        job_id = await (submit_agent(harness, agent) if how == "by an agent" else harness.submit())
        await execute(harness, REFUSING)
        await harness.drain()
        asked = model.times
        for tries in (1, 2, 3):
            job = await document(harness, job_id)
            assert (job["status"] in ("planning", "responding"), job["answer"]) == (True, None)
            assert (job["retry"]["attempts"], job["model_calls"]) == (tries, asked)
            assert "no end today" in job["retry"]["error"]["message"]
            await time_passes(harness, job_id)
        await execute(harness, ALLOWING)
        await time_passes(harness, job_id)
        job = await document(harness, job_id)
        if how == "the model failed":
            assert (job["outcome"], job["error"]["code"]) == ("failed", "auth")
        else:
            assert (job["outcome"], job["answer"], job["retry"]) == ("succeeded", "the answer", None)
        assert (model.times, job["model_calls"]) == (asked, asked)
        assert await harness.worker_registry.broken_invariants() == []

    play(scenario, model, TOOLS)
