"""What MCP servers ask people: put as questions of a step, answered, and given back with the server's own state."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from planq.shared.agentic.tools.contract import AskingPerson, Tool, ToolContext
from planq.shared.kernel.questions import QuestionAnswer, StepQuestion
from planq.shared.kernel.states import QuestionKind, QuestionStatus
from planq.shared.platform.errors import AnswerDeclined, AuthFailed, ToolFailed
from planq.worker.handlers.questions import CallQuestions
from planq.worker.tools.mcp import McpToolbox
from tests.integration.tools.mcp_probe import SERVERS, HttpProbe, connected, stdio, tool

ACCEPTED, DECLINED, CANCELLED = QuestionStatus.ACCEPTED, QuestionStatus.DECLINED, QuestionStatus.CANCELLED
STATE = 'opaque "1" é=='
WHERE = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PISA = {"city": "Pisa"}


class Step:
    """A step that calls a tool again and again, as its engine does, with the answers that it has by then."""

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self.answers: list[QuestionAnswer] = []
        self.can_seal = False

    async def asks(self, called: Tool) -> StepQuestion:
        """Call the tool, and return what it asks."""
        with pytest.raises(AskingPerson) as asking:
            await self.call(called)
        assert asking.value.question.ordinal == len(self.answers)
        return asking.value.question

    async def call(self, called: Tool) -> Any:
        """Call the tool."""
        people = CallQuestions(self.answers, can_seal=self.can_seal)
        return await called.call({}, dataclasses.replace(self._context, people=people))

    def answer(
        self, question: StepQuestion, content: Any = None, status: QuestionStatus = ACCEPTED, **more: Any
    ) -> None:
        """Answer a question; its state goes through JSON, as in the database."""
        state = json.loads(json.dumps(question.state))
        said = QuestionAnswer(question.kind, status, content, ordinal=question.ordinal, state=state, **more)
        self.answers.append(said)


Scenario = Callable[[McpToolbox, Step], Awaitable[None]]


@pytest.fixture
def asker(tmp_path: Path, context: ToolContext) -> Callable[..., None]:
    """Run scenarios, one after the other, each with a server and a worker of its own, for one step."""

    def play(*scenarios: Scenario, script: str = "asker.py", **planq: Any) -> None:
        step = Step(context)
        env = {"ASKER_FOLDER": str(tmp_path)}
        entry = {"command": sys.executable, "args": [str(SERVERS / script)], "env": env, "planq": planq}

        async def whole(scenario: Scenario) -> None:
            async with connected(tmp_path, s=entry) as toolbox:
                await scenario(toolbox, step)

        for scenario in scenarios:
            asyncio.run(whole(scenario))

    return play


def calls(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "calls.jsonl").read_text("utf-8").splitlines()]


def test_an_answer_goes_back_with_the_servers_state_unchanged_from_another_worker(
    asker: Callable[..., None], tmp_path: Path
) -> None:
    async def ask(toolbox: McpToolbox, step: Step) -> None:
        question = await step.asks(tool(toolbox, "s_book"))
        assert (question.kind, question.message, question.schema) == (QuestionKind.FORM, "Where to?", WHERE)
        assert question.details == {"server": "s", "tool": "book"}
        step.answer(question, {**PISA, "unasked": {"deep": [1]}})

    async def go_on(toolbox: McpToolbox, step: Step) -> None:
        assert await step.call(tool(toolbox, "s_book")) == {"text": '{"where": "accept"}'}

    asker(ask, go_on)
    first, second = calls(tmp_path)
    assert (first["state"], first["responses"]) == (None, {})
    assert (second["state"], second["responses"]) == (STATE, {"where": {"action": "accept", "content": PISA}})
    assert set(first["capabilities"]) == {"elicitation"}
    assert set(first["capabilities"]["elicitation"]) == {"form", "url"}


def test_several_questions_are_asked_one_after_the_other_and_answered_at_once(
    asker: Callable[..., None], tmp_path: Path
) -> None:
    async def scenario(toolbox: McpToolbox, step: Step) -> None:
        plan = tool(toolbox, "s_plan")
        step.answer(await step.asks(plan), status=CANCELLED)
        second = await step.asks(plan)
        assert second.message == "How long?"
        step.answer(second, {"nights": 3})
        assert await step.call(plan) == {"text": '{"where": "cancel", "nights": "accept"}'}

    asker(scenario)
    assert [sorted(call["responses"]) for call in calls(tmp_path)] == [[], ["nights", "where"]]


def test_a_server_is_told_that_a_person_declined(asker: Callable[..., None], tmp_path: Path) -> None:
    async def scenario(toolbox: McpToolbox, step: Step) -> None:
        book = tool(toolbox, "s_book")
        step.answer(await step.asks(book), status=DECLINED)
        assert await step.call(book) == {"text": '{"where": "decline"}'}

    asker(scenario)
    assert calls(tmp_path)[-1]["responses"] == {"where": {"action": "decline"}}


def test_a_url_is_shown_and_a_person_confirms(asker: Callable[..., None], tmp_path: Path) -> None:
    async def scenario(toolbox: McpToolbox, step: Step) -> None:
        sign = tool(toolbox, "s_sign")
        question = await step.asks(sign)
        assert (question.kind, question.url) == (QuestionKind.URL, "https://bank.example/sign?id=7")
        assert (question.schema, question.details["domain"]) == (None, "bank.example")
        step.answer(question, {})
        assert await step.call(sign) == {"text": '{"door": "accept"}'}

    asker(scenario)
    assert calls(tmp_path)[-1]["responses"] == {"door": {"action": "accept"}}


def test_a_server_that_has_forgotten_its_state_is_asked_anew(asker: Callable[..., None], tmp_path: Path) -> None:
    async def ask(toolbox: McpToolbox, step: Step) -> None:
        step.answer(await step.asks(tool(toolbox, "s_book")), PISA)
        (tmp_path / "epoch").write_text("2")

    async def same_question(toolbox: McpToolbox, step: Step) -> None:
        assert await step.call(tool(toolbox, "s_book")) == {"text": '{"where": "accept"}'}
        (tmp_path / "epoch").write_text("3")
        (tmp_path / "reworded").touch()

    async def another_question(toolbox: McpToolbox, step: Step) -> None:
        book = tool(toolbox, "s_book")
        question = await step.asks(book)
        assert question.message == "Where do you want to go?"
        step.answer(question, PISA)
        assert await step.call(book) == {"text": '{"where": "accept"}'}

    asker(ask, same_question, another_question)
    assert [call["state"] for call in calls(tmp_path)] == [
        *(None, STATE, None, STATE + "2"),
        *(STATE, None, STATE + "3"),
    ]


@pytest.mark.whole  # as the server by hand above, which forgets when it is told to
def test_a_server_of_the_sdk_that_is_started_anew_refuses_its_state_and_gets_the_answer_again(
    tmp_path: Path, context: ToolContext, http_probe: HttpProbe
) -> None:
    async def scenario() -> None:
        step = Step(context)
        async with connected(tmp_path, s=http_probe.entry) as toolbox:
            travel = tool(toolbox, "s_travel")
            question = await step.asks(travel)
            assert question.message == "Where to?"
            step.answer(question, PISA)
            assert await step.call(travel) == {"text": "Pisa"}
            await asyncio.to_thread(http_probe.kill)
            await asyncio.to_thread(http_probe.start)
            assert await step.call(travel) == {"text": "Pisa"}

    asyncio.run(scenario())


@pytest.mark.parametrize("way", ["stdio", "http"])
def test_a_tool_of_the_sdk_that_asks_while_its_call_runs_gets_the_answer_of_a_person(
    tmp_path: Path, context: ToolContext, way: str, request: pytest.FixtureRequest
) -> None:
    entry = stdio("probe.py", tmp_path) if way == "stdio" else request.getfixturevalue("http_probe").entry

    async def refused() -> None:
        async with connected(tmp_path, s=entry) as toolbox:
            with pytest.raises(ToolFailed, match="asks_in_calls"):
                await Step(context).call(tool(toolbox, "s_visit"))

    async def asked(status: QuestionStatus, said: str) -> None:
        step = Step(context)
        async with connected(tmp_path, s={**entry, "planq": {"asks_in_calls": True}}) as toolbox:
            visit = tool(toolbox, "s_visit")
            question = await step.asks(visit)
            assert (question.message, question.details) == ("Where to?", {"server": "s", "tool": "visit"})
            step.answer(question, PISA, status)
            assert await step.call(visit) == {"text": said}

    asyncio.run(refused())
    asyncio.run(asked(ACCEPTED, "Pisa"))
    asyncio.run(asked(DECLINED, "decline"))


def test_a_url_is_shown_anew_where_the_server_has_forgotten_its_state(
    asker: Callable[..., None], tmp_path: Path
) -> None:
    async def scenario(toolbox: McpToolbox, step: Step) -> None:
        sign = tool(toolbox, "s_sign")
        step.answer(await step.asks(sign), {})
        (tmp_path / "epoch").write_text("2")
        again = await step.asks(sign)
        assert (again.kind, again.ordinal) == (QuestionKind.URL, 1)

    asker(scenario)


def test_a_server_that_asks_again_what_was_answered_has_it_put_to_the_person_and_not_without_end(
    asker: Callable[..., None], tmp_path: Path
) -> None:
    (tmp_path / "again").touch()

    async def scenario(toolbox: McpToolbox, step: Step) -> None:
        book = tool(toolbox, "s_book")
        for _ in range(20):
            step.answer(await step.asks(book), PISA)
        with pytest.raises(ToolFailed, match="asks too much"):
            await step.call(book)

    asker(scenario)


def test_a_server_that_only_needs_time_is_called_again_with_its_state(
    asker: Callable[..., None], tmp_path: Path
) -> None:
    async def scenario(toolbox: McpToolbox, step: Step) -> None:
        assert await step.call(tool(toolbox, "s_patient")) == {"text": "done"}

    asker(scenario)
    assert [call["state"] for call in calls(tmp_path)] == [None, "1", "2", "3"]


NOT_FOR_PEOPLE = {
    "large": "more than 16384 bytes",
    "deep": "more than 8 levels deep",
    "nested": "expected a field of the type",
    "wordy": "more than 8000 characters",
    "greedy": "may not ask for a secret",
    "curious": "may not ask for a secret",
    "local": r"expected an http\(s\) URL",
    "lookalike": r"expected an http\(s\) URL",
    "signed_in": r"expected an http\(s\) URL",
    "crowd": "asks too much",
    "heavy": "a state of more than 65536 bytes",
    "sample": "which planq does not offer",
}
"""Of one server, which takes longer to start than to answer all of these."""


def test_what_cannot_be_put_to_a_person_fails_the_call(asker: Callable[..., None]) -> None:
    async def scenario(toolbox: McpToolbox, step: Step) -> None:
        for name, words in NOT_FOR_PEOPLE.items():
            with pytest.raises(ToolFailed, match=words):
                await step.call(tool(toolbox, f"s_{name}"))

    asker(scenario)


def test_a_question_in_the_middle_of_a_call_is_declined(asker: Callable[..., None], tmp_path: Path) -> None:
    async def scenario(toolbox: McpToolbox, step: Step) -> None:
        assert await step.call(tool(toolbox, "s_middle")) == {"text": '{"action": "decline"}'}

    asker(scenario, script="elder_asker.py")
    first, *_, last = calls(tmp_path)
    assert first == {"capabilities": {"elicitation": {"form": {}, "url": {}}}}
    assert last == {"reply": {"action": "decline"}}


def test_a_question_in_the_middle_of_a_call_that_may_be_repeated_is_put_to_a_person(
    asker: Callable[..., None], tmp_path: Path
) -> None:
    async def ask(toolbox: McpToolbox, step: Step) -> None:
        question = await step.asks(tool(toolbox, "s_middle"))
        assert (question.kind, question.message) == (QuestionKind.FORM, "Where to?")
        step.answer(question, PISA)

    async def go_on(toolbox: McpToolbox, step: Step) -> None:
        output = await step.call(tool(toolbox, "s_middle"))
        assert json.loads(output["text"]) == {"action": "accept", "content": PISA}

    asker(ask, go_on, script="elder_asker.py", repeatable=["middle"])
    assert [call for call in calls(tmp_path) if "reply" in call] == [
        {"reply": "refused"},
        {"reply": {"action": "accept", "content": PISA}},
    ]


def test_a_question_in_the_middle_is_declined_where_it_may_belong_to_several_calls(
    asker: Callable[..., None], tmp_path: Path
) -> None:
    for name in ("company", "signed"):
        (tmp_path / name).touch()

    async def scenario(toolbox: McpToolbox, step: Step) -> None:
        async with asyncio.timeout(60):
            first, second = await asyncio.gather(
                step.call(tool(toolbox, "s_middle")), step.call(tool(toolbox, "s_elsewhere"))
            )
        assert (first, second) == ({"text": '{"action": "decline"}'}, {"text": "signed"})

    asker(scenario, script="elder_asker.py", repeatable=["middle", "elsewhere"])


@pytest.mark.parametrize("status", [ACCEPTED, DECLINED])
def test_a_call_that_is_refused_until_one_has_signed_in_is_made_again(
    asker: Callable[..., None], tmp_path: Path, status: QuestionStatus
) -> None:
    async def scenario(toolbox: McpToolbox, step: Step) -> None:
        elsewhere = tool(toolbox, "s_elsewhere")
        question = await step.asks(elsewhere)
        assert (question.kind, question.url) == (QuestionKind.URL, "https://bank.example/in")
        step.answer(question, {}, status)
        if status is DECLINED:
            with pytest.raises(AnswerDeclined):
                await step.call(elsewhere)
            return
        (tmp_path / "signed").touch()
        assert await step.call(elsewhere) == {"text": "signed"}

    asker(scenario, script="elder_asker.py")
    assert len([call for call in calls(tmp_path) if "call" in call]) == (2 if status is ACCEPTED else 1)


def test_a_form_asks_for_a_secret_where_the_operator_allows_it_and_a_key_seals_it(
    asker: Callable[..., None],
) -> None:
    async def scenario(toolbox: McpToolbox, step: Step) -> None:
        with pytest.raises(AuthFailed, match="set it for every process"):
            await step.call(tool(toolbox, "s_greedy"))
        with pytest.raises(ToolFailed, match="expected a secret to be a text"):
            await step.call(tool(toolbox, "s_tokens"))
        step.can_seal = True
        question = await step.asks(tool(toolbox, "s_greedy"))
        assert question.is_secret
        step.answer(question, {"userPassword": "pw-of-ada-4711"}, sealed_as="answer/1")
        assert await step.call(tool(toolbox, "s_greedy")) == {"text": '{"a": "accept"}'}

    asker(scenario, secret_forms=True)


def test_a_server_may_not_have_a_secret_stored_with_its_next_question(asker: Callable[..., None]) -> None:
    async def scenario(toolbox: McpToolbox, step: Step) -> None:
        step.can_seal = True
        gossip = tool(toolbox, "s_gossip")
        step.answer(await step.asks(gossip), {"password": 'pw-"of"-ada-4711'}, sealed_as="answer/1")
        with pytest.raises(ToolFailed, match="holds the secret of an earlier answer") as refused:
            await step.call(gossip)
        assert "4711" not in str(refused.value)

    asker(scenario, secret_forms=True)
