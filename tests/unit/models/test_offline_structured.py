"""The offline rules' structured answers: objects that satisfy their schemas, the same for the same question."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.agentic.models.exchange import Ask, Findings
from planq.shared.agentic.schema.schemas import violations
from planq.shared.kernel.steps import StepResult
from planq.worker.models.offline import answer_offline, plan_offline
from planq.worker.models.offline.structured import structured_text

MOMENTS = {
    "type": "object",
    "properties": {
        "moments": {"type": "array", "items": {"$ref": "#/$defs/Moment"}},
        "mood": {"enum": ["calm", "storm"]},
    },
    "required": ["moments"],
    "$defs": {
        "Moment": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "summary": {"type": "string"},
                "next": {"$ref": "#/$defs/Moment"},
            },
            "required": ["name"],
        }
    },
}


def made(schema: dict[str, Any], text: str = "", data: Any = None, *results: StepResult) -> Any:
    ask = Ask("job-1", text, "offline", data=data, answer_schema=schema)
    value = json.loads(structured_text(schema, ask, Findings(results=results)))
    assert json.loads(answer_offline(ask, Findings(results=results)).text) == value
    return value


def test_the_object_is_made_of_what_was_said() -> None:
    found = made(MOMENTS, "The storm came at noon. It left by five.")

    assert violations(MOMENTS, found) == []
    assert found["mood"] == "storm"
    assert found["moments"][0]["name"] == "The storm came at noon."


def test_input_data_and_results_give_their_fields() -> None:
    schema = {"type": "object", "properties": {"total": {"type": "number"}, "id": {"type": "string"}, "result": {}}}

    found = made(schema, "pay 7", {"id": "inv-1", "total": "seven"}, StepResult("calculate", {}, {"result": 42}))

    assert found == {"total": 7, "id": "inv-1", "result": 42}


def test_a_direct_answer_to_a_plan_is_the_object_too() -> None:
    ask = Ask("job-1", "Say something", "offline", answer_schema=MOMENTS)

    arguments = plan_offline(ask, []).tool_calls[0].arguments

    assert isinstance(arguments, dict)
    assert violations(MOMENTS, json.loads(arguments["content"])) == []


def test_without_findings_or_a_schema_the_question_is_repeated() -> None:
    text = answer_offline(Ask("j", "Judge this.", "offline", data={"text": "x"}), Findings(is_direct=True)).text

    assert "> Judge this." in text
    assert '"text": "x"' in text


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 30, "maxLength": 31},
        {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"},
        {"type": "integer", "minimum": 18, "multipleOf": 5},
        {"type": "integer", "exclusiveMinimum": 100},
        {"type": "number", "minimum": 0, "maximum": 1},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "number", "maximum": -3},
        {"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "boolean"}},
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
        {"type": ["null", "string"]},
        {"type": "null"},
        {"const": {"a": 1}},
        {"enum": [3, 4]},
        {"anyOf": [{"type": "integer", "minimum": 1_000}, {"type": "string"}]},
        {"type": "object", "properties": {"deep": {"type": "object", "properties": {"x": {"type": "number"}}}}},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"default": "as it is"},
        True,
    ],
)
def test_every_kind_of_field_gets_a_value_that_fits(schema: Any) -> None:
    whole = {"type": "object", "properties": {"field": schema}, "required": ["field"]}

    assert violations(whole, made(whole, "Order DE-1234 of 3 things costs 0.5 on 2026-11-21, or 12.")) == []


@given(st.text(), st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda v: st.lists(v)))
def test_no_question_makes_it_raise(text: str, data: Any) -> None:
    ask = Ask("job-1", text, "offline", data=data, answer_schema=MOMENTS)

    answer = answer_offline(ask, Findings(results=[StepResult("a", {}, data)]))

    assert violations(MOMENTS, json.loads(answer.text)) == []
    assert answer_offline(ask, Findings(results=[StepResult("a", {}, data)])) == answer
