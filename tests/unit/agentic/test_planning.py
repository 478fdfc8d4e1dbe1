"""The forced tool `__planning__` and the reading of replies (docs/decisions.md, D5)."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.agentic.models.exchange import ToolCallRequest
from planq.shared.agentic.plan.interpret import (
    PLANNING_TOOL_NAME,
    Calls,
    Direct,
    MalformedPlan,
    interpret,
    planning_tool,
)
from planq.shared.agentic.tools.definition import ToolDefinition
from tests.unit.agentic.strategies import json_values

GOOD: dict[str, Any] = {
    "type": "tool_calls",
    "reasoning": "because",
    "calls": [{"tool_name": "search", "arguments": {"query": "x"}}],
}
TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/Node"}},
    "required": ["root"],
    "$defs": {"Node": {"type": "object", "properties": {"n": {"type": "integer"}, "next": {"$ref": "#/$defs/Node"}}}},
}
TOOLS = [
    ToolDefinition(
        name="search",
        description="Find\npassages.",
        input_schema={
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "limit": {"type": "integer", "description": "how many"},
                "mode": {"type": "string", "enum": ["a", "b"]},
                "title": {"type": "array", "items": {"type": "number"}},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
        output_schema={"type": "object", "properties": {"text": {"type": "string"}}},
    ),
    ToolDefinition(name="tree", input_schema=TREE, output_schema={"type": "object"}),
]


def forced(arguments: Any) -> list[ToolCallRequest]:
    return [ToolCallRequest("__planning__", arguments)]


def refusal(outcome: Direct | Calls | MalformedPlan) -> list[str]:
    assert isinstance(outcome, MalformedPlan)
    assert all(error["error"]["type"] == "invalid_plan" for error in outcome.errors)
    return [f"{error['error']['path']}: {error['error']['message']}" for error in outcome.errors]


def accepts(plan: Any) -> bool:
    parameters = planning_tool(TOOLS)["parameters"]
    jsonschema.Draft202012Validator.check_schema(parameters)
    return jsonschema.Draft202012Validator(parameters).is_valid(plan)


def one_call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_calls", "reasoning": "r", "calls": [{"tool_name": name, "arguments": arguments}]}


def test_the_schema_takes_the_tools_own_arguments_and_references_in_their_places() -> None:
    ref = "$0.output.text"
    assert accepts({"type": "direct_response", "content": "hi"})
    assert accepts(one_call("search", query="x", limit=3, mode="a", title=[1, 2]))
    assert accepts(one_call("search", query=ref, limit=ref, mode=ref, title=ref))
    assert accepts(one_call("search", query="x", title=[1, ref]))
    assert accepts(one_call("tree", root={"n": 1, "next": {"n": ref, "next": ref}}))
    assert accepts(one_call("tree", root=ref))


def test_the_schema_refuses_what_no_tool_takes() -> None:
    assert not accepts({"type": "tool_calls", "reasoning": "r", "calls": []})
    assert not accepts({"type": "other"})
    assert not accepts(one_call("ghost"))
    assert not accepts(one_call("search", limit=3))
    assert not accepts(one_call("search", query="x", more=1))
    assert not accepts(one_call("search", query="x", limit=["no"]))
    assert not accepts(one_call("tree", root={"next": {"n": [1]}}))


def test_the_description_lists_each_tool_with_its_output_schema() -> None:
    tool = planning_tool(TOOLS)
    assert tool["name"] == "__planning__"
    assert "- search: Find passages." in tool["description"]
    assert '"text":{"type":"string"}' in tool["description"]
    assert planning_tool([])["parameters"]["properties"]["type"]["enum"] == ["direct_response"]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("", forced(GOOD)),
        ("ignored", forced(json.dumps(GOOD))),
        ("", forced({**GOOD, "content": ""})),
        ("", forced({**GOOD, "content": None})),
        ("", forced({**GOOD, "calls": json.dumps(GOOD["calls"])})),
        ("", forced({**GOOD, "calls": [{"tool_name": "search", "arguments": '{"query": "x"}'}]})),
        ("because", [ToolCallRequest("search", {"query": "x"})]),
        ("because", [ToolCallRequest("search", '{"query": "x"}')]),
        (json.dumps(GOOD), []),
        (f"Sure:\n```json\n{json.dumps(GOOD, indent=2)}\n```\nDone {{really}}.", []),
        (f"My plan is {json.dumps(GOOD)} and that is all.", []),
    ],
)
def test_a_plan_is_found_wherever_it_stands(text: str, calls: list[ToolCallRequest]) -> None:
    outcome = interpret(text, calls)
    assert isinstance(outcome, Calls)
    assert outcome.plan.model_dump(exclude_none=True) == GOOD


@pytest.mark.parametrize(
    "text",
    [
        "Hello!",
        'Use {braces} as in {"a": 1}.',
        '{"answer": 42}',
        '{"type": "invoice", "calls": [1]}',
        '```json\n{"calls": ["555-1234"]}\n```',
        "{" * 5_000,
        "{ not json",
    ],
)
def test_other_text_is_the_answer(text: str) -> None:
    assert interpret(text, []) == Direct(text)


def test_a_direct_response_gives_its_content() -> None:
    assert interpret("", forced({"type": "direct_response", "content": "hi", "calls": []})) == Direct("hi")
    assert interpret('{"type": "direct_response", "content": "hi"}', []) == Direct("hi")


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ('{"type": "tool_calls", "calls": [', ": the arguments of __planning__ are no JSON object"),
        ("[1]", ": expected an object"),
        ("", "/type: expected type"),
        ({}, "/type: expected type"),
        ({"type": "dance"}, "/type: expected type"),
        ({"type": "direct_response"}, "/content: "),
        ({"type": "direct_response", "content": 5}, "/content: "),
        ({"type": "direct_response", "content": ""}, "/content: "),
        ({"type": "direct_response", "content": " \n"}, "/content: "),
        ({**GOOD, "type": "direct_response", "content": "hi"}, "/calls: "),
        ({**GOOD, "content": "hi"}, "/content: "),
        ({**GOOD, "calls": []}, "/calls: "),
        ({"type": "tool_calls", "reasoning": "r"}, "/calls: "),
        ({"type": "tool_calls", "calls": GOOD["calls"]}, "/reasoning: "),
        ({**GOOD, "calls": [{"tool_name": "x"}]}, "/calls/0/arguments: "),
        ({**GOOD, "calls": [{"tool_name": "x", "arguments": "not json"}]}, "/calls/0/arguments: "),
        ({**GOOD, "calls": "not json"}, "/calls: "),
    ],
)
def test_a_wrong_plan_is_malformed_and_says_where(arguments: Any, place: str) -> None:
    (message,) = refusal(interpret("", forced(arguments)))
    assert message.startswith(place)


def test_all_defects_of_a_plan_come_at_once() -> None:
    calls = [{"tool_name": 1, "arguments": {}}, {"tool_name": "x", "arguments": [], "retry": 1}]
    found = refusal(interpret("", forced({"type": "tool_calls", "content": "hi", "calls": calls})))
    assert [message.split(":")[0] for message in found] == [
        "/content",
        "/reasoning",
        "/calls/0/tool_name",
        "/calls/1/arguments",
        "/calls/1/retry",
    ]


@pytest.mark.parametrize(
    "name", ["depend_on", "dependsOn", "dependencies", "Depends On", "retry", "timeout", "argument"]
)
def test_what_is_nearly_a_field_that_decides_something_is_refused(name: str) -> None:
    call = {"tool_name": "search", "arguments": {}, name: [0]}
    (told,) = refusal(interpret("", forced({**GOOD, "calls": [call]})))
    assert told.startswith(f"/calls/0/{name}: unknown field; did you mean ")


def test_what_means_nothing_is_left_out_of_a_models_plan_and_named() -> None:
    # Pins: an id on a call, or a confidence beside the calls, had the whole plan refused.
    call = {**GOOD["calls"][0], "id": "call_1", "reasoning": "so", "thought": None}
    found = interpret("", forced({**GOOD, "calls": [call], "confidence": 0.9}))
    assert isinstance(found, Calls)
    assert found.plan.model_dump(exclude_none=True) == GOOD
    assert found.ignored == ["/confidence", "/calls/0/id", "/calls/0/reasoning", "/calls/0/thought"]
    said = {"type": "direct_response", "content": "Hello.", "confidence": 1}
    assert interpret("", forced(said)) == Direct("Hello.")


def test_one_reply_holds_one_plan() -> None:
    assert "found 2 tool calls" in refusal(interpret("", forced(GOOD) * 2))[0]
    assert "found 2 tool calls" in refusal(interpret("", [*forced(GOOD), ToolCallRequest("search", {})]))[0]


def test_native_calls_with_broken_arguments_name_the_call() -> None:
    outcome = interpret("", [ToolCallRequest("search", {}), ToolCallRequest("search", '{"query"')])
    assert isinstance(outcome, MalformedPlan)
    assert [error["tool_index"] for error in outcome.errors] == [1]


def test_a_plan_cut_off_is_malformed_and_no_answer() -> None:
    for text in (
        '{"type": "tool_calls", "reasoning": "r", "calls": [{"tool',
        '```json\n{"type":"tool_calls", "calls": [{}',
    ):
        assert refusal(interpret(text, []))


def test_depth_and_length_of_a_reply_are_no_danger() -> None:
    deep = '{"type": "tool_calls", "calls": ' + "[" * 100_000
    assert refusal(interpret(deep, []))
    assert refusal(interpret("", forced(deep)))
    assert isinstance(interpret("``` " + " \t" * 400_000, []), Direct)


_replies = st.one_of(
    st.text(max_size=20),
    json_values.map(json.dumps),
    st.fixed_dictionaries({}, optional=dict.fromkeys(("type", "calls", "content", "reasoning"), json_values)),
    st.builds(
        lambda kind, calls: {"type": kind, "reasoning": "r", "calls": calls},
        st.sampled_from(["tool_calls", "direct_response"]),
        st.lists(st.fixed_dictionaries({"tool_name": st.text(max_size=3), "arguments": json_values}), max_size=2),
    ),
)


@given(_replies, st.sampled_from(["text", "__planning__", "search"]))
def test_whatever_a_model_says_is_one_of_three_things(reply: Any, where: str) -> None:
    text = reply if isinstance(reply, str) else json.dumps(reply)
    outcome = interpret(text, []) if where == "text" else interpret("", [ToolCallRequest(where, reply)])
    assert isinstance(outcome, (Direct, Calls, MalformedPlan))
    if isinstance(outcome, MalformedPlan):
        assert outcome.errors


STEPS = {"intention": "look", "steps": [{"type": "tool", "name": "search", "args": {"query": "x"}}]}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(STEPS),
        f"Here it is:\n```yaml-ish\n{json.dumps(STEPS)}\n```\nDone.",
        f"I will do {json.dumps(STEPS)} now.",
    ],
)
def test_typed_steps_are_a_plan_wherever_they_stand(text: str) -> None:
    read = interpret(text, [])

    assert isinstance(read, Calls)
    assert [(call.tool_name, call.arguments) for call in read.plan.calls] == [("search", {"query": "x"})]


@pytest.mark.parametrize(
    "asked", [{"type": "elicitation", "message": "Which?"}, {"type": "clarify_intent", "content": "Which?"}]
)
def test_a_question_alone_is_a_plan_that_asks_it(asked: Any) -> None:
    for read in (interpret(json.dumps(asked), []), interpret("", [ToolCallRequest(PLANNING_TOOL_NAME, asked)])):
        assert isinstance(read, Calls)
        assert [(call.kind, call.message) for call in read.plan.calls] == [("elicitation", "Which?")]


def test_typed_steps_after_a_question_are_dropped_and_wrong_ones_are_malformed() -> None:
    asks = interpret(json.dumps({"steps": [{"type": "elicitation", "content": "?"}, *STEPS["steps"]]}), [])
    wrong = interpret(json.dumps({"steps": [{"type": "tool"}, {"type": "pause"}]}), [])
    cut_off = interpret('{"steps": [{"type": "tool", "name":', [])
    empty = interpret('{"steps": []}', [])

    assert isinstance(asks, Calls)
    assert (len(asks.plan.calls), asks.dropped) == (1, 1)
    assert isinstance(wrong, MalformedPlan)
    assert [error["error"]["path"] for error in wrong.errors] == ["/steps/0/name", "/steps/1/type"]
    assert isinstance(cut_off, MalformedPlan)
    assert isinstance(empty, MalformedPlan)


@pytest.mark.parametrize(
    "answer", [{"steps": ["mix", "bake"]}, {"steps": [{"name": "Mix"}]}, {"steps": [], "title": "Cake"}]
)
def test_an_answer_that_lists_steps_is_an_answer(answer: Any) -> None:
    assert interpret(json.dumps(answer), []) == Direct(json.dumps(answer))
