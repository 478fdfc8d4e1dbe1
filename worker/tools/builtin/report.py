"""`write_report`: sections become one Markdown artifact in the standard response shape.

The artifact's id follows from the step's idempotency key, so that a retried step gives the same artifact again.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, NotRequired

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

from planq.shared.agentic.results.artifacts import build_tool_response, tool_response_schema
from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.kernel.states import Effect
from planq.worker.tools.declare import tool
from planq.worker.tools.services import ToolServices

_MOST_SECTIONS = 200
_HEADING_CHARS = 300

_REPORT_IDS = uuid.UUID("6f1d9d6e-6c6b-5a43-9d5b-3f0c8f6a3b11")
"""Namespace of artifact ids (RFC 9562 §5.5)."""


class Section(BaseModel):
    """One section of a report."""

    model_config = ConfigDict(extra="forbid")

    heading: Annotated[str, Field(description="The section's heading, one line.")]
    content: Annotated[Any, Field(description="Markdown text, or any JSON value, which is shown as a code block.")]


class Report(TypedDict):
    """The artifact: a Markdown document."""

    title: str
    format: Annotated[str, Field(description="Always markdown.")]
    markdown: Annotated[str, Field(description="The whole document.")]
    sections: Annotated[list[str], Field(description="The headings, in order.")]
    section_count: int
    skill_id: NotRequired[
        Annotated[str, Field(description="The skill that asked for the report, when one was named.")]
    ]


@tool(
    effect=Effect.IDEMPOTENT,
    timeout_seconds=30,
    output_schema=tool_response_schema(TypeAdapter(Report).json_schema(mode="serialization")),
)
async def write_report(
    title: Annotated[str, Field(description="The title, one line.", min_length=1, max_length=_HEADING_CHARS)],
    sections: Annotated[
        list[Section], Field(description="The sections, in order.", min_length=1, max_length=_MOST_SECTIONS)
    ],
    context: ToolContext,
    services: ToolServices,
    skill_id: Annotated[str | None, Field(description="The skill on whose behalf the report is written.")] = None,
) -> dict[str, Any]:
    """Write a Markdown report from sections and store it as an artifact that can be fetched by its id."""
    headings = [heading_line(section.heading) for section in sections]
    name = heading_line(title)
    report: Report = {
        "title": name,
        "format": "markdown",
        "markdown": _document(name, list(zip(headings, (section.content for section in sections), strict=True))),
        "sections": headings,
        "section_count": len(headings),
    }
    if skill_id is not None:
        report["skill_id"] = skill_id
    artifact_id = str(uuid.uuid5(_REPORT_IDS, context.idempotency_key))
    made_by = context if skill_id is None else replace(context, skill_id=skill_id)
    return build_tool_response(artifact_id, report, made_by, services.now())


def _document(title: str, sections: Sequence[tuple[str, Any]]) -> str:
    parts = [f"# {title}"]
    for heading, content in sections:
        parts.append(f"## {heading}")
        parts.append(content.strip() if isinstance(content, str) else json_block(content))
    return "\n\n".join(part for part in parts if part) + "\n"


def json_block(value: Any) -> str:
    """Return a JSON value as a json_block code block; the fence is longer than any run of backticks inside."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}json\n{text}\n{fence}"


def heading_line(text: str) -> str:
    """Return a heading on one line, without heading marks at its ends; `Untitled` when nothing is left."""
    flat = "".join(" " if character.isspace() or not character.isprintable() else character for character in text)
    return " ".join(flat.split()).strip("# ")[:_HEADING_CHARS] or "Untitled"
