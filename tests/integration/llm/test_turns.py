"""Turns of `loop` and `react` over the wire: what each provider is sent of the turns before, and what comes back."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from planq.shared.agentic.models.exchange import Ask, ChatMessage, ModelFailed, ModelReply, TurnForm, reply_to_json
from planq.shared.agentic.models.names import Provider
from planq.shared.agentic.rounds.reading import NothingLeft, TurnCalls, interpret_turn
from planq.shared.agentic.rounds.transcript import transcript, with_refusal
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.steps import RoundRecord, StepResult
from planq.worker.models.gateway import ModelGateway, TryLimits
from planq.worker.models.messages import call_id_for
from planq.worker.models.settings import ModelSettings
from tests.integration.llm.calls import TOOLS, Waits, ask_for, every_dialect, one_dialect, settings_for
from tests.integration.llm.dialects import GOOGLE, OPENAI_CHAT, STREAMS, Dialect
from tests.integration.llm.turns import SIGNATURE, WireMessage, calling, conversation, offered, reasoning
from tests.integration.llm.wire import Reply, WireServer

FETCH = {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]}
ALL = [*TOOLS, ToolDefinition(name="web.fetch", description="Get a page.", input_schema=FETCH)]
CALLED = (("calculate", {"expression": "$0.output.x"}), ("web_fetch", {"url": "u"}))
NEXT = {"type": "tool_calls", "reasoning": "r", "calls": [{"number": 0, "tool_name": "calculate", "arguments": {}}]}
BEFORE = [
    WireMessage("user", ("Hello",)),
    WireMessage("assistant", ("Good day",)),
    WireMessage("user", ("What is 2+2?",)),
]


def turn(
    settings: ModelSettings,
    ask: Ask,
    told: Sequence[ChatMessage],
    form: TurnForm = TurnForm.REACT,
    tools: Sequence[ToolDefinition] = ALL,
) -> ModelReply:
    async def run() -> ModelReply:
        gateway = ModelGateway(settings, patience=TryLimits(settings, Waits(), lambda: 0.5))
        try:
            return await gateway.turn(ask, tools, told, form)
        finally:
            await gateway.aclose()

    return asyncio.run(run())


def told_of(reply: ModelReply, *results: StepResult, form: TurnForm = TurnForm.REACT) -> Sequence[ChatMessage]:
    """Return the transcript of a round whose plan was stored and read again."""
    stored = json.loads(json.dumps(reply_to_json(reply)))
    return transcript([RoundRecord(0, "model", {}, stored, 0, results)], max_tokens=10_000, form=form)


RESULTS = (
    StepResult("calculate", {"expression": "$0.output.x"}, {"result": 4}),
    StepResult("web.fetch", {"url": "u"}, None, "no network", code="transient"),
)


@every_dialect
def test_react_offers_the_tools_and_gives_calls_back_as_they_came(server: WireServer, dialect: Dialect) -> None:
    dialect = reasoning(dialect)
    settings = settings_for(dialect, server)
    server.script(Reply(calling(dialect, "Let me see.", *CALLED)), Reply(dialect.reply("It is 4.", None)))

    first = turn(settings, ask_for(dialect), ())
    second = turn(settings, ask_for(dialect), told_of(first, *RESULTS))

    assert [(call.name, call.arguments) for call in first.tool_calls] == [
        ("calculate", {"expression": "$0.output.x"}),
        ("web.fetch", {"url": "u"}),
    ]
    assert (first.text, second.text, second.tool_calls) == ("Let me see.", "It is 4.", [])
    asked, again = (request.body for request in server.requests)
    assert conversation(dialect, asked) == BEFORE
    names = [call.id for call in first.tool_calls]
    assert conversation(dialect, again) == [
        *BEFORE,
        WireMessage(
            "assistant",
            ("Let me see.",),
            ((names[0], *CALLED[0]), (names[1], *CALLED[1])),
            signed=True,
        ),
        WireMessage(
            "tool",
            results=(
                (names[0], '{"result": 4}'),
                (names[1], '{"status": "failed", "error": "transient", "message": "no network"}'),
            ),
        ),
    ]
    assert (
        offered(dialect, asked) == {"calculate": TOOLS[0].input_schema, "web_fetch": FETCH} == offered(dialect, again)
    )
    assert dialect.read(asked).choice in ("auto", "AUTO")
    kept = second.call.exchange["request"]  # type: ignore[index]
    assert [message["role"] for message in kept["messages"] if message["role"] != "system"] == [
        "assistant",
        "tool",
        "tool",
    ]
    assert (kept["earlier_messages"], kept["tools"]) == (3, [{"name": "calculate"}, {"name": "web.fetch"}])


@every_dialect
def test_loop_forces_the_planning_tool_each_time_and_shows_the_plan_before(
    server: WireServer, dialect: Dialect
) -> None:
    dialect = reasoning(dialect)
    settings = settings_for(dialect, server)
    answer = {"type": "direct_response", "content": "It is 4."}
    server.script(
        Reply(calling(dialect, "", ("__planning__", NEXT))), Reply(calling(dialect, "", ("__planning__", answer)))
    )

    first = turn(settings, ask_for(dialect), (), TurnForm.LOOP)
    told = told_of(first, RESULTS[0], form=TurnForm.LOOP)
    second = turn(settings, ask_for(dialect), told, TurnForm.LOOP)

    read = interpret_turn(first.text, first.tool_calls, TurnForm.LOOP)
    assert isinstance(read, TurnCalls)
    assert read.numbers == (0,)
    assert second.tool_calls[0].arguments == answer
    asked, again = (request.body for request in server.requests)
    for body in (asked, again):
        assert list(offered(dialect, body)) == ["__planning__"]
        kinds = offered(dialect, body)["__planning__"]["properties"]["type"]["enum"]
        assert kinds == ["direct_response", "tool_calls", "elicitation", "abort", "noop"]
    *before, planned, result = conversation(dialect, again)
    assert before == BEFORE
    assert [(name, arguments) for _, name, arguments in planned.calls] == [("__planning__", NEXT)]
    (((name, content)),) = result.results
    assert name == planned.calls[0][0]
    assert json.loads(content) == {"step": 0, "tool": "calculate", "status": "succeeded", "output": {"result": 4}}


@one_dialect
def test_the_last_answer_is_asked_for_without_any_tool(server: WireServer, dialect: Dialect) -> None:
    dialect = reasoning(dialect)
    settings = settings_for(dialect, server)
    server.script(Reply(calling(dialect, "Let me see.", *CALLED)), Reply(dialect.reply("It is 4.", None)))

    first = turn(settings, ask_for(dialect), ())
    last = turn(settings, ask_for(dialect), told_of(first, *RESULTS), TurnForm.ANSWER)

    assert last.text == "It is 4."
    assert last.call.purpose == "respond"
    begun, body = (request.body for request in server.requests)
    if dialect.provider is Provider.ANTHROPIC:  # read from the cache: the same bytes come first
        assert offered(dialect, body) == offered(dialect, begun)
        return
    assert offered(dialect, body) == {}
    assert "tool_choice" not in body
    *before, shown = conversation(dialect, body)
    assert before == BEFORE[:-1]
    assert shown.texts[0].startswith(BEFORE[-1].texts[0])
    for part in ("Let me see.", 'Call of web.fetch: {"url": "u"}', 'Result of calculate: {"result": 4}', "<data-"):
        assert part in shown.texts[0]


@one_dialect
def test_rounds_that_no_model_made_are_accepted_as_calls_too(server: WireServer, dialect: Dialect) -> None:
    settings = settings_for(dialect, server)
    server.script(Reply(dialect.reply("Done.", None)))
    chained = [StepResult("x.y " + "z" * 80, {"note": "\ud800"}, {"id": 7})]
    rounds = [RoundRecord(number, "caller", {"reasoning": None}, None, number, chained) for number in range(2)]

    turn(settings, ask_for(dialect), transcript(rounds, max_tokens=10_000, form=TurnForm.REACT))

    *before, first, result, second, other = conversation(dialect, server.requests[0].body)
    assert before == BEFORE
    ids = [said.calls[0][0] for said in (first, second)]
    assert len(set(ids)) == 2
    assert [said.results for said in (result, other)] == [((name, '{"id": 7}'),) for name in ids]
    for said in (first, second):
        assert said.calls[0][1] == "x_y_" + "z" * 60


@one_dialect
def test_a_turn_that_was_refused_is_asked_again_with_what_is_wrong(server: WireServer, dialect: Dialect) -> None:
    dialect = reasoning(dialect)
    settings = settings_for(dialect, server)
    server.script(
        Reply(calling(dialect, "", ("__planning__", {"type": "dance"}))), Reply(dialect.reply("Done.", None))
    )

    first = turn(settings, ask_for(dialect), (), TurnForm.LOOP)
    read = interpret_turn(first.text, first.tool_calls, TurnForm.LOOP)
    again = turn(settings, ask_for(dialect), with_refusal((), first, read.errors), TurnForm.LOOP)  # type: ignore[union-attr]

    assert again.text == "Done."
    *_, planned, wrong = conversation(dialect, server.requests[1].body)
    assert planned.calls[0][2] == {"type": "dance"}
    assert "expected a type of" in wrong.results[0][1]


@every_dialect
def test_a_turn_may_say_nothing_unless_it_was_cut_off(server: WireServer, dialect: Dialect) -> None:
    settings = settings_for(dialect, server)
    server.script(Reply(dialect.reply("", None)))

    silent = turn(settings, ask_for(dialect), ())

    assert interpret_turn(silent.text, silent.tool_calls, TurnForm.REACT) == NothingLeft()
    with pytest.raises(ModelFailed, match="answered with nothing"):
        turn(settings, ask_for(dialect), (), TurnForm.ANSWER)


def test_a_turn_that_was_cut_off_before_its_first_word_has_failed(server: WireServer) -> None:
    cut = OPENAI_CHAT.reply("", None)
    cut["choices"][0]["finish_reason"] = "length"
    server.script(Reply(cut))

    with pytest.raises(ModelFailed, match="finish reason: length"):
        turn(settings_for(OPENAI_CHAT, server), ask_for(OPENAI_CHAT), ())


def test_arguments_that_are_no_json_go_back_as_json(server: WireServer) -> None:
    settings = settings_for(OPENAI_CHAT, server)
    server.script(Reply(calling(OPENAI_CHAT, "", ("calculate", "{bro"))), Reply(OPENAI_CHAT.reply("Done.", None)))

    first = turn(settings, ask_for(OPENAI_CHAT), ())
    failed = StepResult("calculate", {}, None, "no JSON object", code="invalid_arguments")
    turn(settings, ask_for(OPENAI_CHAT), told_of(first, failed))

    assert first.tool_calls[0].arguments == "{bro"
    said = conversation(OPENAI_CHAT, server.requests[1].body)[-2]
    assert said.calls[0][2] == {"INVALID_JSON": "{bro"}


@pytest.mark.parametrize(
    ("one", "other"),
    [(one, other) for one in STREAMS for other in STREAMS if one.name != other.name],
    ids=lambda dialect: dialect.name,
)
def test_another_provider_is_told_the_calls_without_thoughts_and_signatures(
    server: WireServer, one: Dialect, other: Dialect
) -> None:
    one, other = reasoning(one), reasoning(other)
    server.script(Reply(calling(one, "Let me see.", *CALLED)), Reply(other.reply("Done.", None)))

    first = turn(settings_for(one, server), ask_for(one), ())
    turn(settings_for(other, server), ask_for(other), told_of(first, *RESULTS))

    body = server.requests[1].body
    assert SIGNATURE in json.dumps(first.state)
    for part in (SIGNATURE, "Well.", "<think"):
        assert part not in json.dumps(body)
    assert [call[1:] for call in conversation(other, body)[-2].calls] == list(CALLED)


def test_ids_of_calls_that_a_provider_does_not_take_become_others(server: WireServer) -> None:
    ids = ("call_0123456789", "functions.look:0", "a" * 100, "abcdef012", "")
    made = {provider: [call_id_for(provider, given) for given in ids] for provider in ("mistral", "anthropic", "x")}

    assert [re.fullmatch("[A-Za-z0-9]{9}", one) is not None for one in made["mistral"]] == [True] * 5
    assert made["mistral"][3] == ids[3]
    assert made["anthropic"][0] == ids[0]
    assert all(re.fullmatch("[A-Za-z0-9_-]{1,64}", one) for one in made["anthropic"])
    assert made["x"][:2] == list(ids[:2])
    assert len(set(made["mistral"])) == len(ids)


def test_mistral_is_sent_ids_of_nine_characters(server: WireServer) -> None:
    mistral = replace(OPENAI_CHAT, model="mistral:mistral-large-latest", provider=Provider.MISTRAL)
    server.script(Reply(calling(OPENAI_CHAT, "Let me see.", *CALLED)), Reply(mistral.reply("Done.", None)))

    first = turn(settings_for(OPENAI_CHAT, server), ask_for(OPENAI_CHAT), ())
    turn(settings_for(mistral, server), ask_for(mistral), told_of(first, *RESULTS))

    body = server.requests[1].body
    called = [call["id"] for message in body["messages"] for call in message.get("tool_calls", ())]
    answered = [message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"]
    assert called == answered
    assert all(re.fullmatch("[A-Za-z0-9]{9}", one) for one in called)
    assert len(set(called)) == 2


def test_a_state_of_another_version_is_left_out(server: WireServer) -> None:
    server.script(Reply(calling(GOOGLE, "Let me see.", *CALLED)), Reply(GOOGLE.reply("Done.", None)))
    settings = settings_for(GOOGLE, server)

    first = turn(settings, ask_for(GOOGLE), ())
    turn(settings, ask_for(GOOGLE), told_of(replace(first, state={"parts": [{"part_kind": "dream"}]}), *RESULTS))

    assert [call[1:] for call in conversation(GOOGLE, server.requests[1].body)[-2].calls] == list(CALLED)


def test_a_recorded_turn_is_replayed_with_its_ids_and_its_state(server: WireServer, tmp_path: Path) -> None:
    cassette = tmp_path / "turns.jsonl"
    server.script(Reply(calling(GOOGLE, "Let me see.", *CALLED)), Reply(GOOGLE.reply("It is 4.", None)))
    settings = settings_for(GOOGLE, server, record_path=cassette)
    first = turn(settings, ask_for(GOOGLE), ())
    second = turn(settings, ask_for(GOOGLE), told_of(first, *RESULTS))

    replayed = replace(settings, default_model=f"cassette:{cassette}", record_path=None)
    ask = replace(ask_for(GOOGLE), model="")
    again = turn(replayed, ask, ())
    last = turn(replayed, ask, told_of(again, *RESULTS))

    assert (again.tool_calls, again.state) == (first.tool_calls, first.state)
    assert last.text == second.text
    assert len(server.requests) == 2
