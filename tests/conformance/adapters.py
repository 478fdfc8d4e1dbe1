"""What each operation of the cases is in planq: from a case's input to an answer of the shape of its expectation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from planq.shared.agentic.models.exchange import ToolCallRequest
from planq.shared.agentic.plan.compile import bind
from planq.shared.agentic.plan.document import Call, Plan
from planq.shared.agentic.plan.interpret import PLANNING_TOOL_NAME, Calls, Direct, MalformedPlan, interpret
from planq.shared.agentic.plan.validation import PlanError, Producer, reference_error, validate_plan
from planq.shared.agentic.references import grammar as references
from planq.shared.agentic.references.resolution import resolve
from planq.shared.agentic.results import artifacts
from planq.shared.agentic.results import texts as results
from planq.shared.agentic.tools import names
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.steps import StepResult
from tests.conformance.inbound import INBOUND
from tests.conformance.orchestrate import ORCHESTRATE
from tests.conformance.refine_loop import REFINE_LOOP
from tests.model import shapes

Answer = Any
Adapter = Callable[[Any], Answer]


def validate(given: Mapping[str, Any]) -> Answer:
    errors = _errors(given)
    return {
        "valid": not errors,
        "errors": [error.to_json() for error in errors],
        "rendered": errors[0].render() if errors else "",
    }


def _errors(given: Mapping[str, Any]) -> list[PlanError]:
    calls = given["calls"]
    schemas = given.get("schemas")
    is_plan = all(isinstance(call["arguments"], dict) for call in calls)
    if not is_plan or (schemas is not None and len(schemas) != len(calls)):
        # No plan of planq has arguments other than objects, or fewer outputs than calls, but its references can be
        # checked one by one.
        known = lookup_schemas(given)["schemas"] if schemas is None else schemas
        producers = [Producer(name, schema) for name, schema in known]
        found = [
            reference_error(number, occurrence, producers, None)
            for number, call in enumerate(calls)
            for occurrence in references.find_references(call["arguments"])
        ]
        return [error for error in found if error is not None]
    return validate_plan(_plan(calls), _tools(given), max_steps=max(10_000, len(calls)))


def _plan(calls: list[Mapping[str, Any]]) -> Plan:
    return Plan(calls=[Call(tool_name=call["tool_name"], arguments=call["arguments"]) for call in calls])


def _tools(given: Mapping[str, Any]) -> dict[str, ToolDefinition]:
    if "schemas" in given:
        return {name: ToolDefinition(name=name, output_schema=schema) for name, schema in given["schemas"]}
    return {
        tool["name"]: ToolDefinition(
            name=tool["name"],
            input_schema=tool.get("input_schema") or {"type": "object"},
            output_schema=tool.get("output_schema"),
        )
        for tool in given["tools"]
    }


def find_templates(given: Mapping[str, Any]) -> Answer:
    return {"templates": [found.template for found in references.find_references(given["value"])]}


def lookup_schemas(given: Mapping[str, Any]) -> Answer:
    plan = _plan([{**call, "arguments": {}} for call in given["calls"]])
    bound = bind(plan, _tools(given))
    return {"schemas": [[one.call.tool_name, one.tool.output_schema if one.tool else None] for one in bound]}


def parse(given: Mapping[str, Any]) -> Answer:
    found = references.parse(given["text"])
    return {"ref": None if found is None else {"tool_index": found.step, "field_path": list(found.path)}}


def format_(given: Mapping[str, Any]) -> Answer:
    return {"text": str(references.Reference(given["tool_index"], tuple(given["field_path"])))}


def resolve_(given: Mapping[str, Any]) -> Answer:
    return {"arguments": resolve(given["arguments"], dict(enumerate(given["results"]))).arguments}


def classify_plan(given: Mapping[str, Any]) -> Answer:
    requests = [ToolCallRequest(call["name"], call["arguments"]) for call in given.get("provider_tool_calls") or ()]
    outcome = interpret(given.get("provider_text") or "", requests)
    if isinstance(outcome, Direct):
        return {"type": "direct_response", "content": outcome.content}
    if isinstance(outcome, MalformedPlan):
        return {"error": True, "errors": list(outcome.errors)}
    calls = [{"tool_name": call.tool_name, "arguments": call.arguments} for call in outcome.plan.calls]
    return {"type": "tool_calls", "reasoning": outcome.plan.reasoning, "calls": calls}


def parse_plan_json(given: Mapping[str, Any]) -> Answer:
    outcome = interpret("", [ToolCallRequest(PLANNING_TOOL_NAME, given["plan"])])
    if isinstance(outcome, MalformedPlan):
        return {"error": True}
    count = len(outcome.plan.calls) if isinstance(outcome, Calls) else 0
    return {"kind": "tool_calls" if isinstance(outcome, Calls) else "direct_response", "tool_count": count}


def step_results(raw: list[Mapping[str, Any]]) -> list[StepResult]:
    """Read the results of the cases; a failure without a text gets the text that planq gives it."""
    return [
        StepResult(
            tool_name=item["tool_name"],
            arguments=item["arguments"],
            output=item["output"] if item["success"] else None,
            error=None if item["success"] else (item["error"] or results.UNKNOWN_ERROR),
            duration_ms=item["duration_ms"],
        )
        for item in raw
    ]


def execution_state(given: Mapping[str, Any]) -> Answer:
    state = shapes.execution_state(step_results(given["results"]))
    fields = ("halted", "halt_reason", "successes", "failures", "total_duration_ms", "stored")
    return {name: getattr(state, name) for name in fields}


def format_summary(given: Mapping[str, Any]) -> Answer:
    return {"text": results.format_summary(step_results(given["results"]))}


def tool_outcome(given: Mapping[str, Any]) -> Answer:
    outcome = results.tool_outcome(given["tool"], given["result"])
    return {"output": outcome.output} if outcome.error is None else {"error": outcome.error}


def to_tool_call_ids(given: Mapping[str, Any]) -> Answer:
    return {"ids": shapes.tool_call_ids(len(given["calls"]))}


def to_mcp_results(given: Mapping[str, Any]) -> Answer:
    return [shapes.to_mcp_result(result) for result in step_results(given["results"])]


def select_strategy(given: Mapping[str, Any]) -> Answer:
    return {"strategy": shapes.select_strategy(has_tools=given["has_tools"])}


def response_strategy(given: Mapping[str, Any]) -> Answer:
    pairs = [(item["structured"], item["is_error"]) for item in given["results"]]
    return {"strategy": shapes.response_strategy(given["content"], given["tool_call_count"], pairs)}


def detect_wrapper(given: Mapping[str, Any]) -> Answer:
    wrapper = artifacts.detect_wrapper(given["content"])
    if wrapper is None:
        return {"is_tool_response": False}
    return {"is_tool_response": True, "artifact": wrapper.artifact, "metadata": wrapper.metadata}


def parse_tool_response(given: Mapping[str, Any]) -> Answer:
    found = shapes.parse_tool_response(given["content"])
    if found is None:
        return {"ok": False}
    fields = ("artifact_id", "skill_id", "execution_id")
    return {"ok": True, **{name: getattr(found, name) for name in fields}}


def infer_type(given: Mapping[str, Any]) -> Answer:
    found = artifacts.infer_type(given["artifact"], given["schema"])
    return {"error": True} if found is None else {"type": found}


def build_parts(given: Mapping[str, Any]) -> Answer:
    parts = shapes.build_parts(given["artifact"])
    return {"error": True} if parts is None else {"parts": parts}


def fingerprint_relation(given: Mapping[str, Any]) -> Answer:
    return {"equal": artifacts.fingerprint(*given["a"]) == artifacts.fingerprint(*given["b"])}


def split(given: Mapping[str, Any]) -> Answer:
    service, method = names.split_name(given["canonical"])
    return {"service": service, "method": method}


ADAPTERS: dict[str, dict[str, Adapter]] = {
    **ORCHESTRATE,
    **REFINE_LOOP,
    **INBOUND,
    "template_validation": {
        "validate": validate,
        "find_templates": find_templates,
        "lookup_schemas": lookup_schemas,
    },
    "template_resolution": {"parse": parse, "format": format_, "resolve": resolve_},
    "plan_execute_respond": {
        "classify_plan": classify_plan,
        "parse_plan_json": parse_plan_json,
        "execution_state": execution_state,
        "format_summary": format_summary,
        "tool_outcome": tool_outcome,
        "to_tool_call_ids": to_tool_call_ids,
        "to_mcp_results": to_mcp_results,
        "select_strategy": select_strategy,
        "response_strategy": response_strategy,
    },
    "artifacts": {
        "extract_skill_id": lambda given: {"skill_id": artifacts.extract_skill_id(given["content"])},
        "extract_artifact_id": lambda given: {"artifact_id": artifacts.extract_artifact_id(given["content"])},
        "extract_execution_id": lambda given: {"execution_id": shapes.extract_execution_id(given["content"])},
        "detect_wrapper": detect_wrapper,
        "parse_tool_response": parse_tool_response,
        "infer_type": infer_type,
        "build_parts": build_parts,
        "fingerprint_relation": fingerprint_relation,
    },
    "tool_names": {
        "canonical": lambda given: {"name": names.canonical(given["raw"])},
        "split": split,
        "display": lambda given: {"text": names.display(given["raw"])},
        "join": lambda given: {"name": names.join(given["service"], given["method"])},
        "seed_alias": lambda given: {
            "registry": names.to_registry(given["name"]),
            "display": shapes.to_dotted(given["name"]),
        },
    },
}
"""Per suite and operation; `run` of `plan_execute_respond` needs the engine and is run by test_run.py."""
