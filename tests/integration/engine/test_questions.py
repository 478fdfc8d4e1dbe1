"""What steps ask people on the way: plans, tools, and whether a tool may be called; nothing that ran runs again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from planq.shared.kernel.limits import Limits
from planq.shared.kernel.questions import QuestionAnswer, after_answer
from planq.shared.kernel.states import QuestionKind, QuestionStatus, StepKind
from planq.shared.platform.errors import ToolFailed
from planq.shared.platform.values.decoding import decode_stored
from planq.shared.subjects.jobs.store import AnsweredBy
from planq.shared.subjects.questions.store import QuestionStore
from planq.worker.tools import AnswerDeclined, ToolContext, tool
from tests.support.children import DelegatingTool, child_plan
from tests.support.clock import move_clock
from tests.support.harness import Harness, ScriptedModel, make_tool
from tests.support.waiting import PATIENCE

Play = Callable[..., Any]

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
NIGHTS = {"type": "object", "properties": {"nights": {"type": "integer"}}, "required": ["nights"]}
ACCEPTED, DECLINED = QuestionStatus.ACCEPTED, QuestionStatus.DECLINED


class Desk:
    """Tools that ask, and what they did."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.booked: list[Any] = []

    def tools(self) -> list[Any]:
        @tool(effect="unsafe")
        async def book(context: ToolContext) -> dict[str, Any]:
            """Book a room after two questions."""
            self.begun.append(context.attempt)
            city = await context.ask("Where to?", CITY)
            nights = await context.ask("How long?", NIGHTS, default={"nights": 1})
            self.booked.append({**city, **nights})
            return self.booked[-1]

        @tool(effect="unsafe", pool="io")
        def travel(context: ToolContext) -> dict[str, Any]:
            """Travel, unless the person does not want to."""
            try:
                return dict(context.ask_sync("Where to?", CITY))
            except AnswerDeclined as refused:
                return {"city": f"nowhere ({refused.message})"}

        @tool(effect="pure")
        async def note(text: str) -> dict[str, str]:
            """Keep a text."""
            self.booked.append(text)
            return {"text": text}

        @tool(effect="read")
        async def guess(context: ToolContext) -> dict[str, Any]:
            """Ask for what is no schema."""
            return dict(await context.ask("What?", {"type": "nonsense"}))

        return [make_tool(one) for one in (book, travel, note, guess)]


def plan(*calls: tuple[str, Mapping[str, Any]], **fields: Any) -> dict[str, Any]:
    return {"calls": [{"tool_name": name, "arguments": dict(arguments), **fields} for name, arguments in calls]}


async def open_questions(harness: Harness) -> list[Any]:
    store = QuestionStore(harness.database)
    return list(await store.page("default", status=QuestionStatus.OPEN, limit=100))[::-1]


async def answer(
    harness: Harness, question: Any, content: Any, status: QuestionStatus = ACCEPTED, reason: str | None = None
) -> None:
    said = QuestionAnswer(QuestionKind(question["kind"]), status, content, reason)
    after = after_answer(said, StepKind(question["step_kind"]))
    store = QuestionStore(harness.database)
    asked = await store.answer(
        "default", question["id"], said, after, AnsweredBy("ada", "test", reason, is_operator=True)
    )
    assert asked.applied
    await harness.publish(asked.wakes)
    await harness.drain()


async def seen(harness: Harness, job_id: UUID) -> tuple[Any, list[Any]]:
    broken = await harness.worker_registry.broken_invariants()
    assert [row for row in broken if row["invariant"] != "running_without_lease"] == []
    return await harness.requests.job("default", job_id)


def test_a_tool_asks_twice_and_goes_on_with_both_answers(play: Play) -> None:
    desk = Desk()

    async def scenario(harness: Harness) -> Any:
        job, _ = await harness.run(plan=plan(("book", {}), ("note", {"text": "$0.output.city"})))
        assert (job["status"], desk.begun, desk.booked) == ("input_required", [1], [])
        (first,) = await open_questions(harness)
        assert (first["message"], first["schema"], first["ordinal"]) == ("Where to?", CITY, 0)
        await answer(harness, first, {"city": "Pisa"})
        (second,) = await open_questions(harness)
        assert (second["message"], second["ordinal"], second["default_content"]) == ("How long?", 1, {"nights": 1})
        await answer(harness, second, {"nights": 3})
        return await seen(harness, job["id"])

    job, steps = play(scenario, ScriptedModel(), desk.tools())
    assert job["status"] == "completed"
    assert steps[0]["output"] == {"city": "Pisa", "nights": 3}
    assert (desk.begun, desk.booked) == ([1, 2, 3], [{"city": "Pisa", "nights": 3}, "Pisa"])


def test_nobody_answers_and_the_default_does(play: Play) -> None:
    desk = Desk()

    async def scenario(harness: Harness) -> Any:
        job, _ = await harness.run(plan=plan(("book", {})))
        (first,) = await open_questions(harness)
        await answer(harness, first, {"city": "Pisa"})
        await move_clock(harness.database, timedelta(seconds=Limits().human_wait_seconds + 1))
        await harness.open()
        await harness.sweeper.sweep()
        await harness.drain()
        return await seen(harness, job["id"])

    job, steps = play(scenario, ScriptedModel(), desk.tools())
    assert (job["status"], steps[0]["output"]) == ("completed", {"city": "Pisa", "nights": 1})


def test_a_tool_may_go_on_without_an_answer(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        job, _ = await harness.run(plan=plan(("travel", {})))
        (question,) = await open_questions(harness)
        await answer(harness, question, None, DECLINED, "no money")
        return await seen(harness, job["id"])

    _, steps = play(scenario, ScriptedModel(), Desk().tools())
    assert (steps[0]["status"], "no money" in steps[0]["output"]["city"]) == ("succeeded", True)


def test_a_tool_that_does_not_catch_a_refusal_has_failed_with_its_reason(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        job, _ = await harness.run(plan=plan(("book", {})))
        (question,) = await open_questions(harness)
        await answer(harness, question, None, DECLINED, "no money")
        return await seen(harness, job["id"])

    _, steps = play(scenario, ScriptedModel(), Desk().tools())
    assert (steps[0]["status"], steps[0]["error"]["code"]) == ("failed", "declined")
    assert "no money" in steps[0]["error"]["message"]


def test_a_question_needs_a_schema_that_is_one(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        job, _ = await harness.run(plan=plan(("guess", {})))
        return await seen(harness, job["id"])

    _, steps = play(scenario, ScriptedModel(), Desk().tools())
    assert (steps[0]["status"], steps[0]["error"]["code"]) == ("failed", "invalid_arguments")


ASKS = [
    {"tool_name": "note", "arguments": {"text": "Pisa or Rome"}},
    {
        "kind": "elicitation",
        "tool_name": "elicitation",
        "message": "Which of {{ $0.output.text }}?",
        "requested_schema": CITY,
    },
]


@pytest.mark.parametrize("status", [ACCEPTED, DECLINED, QuestionStatus.CANCELLED])
def test_a_step_of_a_plan_asks_and_its_answer_is_its_output(play: Play, status: QuestionStatus) -> None:
    desk = Desk()
    content = {"city": "Rome"} if status is ACCEPTED else None

    async def scenario(harness: Harness) -> Any:
        after = {"tool_name": "note", "arguments": {"text": "$1.output.city"}}
        job, _ = await harness.run(plan={"calls": [*ASKS, after]})
        (question,) = await open_questions(harness)
        assert (question["message"], question["step_kind"]) == ("Which of Pisa or Rome?", "elicitation")
        await answer(harness, question, content, status, "because")
        return await seen(harness, job["id"])

    job, steps = play(scenario, ScriptedModel(), desk.tools())
    assert job["status"] == "completed"
    if status is ACCEPTED:
        assert (steps[1]["output"], steps[1]["attempt"], desk.booked) == (content, 1, ["Pisa or Rome", "Rome"])
    else:
        assert (steps[1]["error"]["code"], steps[2]["status"]) == (str(status), "skipped")
        assert "because" in steps[1]["error"]["message"]


def test_two_questions_are_answered_in_reverse_order_while_the_worker_is_lost(play: Play) -> None:
    desk = Desk()

    async def scenario(harness: Harness) -> Any:
        job, _ = await harness.run(plan=plan(("travel", {}), ("travel", {}), depends_on=[]))
        # Two steps that run at once may ask in either order.
        first, second = sorted(await open_questions(harness), key=lambda question: question["step_index"])
        await harness.worker_registry.forget(harness.worker_id)
        await harness.sweeper.sweep()
        await harness.open()
        await answer(harness, second, {"city": "Rome"})
        assert (await seen(harness, job["id"]))[0]["status"] == "input_required"
        await answer(harness, first, {"city": "Pisa"})
        return await seen(harness, job["id"])

    job, steps = play(scenario, ScriptedModel(), desk.tools())
    assert job["status"] == "completed"
    assert [(s["output"]["city"], s["attempt"]) for s in steps] == [("Pisa", 2), ("Rome", 2)]


def test_a_job_two_levels_down_asks_and_is_answered_after_the_plan_times_of_all_above(play: Play) -> None:
    desk, outer = Desk(), DelegatingTool()

    def handed(inner: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        return "delegate", {"children": [{"plan": inner, "seconds": 50.0}], "must": 1}

    async def scenario(harness: Harness) -> Any:
        deepest = child_plan(("travel", {}))
        job, _ = await harness.run(plan=plan(handed(child_plan(handed(deepest)))))
        (question,) = await open_questions(harness)
        assert (question["root_job_id"], question["job_id"] != job["id"]) == (job["id"], True)
        await move_clock(harness.database, timedelta(days=2))
        await harness.open()
        await harness.sweeper.sweep()
        await harness.drain()
        assert (await seen(harness, job["id"]))[0]["status"] == "executing"
        await answer(harness, question, {"city": "Pisa"})
        for _ in range(3):
            await harness.sweeper.sweep()
            await harness.drain()
        return await seen(harness, job["id"])

    job, steps = play(scenario, ScriptedModel(), [*desk.tools(), outer])
    assert (job["status"], steps[0]["status"], steps[0]["error"]) == ("completed", "succeeded", None)


def test_an_approval_shows_the_call_and_holds_for_it_alone(play: Play) -> None:
    desk = Desk()

    async def scenario(harness: Harness) -> Any:
        job, _ = await harness.run(plan=plan(("note", {"text": "a"}), ("note", {"text": "$0.output.text"})))
        (question,) = await open_questions(harness)
        assert (question["kind"], desk.booked) == ("approval", [])
        assert question["details"]["tool_name"] == "note"
        assert (question["details"]["arguments"], question["details"]["effect"]) == ({"text": "a"}, "pure")
        assert question["details"]["cost"] == {"tokens": 0, "cost_usd": 0.0, "model_calls": 0}
        await answer(harness, question, {})
        assert desk.booked == ["a"]
        (second,) = await open_questions(harness)
        await answer(harness, second, None, DECLINED, "not that")
        return await seen(harness, job["id"])

    job, steps = play(scenario, ScriptedModel(), desk.tools(), policy={"no*": "ask"})
    assert (job["status"], desk.booked) == ("completed", ["a"])
    assert [s["status"] for s in steps] == ["succeeded", "failed"]
    assert (steps[1]["error"]["code"], "not that" in steps[1]["error"]["message"]) == ("declined", True)


def test_an_approval_may_hold_for_the_rest_of_the_job(play: Play) -> None:
    desk = Desk()

    async def scenario(harness: Harness) -> Any:
        calls = [("note", {"text": "a"}), ("note", {"text": "$0.output.text"}), ("note", {"text": "c"})]
        job, _ = await harness.run(plan=plan(*calls))
        first, *_ = await open_questions(harness)
        await answer(harness, first, {"scope": "job"})
        for late in await open_questions(harness):
            await answer(harness, late, {})
        return await seen(harness, job["id"])

    job, _ = play(scenario, ScriptedModel(), desk.tools(), policy={"note": "ask"})
    assert (job["status"], sorted(desk.booked)) == ("completed", ["a", "a", "c"])


@pytest.mark.parametrize(
    ("server", "request_", "code"),
    [
        ({"*": "ask", "note": "auto"}, {"note": "deny"}, "policy"),
        ({"note": "deny"}, {"note": "auto"}, "policy"),
        ({"note": "auto"}, {"n?te": "ask"}, None),
        ({}, {"*": "auto"}, ""),
    ],
)
def test_deny_wins_over_ask_over_auto(play: Play, server: Any, request_: Any, code: str | None) -> None:
    desk = Desk()

    async def scenario(harness: Harness) -> Any:
        job, _ = await harness.run(plan=plan(("note", {"text": "a"})), loop={"policy": request_})
        return len(await open_questions(harness)), await seen(harness, job["id"])

    asked, (job, steps) = play(scenario, ScriptedModel(), desk.tools(), policy=server)
    if code is None:
        assert (asked, job["status"], desk.booked) == (1, "input_required", [])
    elif code:
        assert (asked, steps[0]["error"]["code"], desk.booked) == (0, code, [])
    else:
        assert (asked, steps[0]["status"], desk.booked) == (0, "succeeded", ["a"])


def test_the_policy_of_a_job_holds_for_the_jobs_below(play: Play) -> None:
    desk = Desk()

    async def scenario(harness: Harness) -> Any:
        inner = child_plan(("note", {"text": "a"}))
        job, _ = await harness.run(
            plan=plan(("delegate", {"children": [{"plan": inner}]})), loop={"policy": {"note": "ask"}}
        )
        (question,) = await open_questions(harness)
        view = await harness.requests.view("default", job["id"])
        (child,) = decode_stored(view.row["children"].body.decode())
        assert (view.row["status"], child["status"]) == ("input_required", "input_required")
        return question["job_id"] != job["id"]

    assert play(scenario, ScriptedModel(), [*desk.tools(), DelegatingTool()])
    assert desk.booked == []


class Till:
    """An unsafe tool whose calls run one after the other, and what it paid."""

    def __init__(self) -> None:
        self.paid: list[int] = []

    def tools(self) -> list[Any]:
        @tool(effect="unsafe")
        async def pay(amount: int) -> dict[str, int]:
            """Pay."""
            self.paid.append(amount)
            if amount == BROKE:
                raise ToolFailed("there is no money left")
            return {"left": 100 - amount}

        return [make_tool(pay)]


BROKE = 99
PAY_ASKER = {"pay": "ask:asker"}


def test_approvals_that_are_known_to_be_needed_are_asked_at_once(play: Play) -> None:
    till = Till()

    async def scenario(harness: Harness) -> Any:
        calls = [("pay", {"amount": 1}), ("pay", {"amount": 2}), ("pay", {"amount": "$1.output.left"})]
        job, _ = await harness.run(plan=plan(*calls, ("pay", {"amount": 4})))
        asked = await open_questions(harness)
        assert [one["step_index"] for one in asked] == [0, 1, 3], "what the third pays is known later"
        assert [one["details"]["arguments"]["amount"] for one in asked] == [1, 2, 4]
        assert [one["due_at"] is None for one in asked] == [False, True, True]
        await answer(harness, asked[2], {})
        assert till.paid == []
        await answer(harness, asked[1], {})
        await answer(harness, asked[0], {})
        assert till.paid == [1, 2], "each in its turn, without a further wait"
        (third,) = await open_questions(harness)
        assert (third["step_index"], third["details"]["arguments"]) == (2, {"amount": 98})
        await answer(harness, third, {})
        return await seen(harness, job["id"])

    job, steps = play(scenario, ScriptedModel(), till.tools(), policy=PAY_ASKER)
    assert (job["status"], till.paid) == ("completed", [1, 2, 98, 4])
    assert [step["attempt"] for step in steps] == [2, 1, 2, 1], "no attempt for what was approved ahead"


def test_a_step_waits_for_the_question_that_was_asked_ahead_of_it(play: Play) -> None:
    till = Till()

    async def scenario(harness: Harness) -> Any:
        job, _ = await harness.run(plan=plan(("pay", {"amount": 1}), ("pay", {"amount": 2})))
        first, second = await open_questions(harness)
        await answer(harness, first, {})
        (waits,) = await open_questions(harness)
        assert (waits["id"], waits["due_at"] is None, till.paid) == (second["id"], False, [1])
        assert (await seen(harness, job["id"]))[0]["status"] == "input_required"
        await answer(harness, waits, {})
        return await seen(harness, job["id"])

    job, _ = play(scenario, ScriptedModel(), till.tools(), policy=PAY_ASKER)
    assert (job["status"], till.paid) == ("completed", [1, 2])


@pytest.mark.parametrize("is_ahead", [True, False], ids=["ahead", "in its turn"])
def test_what_is_declined_ahead_is_declined_in_its_turn(play: Play, is_ahead: bool) -> None:
    till = Till()

    async def scenario(harness: Harness) -> Any:
        job, _ = await harness.run(plan=plan(("pay", {"amount": 1}), ("pay", {"amount": 2})))
        first, second = await open_questions(harness)
        for one in (second, first) if is_ahead else (first, second):
            await answer(harness, one, *((None, DECLINED, "too much") if one is second else ({},)))
        return await seen(harness, job["id"])

    job, steps = play(scenario, ScriptedModel(), till.tools(), policy=PAY_ASKER)
    assert (job["status"], till.paid, steps[1]["status"], steps[1]["attempt"]) == ("completed", [1], "failed", 1)
    assert (steps[1]["error"]["code"], "too much" in steps[1]["error"]["message"]) == ("declined", True)


def test_what_is_asked_ahead_of_a_step_that_does_not_begin_is_withdrawn(play: Play) -> None:
    till = Till()

    async def scenario(harness: Harness) -> Any:
        job, _ = await harness.run(plan=plan(("pay", {"amount": BROKE}), ("pay", {"amount": 2})))
        first, second = await open_questions(harness)
        before = (await seen(harness, job["id"]))[0]["expires_at"]
        await answer(harness, first, {})
        found = await QuestionStore(harness.database).get("default", second["id"])
        after, steps = await seen(harness, job["id"])
        return found["status"], steps[1]["status"], before > after["expires_at"]

    assert play(scenario, ScriptedModel(), till.tools(), policy=PAY_ASKER) == ("cancelled", "skipped", True)


@pytest.mark.parametrize("way", ["cancel", "expire"])
def test_a_job_that_ends_withdraws_what_it_asked_ahead(play: Play, way: str) -> None:
    async def scenario(harness: Harness) -> Any:
        job, _ = await harness.run(plan=plan(("pay", {"amount": 1}), ("pay", {"amount": 2})))
        if way == "cancel":
            await harness.requests.cancel("default", job["id"])
        else:
            await move_clock(harness.database, timedelta(seconds=Limits().human_wait_seconds + 1))
            await harness.open()
            await harness.sweeper.sweep()
            await harness.drain()
        asked = await QuestionStore(harness.database).page("default", limit=10)
        return [one["status"] for one in asked][::-1], (await seen(harness, job["id"]))[0]["status"]

    told, status = play(scenario, ScriptedModel(), Till().tools(), policy=PAY_ASKER)
    if way == "cancel":
        assert (told, status) == (["cancelled", "cancelled"], "cancelled")
    else:
        assert (told, status) == (["expired", "cancelled"], "completed")


def test_a_resumed_job_asks_anew_what_was_answered_ahead(play: Play) -> None:
    till = Till()

    async def scenario(harness: Harness) -> Any:
        job, _ = await harness.run(plan=plan(("pay", {"amount": BROKE}), ("pay", {"amount": 2})))
        first, second = await open_questions(harness)
        await answer(harness, second, {})
        await answer(harness, first, {})
        asked = await harness.requests.resume("default", job["id"], after=0)
        await harness.publish(asked.wakes)
        await harness.drain()
        return [one["step_index"] for one in await open_questions(harness)]

    assert play(scenario, ScriptedModel(), till.tools(), policy=PAY_ASKER) == [0, 1]


def test_an_approval_does_not_do_once_a_policy_wants_a_stricter_approver(play: Play) -> None:
    till = Till()

    async def scenario(harness: Harness) -> Any:
        await harness.run(plan=plan(("pay", {"amount": 1}), ("pay", {"amount": 2})), user_id="ada")
        first, second = await open_questions(harness)
        await answer(harness, second, {})
        config = {"tool_policy": {"pay": "ask"}}
        async with harness.database.connection() as connection:
            await connection.execute("UPDATE tenants SET config = %s", (json.dumps(config),))
        async with asyncio.timeout(PATIENCE):
            while not (await harness.tenants.of("default")).config.tool_policy:
                await harness.worker_registry.broken_invariants()  # something else that takes a moment
        await answer(harness, first, {"scope": "job"})
        found = []
        while asked := await open_questions(harness):
            found += [(one["step_index"], one["asked_of"]) for one in asked]
            await answer(harness, asked[0], {})
        return found

    asked = play(scenario, ScriptedModel(), till.tools(), policy=PAY_ASKER)
    assert (asked, till.paid) == ([(0, "operator"), (1, "operator")], [1, 2])
