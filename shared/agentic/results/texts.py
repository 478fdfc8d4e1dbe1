"""The texts and shapes in which results leave the EXECUTE stage; models and recorded exchanges depend on them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planq.shared.kernel.steps import StepResult
from planq.shared.platform.values.encoding import indented

UNKNOWN_ERROR = "Unknown error"
"""The message of a tool error without a text (case per-033)."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The result of a tool call: an `output`, or an `error` that names the tool."""

    output: Any = None
    error: str | None = None


def format_summary(results: Sequence[StepResult]) -> str:
    """Return the numbered results for the responding model (per-020); a tool's text is one line of JSON."""
    return "\n\n".join(_entry(number, result) for number, result in enumerate(results, start=1))


def failure_text(results: Iterable[StepResult]) -> str | None:
    """Return `Tool execution failed: e1; e2` (case per-044), or None if nothing failed."""
    errors = [result.error for result in results if result.error is not None]
    return f"Tool execution failed: {'; '.join(errors)}" if errors else None


def tool_outcome(tool_name: str, result: Mapping[str, Any] | None, *, declares_output: bool = False) -> ToolOutcome:
    """Read an MCP `CallToolResult` as JSON (None: no result); docs/decisions.md, D26.

    The output is the structured content. Without it, it is the texts as `{"text": …}`, but an error for a tool that
    `declares_output`.
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
