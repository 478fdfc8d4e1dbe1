"""`ToolResponse`: how an author returns an artifact."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from planq.shared.domain.plan.document import parse_plan
from planq.shared.domain.plan.validation import validate_plan
from planq.shared.domain.schema.schemas import violations
from planq.shared.ports import ToolContext
from planq.worker.tools import ToolResponse, tool
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
