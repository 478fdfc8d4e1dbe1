"""`ToolResponse` and `Artifact`: what an author returns beside a plain output."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from planq.shared.agentic.plan.document import parse_plan
from planq.shared.agentic.plan.validation import validate_plan
from planq.shared.agentic.schema.schemas import violations
from planq.shared.agentic.tools.contract import Question, RichOutput, Suspended, ToolContext
from planq.shared.platform.errors import InvalidOutput, Misconfigured
from planq.shared.platform.values.encoding import output_text
from planq.testing import AskedQuestion, tool_context
from planq.worker.tools import Artifact, ToolResponse, tool
from tests.unit.tools.conftest import Make

WHEN = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)


class Report(BaseModel):
    """What is written."""

    title: str
    words: int


def test_each_reader_of_a_response_gets_its_own(make: Make, context: ToolContext) -> None:
    @tool(effect="pure")
    async def write(title: str) -> ToolResponse[Report] | Suspended:
        """Write."""
        drafts = [Artifact("reports/1", Report(title=title, words=1), executed_at=WHEN), Artifact("rows", [1])]
        return ToolResponse("Written.", Report(title=title, words=1), drafts)

    found = make(write)
    answer = asyncio.run(found.call({"title": "T"}, replace(context, user_id="ada", skill_id="writing")))

    assert (answer.output, answer.content) == ({"title": "T", "words": 1}, "Written.")
    report, rows = answer.artifacts
    assert (report["artifact_id"], report["artifact"]) == ("reports/1", {"title": "T", "words": 1})
    assert report["_metadata"] == {
        "context_id": context.context_id,
        "request_id": context.request_id,
        "trace_id": context.trace_id,
        "user_id": "ada",
        "tool_name": context.tool_name,
        "executed_at": "2026-11-22T12:00:00Z",
        "skill_id": "writing",
    }
    assert (rows["artifact_id"], rows["artifact"]) == ("rows", [1])
    assert violations(found.definition.output_schema or {}, answer.output) == []
    for field, defects in (("title", []), ("words", ["type_mismatch"]), ("none", ["field_not_found"])):
        titles = ("a", f"$0.output.{field}")
        plan = parse_plan({"calls": [{"tool_name": "write", "arguments": {"title": title}} for title in titles]})
        assert [one.type for one in validate_plan(plan, {"write": found.definition}, max_steps=2)] == defects


@pytest.mark.parametrize(
    ("annotation", "response", "expected"),
    [
        (ToolResponse, ToolResponse("said"), {"text": "said"}),
        (ToolResponse[str], ToolResponse("said"), {"text": "said"}),
        (ToolResponse[str], ToolResponse("for models", "kept"), RichOutput({"text": "kept"}, [], "for models")),
        (ToolResponse[int], ToolResponse("five", 5), RichOutput({"result": 5}, [], "five")),
        (ToolResponse, ToolResponse(structured={"n": 1}), {"n": 1}),
        (None, ToolResponse(), {"result": None}),
    ],
)
def test_a_response_may_lack_parts(
    make: Make, context: ToolContext, annotation: Any, response: Any, expected: Any
) -> None:
    async def say() -> Any:
        """Say."""
        return response

    say.__annotations__ = {} if annotation is None else {"return": annotation}
    found = make(tool(effect="pure")(say))

    answer = asyncio.run(found.call({}, context))

    assert answer == expected
    output = answer.output if isinstance(answer, RichOutput) else answer
    assert violations(found.definition.output_schema or {}, output) == []


def test_the_structured_part_may_be_an_artifact(make: Make, context: ToolContext) -> None:
    @tool(effect="pure")
    async def write() -> ToolResponse[Artifact[Report]]:
        """Write."""
        return ToolResponse("Written.", Artifact("reports/1", Report(title="T", words=1)))

    found = make(write)
    answer = asyncio.run(found.call({}, context))

    assert (answer.output["artifact_id"], answer.content, answer.artifacts) == ("reports/1", "Written.", [])
    assert violations(found.definition.output_schema or {}, answer.output) == []


def test_a_response_that_cannot_be_kept_is_refused(make: Make, context: ToolContext) -> None:
    with pytest.raises(TypeError, match="a text for models; found dict"):
        ToolResponse({"n": 1})  # type: ignore[arg-type]
    for wrong in (Artifact("a", 1), ["a"]):
        with pytest.raises(TypeError, match="a list of Artifact"):
            ToolResponse("x", artifacts=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="an id of its own"):
        ToolResponse("x", artifacts=[Artifact("a", 1), Artifact("a", 2)])

    async def said(response: Any, annotation: Any) -> Any:
        async def say() -> Any:
            """Say."""
            return response

        say.__annotations__ = {"return": annotation}
        return await make(tool(effect="pure")(say)).call({}, context)

    for response, words in (
        (ToolResponse("text alone"), "promises a JSON object"),
        (ToolResponse("x", {"n": float("nan")}), "cannot express"),
        (ToolResponse("x", ToolResponse("y", {"n": 1})), "another one"),
        (Suspended(timedelta(1), ToolResponse("x", {"n": 1})), "expected the output alone"),
    ):
        with pytest.raises(InvalidOutput, match=words):
            output_text("it", asyncio.run(said(response, ToolResponse[dict[str, float]])).output)
    with pytest.raises(Misconfigured, match="a ToolResponse and something else"):
        asyncio.run(said(None, ToolResponse[int] | str))


def test_an_artifact_is_returned_without_a_word_of_where_it_comes_from(make: Make, context: ToolContext) -> None:
    @tool(effect="pure")
    async def write(title: str) -> Artifact[Report] | Suspended:
        """Write."""
        report = Report(title=title, words=1)
        return Artifact("reports/1", report, skill_id="writing", skill_name="Report writing", executed_at=WHEN)

    @tool(effect="pure")
    async def untyped(rows: list[int]):  # type: ignore[no-untyped-def]
        """Write."""
        return Artifact("rows", rows)

    found = make(write)
    output = asyncio.run(found.call({"title": "T"}, replace(context, user_id="ada", skill_id="other")))

    assert (output["artifact_id"], output["artifact"]) == ("reports/1", {"title": "T", "words": 1})
    made = output["_metadata"]
    assert (made["user_id"], made["skill_id"], made["executed_at"]) == ("ada", "writing", "2026-11-22T12:00:00Z")
    assert made["skill_name"] == "Report writing"
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


def test_an_artifact_of_bytes_stands_beside_what_is_said_of_it(make: Make, context: ToolContext) -> None:
    @tool(effect="pure")
    async def draw(what: str) -> Artifact[bytes]:
        """Draw."""
        return Artifact(f"drawings/{what}", b"\x89PNG", media_type="image/png", executed_at=WHEN)

    @tool(effect="pure")
    async def export() -> ToolResponse[Artifact[bytes]]:
        """Export."""
        more = [Artifact("notes", {"n": 1}), Artifact("raw", bytearray(b"\x00"))]
        return ToolResponse("Two rows.", Artifact("rows", "a,ü", media_type="text/csv"), more)

    found = make(draw)
    answer = asyncio.run(found.call({"what": "a square"}, context))

    (file,) = answer.artifacts
    assert (file.artifact_id, file.data, file.media_type) == ("drawings/a square", b"\x89PNG", "image/png")
    assert answer.output["artifact"] == {"media_type": "image/png", "bytes": 4}
    assert (answer.output["artifact_id"], answer.output["_metadata"]) == ("drawings/a square", file.metadata)
    assert violations(found.definition.output_schema or {}, answer.output) == []
    exported = asyncio.run(make(export).call({}, context))
    rows, notes, raw = exported.artifacts
    assert (rows.data, rows.media_type) == ("a,ü".encode(), "text/csv; charset=utf-8")
    assert (notes["artifact"], raw.data, raw.media_type) == ({"n": 1}, b"\x00", "application/octet-stream")
    assert (exported.content, exported.output["artifact_id"]) == ("Two rows.", "rows")


def test_a_media_type_is_one_and_belongs_to_bytes() -> None:
    for body, media_type, words in (
        (b"", "png", "written like 'image/png'; found 'png'"),
        (b"", "text/html\r\nSet-Cookie: a=b", "written like"),
        ({}, "application/json", "only bytes and texts have a media_type; found dict"),
    ):
        with pytest.raises(ValueError, match=words):
            Artifact("a", body, media_type=media_type)


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
        AskedQuestion("Which room?", schema, {"room": "blue"}, kind="form"),
        AskedQuestion("Which room?", schema, None, kind="form"),
    ]
    with pytest.raises(TypeError, match="belong to the Question"):
        tool_context(green).ask_sync(room, schema)


@pytest.mark.parametrize("wrong", [-0.01, 1000.5, float("nan"), float("inf"), True, "0.1"])
def test_a_cost_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="cost_usd is US dollars from 0 to 1000; found"):
        ToolResponse("x", cost_usd=wrong)
    if not isinstance(wrong, (bool, str)):
        with pytest.raises(Misconfigured, match="price_usd"):

            @tool(price_usd=wrong)
            async def search(query: str) -> str:
                """Search."""
                return query
