"""How tools of agents are published: what they have in common, and the schemas of one call of one agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.domain.names import MAX_AGENT_NAME
from shared.domain.states import Effect, Lane, StepKind
from shared.domain.tool import MAX_TIMEOUT_SECONDS, ToolDefinition
from worker.agents.orchestration.defects import MAX_TIMEOUT_MS

SOURCE = "planq:agents"

AGENT_ID = {"type": "string", "minLength": 1, "maxLength": MAX_AGENT_NAME, "description": "The name of the agent."}

CALL_PROPERTIES: dict[str, Any] = {
    "agent_id": AGENT_ID,
    "action_id": {"type": "string", "description": "One of its actions; this or a prompt."},
    "prompt": {"type": "string", "description": "What it is asked."},
    "with": {"type": "object", "description": "Its input data."},
    "timeout_ms": {"type": "integer", "minimum": 1, "maximum": MAX_TIMEOUT_MS},
}

TEXTS: dict[str, Any] = {
    "type": "object",
    "description": "Texts of prompt and with that are put together only now, by their places in the call.",
    "additionalProperties": {"type": "array", "items": {"type": "object"}},
}

CHILD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "key": {"type": "string"},
        "status": {"enum": ["success", "failed", "skipped"]},
        "exec_id": {"type": "string", "description": "The job of the agent."},
        "agent_id": {"type": "string"},
        "action_id": {"type": "string"},
        "elapsed_ms": {"type": "integer"},
        "output": {},
        "error": {},
    },
}


def define(
    name: str,
    description: str,
    input_schema: Mapping[str, Any],
    output_schema: Mapping[str, Any],
    *,
    kind: StepKind = StepKind.AGENT,
) -> ToolDefinition:
    """Return the definition of a tool that delegates.

    Its time is that of all the agents that it calls, so by default only these have times: the call's own bounds them.
    """
    return ToolDefinition(
        name=name,
        description=description,
        input_schema=dict(input_schema),
        output_schema=dict(output_schema),
        effect=Effect.IDEMPOTENT,
        lane=Lane.IO,
        kind=kind,
        timeout_seconds=MAX_TIMEOUT_SECONDS,
        retries=0,
        source=SOURCE,
    )
