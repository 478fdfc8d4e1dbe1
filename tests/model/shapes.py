"""Forms that the conformance cases ask for and planq itself has no use for, made of planq's own values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planq.shared.agentic.results.artifacts import detect_wrapper, extract_skill_id
from planq.shared.agentic.tools.names import is_reserved, to_registry
from planq.shared.kernel.steps import StepResult
from tests.model.history import RowKind


@dataclass(frozen=True, slots=True)
class ExecutionState:
    """Where an execution stands after some results; `halt_reason` is the first error, None while nothing failed."""

    halt_reason: str | None
    successes: int
    failures: int
    total_duration_ms: int

    @property
    def halted(self) -> bool:
        """True once a step has failed."""
        return self.halt_reason is not None

    @property
    def stored(self) -> int:
        """Return the number of results; those after the first failure count too."""
        return self.successes + self.failures


@dataclass(frozen=True, slots=True)
class ToolResponse:
    """A wrapper of the strict form, which also carries `mcp_execution_id`."""

    artifact_id: str
    mcp_execution_id: str
    artifact: Any
    metadata: Mapping[str, Any]
    skill_id: str | None
    execution_id: str | None


def execution_state(results: Sequence[StepResult]) -> ExecutionState:
    """Return the state after `results`, in the order in which they ended."""
    errors = [result.error for result in results if result.error is not None]
    return ExecutionState(
        halt_reason=errors[0] if errors else None,
        successes=len(results) - len(errors),
        failures=len(errors),
        total_duration_ms=sum(result.duration_ms for result in results),
    )


def tool_call_ids(count: int) -> list[str]:
    """Return the ids under which the calls of a plan are shown: `plan_call_0`, `plan_call_1`, …"""
    return [f"plan_call_{index}" for index in range(count)]


def to_mcp_result(result: StepResult) -> dict[str, Any]:
    """Return a result in MCP's terms: `{"is_error", "text", "structured"}`; the text repeats the output as JSON."""
    if result.error is not None:
        return {"is_error": True, "text": result.error, "structured": None}
    return {"is_error": False, "text": _compact(result.output), "structured": result.output}


def select_strategy(*, has_tools: bool) -> str:
    """Return the original's name of the strategy: `planned` with tools, `standard` without."""
    return "planned" if has_tools else "standard"


def response_strategy(content: str, tool_call_count: int, results: Sequence[tuple[bool, bool]]) -> str:
    """Say what an answer rests on; `results` are pairs (has structured content, is an error).

    `content_provided`: there is a text, or nothing was called or came back; `artifacts_provided`: no text, but
    structured content of a success; `tools_only`: neither.
    """
    if content.strip() or tool_call_count == 0 or not results:
        return "content_provided"
    return "artifacts_provided" if any(has and not failed for has, failed in results) else "tools_only"


def turn_rows(calls: Sequence[Mapping[str, Any]], *, is_chained: bool = False) -> list[RowKind]:
    """Return the kinds of the rows that a turn leaves: each call with its response, where there is one.

    Calls stand before the assistant's text; the call of a chained tool stands after it, for it follows from it.
    """
    pairs = [
        kind
        for call in calls
        for kind in (RowKind.TOOL_CALL, RowKind.TOOL_RESPONSE)
        if kind is RowKind.TOOL_CALL or call.get("result") is not None
    ]
    before, after = ([], pairs) if is_chained else (pairs, [])
    return [RowKind.USER, *before, RowKind.ASSISTANT, *after]


def extract_execution_id(content: Any) -> str | None:
    """Return `_metadata.execution_id`, else the wrapper's `mcp_execution_id`; None when neither is a text."""
    if not isinstance(content, Mapping):
        return None
    metadata = content.get("_metadata")
    inner = metadata.get("execution_id") if isinstance(metadata, Mapping) else None
    return next((value for value in (inner, content.get("mcp_execution_id")) if isinstance(value, str)), None)


def parse_tool_response(content: Any) -> ToolResponse | None:
    """Read the strict form; None unless both ids are texts, `artifact` is there and `_metadata` is an object.

    In `_metadata`, `skill_id`, `skill_name` and `execution_id` may be absent or null but nothing else than texts.
    """
    wrapper = detect_wrapper(content)
    if wrapper is None or not isinstance(wrapper.metadata, Mapping):
        return None
    artifact_id, mcp_execution_id = content["artifact_id"], content.get("mcp_execution_id")
    named = [wrapper.metadata.get(name) for name in ("skill_id", "skill_name", "execution_id")]
    if not isinstance(artifact_id, str) or not isinstance(mcp_execution_id, str):
        return None
    if not all(value is None or isinstance(value, str) for value in named):
        return None
    return ToolResponse(
        artifact_id, mcp_execution_id, wrapper.artifact, wrapper.metadata, extract_skill_id(content), named[2]
    )


def build_parts(artifact: Any) -> list[dict[str, Any]] | None:
    """Return the message parts of an artifact, `[{"kind": "data", "data": …}]`; None when it is no object."""
    return [{"kind": "data", "data": dict(artifact)}] if isinstance(artifact, Mapping) else None


def to_dotted(name: str) -> str:
    """Return the spelling `service.method`, split at the last separator; reserved names and single words stay."""
    if is_reserved(name):
        return name
    service, separator, method = to_registry(name).rpartition("_")
    return f"{service}.{method}" if separator and service and method else to_registry(name)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
