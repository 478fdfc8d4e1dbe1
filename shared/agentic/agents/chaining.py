"""The tool that is called once with an agent's structured answer (docs/decisions.md, D23)."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from planq.shared.agentic.agents.document import AgentDocument
from planq.shared.agentic.schema.schemas import violations
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.agentic.tools.names import NameIndex
from planq.shared.platform.errors import ErrorRecord


@dataclass(frozen=True, slots=True)
class ChainedCall:
    """The call to make: `arguments` are a copy of the answer, bound to the tool's parameters."""

    tool_name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class NoSuchTool:
    """No worker offers the agent's chained tool: a warning."""

    tool_name: str


def chained_call(
    document: AgentDocument, output: Any, tools: Mapping[str, ToolDefinition]
) -> ChainedCall | NoSuchTool | None:
    """Return the chained call; None unless structured mode names a tool and the answer is an object."""
    name = document.chained_tool
    if not name or not document.structured_output or not isinstance(output, Mapping):
        return None
    found = NameIndex(tools).candidates(name)
    if len(found) != 1:
        return NoSuchTool(name)
    return ChainedCall(found[0], bound_arguments(output, tools[found[0]].input_schema))


def bound_arguments(output: Mapping[str, Any], input_schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer's fields, or the whole answer if only that fits the tool's single parameter."""
    fields = deepcopy(dict(output))
    parameters = input_schema.get("properties")
    if isinstance(parameters, Mapping) and len(parameters) == 1 and violations(input_schema, fields):
        whole = dict.fromkeys(parameters, fields)
        if not violations(input_schema, whole):
            return whole
    return fields


def chained_result(output: Any, error: ErrorRecord | None) -> dict[str, Any]:
    """Return the entry next to the agent's answer: the tool's result as an object, or its error."""
    if error is not None:
        return {"status": "error", "error": error.message}
    return dict(output) if isinstance(output, Mapping) else {"result": output}


def stored_chained_result(chained: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return an agent's `chained_tool_result` from its stored form; None if no chained tool was called."""
    if chained is None:
        return None
    error = chained.get("error")
    return chained_result(
        chained.get("result"), None if error is None else ErrorRecord(error["code"], error["message"])
    )
