"""`ToolResponse`: how an author returns an artifact."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from planq.shared.domain.errors import InvalidOutput, Misconfigured
from planq.shared.domain.plan.document import parse_plan
from planq.shared.domain.plan.validation import validate_plan
from planq.shared.domain.schema.schemas import violations
from planq.shared.ports import Question, Suspended, ToolContext
from planq.testing import AskedQuestion, tool_context
from planq.worker.tools import Artifact, ToolResponse, tool
from tests.unit.tools.conftest import Make

WHEN = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)


class Report(BaseModel):
    """What is written."""

    title: str
    words: int


def test_a_tool_that_returns_one_declares_its_schema_and_gives_the_wrapper(make: Make, context: ToolContext) -> None:
    @tool(effect="pure")
    async def write(title: str, context: ToolContext) -> ToolResponse[Report]:
        """Write."""
        return ToolResponse.new("reports/1", Report(title=title, words=1), context, executed_at=WHEN)

    found = make(write)
    output = asyncio.run(found.call({"title": "T"}, replace(context, user_id="ada", skill_id="writing")))

    assert output == {
        "artifact_id": "reports/1",
        "artifact": {"title": "T", "words": 1},
        "_metadata": {
            "context_id": context.context_id,
            "request_id": context.request_id,
            "trace_id": context.trace_id,
            "user_id": "ada",
            "tool_name": context.tool_name,
            "executed_at": "2026-11-22T12:00:00Z",
            "skill_id": "writing",
        },
    }
    assert violations(found.definition.output_schema or {}, output) == []
    for field, defects in (("title", []), ("words", ["type_mismatch"]), ("none", ["field_not_found"])):
        titles = ("a", f"$0.output.artifact.{field}")
        plan = parse_plan({"calls": [{"tool_name": "write", "arguments": {"title": title}} for title in titles]})
        assert [one.type for one in validate_plan(plan, {"write": found.definition}, max_steps=2)] == defects


@pytest.mark.parametrize("artifact_id", ["", "x" * 256])
def test_an_id_that_cannot_be_kept_is_refused(context: ToolContext, artifact_id: str) -> None:
    with pytest.raises(ValidationError):
        ToolResponse.new(artifact_id, {}, context)


def test_it_can_be_had_as_json(context: ToolContext) -> None:
    made: dict[str, Any] = ToolResponse.new("a", {"n": 1}, context, skill_id="s").to_json()

    assert (made["artifact_id"], made["artifact"], made["_metadata"]["skill_id"]) == ("a", {"n": 1}, "s")


def test_an_artifact_is_returned_without_a_word_of_where_it_comes_from(make: Make, context: ToolContext) -> None:
    @tool(effect="pure")
    async def write(title: str) -> Artifact[Report] | Suspended:
        """Write."""
        return Artifact("reports/1", Report(title=title, words=1), skill_id="writing", executed_at=WHEN)

    @tool(effect="pure")
    async def untyped(rows: list[int]):  # type: ignore[no-untyped-def]
        """Write."""
        return Artifact("rows", rows)

    found = make(write)
    output = asyncio.run(found.call({"title": "T"}, replace(context, user_id="ada", skill_id="other")))

    assert (output["artifact_id"], output["artifact"]) == ("reports/1", {"title": "T", "words": 1})
    made = output["_metadata"]
    assert (made["user_id"], made["skill_id"], made["executed_at"]) == ("ada", "writing", "2026-11-22T12:00:00Z")
    schema = found.definition.output_schema or {}
    assert schema["properties"]["artifact"]["properties"]["words"] == {"type": "integer"}
    assert violations(schema, output) == []
    listed = asyncio.run(make(untyped).call({"rows": [1, 2]}, context))
    assert (listed["artifact_id"], listed["artifact"]) == ("rows", [1, 2])
    assert listed["_metadata"]["tool_name"] == context.tool_name


def test_an_annotation_that_promises_an_artifact_is_kept_to(make: Make, context: ToolContext) -> None:
    @tool(effect="pure")
    async def write() -> Artifact[Report]:
        """Write."""
        return {"title": "T", "words": 1}  # type: ignore[return-value]

    with pytest.raises(InvalidOutput, match="promises an Artifact"):
        asyncio.run(make(write).call({}, context))

    @tool(effect="pure")
    async def either() -> Artifact[Report] | str:
        """Write."""
        return ""

    with pytest.raises(Misconfigured, match="expected it alone"):
        make(either)
    with pytest.raises(ValueError, match="1 to 255 characters"):
        Artifact("", {})


def test_a_question_of_its_own_type_is_asked_as_its_parts_are() -> None:
    schema = {"type": "object", "properties": {"room": {"enum": ["blue", "green"]}}, "required": ["room"]}
    room = Question("Which room?", schema, {"room": "blue"})
    asked: list[AskedQuestion] = []

    def green(question: AskedQuestion) -> dict[str, str]:
        asked.append(question)
        return {"room": "green"}

    for put in (lambda: tool_context(green).ask(room), lambda: tool_context(green).ask("Which room?", schema)):
        assert asyncio.run(put()) == {"room": "green"}
    assert asked == [
        AskedQuestion("Which room?", schema, {"room": "blue"}, "form"),
        AskedQuestion("Which room?", schema, None, "form"),
    ]
    with pytest.raises(TypeError, match="of its own"):
        tool_context(green).ask_sync(room, schema)
