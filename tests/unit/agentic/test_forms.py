"""The forms in which plans are written: which one a document is in, what it says, and where it is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from planq.shared.agentic.orchestration.request import OrchestrateLimits
from planq.shared.agentic.plan.errors import PlanError
from planq.shared.agentic.plan.forms import PlanForm, ReadPlan, defect_place, form_of, read_any_form


def read(raw: Any, **options: Any) -> ReadPlan:
    found = read_any_form(raw, **options)
    assert isinstance(found, ReadPlan), found
    return found


def defects(raw: Any, **options: Any) -> list[str]:
    """The places of all defects of a document."""
    found = read_any_form(raw, **options)
    assert not isinstance(found, ReadPlan), found
    form = form_of(raw)
    assert all(error.render() for error in found)
    return [defect_place(error, form) for error in found]


def calls(document: ReadPlan) -> list[dict[str, Any]]:
    return [call.model_dump(exclude_none=True) for call in document.plan.calls]


@pytest.mark.parametrize(
    ("raw", "form"),
    [
        ({"calls": []}, PlanForm.CALLS),
        ({}, PlanForm.CALLS),
        ([], PlanForm.CALLS),
        ({"steps": [{"step_number": 1}]}, PlanForm.NUMBERED_STEPS),
        ({"steps": [{"tool_name": "a"}]}, PlanForm.NUMBERED_STEPS),
        ({"steps": [{"type": "agent"}]}, PlanForm.ORCHESTRATION),
        ({"steps": [{"parallel": {}}]}, PlanForm.ORCHESTRATION),
        ({"bindings": {}}, PlanForm.ORCHESTRATION),
        ({"steps": [{"name": "a"}]}, PlanForm.TYPED_STEPS),
        ({"steps": []}, PlanForm.TYPED_STEPS),
        ({"steps": 5}, PlanForm.TYPED_STEPS),
        ({"elicitation": {"message": "?"}}, PlanForm.TYPED_STEPS),
        ({"type": "elicitation", "message": "?"}, PlanForm.TYPED_STEPS),
        ({"type": "clarify_intent", "content": "?"}, PlanForm.TYPED_STEPS),
    ],
)
def test_a_form_is_known_by_its_marks(raw: Any, form: PlanForm) -> None:
    assert form_of(raw) is form


def test_typed_steps_become_calls_and_what_follows_a_question_is_dropped() -> None:
    found = read(
        {
            "id": "uuid",
            "intention": "Summarise",
            "steps": [
                {"id": "1", "type": "tool", "name": "web.fetch", "args": {"url": "u"}, "reason": "raw", "retries": 2},
                {"name": "again", "args": None, "content": "ignored"},
                {"name": "third", "args": '{"a": "$step[0].output.x"}'},
                {"type": "noop", "content": "think"},
                {"type": "elicitation", "elicitation": {"message": "Which?", "schema": '{"type": "object"}'}},
                {"type": "tool", "name": "never"},
                {"type": "abort", "reason": "never"},
            ],
            "elicitation": {"message": "beside steps: ignored"},
        }
    )

    assert (found.form, found.dropped, found.plan.reasoning) == (PlanForm.TYPED_STEPS, 2, "Summarise")
    assert calls(found) == [
        {"tool_name": "web.fetch", "arguments": {"url": "u"}, "reason": "raw", "retries": 2},
        {"tool_name": "again", "arguments": {}},
        {"tool_name": "third", "arguments": {"a": "$step[0].output.x"}},
        {"kind": "noop", "tool_name": "noop", "arguments": {}, "reason": "think"},
        {
            "kind": "elicitation",
            "tool_name": "elicitation",
            "arguments": {},
            "message": "Which?",
            "requested_schema": {"type": "object"},
        },
    ]


def test_a_question_is_asked_at_the_level_of_the_plan_where_there_are_no_steps() -> None:
    schema = {"type": "object", "properties": {"key": {"type": "string"}}}

    with_schema = read({"steps": [], "elicitation": {"message": "", "requestedSchema": schema}})
    of_content = read({"steps": [{"type": "elicitation", "content": "Which one?"}]})

    assert with_schema.plan.calls[0].requested_schema == schema
    assert of_content.plan.calls[0].message == "Which one?"
    assert defects({"steps": [], "elicitation": {"message": "  "}}) == ["/steps"]
    assert defects({"elicitation": None}) == ["/steps"]


@pytest.mark.parametrize(
    ("question", "schema"),
    [
        ({"type": "elicitation", "message": "Which one?", "schema": {"type": "object"}}, {"type": "object"}),
        (
            {"type": "elicitation", "message": "Which one?", "requestedSchema": '{"type": "object"}'},
            {"type": "object"},
        ),
        ({"type": "clarify_intent", "content": "Which one?"}, None),
    ],
)
def test_a_question_may_stand_by_itself(question: dict[str, Any], schema: Any) -> None:
    for found in (read(question), read({"steps": [question]})):
        (asked,) = found.plan.calls
        assert (asked.kind, asked.message, asked.requested_schema) == ("elicitation", "Which one?", schema)

    assert defects({**question, "steps": [{"type": "tool", "name": "a", "message": "x"}]}) == ["/steps/0/message"]
    assert defects({"type": question["type"]}) == ["/steps"]


def test_every_defect_of_typed_steps_has_its_place() -> None:
    assert defects(
        {
            "steps": [
                "x",
                {"type": "tool", "args": {}},
                {"type": "pause"},
                {"name": "a", "args": [1], "retries": -1},
                {"name": "b", "args": "no json"},
                {"type": "elicitation"},
                {"type": "elicitation", "elicitation": {"message": "?", "schema": "{"}},
                {"type": "elicitation", "elicitation": {"message": "?", "requestedSchema": [1]}},
                {"name": "c", "retry": 2, "a/b": 1},
                {"content": "no type"},
            ]
        }
    ) == [
        "/steps/0",
        "/steps/1/name",
        "/steps/2/type",
        "/steps/3/args",
        "/steps/3/retries",
        "/steps/4/args",
        "/steps/5/elicitation",
        "/steps/6/elicitation/schema",
        "/steps/7/elicitation/requestedSchema",
        "/steps/8/retry",
        "/steps/8/a~1b",
        "/steps/9/type",
    ]
    assert defects({"steps": {"0": {}}}) == ["/steps"]


def test_a_model_may_send_fields_that_mean_nothing() -> None:
    assert read({"steps": [{"name": "a", "thought": "hm"}], "x": 1}, from_model=True).plan.calls[0].tool_name == "a"


def test_numbered_steps_become_calls_and_advice_is_no_call() -> None:
    found = read(
        {
            "steps": [
                {"step_number": 1, "description": "Find", "tool_name": "search", "tool_arguments": {"q": "x"}},
                {"step_number": 2.0, "description": "Sum", "tool_name": None, "depends_on": [1]},
                {"step_number": 7, "tool_name": "calc", "tool_arguments": None, "depends_on": []},
                {
                    "step_number": 8,
                    "tool_name": "send",
                    "depends_on": [1, 7],
                    "success_criteria": "",
                    "status": "pending",
                },
            ],
            "estimated_steps": 4,
            "complexity": "low",
        }
    )

    assert found.form is PlanForm.NUMBERED_STEPS
    assert calls(found) == [
        {"tool_name": "search", "arguments": {"q": "x"}, "reason": "Find"},
        {"kind": "noop", "tool_name": "noop", "arguments": {}, "reason": "Sum"},
        {"tool_name": "calc", "arguments": {}},
        {"tool_name": "send", "arguments": {}, "depends_on": [0, 2]},
    ]


def test_every_defect_of_numbered_steps_has_its_place() -> None:
    assert defects(
        {
            "steps": [
                {"step_number": 1, "tool_name": "a", "tool_arguments": 5, "depends_on": [9, "x", True]},
                {"step_number": 1, "tool_name": "", "depends_on": 1},
                {"step_number": "two", "tool_name": "b"},
                {"tool_name": "c", "tool": "d"},
                None,
            ]
        }
    ) == [
        "/steps/0/depends_on/0",
        "/steps/0/depends_on/1",
        "/steps/0/depends_on/2",
        "/steps/0/tool_arguments",
        "/steps/1/step_number",
        "/steps/1/depends_on",
        "/steps/1/tool_name",
        "/steps/2/step_number",
        "/steps/3/tool",
        "/steps/3/step_number",
        "/steps/4",
    ]


def test_a_plan_for_agents_is_compiled_and_its_defects_have_places() -> None:
    agent = {"agent_id": "writer", "prompt": "On {{ bindings.topic }}", "result_key": "text"}
    good = {
        "bindings": {"topic": "rust"},
        "steps": [{"id": "a", "type": "agent", "status": "pending", "agent": agent}],
    }
    second = {"id": "b", "type": "agent", "status": "pending", "agent": {"prompt": 5}}
    bad = {"steps": [*good["steps"], second]}

    assert read(good).plan.calls[0].tool_name == "cp__call_agent"
    assert {"/steps/1/agent/agent_id", "/steps/1/agent/prompt"} <= set(defects(bad))
    assert defects(good, limits=OrchestrateLimits(max_steps=0)) != []


def test_a_defect_of_a_plan_for_agents_names_the_rule() -> None:
    agent = {"agent_id": "writer", "prompt": "On {{ nope }}", "result_key": "text"}
    found = read_any_form({"steps": [{"id": "a", "type": "agent", "status": "pending", "agent": agent}]})

    assert not isinstance(found, ReadPlan)
    assert [(one.type, one.details["rule"]) for one in found] == [("invalid_plan", "unknown_binding")]


def test_planqs_own_form_is_read_as_before() -> None:
    assert calls(read({"calls": [{"tool_name": "a"}]})) == [{"tool_name": "a", "arguments": {}}]
    assert defects({"calls": [{"arguments": {}}]}) == ["/calls/0/tool_name"]
    assert defects({}) == ["/calls"]
    assert defects("x") == [""]


@pytest.mark.parametrize(
    "around",
    [
        '{"steps": [{"name": "a", "args": {"x": %s}}]}',
        '{"steps": [{"step_number": 1, "tool_name": "a", "tool_arguments": {"x": %s}}]}',
        '{"steps": [{"type": "agent", "agent": {"with": {"x": %s}}}]}',
        '{"calls": [{"tool_name": "a", "arguments": {"x": %s}}]}',
        '{"elicitation": {"message": "?", "schema": %s}}',
    ],
)
def test_what_is_nested_very_deeply_is_refused_in_every_form(around: str) -> None:
    raw: Any = 1
    for _ in range(5_000):
        raw = {"x": raw}
    document = json.loads(around % '"here"')

    def put(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: put(item) for key, item in value.items()}
        return [put(item) for item in value] if isinstance(value, list) else raw if value == "here" else value

    found = read_any_form(put(document))

    assert [error.type for error in found if isinstance(error, PlanError)] == ["too_deep"]  # type: ignore[union-attr]


def test_texts_of_thousands_of_braces_are_defects() -> None:
    deep = '{"a":' * 5_000 + "1" + "}" * 5_000

    assert defects({"steps": [{"name": "a", "args": deep}]}) == ["/steps/0/args"]
    assert defects({"elicitation": {"message": "?", "schema": "(" * 5_000}}) == ["/elicitation/schema"]


@pytest.mark.parametrize(
    ("error", "form", "place"),
    [
        (PlanError(2, "/q/0", "$9.output.x", "forward_reference"), PlanForm.CALLS, "/calls/2/arguments/q/0"),
        (PlanError(2, "/q", None, "invalid_argument"), PlanForm.TYPED_STEPS, "/steps/2/args/q"),
        (PlanError(2, "/q", None, "invalid_argument"), PlanForm.NUMBERED_STEPS, "/steps/2/tool_arguments/q"),
        (PlanError(2, "/prompt", None, "invalid_argument"), PlanForm.ORCHESTRATION, "/steps/2"),
        (PlanError(1, "", None, "unknown_tool"), PlanForm.CALLS, "/calls/1"),
        (PlanError(None, "", None, "too_many_steps"), PlanForm.CALLS, ""),
    ],
)
def test_a_defect_of_the_compiled_plan_has_a_place_in_the_document(
    error: PlanError, form: PlanForm, place: str
) -> None:
    assert defect_place(error, form) == place
