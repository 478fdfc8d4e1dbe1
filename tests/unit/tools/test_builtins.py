"""The built-in tools that need no network, called as the engine calls them: schema-checked JSON in and out."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import uuid
from datetime import timedelta
from typing import Any

import pytest

from planq.shared.agentic.results.artifacts import extract_skill_id
from planq.shared.agentic.schema.schemas import violations
from planq.shared.agentic.tools.contract import Passage, Suspended, ToolContext
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.states import Effect, Pool
from planq.shared.platform.errors import InvalidArguments
from planq.worker.tools import ToolServices
from planq.worker.tools.builtin.report import heading_line, json_block
from planq.worker.tools.registry import Registry, load_registry
from tests.unit.tools.conftest import ShelfKnowledge


@pytest.fixture
def registry(services: ToolServices) -> Registry:
    """The built-in tools alone."""
    return load_registry(services=services, entry_point_group=None, modules=["planq.worker.tools.builtin"])


def call(registry: Registry, name: str, arguments: dict[str, Any], context: ToolContext) -> Any:
    """Call a tool and check what goes in and what comes out against its schemas."""
    tool = registry.find(name)
    assert tool is not None
    assert tool.definition.output_schema is not None
    assert violations(tool.definition.input_schema, arguments) == []
    output = asyncio.run(tool.call(arguments, context))
    plain = output.output if isinstance(output, Suspended) else output
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert violations(tool.definition.output_schema, plain) == []
    return output


def test_every_builtin_is_registered_and_says_what_it_does(registry: Registry) -> None:
    found = {definition.name: definition for definition in registry.definitions()}

    assert {name: (definition.effect, definition.pool) for name, definition in found.items()} == {
        "action": (Effect.IDEMPOTENT, Pool.IO),
        "calculate": (Effect.PURE, Pool.IO),
        "get_moments": (Effect.READ, Pool.IO),
        "http_fetch": (Effect.READ, Pool.IO),
        "json_query": (Effect.PURE, Pool.IO),
        "knowledge_search": (Effect.READ, Pool.IO),
        "now": (Effect.READ, Pool.IO),
        "remind_me": (Effect.IDEMPOTENT, Pool.IO),
        "save_moments": (Effect.IDEMPOTENT, Pool.IO),
        "search": (Effect.READ, Pool.IO),
        "telegram_file": (Effect.READ, Pool.IO),
        "update_user_metadata": (Effect.IDEMPOTENT, Pool.IO),
        "wait": (Effect.IDEMPOTENT, Pool.IO),
        "web_search": (Effect.READ, Pool.IO),
        "write_report": (Effect.IDEMPOTENT, Pool.IO),
    }
    for definition in found.values():
        assert definition.description.endswith(".")
        for name, schema in definition.input_schema["properties"].items():
            assert schema.get("description"), f"{definition.name}.{name} is not described"


def test_only_tools_about_time_may_be_called_again_and_again(registry: Registry) -> None:
    assert {one.name for one in registry.definitions() if one.repeatable} == {"now", "wait"}


def test_a_definition_of_before_is_read_as_not_repeatable() -> None:
    stored = ToolDefinition(name="t").model_dump(mode="json")
    del stored["repeatable"]

    assert not ToolDefinition.model_validate(stored).repeatable


def test_builtins_are_installed_through_their_entry_point(services: ToolServices) -> None:
    assert load_registry(services=services).find("calculate") is not None


def test_calculate_gives_a_number(registry: Registry, context: ToolContext) -> None:
    assert call(registry, "calculate", {"expression": "6 * 7"}, context) == {"result": 42}


@pytest.mark.parametrize(
    ("expression", "data", "expected"),
    [
        ("a.b[1]", {"a": {"b": [1, 2]}}, 2),
        (
            "people[?age > `30`].name | sort(@)",
            {"people": [{"name": "B", "age": 40}, {"name": "A", "age": 31}]},
            ["A", "B"],
        ),
        ("missing", {}, None),
        ("length(@)", [1, 2, 3], 3),
        ("{n: a, all: @}", {"a": None}, {"n": None, "all": {"a": None}}),
    ],
)
def test_json_query_selects(
    registry: Registry, context: ToolContext, expression: str, data: Any, expected: Any
) -> None:
    assert call(registry, "json_query", {"expression": expression, "data": data}, context) == {"result": expected}


@pytest.mark.parametrize(
    ("expression", "data"),
    [("a[", {}), ("sum(@)", ["x"]), ("nofunction(@)", {}), ("sort(@)", [1, "a"]), ("@ | ||", {}), ("a\x00b", {})],
)
def test_json_query_names_what_is_wrong(registry: Registry, context: ToolContext, expression: str, data: Any) -> None:
    with pytest.raises(InvalidArguments, match="json_query: the expression"):
        call(registry, "json_query", {"expression": expression, "data": data}, context)


def test_now_is_the_moment_in_utc(registry: Registry, context: ToolContext) -> None:
    expected = {"iso": "2026-11-21T02:31:07+00:00", "unix": 1795228267, "timezone": "UTC"}

    assert call(registry, "now", {}, context) == expected


def test_wait_is_a_timer_that_holds_no_worker(registry: Registry, context: ToolContext) -> None:
    output = call(registry, "wait", {"seconds": 90}, context)

    assert output == Suspended(timedelta(seconds=90), {"waited_seconds": 90})


def test_a_wait_of_nothing_needs_no_timer(registry: Registry, context: ToolContext) -> None:
    assert call(registry, "wait", {"seconds": 0}, context) == {"waited_seconds": 0}


@pytest.mark.parametrize("seconds", [-1, 86_401, "soon"])
def test_wait_is_bounded(registry: Registry, context: ToolContext, seconds: Any) -> None:
    tool = registry.find("wait")
    assert tool is not None

    assert violations(tool.definition.input_schema, {"seconds": seconds})
    with pytest.raises(InvalidArguments, match="seconds"):
        asyncio.run(tool.call({"seconds": seconds}, context))


def test_knowledge_search_gives_passages_and_one_text(
    registry: Registry, context: ToolContext, knowledge: ShelfKnowledge
) -> None:
    output = call(registry, "knowledge_search", {"query": "leave", "limit": 2}, context)

    assert knowledge.asked == [("default", "leave", 2)]
    assert output["count"] == 2
    assert output["results"][0] == {
        "title": "Handbook",
        "source": "handbook.md",
        "text": "Parental leave lasts 14 months.",
        "score": 0.9,
    }
    assert output["text"] == (
        "Handbook (handbook.md)\nParental leave lasts 14 months.\n\nNotes (notes.md)\nSick leave needs a note."
    )


def test_knowledge_search_that_finds_nothing_says_so(registry: Registry, context: ToolContext) -> None:
    output = call(registry, "knowledge_search", {"query": "dragons"}, context)

    assert output == {"results": [], "count": 0, "text": "Nothing was found for: dragons"}


def test_report_is_an_artifact_in_the_standard_shape(registry: Registry, context: ToolContext) -> None:
    sections = [
        {"heading": "Leave", "content": "It lasts *14* months.\n"},
        {"heading": "Numbers", "content": {"days": [1, 2]}},
        {"heading": "Total", "content": 3},
    ]

    output = call(registry, "write_report", {"title": "On leave", "sections": sections}, context)

    assert uuid.UUID(output["artifact_id"]).version == 5
    assert output["_metadata"] == {
        "context_id": "conversation",
        "request_id": "request",
        "trace_id": "trace",
        "user_id": "ada",
        "tool_name": "probe",
        "executed_at": output["_metadata"]["executed_at"],
    }
    assert output["_metadata"]["executed_at"].startswith("2026-11-21T02:31:07")
    assert output["artifact"] == {
        "title": "On leave",
        "format": "markdown",
        "markdown": "# On leave\n\n## Leave\n\nIt lasts *14* months.\n\n## Numbers\n\n"
        '```json\n{\n  "days": [\n    1,\n    2\n  ]\n}\n```\n\n## Total\n\n```json\n3\n```\n',
        "sections": ["Leave", "Numbers", "Total"],
        "section_count": 3,
    }


def test_report_names_the_skill_that_asked_for_it(registry: Registry, context: ToolContext) -> None:
    arguments = {"title": "T", "sections": [{"heading": "H", "content": "x"}], "skill_id": "blog_writing"}

    output = call(registry, "write_report", arguments, context)

    assert output["artifact"]["skill_id"] == "blog_writing"
    assert extract_skill_id(output) == "blog_writing"
    of_an_agent = dataclasses.replace(context, skill_id="research")
    assert extract_skill_id(call(registry, "write_report", arguments, of_an_agent)) == "blog_writing"
    del arguments["skill_id"]
    assert extract_skill_id(call(registry, "write_report", arguments, of_an_agent)) == "research"


def test_retried_report_is_the_same_artifact_and_another_step_another(
    registry: Registry, context: ToolContext
) -> None:
    arguments = {"title": "T", "sections": [{"heading": "H", "content": ""}]}

    first = call(registry, "write_report", arguments, context)
    again = call(registry, "write_report", arguments, dataclasses.replace(context, attempt=2))
    other = call(registry, "write_report", arguments, dataclasses.replace(context, step_index=4))

    assert first["artifact_id"] == again["artifact_id"]
    assert first["artifact_id"] != other["artifact_id"]


@pytest.mark.parametrize(
    ("heading", "expected"),
    [
        ("Plain", "Plain"),
        ("# One\n## Two\r\n", "One ## Two"),
        ("\t a \u2028 b \x00 c\x1b", "a b c"),
        (" \n ", "Untitled"),
        ("x" * 400, "x" * 300),
    ],
)
def test_headings_are_one_line(heading: str, expected: str) -> None:
    assert heading_line(heading) == expected


def test_code_block_cannot_be_ended_from_inside() -> None:
    block = json_block({"text": "```\n# not a heading\n````"})

    assert block.startswith("`````json\n")
    assert block.endswith("\n`````")


def test_passages_of_other_tenants_are_asked_for_under_their_name(
    registry: Registry, context: ToolContext, knowledge: ShelfKnowledge
) -> None:
    knowledge.passages = [Passage("A", "a.md", "secret plan", 1.0)]

    call(registry, "knowledge_search", {"query": "plan"}, dataclasses.replace(context, tenant_id="acme"))

    assert knowledge.asked == [("acme", "plan", 5)]
