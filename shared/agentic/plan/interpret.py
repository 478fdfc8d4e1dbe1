"""The PLAN stage's contract with a model: the forced tool `__planning__`, and the reading of whatever comes back.

The extractor is tolerant about where the decision stands (the forced tool, native calls of the tools, JSON in a
text), the check of what it says is strict (docs/decisions.md, D5). Nothing a model says raises; it becomes
`MalformedPlan`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from planq.shared.agentic.models.exchange import ToolCallRequest
from planq.shared.agentic.plan.document import Plan, cut_short, structural_errors, without_meaningless
from planq.shared.agentic.plan.errors import PlanError, by_call, invalid_plan
from planq.shared.agentic.plan.forms import QUESTION_TYPES, ReadPlan, has_typed_steps, is_question, read_any_form
from planq.shared.agentic.schema.schemas import rebase
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.platform.values.decoding import decode
from planq.shared.platform.values.describe import excerpt

PLANNING_TOOL_NAME: Final = "__planning__"
DIRECT: Final = "direct_response"
TOOL_CALLS: Final = "tool_calls"

MAX_SEARCHED_CHARS = 1_000_000
"""Longest text that is searched for a plan; a longer one is an answer."""

_FENCE = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)
_STEPS = re.compile(
    r'\{[^{}\[\]]*"steps"\s*:\s*\[\s*\{\s*"type"\s*:\s*"(?:tool|elicitation|clarify_intent|noop|abort)"'
)
_REFERENCE_SCHEMA: Final = {
    "type": "string",
    "description": "A reference to an earlier call's output: $<index of the call>.output.<path>",
}


@dataclass(frozen=True, slots=True)
class Direct:
    """The model answers without any tool."""

    content: str


@dataclass(frozen=True, slots=True)
class Calls:
    """The model wants these calls; the plan has the right structure and is otherwise unchecked.

    `dropped` steps after a question or an `abort` are not in it, nor are the fields at `ignored`, which mean nothing.
    """

    plan: Plan
    dropped: int = 0
    ignored: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class MalformedPlan:
    """The model meant to plan and did it wrongly; `errors` in the shape of `PlanError.to_json`, never empty."""

    errors: tuple[dict[str, Any], ...]


def planning_tool(tools: Sequence[ToolDefinition]) -> dict[str, Any]:
    """Return `{"name", "description", "parameters"}` of the forced tool over `tools`.

    `parameters` is JSON Schema with an object at the top and one alternative of `calls` per tool; every property of a
    tool's arguments also accepts a reference string. Without tools, only a direct response is offered.
    """
    kinds = [DIRECT, TOOL_CALLS] if tools else [DIRECT]
    properties: dict[str, Any] = {
        "type": {"type": "string", "enum": kinds, "description": "Whether to answer now or to call tools first."},
        "content": {"type": "string", "description": f"The whole answer; only with {DIRECT}."},
    }
    definitions: dict[str, Any] = {}
    if tools:
        alternatives = [_call_schema(number, tool, definitions) for number, tool in enumerate(tools)]
        properties["reasoning"] = {
            "type": "string",
            "description": f"Why these calls suffice; only with {TOOL_CALLS}.",
        }
        properties["calls"] = {
            "type": "array",
            "minItems": 1,
            "description": f"The calls, in order; only with {TOOL_CALLS}.",
            "items": alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives},
        }
    parameters: dict[str, Any] = {"type": "object", "properties": properties, "required": ["type"]}
    if definitions:
        parameters["$defs"] = definitions
    return {"name": PLANNING_TOOL_NAME, "description": _description(tools), "parameters": parameters}


def interpret(text: str, tool_calls: Sequence[ToolCallRequest]) -> Direct | Calls | MalformedPlan:
    """Read a model's reply to the PLAN stage.

    In this order: a call of `__planning__`; native calls of other tools, the text being the reasoning; a plan as JSON
    in the text, fenced anywhere or its outermost `{…}`; else the text is the answer. Only JSON that has the marks of
    a plan (a `type` of one of the two kinds, or of a question, `calls` with a `tool_name`, or typed `steps`) is one.
    """
    if tool_calls:
        return _from_tool_calls(text, tool_calls)
    found = decision_in(text, (DIRECT, TOOL_CALLS, *QUESTION_TYPES))
    return Direct(text) if found is None else _from_json(found)


def _from_tool_calls(text: str, tool_calls: Sequence[ToolCallRequest]) -> Direct | Calls | MalformedPlan:
    forced = [call for call in tool_calls if call.name == PLANNING_TOOL_NAME]
    if not forced:
        calls = [{"tool_name": call.name, "arguments": decoded(call.arguments)} for call in tool_calls]
        return _plan({"type": TOOL_CALLS, "reasoning": text, "calls": calls})
    if len(tool_calls) > 1:
        return malformed(
            invalid_plan(f"expected exactly one call of {PLANNING_TOOL_NAME}, found {len(tool_calls)} tool calls")
        )
    arguments = decoded(forced[0].arguments)
    if isinstance(arguments, str):
        return malformed(
            invalid_plan(f"the arguments of {PLANNING_TOOL_NAME} are no JSON object; found {excerpt(arguments)}")
        )
    return _from_json(arguments)


def _from_json(document: Any) -> Direct | Calls | MalformedPlan:
    if not isinstance(document, Mapping):
        return malformed(invalid_plan(f"expected an object with a type, found {excerpt(document)}"))
    if has_typed_steps(document) or is_question(document):
        return _from_steps(document)
    # Models fill in what does not apply: null, and "" or [] for the other kind's fields, mean that it is left out.
    given = {str(key): value for key, value in document.items() if value is not None}
    kind = given.get("type")
    if kind == DIRECT:
        return _direct(given)
    if kind != TOOL_CALLS and not given.get("calls"):
        found = "none" if kind is None else excerpt(kind)
        return malformed(invalid_plan(f"expected type {DIRECT!r} or {TOOL_CALLS!r}, found {found}", "/type"))
    errors: list[PlanError] = []
    content = given.pop("content", "")
    if content != "":
        errors.append(invalid_plan(f"content belongs to {DIRECT} only; answer or call tools, not both", "/content"))
    if isinstance(given.get("calls"), str):
        given["calls"] = decoded(given["calls"])
    if isinstance(given.get("calls"), list):
        given["calls"] = [_with_decoded_arguments(call) for call in given["calls"]]
    return _plan(given, errors)


def _from_steps(document: Mapping[str, Any]) -> Calls | MalformedPlan:
    read = read_any_form(document, from_model=True)
    return Calls(*cut_short(read.plan)) if isinstance(read, ReadPlan) else malformed(*read)


def _direct(given: Mapping[str, Any]) -> Direct | MalformedPlan:
    errors: list[PlanError] = []
    content = given.get("content")
    if not isinstance(content, str) or not content.strip():
        found = "nothing" if content is None else excerpt(content)
        errors.append(invalid_plan(f"a {DIRECT} needs its answer in content, a text; found {found}", "/content"))
    if given.get("calls"):
        errors.append(invalid_plan(f"calls belong to {TOOL_CALLS} only; answer or call tools, not both", "/calls"))
    return malformed(*errors) if errors or not isinstance(content, str) else Direct(content)


def _plan(document: Mapping[str, Any], errors: Sequence[PlanError] = ()) -> Calls | MalformedPlan:
    known, ignored, meant = without_meaningless(document)
    plan = structural_errors(known, from_model=True)
    wrong = [*errors, *meant]
    if isinstance(plan, Plan):
        return malformed(*wrong) if wrong else Calls(plan, ignored=ignored)
    return malformed(*by_call([*errors, *plan, *meant]))


def malformed(*errors: PlanError) -> MalformedPlan:
    return MalformedPlan(tuple(error.to_json() for error in errors))


def _with_decoded_arguments(call: Any) -> Any:
    if isinstance(call, Mapping) and isinstance(call.get("arguments"), str):
        return {**call, "arguments": decoded(call["arguments"])}
    return call


def decoded(value: Any) -> Any:
    """Return what a JSON text says, or the text itself when it is no JSON; blank arguments are none (`{}`).

    Numbers beyond a float (NaN, infinities, 1e999) are no JSON.
    """
    if not isinstance(value, str):
        return dict(value) if isinstance(value, Mapping) else value
    if not value.strip():
        return {}
    try:
        return decode(value)
    except (ValueError, RecursionError):
        return value


def decision_in(text: str, kinds: Sequence[str] = (DIRECT, TOOL_CALLS)) -> Any:
    """Return the decision that a text holds: decoded, or as text when it is broken; None when it holds none.

    `kinds` are the values of `type` by which a decision is known.
    """
    candidates = json_candidates(text)
    for candidate in candidates:
        found = decoded(candidate)
        if _has_marks_of_a_plan(found, kinds):
            return found
    stripped = text.strip().removeprefix("```json").removeprefix("```").lstrip()
    return candidates[-1] if candidates and _is_broken_plan(stripped, kinds) else None


def json_candidates(text: str) -> list[str]:
    """Return the parts of a text in which an object may stand as JSON: what is fenced, and its outermost `{…}`."""
    if "{" not in text or len(text) > MAX_SEARCHED_CHARS:
        return []
    start, end = text.find("{"), text.rfind("}")
    outermost = text[start : end + 1] if end > start else text[start:]
    return [*(match[1].strip() for match in _FENCE.finditer(text)), outermost]


def _has_marks_of_a_plan(value: Any, kinds: Sequence[str]) -> bool:
    if not isinstance(value, dict):
        return False
    if "type" in value:
        return value["type"] in kinds
    calls = value.get("calls")
    if isinstance(calls, list) and any(isinstance(call, dict) and "tool_name" in call for call in calls):
        return True
    return has_typed_steps(value)


def _is_broken_plan(text: str, kinds: Sequence[str]) -> bool:
    if _STEPS.match(text) is not None:
        return True
    found = re.match(r'\{\s*"type"\s*:\s*"([a-z_]{1,30})"', text)
    return found is not None and found[1] in kinds


def _call_schema(number: int, tool: ToolDefinition, definitions: dict[str, Any]) -> dict[str, Any]:
    schema = {key: value for key, value in tool.input_schema.items() if key not in ("$schema", "$id")}
    if _refers(schema):
        # The tool's own references must find their targets: its whole schema becomes a definition of ours.
        name = f"arguments_{number}"
        definitions[name] = _accepting(rebase(schema, f"/$defs/{name}"))
        arguments: dict[str, Any] = {"$ref": f"#/$defs/{name}"}
    else:
        arguments = _accepting(schema)
    return {
        "type": "object",
        "properties": {"tool_name": {"type": "string", "enum": [tool.name]}, "arguments": arguments},
        "required": ["tool_name", "arguments"],
    }


def _refers(schema: Any) -> bool:
    if isinstance(schema, Mapping):
        return "$ref" in schema or any(map(_refers, schema.values()))
    return isinstance(schema, list) and any(map(_refers, schema))


_OF_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_OF_ONE_SCHEMA = ("items", "additionalProperties")
_OF_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")


def _accepting(schema: Any) -> Any:
    """Return `schema` with every property and item in it also accepting a reference string."""
    if not isinstance(schema, Mapping):
        return schema
    changed = dict(schema)
    for keyword in _OF_SCHEMAS_BY_NAME:
        inner = schema.get(keyword)
        if isinstance(inner, Mapping):
            wrap = _accepting if keyword in ("$defs", "definitions") else _or_reference
            changed[keyword] = {name: wrap(one) for name, one in inner.items()}
    for keyword in _OF_ONE_SCHEMA:
        if isinstance(schema.get(keyword), Mapping):
            changed[keyword] = _or_reference(schema[keyword])
    for keyword in _OF_SCHEMAS:
        if isinstance(schema.get(keyword), list):
            wrap = _or_reference if keyword == "prefixItems" else _accepting
            changed[keyword] = [wrap(one) for one in schema[keyword]]
    return changed


def _or_reference(schema: Any) -> Any:
    """Return a schema for what fits `schema` or is a reference; where any string fits, that is `schema` itself."""
    if not isinstance(schema, Mapping) or not schema:
        return schema
    limits = ("enum", "const", "pattern", "format", "maxLength", "minLength")
    if schema.get("type") == "string" and not any(keyword in schema for keyword in limits):
        return dict(schema)
    described = {key: schema[key] for key in ("description",) if key in schema}
    inner = {key: value for key, value in _accepting(schema).items() if key not in described}
    return {**described, "anyOf": [inner, dict(_REFERENCE_SCHEMA)]}


def _description(tools: Sequence[ToolDefinition]) -> str:
    lines = ["Decide how to handle the request: answer it directly, or list the tool calls that it needs."]
    if tools:
        lines.append(
            "An argument may take its value from an earlier call: write $<index of the call>.output.<path> as the "
            "whole string, with a path that the tool's output schema lists. The tools, with their outputs:"
        )
    for tool in tools:
        lines.append(f"- {tool.name}: {' '.join(tool.description.split())}".rstrip(": "))
        if tool.output_schema is not None:
            lines.append(f"  output: {json.dumps(tool.output_schema, ensure_ascii=False, separators=(',', ':'))}")
    return "\n".join(lines)
