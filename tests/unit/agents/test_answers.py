"""Structured answers in a model's text, what an agent is asked, and the tool that its answer is chained to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.agentic.agents.answers import MAX_RAW_CHARS, InvalidAnswer, ValidAnswer, read_answer
from planq.shared.agentic.agents.chaining import (
    ChainedCall,
    NoSuchTool,
    bound_arguments,
    chained_call,
    chained_result,
    stored_chained_result,
)
from planq.shared.agentic.agents.document import parse_agent, read_agent
from planq.shared.agentic.agents.input import agent_question, input_defects, unstorable_texts
from planq.shared.agentic.schema.schemas import UNKNOWN
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.platform.errors import ErrorRecord, InvalidArguments

SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["title"],
}


@pytest.mark.parametrize(
    "text",
    [
        '{"title": "a", "count": 1}',
        '\n {"count": 1, "title": "a"}\n',
        'Here it is:\n```json\n{"title": "a", "count": 1}\n```\nBye {you}.',
        'Sure: {"title": "a", "count": 1}. Done.',
        '```\n{"title": 7}\n```\nNo, rather:\n```\n{"title": "a", "count": 1}\n```',
    ],
)
def test_an_answer_is_found_wherever_it_stands(text: str) -> None:
    assert read_answer(text, SCHEMA) == ValidAnswer({"title": "a", "count": 1})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "found nothing"),
        ("I cannot.", 'found "I cannot."'),
        ("[1, 2]", "found an array of 2"),
        ('{"title": NaN}', "expected a JSON object"),
        ('{"count": 1}', "required but missing: 'title'"),
        ('{"title": "\\ud800"}', "cannot be stored"),
        ('{"title": ' + "[" * 5_000, "expected a JSON object"),
        ("}{", "expected a JSON object"),
    ],
)
def test_what_is_no_answer_is_rejected_with_its_reason_and_its_text(text: str, told: str) -> None:
    rejected = read_answer(text, SCHEMA)

    assert isinstance(rejected, InvalidAnswer)
    assert told in rejected.errors[0]
    failure = rejected.failure()
    assert (failure.code, failure.details["errors"]) == ("invalid_output", list(rejected.errors))
    assert failure.details["raw"] == text[:MAX_RAW_CHARS]


def test_every_defect_is_told_and_a_long_text_is_cut() -> None:
    rejected = read_answer('{"count": "x", "pad": "' + "y" * 50_000 + '"}', SCHEMA)

    assert isinstance(rejected, InvalidAnswer)
    assert set(rejected.errors) == {
        "the object: required but missing: 'title'",
        '/count: expected integer, found "x"',
    }
    assert len(rejected.raw) < MAX_RAW_CHARS + 100


@given(st.text())
def test_no_text_makes_it_raise(text: str) -> None:
    assert isinstance(read_answer(text, SCHEMA), ValidAnswer | InvalidAnswer)


AGENT = read_agent(
    {
        "name": "clerk",
        "actions": {
            "check": {"prompt": "Check it.", "input": {"type": "object", "required": ["id"]}},
            "greet": {"prompt": "Say hello to {{ with.name }}."},
        },
    }
)


def test_the_actions_prompt_comes_before_the_callers() -> None:
    assert agent_question(AGENT, "check", "Quickly.", {"id": 1}) == "Check it.\n\nQuickly."
    assert agent_question(AGENT, None, " Only this. ", {}) == "Only this."
    assert agent_question(AGENT, None, "", {"id": 1}) == ""


def test_input_data_is_never_filled_into_a_prompt() -> None:
    assert agent_question(AGENT, "greet", "", {"name": "you"}) == "Say hello to {{ with.name }}."


@pytest.mark.parametrize(
    ("action", "prompt", "data", "told"),
    [
        ("chekc", "x", {}, "no action 'chekc'; it has check, greet"),
        ("check", "x", {}, "required but missing: 'id'"),
        ("check", "x", None, "required but missing: 'id'"),
        (None, "  ", {}, "something to do"),
    ],
)
def test_what_cannot_be_asked_is_refused(action: str | None, prompt: str, data: Any, told: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        agent_question(AGENT, action, prompt, data)

    assert told in caught.value.message


def tool(name: str, *parameters: str, **properties: Any) -> ToolDefinition:
    known = {parameter: {} for parameter in parameters} | properties
    return ToolDefinition(
        name=name,
        input_schema={
            "type": "object",
            "properties": known,
            "required": list(known),
            "additionalProperties": False,
        },
    )


def chain(output: Any, *tools: ToolDefinition, **document: Any) -> Any:
    agent = read_agent({"structured_output": True, "chained_tool": "save.it", **document})
    return chained_call(agent, output, {one.name: one for one in tools})


def test_the_answers_fields_are_the_tools_arguments() -> None:
    output = {"a": 1, "b": [2]}

    call = chain(output, tool("save_it", "a", "b"))

    assert call == ChainedCall("save_it", output)
    call.arguments["b"].append(3)
    assert output == {"a": 1, "b": [2]}, "the tool gets a copy"


def test_a_tool_with_one_parameter_gets_the_whole_answer_where_its_fields_do_not_fit() -> None:
    assert chain({"a": 1, "b": 2}, tool("save_it", "data")) == ChainedCall("save_it", {"data": {"a": 1, "b": 2}})
    assert chain({"data": 1}, tool("save_it", "data")) == ChainedCall("save_it", {"data": 1})
    number = tool("save_it", data={"type": "number"})
    assert bound_arguments({"a": 1}, number.input_schema) == {"a": 1}, "the whole does not fit either"


@pytest.mark.parametrize(
    ("output", "document"),
    [
        ({"a": 1}, {"structured_output": False}),
        ({"a": 1}, {"chained_tool": None}),
        ({"a": 1}, {"chained_tool": ""}),
        ("a text", {}),
        (None, {}),
    ],
)
def test_nothing_follows_unless_there_is_an_object_and_both_fields(output: Any, document: dict[str, Any]) -> None:
    assert chain(output, tool("save_it"), **document) is None


def test_an_empty_object_is_chained_too_and_a_missing_tool_is_told() -> None:
    assert chain({}, tool("save_it")) == ChainedCall("save_it", {})
    assert chain({}, tool("other")) == NoSuchTool("save.it")
    assert chain({}, tool("save_it"), tool("save-it")) == NoSuchTool("save.it"), "ambiguous"


def test_what_is_shown_beside_the_answer_is_an_object() -> None:
    assert chained_result({"ok": 1}, None) == {"ok": 1}
    assert chained_result([1], None) == {"result": [1]}
    assert chained_result(None, ErrorRecord("tool_error", "boom")) == {"status": "error", "error": "boom"}
    assert stored_chained_result(None) is None
    assert stored_chained_result({"tool_name": "a", "call_id": "1", "result": {"ok": 1}}) == {"ok": 1}
    assert stored_chained_result({"error": {"code": "tool_error", "message": "boom"}}) == {
        "status": "error",
        "error": "boom",
    }


def test_what_is_not_known_yet_fits_and_what_is_known_does_not() -> None:
    schema = {
        "type": "object",
        "required": ["id"],
        "properties": {"id": {"type": "integer"}, "n": {"type": "integer"}},
    }
    agent = parse_agent({"name": "clerk", "actions": {"check": {"input": schema}}})

    found = input_defects(agent, "check", {"id": UNKNOWN, "n": "many"}, partial=True)

    assert [(one.pointer, one.code) for one in found] == [("with/n", "type")]
    assert found[0].of_body() == {"in": "body", "field": "with/n", "message": found[0].message}
    assert input_defects(agent, None, {"anything": 1}) == []


def test_texts_with_nul_are_found_where_they_stand() -> None:
    assert [one.render() for one in unstorable_texts({"a": ["x", {"b/c": "y\x00"}]})] == [
        "with/a/1/b~1c: the character NUL (U+0000) cannot be stored; found at 1"
    ]
    assert unstorable_texts({"a": "\ufffd"}) == unstorable_texts(None) == []
