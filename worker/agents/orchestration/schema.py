"""JSON Schemas of `cp__agent_orchestrate`: its input, plans, and its output; and of one call of an agent.

A schema says less than `read_plan`: not that ids and result keys are unique, nor what references mean. It allows
unknown keys at the top of a plan only (cases orchestrate_plan_validation, `json_schema`). docs/decisions.md, D15.
"""

from __future__ import annotations

from typing import Any

from planq.shared.agentic.orchestration.plan import STRATEGIES, OrchestrationEvent, StepType
from planq.shared.agentic.orchestration.validation import MAX_CHILDREN, MAX_TIMEOUT_MS, RESULT_KEY, STATUSES, STEP_ID
from planq.shared.agentic.tools.names import MAX_AGENT_NAME

_TEXT = {"type": "string"}
_POSITIVE = {"type": "integer", "minimum": 1}
_KEY = {
    "type": "string",
    "pattern": f"^(?:{RESULT_KEY.pattern})?$",
    "description": "Later steps use the output by it.",
}

AGENT_ID = {"type": "string", "minLength": 1, "maxLength": MAX_AGENT_NAME, "description": "The name of the agent."}

CALL_PROPERTIES: dict[str, Any] = {
    "agent_id": AGENT_ID,
    "action_id": {"type": "string", "description": "One of its actions; this or a prompt."},
    "prompt": {"type": "string", "description": "The request in words."},
    "with": {"type": "object", "description": "Its input data."},
    "timeout_ms": {"type": "integer", "minimum": 1, "maximum": MAX_TIMEOUT_MS},
}
"""The properties of one call of one agent, as every tool that calls agents takes it."""


def agent_call(**more: Any) -> dict[str, Any]:
    """Return the schema of a call of an agent, with more properties or with other words for them."""
    properties = {**CALL_PROPERTIES, **more}
    return {"type": "object", "additionalProperties": False, "required": ["agent_id"], "properties": properties}


_AGENT = agent_call(
    prompt={"type": "string", "description": "The request; {{ bindings.x }} and {{ result.key.f }} count."},
    **{"with": {"type": "object", "description": "Its input; strings in it may be templates as those of prompt."}},
    result_key=_KEY,
)

_GROUP: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["steps"],
    "properties": {
        "steps": {"type": "array", "minItems": 1, "maxItems": MAX_CHILDREN, "items": _AGENT},
        "max_concurrency": _POSITIVE,
        "merge_strategy": {"enum": list(STRATEGIES)},
        "result_key": _KEY,
        "bindings": {"type": "object", "description": "Added to the plan's for this group."},
    },
}

_TRANSITIONS: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "allowed_events": {"type": "array", "items": {"enum": [event.value for event in OrchestrationEvent]}},
        "failure_branch_ids": {"type": "array", "items": _TEXT},
        "default_next_step": _TEXT,
    },
}


_COMMON: dict[str, Any] = {
    "id": {"type": "string", "pattern": f"^{STEP_ID.pattern}$"},
    "status": {"enum": list(STATUSES)},
    "name": _TEXT,
    "description": _TEXT,
    "transitions": _TRANSITIONS,
}

_PAYLOADS: dict[str, Any] = {"agent": _AGENT, "parallel": _GROUP}

_STEP: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["id", "type", "status"],
    "properties": {**_COMMON, "type": {"enum": [kind.value for kind in StepType]}, **_PAYLOADS},
    "allOf": [
        {
            "if": {"properties": {"type": {"const": kind}}, "required": ["type"]},
            "then": {"required": [kind], "properties": dict.fromkeys(_PAYLOADS.keys() - {kind}, False)},
        }
        for kind in _PAYLOADS
    ],
}
"""Conditions and no alternatives, so that the message names the place of a defect, and not "fits none of two"."""

_STEP_FOR_MODELS: dict[str, Any] = {
    "anyOf": [
        {
            "type": "object",
            "additionalProperties": False,
            "required": ["id", "type", "status", kind],
            "properties": {**_COMMON, "type": {"enum": [kind]}, kind: payload},
        }
        for kind, payload in _PAYLOADS.items()
    ]
}
"""The same for providers that constrain what a model says: they know alternatives, and no conditions."""


def _plan(step: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["steps"],
        "properties": {
            "id": _TEXT,
            "name": _TEXT,
            "description": _TEXT,
            "bindings": {"type": "object"},
            "steps": {"type": "array", "minItems": 1, "items": step},
        },
    }


PLAN_SCHEMA = _plan(_STEP)
PLAN_SCHEMA_FOR_MODELS = _plan(_STEP_FOR_MODELS)


ORCHESTRATE_INPUT: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "prompt": {"type": "string", "description": "What shall be done, in words: a model then makes the plan."},
        "plan": {"$ref": "#/$defs/plan"},
        "bindings": {"type": "object", "description": "Values for templates; they win over the plan's own."},
        "timeout_ms": {**_POSITIVE, "description": "Lowers the time of an agent that names none of its own."},
        "max_parallel": {**_POSITIVE, "description": "Lowers how many agents of a group run at once."},
        "planner_model": {
            "type": "string",
            "description": "The model that makes a plan of the prompt, as provider:model; else the server's choice.",
        },
        "disable_planner": {"type": "boolean", "description": "Take a plan only, and refuse a prompt."},
    },
    "oneOf": [{"required": ["plan"]}, {"required": ["prompt"]}],
    "$defs": {"plan": PLAN_SCHEMA},
}

_ENTRY: dict[str, Any] = {
    "type": "object",
    "required": ["id", "type", "status"],
    "properties": {
        "id": _TEXT,
        "type": {"enum": [kind.value for kind in StepType]},
        "status": {"enum": ["success", "failed", "partial", "skipped"]},
        "agent_id": _TEXT,
        "action_id": _TEXT,
        "exec_id": _TEXT,
        "output": {},
        "error": {},
        "elapsed_ms": {"type": "integer"},
        "timed_out": {"type": "boolean", "description": "True where its time ended before it did."},
        "chained_tool_result": {"description": "The result of the agent's chained tool, or its error."},
        "children": {"type": "array"},
    },
}

ORCHESTRATE_OUTPUT: dict[str, Any] = {
    "type": "object",
    "required": ["success", "steps"],
    "properties": {
        "success": {"type": "boolean"},
        "steps": {"type": "array", "items": _ENTRY},
        "bindings": {"type": "object"},
        "errors": {"type": "array", "items": {"type": "object", "required": ["error"]}},
        "exec_id": {"type": "string", "description": "The job that carried the plan out."},
        "totals": {"type": "object"},
        "warnings": {
            "type": "array",
            "description": "Differences from the request: limits that were lowered, names that nothing has.",
            "items": {"type": "object", "required": ["path", "rule", "message"]},
        },
    },
}
