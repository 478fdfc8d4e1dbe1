"""What became of a plan's steps: the texts and shapes in which results leave the EXECUTE stage.

Texts are exact, since models and recorded exchanges depend on them. Tools without structured output:
docs/decisions.md, D26.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planq.shared.kernel.steps import StepResult
from planq.shared.platform.values.encoding import indented

UNKNOWN_ERROR = "Unknown error"
"""What is said of a tool that reports an error without a word about it (case per-033)."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What a tool call comes to: an `output`, or an `error` that names the tool (then `output` is None)."""

    output: Any = None
    error: str | None = None


def format_summary(results: Sequence[StepResult]) -> str:
    """Return the numbered list of results that the responding model reads (case per-020); `""` for none.

    What a tool says beside its output stands in one line, as JSON, so that it can pass for no other entry.
    """
    return "\n\n".join(_entry(number, result) for number, result in enumerate(results, start=1))


def failure_text(results: Iterable[StepResult]) -> str | None:
    """Return `Tool execution failed: e1; e2` (case per-044), or None when nothing failed."""
    errors = [result.error for result in results if result.error is not None]
    return f"Tool execution failed: {'; '.join(errors)}" if errors else None


def tool_outcome(tool_name: str, result: Mapping[str, Any] | None, *, declares_output: bool = False) -> ToolOutcome:
    """Read an MCP `CallToolResult` (its JSON form; None when no result came).

    `isError` gives an error with the first text. Otherwise the structured content is the output; without any, the
    texts are it, as `{"text": …}`, unless the tool `declares_output`, a schema that it has then broken.
    """
    if result is None:
        return ToolOutcome(error=f"Tool {tool_name!r} returned no result")
    texts = [
        block["text"]
        for block in result.get("content") or ()
        if isinstance(block, Mapping) and block.get("type") == "text" and isinstance(block.get("text"), str)
    ]
    if result.get("isError"):
        return ToolOutcome(error=f"Tool {tool_name!r} failed: {texts[0] if texts and texts[0] else UNKNOWN_ERROR}")
    structured = result.get("structuredContent")
    if structured is not None:
        return ToolOutcome(output=structured)
    if declares_output:
        return ToolOutcome(error=f"Tool {tool_name!r} declares an output schema but returned no structured_content")
    return ToolOutcome(output={"text": "\n".join(texts)})


def _entry(number: int, result: StepResult) -> str:
    if result.error is not None:
        return f"{number}. {result.tool_name} - FAILED\n   Error: {result.error}"
    shown = indented(result.output)
    what = "Result" if result.shortened_from is None else f"Result (shortened, of {result.shortened_from} bytes)"
    said = "" if result.content is None else f"\n   Content: {json.dumps(result.content, ensure_ascii=False)}"
    return f"{number}. {result.tool_name} - SUCCESS{said}\n   {what}: {shown}"
