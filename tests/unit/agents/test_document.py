"""Agents as documents: what is read, what is kept, what is refused, and the prompt they become."""

from __future__ import annotations

from typing import Any

import pytest

from planq.shared.agentic.agents.document import AgentDocument, parse_agent, read_agent
from planq.shared.agentic.schema.schemas import violations
from planq.shared.platform.errors import InvalidRequest

INVOICE = """\
type: object
name: invoice-agent
description: |
  Extract invoice data.
structured_output: true
chained_tool: save_moments
favourite_colour: {hue: 3}
properties:
  total: {type: number}
  lines:
    type: array
    items: {$ref: '#/$defs/Line'}
required: [total]
$defs:
  Line: {type: object, properties: {text: {type: string}}}
tools: [search, {name: action, description: Emit an event}]
actions:
  check: {prompt: Check it., input: {type: object, required: [id]}}
"""


def refused(source: Any) -> list[dict[str, Any]]:
    with pytest.raises(InvalidRequest) as caught:
        parse_agent(source)
    return list(caught.value.details["errors"])


def test_a_document_is_kept_as_it_was_written() -> None:
    document = parse_agent(INVOICE)

    stored = document.to_json()
    assert list(stored) == [
        "type",
        "name",
        "description",
        "structured_output",
        "chained_tool",
        "favourite_colour",
        "properties",
        "required",
        "$defs",
        "tools",
        "actions",
    ]
    assert stored["favourite_colour"] == {"hue": 3}
    assert stored["tools"] == ["search", {"name": "action", "description": "Emit an event"}]
    assert AgentDocument.of(stored) == document
    assert parse_agent(stored).to_json() == stored


def test_the_answer_schema_holds_the_properties_and_what_they_refer_to() -> None:
    schema = parse_agent(INVOICE).answer_schema()

    assert schema is not None
    assert violations(schema, {"total": 3, "lines": [{"text": "x"}]}) == []
    assert violations(schema, {"lines": [{"text": 3}]}) != []


def test_actions_are_named_in_an_object_or_in_a_list() -> None:
    listed = parse_agent(
        {"name": "a", "actions": [{"id": "check", "prompt": "Check it.", "input": {"minProperties": 1}}]}
    )

    assert listed.actions["check"].prompt == parse_agent(INVOICE).actions["check"].prompt == "Check it."
    assert listed.actions["check"].input_schema == {"minProperties": 1}


def test_resources_are_tools_under_an_older_name() -> None:
    document = read_agent(
        {"tools": ["search"], "resources": [{"name": "Web Search", "description": "Look"}, {"name": "Search"}]}
    )

    assert [(tool.name, tool.description) for tool in document.tools] == [("search", None), ("web_search", "Look")]


def test_null_means_absent() -> None:
    assert read_agent("name: a\nproperties:\ntools:\nlimits:\n").properties == {}


def test_what_is_stored_may_be_older_than_the_checks() -> None:
    stored = {"name": "a b", "structured_output": True, "chained_tool": "save"}

    assert AgentDocument.of(stored).output_mode() == "text"
    assert [error["path"] for error in refused(stored)] == ["/name", "/structured_output"]


def test_every_defect_is_told_with_its_path_and_line() -> None:
    text = """\
name: a b
tools: 3
properties:
  x: {type: strin}
  y: 5
required: [z]
model: foo:bar
temperature: hot
limits: {request_limit: 0}
actions:
  - {id: go, input: {type: 3}}
  - {id: go}
  - {prompt: x}
  - {id: on, prompt: 7}
"""

    assert [(error["line"], error["path"]) for error in refused(text)] == [
        (1, "/name"),
        (2, "/tools"),
        (4, "/properties/x/type"),
        (5, "/properties/y"),
        (6, "/required/0"),
        (7, "/model"),
        (8, "/temperature"),
        (9, "/limits/request_limit"),
        (11, "/actions/0/input/type"),
        (12, "/actions/1/id"),
        (13, "/actions/2"),
        (14, "/actions/3/prompt"),
    ]


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("", "expected an object with the fields of an agent, found nothing"),
        ("- a", "found an array of 1"),
        ("description: x", "name is missing"),
        ("name: a\nstructured_output: true", "structured output needs properties"),
        ("name: a\nstructured_output: 'yes'", "valid boolean"),
        ("name: a\ntype: array", "'object'"),
        ("name: a\nproperties: {x: {$ref: '#/$defs/Gone'}}", "Gone"),
        ("name: a\nproperties: {x: {$ref: 'https://example.org/x'}}", "example.org"),
        ("name: a\nmodel: cassette:/etc/passwd", "operator"),
        ("name: a\nactions: {go: {input: {type: object, properties: 3}}}", "not a valid JSON Schema"),
        ({"name": "a", "temperature": 3}, "less than or equal to 2"),
    ],
)
def test_a_document_that_cannot_work_is_not_saved(source: Any, told: str) -> None:
    with pytest.raises(InvalidRequest, match="the agent's document is not valid") as caught:
        parse_agent(source)

    assert told in caught.value.message


def test_the_prompt_has_its_parts_in_order() -> None:
    document = read_agent(
        {
            "description": "You help. ",
            "system_prompt": "Be kind.",
            "tools": [{"name": "search", "description": "Query the handbook"}, "action"],
            "properties": {
                "topic": {"type": "string", "description": "Primary\n topic", "enum": ["a", "b"]},
                "sources": {"type": "array", "items": {"$ref": "#/$defs/Source"}},
                "mood": {"type": "object", "properties": {"level": {"type": "integer"}}},
            },
            "required": ["topic"],
            "$defs": {"Source": {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]}},
        }
    )

    assert document.system_prompt() == (
        "You help.\n\nBe kind.\n\n## Tool Notes\n- **search**: Query the handbook\n\n"
        "## Thinking Structure\n\n"
        "Let these fields guide what you look for and keep in mind. They are for your reasoning only.\n\n"
        "```yaml\n"
        "topic: string (one of: a, b) (required)\n"
        "  # Primary topic\n"
        "sources: [object]\n"
        "  # each item:\n"
        "    url: string (required)\n"
        "mood:\n"
        "  level: integer\n"
        "```\n\n"
        "Answer in plain conversational text. Do NOT output field names, YAML or JSON."
    )


def test_notes_print_the_names_by_which_the_model_calls_the_tools() -> None:
    tools = [{"name": "web.fetch", "description": "Fetch"}, {"name": "gone", "description": "Lost"}]
    document = read_agent({"tools": tools})

    prompt = document.system_prompt(document.tool_names(["web_fetch", "now"]))

    assert prompt == "## Tool Notes\n- **web_fetch**: Fetch\n- **gone**: Lost"


def test_a_schema_that_refers_to_itself_makes_a_prompt_that_ends() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}

    assert read_agent({"properties": {"n": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": node}}).system_prompt()


def test_tools_are_found_by_any_spelling_and_the_missing_ones_are_told() -> None:
    document = read_agent({"tools": ["web.fetch", "search", "gone", {"name": "add", "server": "sums"}, "search"]})

    assert document.select_tools(["web_fetch", "search", "sums_add", "now"]) == (
        ["web_fetch", "search", "sums_add"],
        ["gone"],
    )


def test_a_row_of_a_table_of_agents_means_the_document_that_it_is() -> None:
    # Pins: such a row was stored, and then ran without instructions and without tools.
    row = {
        "name": "keeper",
        "kind": "agent",
        "description": "Keeps things.",
        "content": "You keep what you are told.",
        "json_schema": {
            "type": "object",
            "name": "other",
            "properties": {"note": {"type": "string"}},
            "structured_output": True,
            "tools": [{"name": "save_moments"}],
            "limits": {"request_limit": 3},
        },
    }

    document = parse_agent(row)

    assert document.system_prompt() == "You keep what you are told."
    assert (document.name, document.summary, document.output_mode()) == ("keeper", "Keeps things.", "object")
    assert [tool.name for tool in document.tools] == ["save_moments"]
    assert document.limits is not None
    assert document.limits.request_limit == 3
    assert document.to_json() == row
    assert parse_agent({"name": "plain", "content": "You help."}).system_prompt() == "You help."
    assert parse_agent({"name": "plain", "description": "You help.", "content": "x"}).system_prompt() == "You help."


def test_defects_of_such_a_row_stand_where_they_were_written() -> None:
    (defect,) = refused(
        {"name": "keeper", "content": "x", "json_schema": {"model": "no:such:model", "properties": {}}}
    )

    assert defect["path"] == "/json_schema/model"
