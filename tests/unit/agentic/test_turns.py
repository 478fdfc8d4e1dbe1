"""The decision of a turn of `loop` or `react`: how it is asked for, and how replies are read."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.agentic.models.exchange import ToolCallRequest, TurnForm
from planq.shared.agentic.plan.interpret import Direct, MalformedPlan
from planq.shared.agentic.rounds.reading import (
    Abort,
    NothingLeft,
    Turn,
    TurnCalls,
    TurnQuestion,
    interpret_turn,
    loop_tool,
    number_errors,
)
from planq.shared.agentic.tools.definition import ToolDefinition
from tests.unit.agentic.strategies import json_values

TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/Node"}},
    "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}},
}
TOOLS = [
    ToolDefinition(name="search", input_schema={"type": "object", "properties": {"query": {"type": "string"}}}),
    ToolDefinition(name="grow", input_schema=TREE),
]
CALL = {"number": 3, "tool_name": "search", "arguments": {"query": "x"}}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}


def decide(document: Any, form: TurnForm = TurnForm.LOOP) -> Turn:
    return interpret_turn("", [ToolCallRequest("__planning__", document)], form)


def messages(turn: Turn) -> list[str]:
    assert isinstance(turn, MalformedPlan), turn
    return [error["error"]["message"] for error in turn.errors]


@pytest.mark.parametrize("tools", [TOOLS, TOOLS[:1], []], ids=["two", "one", "none"])
def test_the_forced_tool_allows_each_decision_and_asks_for_the_number_of_each_call(
    tools: list[ToolDefinition],
) -> None:
    schema = loop_tool(tools)["parameters"]

    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    fitting: list[dict[str, Any]] = [
        {"type": "direct_response", "content": "Paris"},
        {"type": "elicitation", "message": "Which city?", "schema": CITY},
        {"type": "abort", "reason": "no network"},
        {"type": "noop"},
    ]
    planned = {"type": "tool_calls", "reasoning": "r", "calls": [CALL]}
    for document in [*fitting, *([planned] if tools else [])]:
        validator.validate(document)
        assert not isinstance(decide(document), MalformedPlan)
    unnumbered = {**planned, "calls": [{"tool_name": "search", "arguments": {}}]}
    assert validator.is_valid(unnumbered) is False


def test_the_arguments_of_a_numbered_call_may_refer_to_any_earlier_call() -> None:
    validator = jsonschema.Draft202012Validator(loop_tool(TOOLS)["parameters"])
    grown = {"number": 9, "tool_name": "grow", "arguments": {"root": {"next": "$3.output.node"}}}

    validator.validate({"type": "tool_calls", "calls": [grown]})


@pytest.mark.parametrize(
    ("document", "read"),
    [
        ({"type": "direct_response", "content": "Paris", "calls": [], "message": ""}, Direct("Paris")),
        ({"type": "answer", "answer": "Paris"}, Direct("Paris")),
        ({"type": "elicitation", "message": " Which? ", "schema": CITY}, TurnQuestion("Which?", CITY)),
        ({"type": "elicitation", "message": "Which?", "schema": json.dumps(CITY)}, TurnQuestion("Which?", CITY)),
        ({"type": "elicitation", "elicitation": {"message": "W", "requestedSchema": CITY}}, TurnQuestion("W", CITY)),
        ({"type": "clarify_intent", "content": "Which?"}, TurnQuestion("Which?", {})),
        ({"type": "clarify_intent", "question": "Which?"}, TurnQuestion("Which?", {})),
        ({"type": "tool_calls", "calls": [], "elicitation": {"message": "W"}}, TurnQuestion("W", {})),
        ({"type": "abort", "reason": "no network"}, Abort("no network")),
        ({"type": "abort"}, Abort("the planner gave no reason")),
        ({"type": "noop"}, NothingLeft()),
        ({"type": "tool_calls", "calls": []}, NothingLeft()),
    ],
)
def test_decisions_of_loop_are_read_from_the_forced_tool_and_from_fenced_text(document: Any, read: Turn) -> None:
    fenced = f"Here it is:\n```json\n{json.dumps(document)}\n```"

    assert decide(document) == read
    assert decide(json.dumps(document)) == read
    assert interpret_turn(fenced, [], TurnForm.LOOP) == read


def test_numbered_calls_are_a_plan_and_their_numbers_are_checked() -> None:
    turn = decide({"type": "tool_calls", "calls": [CALL, {**CALL, "number": 4.0}, {**CALL, "number": 9}]})

    assert isinstance(turn, TurnCalls)
    assert [call.tool_name for call in turn.plan.calls] == ["search"] * 3
    assert turn.numbers == (3, 4, 9)
    assert number_errors(turn, 3)[0].to_json()["error"] == {
        "type": "invalid_plan",
        "path": "/calls/2/number",
        "message": "the number of this call is 5, found 9",
    }
    assert len(number_errors(turn, 3)) == 1
    assert len(number_errors(turn, 0)) == 3


def test_a_call_may_be_of_another_kind() -> None:
    turn = decide({"type": "tool_calls", "calls": [CALL, {"type": "noop", "number": 4, "reason": "for later"}]})

    assert isinstance(turn, TurnCalls)
    assert [(call.kind, call.tool_name) for call in turn.plan.calls] == [(None, "search"), ("noop", "noop")]
    assert turn.numbers == (3, 4)


def test_calls_without_numbers_are_read_too() -> None:
    turn = decide({"type": "tool_calls", "reasoning": "r", "calls": [{"tool_name": "search", "arguments": "{}"}]})

    assert isinstance(turn, TurnCalls)
    assert (turn.numbers, turn.ids, number_errors(turn, 7)) == ((None,), ("",), [])


def test_a_question_beside_calls_does_not_count() -> None:
    turn = decide({"type": "elicitation", "message": "Which?", "calls": [CALL]})

    assert isinstance(turn, TurnCalls)


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ({"type": "dance"}, "expected a type of"),
        ({"content": "x"}, "expected a type, found none"),
        ([1], "expected an object with a type"),
        ("{broken", "are no JSON object"),
        ({"type": "direct_response"}, "needs its answer in content"),
        ({"type": "abort", "reason": "r", "calls": [CALL]}, "decide for one of both"),
        ({"type": "tool_calls", "content": "x", "calls": [CALL]}, "answer or call tools, not both"),
        ({"type": "tool_calls", "calls": [{**CALL, "number": "three"}]}, "expected the number of the call"),
        ({"type": "tool_calls", "calls": [{**CALL, "number": True}]}, "expected the number of the call"),
        ({"type": "tool_calls", "calls": {"a": 1}}, "valid list"),
        ({"type": "tool_calls", "calls": ["search"]}, "valid dictionary"),
        ({"type": "tool_calls", "calls": [{**CALL, "depend_on": [0]}]}, "did you mean 'depends_on'?"),
        ({"type": "elicitation"}, "needs a message"),
        ({"type": "elicitation", "message": "m", "schema": "a city"}, "expected JSON Schema"),
        ({"type": "elicitation", "elicitation": "Which?"}, "expected a message and a schema"),
    ],
)
def test_what_says_none_of_them_is_refused_with_its_place(document: Any, complaint: str) -> None:
    assert any(complaint in message for message in messages(decide(document)))


def test_the_forced_tool_is_called_alone() -> None:
    forced = ToolCallRequest("__planning__", {"type": "noop"})

    for form in (TurnForm.LOOP, TurnForm.REACT):
        turn = interpret_turn("", [forced, ToolCallRequest("search", {})], form)
        assert "expected exactly one call" in messages(turn)[0]


def test_native_calls_of_react_are_a_plan_in_their_order_with_their_ids() -> None:
    calls = [ToolCallRequest("search", {"query": "$0.output.x"}, "a"), ToolCallRequest("grow", '{"root": {}}', "b")]

    turn = interpret_turn("Let me see.", calls, TurnForm.REACT)

    assert isinstance(turn, TurnCalls)
    assert turn.plan.reasoning == "Let me see."
    assert [(call.tool_name, call.arguments) for call in turn.plan.calls] == [
        ("search", {"query": "$0.output.x"}),
        ("grow", {"root": {}}),
    ]
    assert (turn.ids, turn.numbers, turn.broken) == (("a", "b"), (None, None), {})


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("{bro", 'found "{bro"'),
        ("[1]", "found an array"),
        ('{"n": NaN}', "no JSON object"),
        (nested(500), "levels deep"),
        ({"n": float("nan")}, "no JSON"),
        ({"text": "\ud800"}, "no JSON"),
    ],
)
def test_a_call_of_react_with_broken_arguments_is_a_call_that_cannot_be_made(arguments: Any, complaint: str) -> None:
    calls = [ToolCallRequest("search", {"query": "x"}, "a"), ToolCallRequest("", arguments, "b")]

    turn = interpret_turn("", calls, TurnForm.REACT)

    assert isinstance(turn, TurnCalls)
    assert list(turn.broken) == [1]
    assert complaint in turn.broken[1]
    assert [call.arguments for call in turn.plan.calls] == [{"query": "x"}, {}]
    assert turn.plan.calls[1].tool_name == "(no name)"


def test_broken_native_calls_of_loop_are_refused() -> None:
    assert messages(interpret_turn("", [ToolCallRequest("search", "{bro", "a")], TurnForm.LOOP))


@pytest.mark.parametrize("form", [TurnForm.LOOP, TurnForm.REACT])
def test_text_is_the_answer_and_blank_text_is_nothing(form: TurnForm) -> None:
    assert interpret_turn("Paris.", [], form) == Direct("Paris.")
    assert interpret_turn(" \n", [], form) == NothingLeft()


def test_a_model_of_react_that_writes_its_calls_as_json_is_understood() -> None:
    text = json.dumps({"type": "tool_calls", "reasoning": "r", "calls": [{"tool_name": "search", "arguments": {}}]})

    assert isinstance(interpret_turn(text, [], TurnForm.REACT), TurnCalls)
    assert interpret_turn('{"type": "noop"}', [], TurnForm.REACT) == Direct('{"type": "noop"}')


def test_the_last_answer_is_its_text_whatever_it_looks_like() -> None:
    text = '{"type": "tool_calls", "calls": []}'

    assert interpret_turn(text, [ToolCallRequest("search", {})], TurnForm.ANSWER) == Direct(text)
    assert interpret_turn("", [ToolCallRequest("search", {})], TurnForm.ANSWER) == NothingLeft()


@given(st.one_of(json_values, st.text()), st.sampled_from(list(TurnForm)))
def test_nothing_that_a_model_says_raises(said: Any, form: TurnForm) -> None:
    turn = interpret_turn(json.dumps(said), [], form)
    called = interpret_turn(
        "", [ToolCallRequest("__planning__", said if isinstance(said, dict) else str(said))], form
    )

    assert turn
    assert called


@given(st.sampled_from(["direct_response", "answer", "tool_calls", "elicitation", "abort", "noop"]), st.data())
def test_no_field_of_a_decision_raises(kind: str, data: st.DataObject) -> None:
    fields = ("content", "answer", "calls", "elicitation", "message", "schema", "reason", "reasoning")
    document = {"type": kind, **data.draw(st.dictionaries(st.sampled_from(fields), json_values))}

    assert decide(document)


def test_typed_steps_are_a_decision_too() -> None:
    step = {"type": "tool", "name": "search", "args": {"query": "x"}}
    asks = {"type": "elicitation", "elicitation": {"message": "Which?"}}

    def read(document: Any) -> Turn:
        return interpret_turn(f"```json\n{json.dumps(document)}\n```", [], TurnForm.LOOP)

    planned = read({"intention": "look", "steps": [step, asks, step]})
    assert isinstance(planned, TurnCalls)
    assert [call.kind for call in planned.plan.calls] == [None, "elicitation", None]
    assert (planned.numbers, planned.ids) == ((None,) * 3, ("",) * 3)
    assert read({"steps": []}) == NothingLeft()
    assert read({"steps": [], "elicitation": {"message": " "}}) == NothingLeft()
    assert read({"steps": [], "answer": "42"}) == Direct("42")
    assert read({"steps": [], "elicitation": {"message": "Key?"}}) == TurnQuestion("Key?", {})
    assert isinstance(read({"steps": [{"type": "pause"}, {"type": "tool"}]}), MalformedPlan)


def test_what_means_nothing_is_left_out_and_named() -> None:
    turn = decide({"type": "tool_calls", "calls": [{**CALL, "id": "call_1"}], "confidence": 0.9})

    assert isinstance(turn, TurnCalls)
    assert (turn.ignored, turn.plan.calls[0].arguments) == (["/confidence", "/calls/0/id"], {"query": "x"})
