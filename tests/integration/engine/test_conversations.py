"""Conversations over the real engine: turns come one after the other, and each sees what came before it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from planq.shared.agentic.models.exchange import ToolCallRequest
from planq.shared.agentic.turns.messages import MessageKind, Policy
from planq.shared.kernel.states import QuestionStatus
from planq.shared.platform.errors import ToolFailed
from planq.shared.subjects.conversations.rules import history_messages
from planq.shared.subjects.conversations.store import AnsweredQuestion, Arrival, ConversationStore
from planq.worker.tools.declare import tool
from tests.support.conversations import Thread
from tests.support.harness import Harness, ScriptedModel, make_tool


@tool(name="note", effect="read")
async def note(text: str) -> dict[str, str]:
    """Note a text."""
    return {"text": f"<{text}>"}


async def says(harness: Harness, on: Thread, text: str, **fields: Any) -> Any:
    """Receive a message as the API does, and publish what it brings."""
    received = await on.says(text, **fields)
    await harness.publish(received.wakes)
    return received


def test_ten_rapid_messages_are_ten_turns_in_their_order(play: Any) -> None:
    async def scenario(harness: Harness) -> None:
        thread = Thread(harness.database)
        seen: list[int] = []

        async def watch() -> None:
            while len(seen) < 200:
                seen.append(len(await thread.active()))

        received = await asyncio.gather(*(says(harness, thread, f"say {n}") for n in range(10)))
        assert Counter(one.begins for one in received) == {True: 1, False: 9}
        await asyncio.gather(harness.drain(), watch())
        rows = await thread.rows(received[0].conversation_id)
        asked = [text for direction, text in rows if direction == "inbound"]
        answered = [text for direction, text in rows if direction == "outbound"]
        assert sorted(asked) == [f"say {n}" for n in range(10)]
        assert answered == [f"you said: {text}" for text in asked], "each once, in the order of the messages"
        assert max(seen) == 1, "never two jobs were active"

    class Echo(ScriptedModel):
        async def plan(self, ask: Any, tools: Any, **given: Any) -> Any:
            self.planned = f"you said: {ask.input}"
            return await super().plan(ask, tools, **given)

    play(scenario, Echo())


def test_the_same_source_id_or_key_twenty_times_at_once_is_one_message(play: Any) -> None:
    async def scenario(harness: Harness) -> None:
        thread = Thread(harness.database)
        key = {"idempotency_key": "k", "request_hash": "h"}
        known_by: list[dict[str, Any]] = [
            {"source_id": "m1"},
            {"source_id": "m1", "thread": None},
            {**key, "thread": None},
        ]
        other = Thread(harness.database)
        for known in known_by:
            received = await asyncio.gather(*(says(harness, on, "hello", **known) for on in [thread, other] * 10))
            assert Counter(one.outcome for one in received) == {Arrival.ACCEPTED: 1, Arrival.DUPLICATE: 19}
            assert len({(one.conversation_id, one.message_id, one.job_id) for one in received}) == 1
        assert await thread.run("SELECT count(*)::int AS n FROM jobs") == [{"n": 3}]
        assert await thread.run("SELECT count(*)::int AS n FROM conversations") == [{"n": 3}]

    play(scenario, ScriptedModel("hi"))


def test_a_turn_is_written_down_and_shown_to_the_next(play: Any) -> None:
    async def scenario(harness: Harness) -> None:
        thread = Thread(harness.database)
        first = await says(harness, thread, "look")
        second = await says(harness, thread, "and now?")
        assert (first.begins, second.begins) == (True, False)
        await harness.drain()
        job = first.job_id.hex
        call = {"id": f"{job}_0", "name": "note"}
        assert await thread.rows(first.conversation_id) == [
            ("inbound", "look"),
            ("inbound", "and now?"),
            ("tool_call", {**call, "arguments": {"text": "a"}}),
            ("tool_response", {**call, "output": {"text": "<a>"}}),
            ("outbound", "done"),
            ("tool_call", {"id": f"{second.job_id.hex}_0", "name": "note", "arguments": {"text": "a"}}),
            ("tool_response", {"id": f"{second.job_id.hex}_0", "name": "note", "output": {"text": "<a>"}}),
            ("outbound", "done"),
        ]
        shown = await harness.turns.history("default", first.conversation_id, second.job_id)
        assert [(str(row.kind), row.text) for row in reversed(shown)] == [
            ("message", "look"),
            ("tool_call", ""),
            ("tool_response", ""),
            ("message", "done"),
        ]
        assert await harness.turns.history("other", first.conversation_id, second.job_id) == []
        assert await harness.turns.history("default", first.conversation_id, first.job_id) == []
        (conversation,) = await thread.run("SELECT * FROM conversations")
        assert (conversation["messages_in"], conversation["messages_out"]) == (2, 2)
        assert (conversation["input_tokens"], conversation["output_tokens"]) == (48, 20)
        assert conversation["active_job_id"] is None

    play(scenario, ScriptedModel.planning(("note", {"text": "a"}), answered="done"), [make_tool(note)])


@pytest.mark.parametrize("size", [1_000, 60_000, 70_000, 140_000, 900_000])
def test_what_is_too_long_for_a_transcript_is_named_a_preview(play: Any, size: int) -> None:
    text = "x" * size

    async def scenario(harness: Harness) -> None:
        thread = Thread(harness.database)
        first = await says(harness, thread, "look")
        second = await says(harness, thread, "and now?")
        await harness.drain()
        rows = await thread.rows(first.conversation_id)
        (_, called), (_, response), *_ = (row for row in rows if row[0].startswith("tool_"))
        if size == 1_000:
            assert (called["arguments"], response["output"]) == ({"text": text}, {"text": f"<{text}>"})
            assert not {"preview"} & (called.keys() | response.keys())
        else:
            assert not {"arguments", "output"} & (called.keys() | response.keys())
            for content in (called, response):
                assert content["preview"].endswith(" characters in all]")
                assert len(content["preview"]) < 9_000
        shown = await harness.turns.history("default", first.conversation_id, second.job_id)
        told = "".join(message.content for message in history_messages(shown, 10_000, len) if message.role == "tool")
        assert ("preview" in told) == (size > 1_000), "a model is told that it is no whole output"

    model = ScriptedModel.planning(("note", {"text": text}), answered="done")
    play(scenario, model, [make_tool(note)])


def test_a_message_answers_what_the_active_turn_asks_and_else_waits(play: Any) -> None:
    async def scenario(harness: Harness) -> None:
        thread = Thread(harness.database)
        first = await says(harness, thread, "look")
        await harness.drain()
        waits = await says(harness, thread, "what is the weather?")
        assert (waits.outcome, waits.begins) == (Arrival.ACCEPTED, False)
        answers = await asyncio.gather(*(says(harness, thread, "Yes!", source_id=f"m{n}") for n in (1, 1, 2)))
        assert Counter(one.outcome for one in answers)[Arrival.ANSWERED] == 1
        (answered,) = [one for one in answers if one.outcome is Arrival.ANSWERED]
        assert (answered.job_id, len(answered.wakes)) == (first.job_id, 1)
        await harness.drain()
        (asked,) = await thread.run("SELECT * FROM questions WHERE root_job_id = %s", first.job_id)
        assert (asked["status"], asked["channel"]) == ("accepted", "api")
        shown = await harness.turns.history("default", first.conversation_id, waits.job_id)
        assert [row.text for row in reversed(shown) if row.text] == ["look", "Yes!", "done"]

    model = ScriptedModel.planning(("note", {"text": "a"}), answered="done")
    play(scenario, model, [make_tool(note)], policy={"note": "ask:asker"})


def test_a_question_is_put_again_after_every_second_message_in_a_row_that_does_not_fit(play: Any) -> None:
    async def scenario(harness: Harness) -> None:
        thread = Thread(harness.database)
        first = await says(harness, thread, "look")
        await harness.drain()
        (asked,) = await thread.run("SELECT * FROM questions")
        for text in ("what is the weather?", "and tomorrow?", "hm", "well"):
            waits = await says(harness, thread, text)
            assert (waits.outcome, waits.missed) == (Arrival.ACCEPTED, asked["id"])
        rows = await thread.rows(first.conversation_id)
        assert [direction for direction, _ in rows] == ["inbound"] * 3 + ["outbound"] + ["inbound"] * 2 + ["outbound"]
        assert {text for direction, text in rows if direction == "outbound"} == {asked["message"]}
        (conversation,) = await thread.run("SELECT * FROM conversations")
        assert (conversation["last_sequence"], conversation["messages_out"]) == (7, 2)
        answered = await says(harness, thread, "go ahead")
        assert (answered.outcome, answered.answered) == (
            Arrival.ANSWERED,
            AnsweredQuestion(asked["id"], QuestionStatus.ACCEPTED),
        )
        await harness.drain()
        reply = await ConversationStore(harness.database).reply("default", first.job_id)
        assert reply is not None
        assert reply["text"] == "done"

    model = ScriptedModel.planning(("note", {"text": "a"}), answered="done")
    play(scenario, model, [make_tool(note)], policy={"note": "ask:asker"})


@pytest.mark.parametrize("policy", [Policy.QUEUE, Policy.MERGE, Policy.REJECT])
def test_a_tenant_may_let_another_message_cancel_what_is_asked(play: Any, policy: Policy) -> None:
    async def scenario(harness: Harness) -> None:
        thread = Thread(harness.database)
        first = await says(harness, thread, "look")
        await harness.drain()
        other = await says(harness, thread, "what is the weather?", policy=policy, cancels_questions=True)
        (asked,) = await thread.run("SELECT * FROM questions WHERE root_job_id = %s", first.job_id)
        if policy is Policy.REJECT:
            assert (other.outcome, asked["status"]) == (Arrival.REJECTED, "open")
            return
        assert (asked["status"], asked["answered_by"], asked["channel"]) == ("cancelled", None, "api")
        assert other.missed is None
        await harness.drain()
        _, steps = await harness.requests.job("default", first.job_id)
        assert (steps[0]["status"], steps[0]["error"]["code"]) == ("failed", "cancelled")
        assert await thread.run("SELECT 1 FROM conversations WHERE active_job_id = %s", first.job_id) == []

    model = ScriptedModel.planning(("note", {"text": "a"}), answered="done")
    play(scenario, model, [make_tool(note)], policy={"note": "ask:asker"})


@pytest.mark.parametrize("fails", [False, True])
def test_an_unsafe_call_that_a_message_interrupts_is_seen_through(play: Any, fails: bool) -> None:
    called, go_on = asyncio.Event(), asyncio.Event()

    @tool(name="pay", effect="unsafe")
    async def pay(amount: int) -> dict[str, int]:
        """Pay an amount."""
        called.set()
        await go_on.wait()
        if fails:
            raise ToolFailed("no money")
        return {"paid": amount}

    async def scenario(harness: Harness) -> None:
        thread = Thread(harness.database)
        first = await says(harness, thread, "pay")
        paying = asyncio.ensure_future(harness.drain())
        await called.wait()
        second = await says(harness, thread, "stop", policy=Policy.INTERRUPT)
        assert second.ended == (first.job_id,)
        harness.dispatcher.interrupt(first.job_id)
        harness.dispatcher.in_flight.cut_off(harness.dispatcher.in_flight.attempts())
        rows = await thread.rows(first.conversation_id)
        assert rows[3][1]["error"]["code"] == "outcome_unknown"
        go_on.set()
        await paying
        await harness.drain()
        shown = await harness.turns.history("default", first.conversation_id, second.job_id)
        (told,) = [row.content for row in shown if row.kind is MessageKind.TOOL_RESPONSE]
        if fails:
            assert (told["error"]["code"], told["error"]["message"]) == ("tool_error", "no money")
        else:
            assert told == {"id": f"{first.job_id.hex}_0", "name": "pay", "output": {"paid": 5}}
        job, steps = await harness.requests.job("default", first.job_id)
        assert (job["status"], [step["status"] for step in steps]) == ("cancelled", ["cancelled"])

    play(scenario, ScriptedModel.planning(("pay", {"amount": 5})), [make_tool(pay)])


def test_arguments_of_a_turn_that_nobody_chooses_or_that_look_like_code_are_told_of(play: Any) -> None:
    async def scenario(harness: Harness) -> None:
        thread = Thread(harness.database)
        received = await says(harness, thread, "look", submission={"user_id": "ada"})
        await harness.drain()
        (*_, response, _) = await thread.rows(received.conversation_id)
        assert response[1]["output"] == {"text": "ada: 1' OR 1=1 --"}
        events = await thread.run(
            "SELECT kind, data FROM events WHERE kind IN ('parameter_override', 'suspicious_arguments') ORDER BY kind"
        )
        place = {"round": 0, "index": 0, "tool": "orders"}
        assert [event["data"] for event in events] == [
            {**place, "parameters": ["customer"]},
            {**place, "warnings": ["Suspicious SQL pattern in text"]},
        ]

    @tool(effect="read", user_scoped=["customer"])
    async def orders(customer: str, text: str) -> str:
        """Look for orders."""
        return f"{customer}: {text}"

    arguments = {"text": "1' OR 1=1 --", "customer": "eve"}
    play(
        scenario,
        ScriptedModel.planning(("orders", arguments), answered="done"),
        [make_tool(orders)],
    )


@pytest.mark.parametrize("policy", [Policy.INTERRUPT, Policy.MERGE, Policy.QUEUE])
def test_whatever_the_policy_one_turn_is_active_and_every_message_is_settled(play: Any, policy: Policy) -> None:
    async def scenario(harness: Harness) -> None:
        thread = Thread(harness.database)

        async def many(source: str) -> None:
            for number in range(6):
                received = await says(harness, thread, "look", policy=policy, source_id=f"{source}{number}")
                for ended in received.ended:
                    harness.dispatcher.interrupt(ended)
                assert len(await thread.active()) <= 1
                await harness.drain()

        await asyncio.gather(*(many(source) for source in "abc"))
        await harness.drain()
        (conversation,) = await thread.run("SELECT * FROM conversations")
        assert (conversation["messages_in"], conversation["active_job_id"]) == (18, None)
        left = await thread.run("SELECT status, turn IS NULL AS waits FROM conversation_messages")
        assert {(row["status"], row["waits"]) for row in left} == {("done", False)}
        assert await harness.worker_registry.broken_invariants() == []

    model = ScriptedModel(turns=[[ToolCallRequest("note", {"text": "a"}, "c")], "done"])
    play(scenario, model, [make_tool(note)])
