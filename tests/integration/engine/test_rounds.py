"""Jobs of several rounds: what their planner is told, what a failure does, and when the loop ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

import planq.worker.handlers.rounds
from planq.shared.agentic.models.exchange import ModelReply, ToolCallRequest, TurnForm
from planq.shared.agentic.plan.planner import PlanningRequest
from planq.shared.agentic.tools.contract import Tool, ToolContext
from planq.shared.kernel.claims import StageClaim
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.states import Effect, JobStatus, Strategy
from planq.shared.platform.errors import ModelRefused, ToolFailed
from planq.worker.models.planners import InstalledPlanners
from planq.worker.tools.declare import tool
from tests.support.claiming import claim_stage
from tests.support.harness import Harness, ScriptedModel, make_tool

OUTPUT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def said(*calls: tuple[str, Mapping[str, Any]]) -> list[ToolCallRequest]:
    """What a model says in `react`: native calls."""
    return [ToolCallRequest(name, arguments, f"id_{number}") for number, (name, arguments) in enumerate(calls)]


def planned(*calls: tuple[int | None, str, Mapping[str, Any]], **more: Any) -> list[ToolCallRequest]:
    """What a model says in `loop`: a call of the planning tool, each call with its number."""
    numbered = [
        {"tool_name": name, "arguments": arguments} | ({} if number is None else {"number": number})
        for number, name, arguments in calls
    ]
    return [ToolCallRequest("__planning__", {"type": "tool_calls", "calls": numbered} | more, "p")]


def decided(**decision: Any) -> list[ToolCallRequest]:
    return [ToolCallRequest("__planning__", decision, "p")]


@pytest.fixture
def ran() -> list[str]:
    """What the tools were called with, in the order of the calls."""
    return []


@pytest.fixture
def tools(ran: list[str]) -> list[Tool]:
    @tool(name="note", effect=Effect.PURE, output_schema=OUTPUT)
    async def note(text: str) -> dict[str, str]:
        ran.append(text)
        return {"text": f"<{text}>"}

    @tool(name="send", effect=Effect.UNSAFE, output_schema=OUTPUT)
    async def send(text: str, context: ToolContext) -> dict[str, str]:
        ran.append(f"{context.idempotency_key.split('/')[-1]}:{text}")
        return {"text": text}

    @tool(name="fail", effect=Effect.READ, retries=0)
    async def fail(text: str) -> dict[str, str]:
        raise ToolFailed(f"no {text}")

    return [make_tool(note), make_tool(send), make_tool(fail)]


def outcome(job: Any, steps: list[Any]) -> tuple[Any, ...]:
    return job["status"], job["stop_reason"], job["answer"], [step["status"] for step in steps]


@pytest.fixture
def rounds(play: Callable[..., Any], tools: list[Tool]) -> Callable[..., Any]:
    """`rounds(strategy, turns, **fields)`: carry a job out; returns its row, all its steps, and the model."""

    def run(
        strategy: Strategy, turns: Any, *, answered: Any = "the answer", own_planners: Any = None, **fields: Any
    ) -> Any:
        model = ScriptedModel(turns=turns, answered=answered, own=InstalledPlanners(own_planners or {}))

        async def scenario(harness: Harness) -> Any:
            job, _ = await harness.run("do it", strategy=strategy, **fields)
            async with harness.database.connection() as connection:
                query = b'SELECT * FROM steps WHERE job_id = %s ORDER BY "index"'
                steps = await (await connection.execute(query, [job["id"]])).fetchall()
                broken = await harness.worker_registry.broken_invariants()
                return job, steps, broken

        job, steps, broken = play(scenario, model, tools)
        assert broken == []
        return job, steps, model

    return run


def test_react_calls_tools_turn_by_turn_and_then_answers(rounds: Callable[..., Any], ran: list[str]) -> None:
    turns = [said(("note", {"text": "a"}), ("note", {"text": "b"})), said(("send", {"text": "c"})), "done"]

    job, steps, model = rounds(Strategy.REACT, turns)

    assert outcome(job, steps) == ("completed", "answered", "done", ["succeeded"] * 3)
    assert [(step["round"], step["index"], step["attempt"]) for step in steps] == [(0, 0, 1), (0, 1, 1), (1, 2, 1)]
    assert sorted(ran) == ["2:c", "a", "b"]
    assert (job["model_calls"], job["round"]) == (3, 2)
    (first, form), (second, _), (third, _) = model.told
    assert (list(first), form) == ([], TurnForm.REACT)
    assert [message.role for message in second] == ["assistant", "tool", "tool"]
    assert second[0].state == {"kept": 0}
    assert (
        [call.id for call in second[0].tool_calls] == [message.call_id for message in second[1:]] == ["id_0", "id_1"]
    )
    assert [message.role for message in third] == ["assistant", "tool", "tool", "assistant", "tool"]
    assert "<b>" in second[2].content


def test_what_looks_like_a_reference_is_text_in_react(rounds: Callable[..., Any], ran: list[str]) -> None:
    turns = [said(("note", {"text": "a"})), said(("note", {"text": "$0.output.text"})), "done"]

    job, steps, _ = rounds(Strategy.REACT, turns)

    assert job["status"] == "completed"
    assert ran == ["a", "$0.output.text"]
    assert steps[1]["output"] == {"text": "<$0.output.text>"}


def test_in_loop_a_reference_leads_to_an_earlier_round(rounds: Callable[..., Any], ran: list[str]) -> None:
    turns = [
        planned((0, "note", {"text": "a"}), (1, "note", {"text": "$0.output.text"})),
        planned((2, "note", {"text": "$1.output.text"})),
        decided(type="direct_response", content="done"),
    ]

    job, steps, model = rounds(Strategy.LOOP, turns)

    assert outcome(job, steps) == ("completed", "answered", "done", ["succeeded"] * 3)
    assert ran == ["a", "<a>", "<<a>>"]
    assert [form for _, form in model.told] == [TurnForm.LOOP] * 3
    assert steps[2]["inputs"] == [1]


def test_a_failure_skips_only_what_needs_its_output(rounds: Callable[..., Any], ran: list[str]) -> None:
    turns = [
        planned(
            (0, "fail", {"text": "a"}),
            (1, "note", {"text": "$0.output.text"}),
            (2, "note", {"text": "$1.output.text"}),
            (3, "send", {"text": "b"}),
        ),
        decided(type="direct_response", content="done"),
    ]

    job, steps, model = rounds(Strategy.LOOP, turns)

    assert outcome(job, steps) == ("completed", "answered", "done", ["failed", "skipped", "skipped", "succeeded"])
    assert ran == ["3:b"], "a write waits for what comes before it, whether that succeeded or not"
    assert [step["error"]["code"] for step in steps[:3]] == ["tool_error", "skipped", "skipped"]
    assert job["failed_steps"] == 0
    (told, _) = model.told[1]
    assert "no a" in told[1].content


def test_unknown_tools_and_broken_arguments_are_failed_steps(rounds: Callable[..., Any], ran: list[str]) -> None:
    calls = [
        ToolCallRequest("nothing", {}, "1"),
        ToolCallRequest("note", "{broken", "2"),
        ToolCallRequest("note", {"text": "a"}, "3"),
    ]

    job, steps, model = rounds(Strategy.REACT, [calls, "done"])

    assert outcome(job, steps) == ("completed", "answered", "done", ["failed", "failed", "succeeded"])
    assert [step["attempt"] for step in steps] == [0, 0, 1]
    assert ran == ["a"]
    (told, _) = model.told[1]
    assert [message.call_id for message in told[1:]] == ["1", "2", "3"]


def test_a_round_in_which_nothing_can_run_leads_to_the_next(rounds: Callable[..., Any]) -> None:
    job, steps, _ = rounds(Strategy.REACT, [said(("nothing", {})), "done"])

    assert outcome(job, steps) == ("completed", "answered", "done", ["failed"])
    assert job["round"] == 1


def test_a_hundred_identical_calls_of_a_caller_are_all_made(rounds: Callable[..., Any], ran: list[str]) -> None:
    calls = [{"tool_name": "note", "arguments": {"text": "same"}}] * 100

    job, steps, _ = rounds(Strategy.REACT, ["done"], plan={"calls": calls})

    assert outcome(job, steps) == ("completed", "answered", "done", ["succeeded"] * 100)
    assert len(ran) == 100


def test_an_endless_repeater_is_stopped(rounds: Callable[..., Any], ran: list[str]) -> None:
    job, steps, model = rounds(Strategy.REACT, [said(("note", {"text": "a"}))])

    assert outcome(job, steps)[:3] == ("completed", "stalled", "the answer")
    assert ran == ["a", "a"]
    assert [step["status"] for step in steps] == ["succeeded", "succeeded", "failed", "failed"]
    assert [step["error"]["code"] for step in steps[2:]] == ["duplicate_call_blocked"] * 2
    assert steps[2]["output"] == {"text": "<a>"}, "with the last successful output"
    assert model.told[-1][1] is TurnForm.ANSWER
    assert job["model_calls"] == 5


@pytest.mark.parametrize(
    ("strategy", "limits", "reason"),
    [
        (Strategy.REACT, Limits(max_tool_steps=2), "max_tool_steps"),
        (Strategy.LOOP, Limits(max_rounds=2), "max_rounds"),
    ],
)
def test_a_limit_ends_the_loop_with_an_answer(
    rounds: Callable[..., Any], strategy: Strategy, limits: Limits, reason: str
) -> None:
    if strategy is Strategy.REACT:
        turns = [said(("note", {"text": str(n)})) for n in range(9)]
    else:
        turns = [planned((n, "note", {"text": str(n)})) for n in range(9)]

    job, steps, model = rounds(strategy, turns, limits=limits)

    assert outcome(job, steps) == ("completed", reason, "the answer", ["succeeded"] * 2)
    assert [form for _, form in model.told][-1] is TurnForm.ANSWER


def test_the_time_for_all_rounds_ends_the_loop(play: Callable[..., Any], tools: list[Tool]) -> None:
    model = ScriptedModel(turns=[said(("note", {"text": str(n)})) for n in range(9)])

    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("do it", strategy=Strategy.REACT, limits=Limits(plan_timeout_seconds=60.0))
        claim = await claim_stage(harness.store, job_id, [JobStatus.QUEUED])
        assert isinstance(claim, StageClaim)
        harness.published.clear()
        first = await harness.carry_out(claim)
        async with harness.database.connection() as connection:
            await connection.execute(b"UPDATE jobs SET deadline = now() - interval '1 s', rounds_deadline = now()")
        harness.published += first.wakes
        for taken in first.taken:
            harness.published += (await harness.carry_out(taken)).wakes
        await harness.sweeper.sweep()
        await harness.drain()
        return await harness.requests.job("default", job_id)

    job, _ = play(scenario, model, tools)

    assert (job["status"], job["stop_reason"], job["answer"]) == ("completed", "timeout", "the answer")


def test_a_wrong_number_is_put_right_once(rounds: Callable[..., Any], ran: list[str]) -> None:
    turns = [
        planned((5, "note", {"text": "a"})),
        planned((0, "note", {"text": "b"})),
        decided(type="direct_response", content="done"),
    ]

    job, steps, model = rounds(Strategy.LOOP, turns)

    # The second turn of the script is the repair, for the model is shown its refused reply.
    assert job["status"] == "completed"
    assert ran == ["b"]
    (told, _) = model.told[1]
    assert "the number of this call is 0, found 5" in told[-1].content
    assert len(steps) == 1


class Babbling(ScriptedModel):
    """It cannot plan, but answers in its own words."""

    async def turn(self, ask: Any, tools: Any, transcript: Any, form: TurnForm, *, cut_off: Any = None) -> ModelReply:
        reply = await super().turn(ask, tools, transcript, form, cut_off=cut_off)
        return replace(reply, text="in plain words", tool_calls=()) if form is TurnForm.REACT else reply


@pytest.mark.parametrize("kind", [Babbling, ScriptedModel])
def test_what_loop_cannot_read_twice_goes_on_as_react(
    play: Callable[..., Any], tools: list[Tool], kind: type[ScriptedModel]
) -> None:
    model = kind(turns=[decided(type="nonsense")])

    async def scenario(harness: Harness) -> Any:
        job, _ = await harness.run("do it", strategy=Strategy.LOOP)
        async with harness.database.connection() as connection:
            query = b"SELECT data FROM events WHERE job_id = %s AND kind = 'planner_fell_back'"
            return job, [row["data"] for row in await (await connection.execute(query, [job["id"]])).fetchall()]

    job, (fallback,) = play(scenario, model, tools)

    assert fallback["to"] == "react"
    forms = [form for _, form in model.told]
    if kind is Babbling:
        assert (job["status"], job["answer"], job["model_calls"]) == ("completed", "in plain words", 3)
        assert forms == [TurnForm.LOOP] * 2 + [TurnForm.REACT]
    else:
        assert (job["status"], job["error"]["code"], job["model_calls"]) == ("failed", "plan_invalid", 4)
        assert forms == [TurnForm.LOOP] * 2 + [TurnForm.REACT] * 2


def test_an_abort_ends_the_job_with_its_results(rounds: Callable[..., Any]) -> None:
    turns = [planned((0, "note", {"text": "a"})), decided(type="abort", reason="no way")]

    job, steps, _ = rounds(Strategy.LOOP, turns)

    assert (job["status"], job["error"]["code"], job["error"]["message"]) == ("failed", "aborted", "no way")
    assert steps[0]["output"] == {"text": "<a>"}


def test_an_abort_in_a_callers_plan_ends_the_job_after_its_steps(rounds: Callable[..., Any], ran: list[str]) -> None:
    calls = [{"tool_name": "note", "arguments": {"text": "a"}}, {"kind": "abort", "reason": "enough"}]

    job, steps, model = rounds(Strategy.PLAN, [], plan={"calls": calls})

    assert (job["status"], job["error"]["code"], job["error"]["message"]) == ("failed", "aborted", "enough")
    assert [step["status"] for step in steps] == ["succeeded", "succeeded"]
    assert ran == ["a"]
    assert model.asked == []


def test_a_planner_with_nothing_to_do_leads_to_an_answer(rounds: Callable[..., Any]) -> None:
    job, _, model = rounds(Strategy.LOOP, [planned((0, "note", {"text": "a"})), decided(type="noop")])

    assert (job["status"], job["stop_reason"], job["answer"]) == ("completed", "no_steps", "the answer")
    assert model.told[-1][1] is TurnForm.ANSWER


def test_a_model_that_fails_keeps_the_results(rounds: Callable[..., Any]) -> None:
    job, steps, _ = rounds(Strategy.REACT, [said(("note", {"text": "a"})), ModelRefused("no")])

    assert (job["status"], job["error"]["code"]) == ("failed", "model_refused")
    assert steps[0]["output"] == {"text": "<a>"}


def test_a_callers_plan_can_be_the_first_round(rounds: Callable[..., Any], ran: list[str]) -> None:
    calls = [{"tool_name": "fail", "arguments": {"text": "a"}}, {"tool_name": "note", "arguments": {"text": "b"}}]

    job, steps, model = rounds(Strategy.REACT, ["done"], plan={"calls": calls})

    assert outcome(job, steps) == ("completed", "answered", "done", ["failed", "succeeded"])
    assert "no a" in str(model.told[0][0])


def test_a_condition_of_the_callers_ends_the_loop(rounds: Callable[..., Any]) -> None:
    turns = [said(("note", {"text": str(n)})) for n in range(9)]

    job, steps, _ = rounds(Strategy.REACT, turns, loop={"until": ["length(results) >= `2`"]})

    assert outcome(job, steps) == ("completed", "until", "the answer", ["succeeded"] * 2)


def test_calls_follow_the_last_round_and_the_answer_stands(rounds: Callable[..., Any], ran: list[str]) -> None:
    after = [
        {"tool": "send", "with": {"text": "{{ results[0].result.text }}"}},
        {"tool": "fail", "with": {"text": "x"}},
        {"tool": "send", "when": "length(results) > `5`", "with": {"text": "never"}},
    ]

    job, steps, _ = rounds(Strategy.REACT, [said(("note", {"text": "$0.output.x"})), "done"], loop={"after": after})

    assert outcome(job, steps) == ("completed", "answered", "done", ["succeeded", "succeeded", "failed"])
    assert ran == ["$0.output.x", "1:<$0.output.x>"]
    assert job["model_calls"] == 2


def test_rules_and_conditions_read_whole_outputs(rounds: Callable[..., Any], ran: list[str]) -> None:
    text = "x" * 200_000
    turns = [said(("note", {"text": text})), said(("note", {"text": "never"}))]
    block = {
        "until": ["length(results[0].result.text) == `200002`"],
        "after": [{"tool": "send", "with": {"text": "{{ results[0].result.text }}"}}],
    }

    job, steps, model = rounds(Strategy.REACT, turns, loop=block)

    assert outcome(job, steps) == ("completed", "until", "the answer", ["succeeded"] * 2)
    assert ran == [text, f"1:<{text}>"]
    told, _ = model.told[-1]
    assert "shortened_from_bytes" in told[1].content, "what a model reads is shortened and says so"


def test_a_planner_of_ones_own_reads_whole_outputs(rounds: Callable[..., Any]) -> None:
    class Measuring:
        async def plan(self, request: PlanningRequest) -> Mapping[str, Any]:
            if results := request.variables["results"]:
                return {"type": "direct_response", "content": str(len(results[0]["result"]["text"]))}
            return {"type": "tool_calls", "calls": [{"tool_name": "note", "arguments": {"text": "x" * 200_000}}]}

    job, steps, _ = rounds(Strategy.LOOP, [], loop={"planner": "own"}, own_planners={"own": Measuring()})

    assert outcome(job, steps) == ("completed", "answered", "200002", ["succeeded"])


@pytest.mark.parametrize("then", ["continue", "abort"])
def test_a_rule_follows_a_failure(rounds: Callable[..., Any], ran: list[str], then: str) -> None:
    rule = {"when": "step.name == 'fail'", "tool": "send", "with": {"text": "{{ error }}"}, "then": then}

    job, steps, _ = rounds(Strategy.REACT, [said(("fail", {"text": "a"})), "done"], loop={"on_error": [rule]})

    assert [step["status"] for step in steps] == ["failed", "succeeded"]
    assert ran == ["1:no a"]
    assert job["status"] == ("failed" if then == "abort" else "completed")
    assert (job["error"] or {}).get("code") == ("aborted" if then == "abort" else None)


def test_rules_are_looked_into_beside_the_loop(rounds: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may take half a second of the interpreter, in which no other step of the worker would go on."""
    threads: dict[str, str] = {}
    for name in ("errors_matched", "until_holds", "after_steps"):
        real = getattr(planq.worker.handlers.rounds, name)

        def spied(*given: Any, name: str = name, real: Any = real) -> Any:
            threads[name] = threading.current_thread().name
            return real(*given)

        monkeypatch.setattr(planq.worker.handlers.rounds, name, spied)
    rules = [{"when": "`false`", "tool": "send", "with": {"text": "never"}}]
    block = {"until": ["length(results) >= `2`"], "on_error": rules, "after": rules}

    job, _, _ = rounds(Strategy.REACT, [said(("note", {"text": "a"})), "done"], loop=block)

    assert job["status"] == "completed"
    assert {name: thread.rpartition("_")[0] for name, thread in threads.items()} == dict.fromkeys(
        ("errors_matched", "until_holds", "after_steps"), "computing"
    )


def test_a_block_chooses_tools_prompt_and_guard(rounds: Callable[..., Any], ran: list[str]) -> None:
    block = {
        "prompt": {"text": "Round {{round}}, {{rounds_left}} left."},
        "tools": {"allow": ["note", "send"], "block": ["send"]},
        "guard": {"consecutive_limit": 2},
        "max_rounds": 3,
    }

    job, steps, model = rounds(Strategy.LOOP, [planned((None, "note", {"text": "a"}))], loop=block)

    assert [step["status"] for step in steps] == ["succeeded", "failed", "failed"]
    assert ran == ["a"]
    assert job["stop_reason"] == "stalled"
    prompts = [ask.prompt for ask, _ in model.asked]
    assert [(prompt.round_number, prompt.rounds_left) for prompt in prompts] == [(0, 3), (1, 2), (2, 1), (3, 0)]


class Counting:
    """A planner of one's own: it notes each number up to two, and is wrong about its first number once."""

    def __init__(self) -> None:
        self.asked: list[PlanningRequest] = []

    async def plan(self, request: PlanningRequest) -> Mapping[str, Any]:
        self.asked.append(request)
        done = len(request.variables["results"])
        if done == 2:
            return {"type": "direct_response", "content": "counted"}
        call = {"tool_name": "note", "arguments": {"text": str(done)}}
        number = request.next_index if request.errors or done else 7
        return {"type": "tool_calls", "calls": [{"number": number, **call}]}


def test_a_planner_of_ones_own_makes_the_plans(rounds: Callable[..., Any], ran: list[str]) -> None:
    own = Counting()

    job, steps, model = rounds(Strategy.LOOP, [], loop={"planner": "own"}, own_planners={"own": own})

    assert outcome(job, steps) == ("completed", "answered", "counted", ["succeeded"] * 2)
    assert ran == ["0", "1"]
    assert model.asked == []
    assert [(one.next_index, one.rounds_left, bool(one.errors)) for one in own.asked] == [
        (0, 20, False),
        (0, 20, True),
        (1, 19, False),
        (2, 18, False),
    ]


def test_a_planner_that_is_not_installed_is_named(rounds: Callable[..., Any]) -> None:
    job, _, _ = rounds(Strategy.LOOP, [], loop={"planner": "nobody"})

    assert (job["status"], job["error"]["code"]) == ("failed", "invalid_arguments")
    assert "nobody" in job["error"]["message"]


def test_the_rounds_of_a_block_bound_react_too(rounds: Callable[..., Any]) -> None:
    turns = [said(("note", {"text": str(n)})) for n in range(9)]

    job, steps, _ = rounds(Strategy.REACT, turns, loop={"max_rounds": 1})

    assert outcome(job, steps) == ("completed", "max_rounds", "the answer", ["succeeded"])


def test_losses_are_counted_by_round(play: Callable[..., Any], tools: list[Tool]) -> None:
    model = ScriptedModel(turns=[said(("note", {"text": "a"})), "done"])

    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("do it", strategy=Strategy.REACT)
        losses = []
        for _ in range(2):
            claim = await claim_stage(harness.store, job_id, [JobStatus.QUEUED, JobStatus.PLANNING])
            assert isinstance(claim, StageClaim)
            assert await harness.database.call("planq_release_stage", job_id, claim.attempt, True, None)
        losses.append((await harness.requests.job("default", job_id))[0]["stage_losses"])
        await harness.drain()
        job, _ = await harness.requests.job("default", job_id)
        return [*losses, job["stage_losses"]], job["status"]

    assert play(scenario, model, tools) == ([2, 0], "completed")
