"""What is wrong with a plan, found before anything runs: all of it, in the order of calls and then of arguments.

docs/decisions.md, D4. Per reference: syntax → self → forward → bounds → output schema present → every path segment
as deep as the schema knows it → type compatible; the first that fails is reported. Then, per call: unknown tool →
literal arguments valid against the input schema → dependencies; last the limits of the whole plan. Linear in the
size of the plan; ten thousand calls take about half a second.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from planq.shared.agentic.orchestration.compiling import compile_orchestration
from planq.shared.agentic.orchestration.plan import ORCHESTRATE, OrchestrationPlan
from planq.shared.agentic.orchestration.request import OrchestrateLimits, refusal, request_defects
from planq.shared.agentic.orchestration.validation import pointer_of, read_plan
from planq.shared.agentic.plan.compile import Bound, Outline, Producer, order_errors, outline
from planq.shared.agentic.plan.document import Plan, ReadablePart
from planq.shared.agentic.plan.errors import PlanError, format_plan_errors
from planq.shared.agentic.references.grammar import Occurrence, Reference, find_references, odd_segments
from planq.shared.agentic.references.schema_paths import NotInSchema, declared_names, declared_type, follow
from planq.shared.agentic.schema.schemas import (
    MAX_DEPTH,
    MAX_STEPS,
    UNKNOWN,
    Steps,
    check_schema,
    compile_schema,
)
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.agentic.tools.scoping import unscoped
from planq.shared.platform.errors import Misconfigured, capped
from planq.shared.platform.values.defects import Defect
from planq.shared.platform.values.pointers import from_pointer

__all__ = ["MAX_ARGUMENTS_BYTES", "PlanError", "Producer", "format_plan_errors", "reference_error", "validate_plan"]

MAX_ARGUMENTS_BYTES = 1_000_000
"""Largest arguments of one call as planned, as JSON text; what is larger belongs into an artifact."""


MAX_PLAN_STEPS = 10 * MAX_STEPS
"""Steps that checking the arguments of all calls of a plan may take."""


def validate_plan(
    plan: Plan,
    tools: Mapping[str, ToolDefinition],
    *,
    max_steps: int,
    agents: OrchestrateLimits | None = None,
) -> list[PlanError]:
    """Return every defect of `plan` when run with `tools` (registered name → definition); empty when it can run.

    `agents` bound the plans for agents that stand in arguments.
    Raises `Misconfigured` when the schema of a tool that the plan uses is unusable, which registration excludes.
    """
    return outline_errors(outline(plan, tools), max_steps=max_steps, agents=agents)


def outline_errors(plan: Outline, *, max_steps: int, agents: OrchestrateLimits | None = None) -> list[PlanError]:
    """Return every defect of a plan; see `validate_plan`."""
    producers = [
        Producer(one.call.tool_name, one.tool.output_schema if one.tool is not None else None) for one in plan.bound
    ]
    checks = _Checks([*plan.earlier, *producers])
    errors: list[PlanError] = []
    for number, (one, found, size) in enumerate(zip(plan.bound, plan.found, _sizes(plan), strict=True), plan.base):
        input_schema = one.tool.input_schema if one.tool is not None else None
        errors += filter(None, (checks.reference(number, item, input_schema) for item in found or ()))
        errors += _insertions(number, one, found or ())
        if one.error is not None:
            errors.append(one.error)
        if found is None:
            errors.append(PlanError(number, "", None, "too_deep", {"limit": MAX_DEPTH}))
        elif size > MAX_ARGUMENTS_BYTES:
            errors.append(PlanError(number, "", None, "too_large", {"limit": MAX_ARGUMENTS_BYTES, "actual": size}))
        else:
            wrong = list(checks.arguments(number, one.call.arguments, found, one.tool))
            told = {error.argument for error in wrong}
            nested = _nested(number, one, found, agents or OrchestrateLimits())
            errors += [*wrong, *(error for error in nested if not _is_told(error.argument, told))]
        errors += _kind_errors(number, one, plan.base + len(plan.bound) - 1)
    errors += order_errors(plan)
    count, end = len(plan.bound), plan.base + len(plan.bound)
    errors.sort(key=lambda error: end if error.tool_index is None else error.tool_index)
    if count > max_steps:
        errors.append(PlanError(None, "", None, "too_many_steps", {"limit": max_steps, "actual": count}))
    return errors


def further_errors(
    part: ReadablePart, tools: Mapping[str, ToolDefinition], *, max_steps: int, agents: OrchestrateLimits | None
) -> list[PlanError]:
    """Return the defects beside the structural ones of a plan, as far as they can be known while it has these."""
    return [
        error
        for error in validate_plan(part.plan, tools, max_steps=max_steps, agents=agents)
        if error.tool_index not in part.unread
        and not (error.tool_index in part.vague and error.type == "invalid_argument")
        and not (error.tool_index in part.broken and error.type in ("invalid_dependency", "dependency_cycle"))
        and not (error.type in _OF_OUTPUTS and _step_of(error.template) in part.unread)
    ]


_OF_OUTPUTS = ("no_output_schema", "field_not_found", "type_mismatch")
"""Types of defects by which a reference does not fit the output that it names."""


def _step_of(template: str | None) -> int | None:
    return next((found.reference.step for found in find_references(template) if found.reference is not None), None)


def _insertions(number: int, one: Bound, found: Sequence[Occurrence]) -> Iterator[PlanError]:
    """Yield the references inside a plan for agents: an output that stood there could choose what it sees."""
    if one.tool is None or one.tool.name != ORCHESTRATE:
        return
    advice = "inserts an output into a plan for agents; hand it over in bindings, and write {{ bindings.NAME }} here"
    for item in found:
        if item.pointer.startswith("/plan/") and item.reference is not None:
            yield _at(number, item, "invalid_argument", {"tool_name": ORCHESTRATE, "message": advice})


def _nested(number: int, one: Bound, found: Sequence[Occurrence], agents: OrchestrateLimits) -> Iterator[PlanError]:
    """Yield what is wrong with a plan for agents that is a literal argument; its call would find it too late."""
    if one.tool is None or one.tool.name != ORCHESTRATE:
        return
    unknown = {item.pointer.split("/")[1] for item in found if item.pointer.count("/") == 1}
    given = {name: value for name, value in one.call.arguments.items() if name not in unknown}
    has_outputs = any(item.pointer.startswith("/bindings/") for item in found)
    for place, message in _nested_defects(given, unknown, agents, has_outputs=has_outputs):
        details = {"tool_name": ORCHESTRATE, "message": capped(message, 300)}
        yield PlanError(number, place, None, "invalid_argument", details)


def _nested_defects(
    given: Mapping[str, Any], unknown: Container[str], agents: OrchestrateLimits, *, has_outputs: bool
) -> Iterator[tuple[str, str]]:
    """Yield the pointer and the message of each defect; `unknown` are arguments that are references.

    Bindings that have outputs in them may have fields that nothing shows yet.
    """
    yield from ((pointer_of(defect.pointer), defect.message) for defect in request_defects(given))
    plan = given.get("plan")
    if not plan:
        if "plan" not in unknown and "prompt" not in unknown and (why := refusal(given)) is not None:
            yield "", f"{why.reason.value}: {why.message}"
        return
    read = read_plan(plan, max_steps=agents.max_steps)
    if isinstance(read, OrchestrationPlan) and "bindings" not in unknown:
        compiled = compile_orchestration(read, agents, _bindings_of(given))
        read = compiled if isinstance(compiled, list) else read
    for defect in read if isinstance(read, list) else ():
        if has_outputs and defect.code == "unknown_name":
            continue
        yield place_of_nested(defect, given), defect.message


def place_of_nested(defect: Defect, arguments: Mapping[str, Any]) -> str:
    """Return where a defect of a plan for agents stands in the arguments that it is one of: a JSON pointer."""
    place = pointer_of(defect.pointer)
    first, _, rest = place[1:].partition("/")
    if first == "plan" or (first == "bindings" and rest in _bindings_of(arguments)):
        return place
    return f"/plan{place}"


def _bindings_of(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    bindings = arguments.get("bindings")
    return bindings if isinstance(bindings, Mapping) else {}


def _is_told(place: str, told: Container[str]) -> bool:
    """True for a defect at a place, or below one, about which the tool's schema says something already."""
    return place in told or place.rpartition("/")[0] in told


def _kind_errors(number: int, one: Bound, last: int) -> Iterator[PlanError]:
    """Yield what is wrong with a step that calls no tool."""
    if one.call.kind == "elicitation":
        try:
            check_schema(one.call.arguments["schema"], "requested_schema", is_trusted=False)
        except Misconfigured as error:
            details = {"tool_name": one.call.tool_name, "message": error.message}
            yield PlanError(number, "/schema", None, "invalid_argument", details)
    if one.call.kind == "abort" and number != last:
        yield PlanError(number, "", None, "after_abort", {"steps": last - number})


def reference_error(
    number: int, found: Occurrence, producers: Sequence[Producer], input_schema: Mapping[str, Any] | None
) -> PlanError | None:
    """Return the first defect of one reference in the arguments of call `number`, or None.

    `producers` are the calls whose outputs can be referenced, by index: normally all calls of the plan.
    """
    return _Checks(producers).reference(number, found, input_schema)


class _Checks:
    """The checks of one plan, remembering what they looked up: plans repeat tools and references."""

    def __init__(self, producers: Sequence[Producer]) -> None:
        self._producers = producers
        self._types: dict[tuple[int, tuple[str, ...], bool], NotInSchema | str | None] = {}
        self._steps = Steps(MAX_PLAN_STEPS)

    def reference(self, number: int, found: Occurrence, input_schema: Mapping[str, Any] | None) -> PlanError | None:
        reference = found.reference
        if reference is None or self._is_more_than_a_path(reference):
            return _at(number, found, "invalid_template_syntax")
        misplaced = self._misplaced(number, reference)
        if misplaced is not None:
            return _at(number, found, *misplaced)
        producer = self._producers[reference.step]
        if producer.output_schema is None:
            return _at(number, found, "no_output_schema", {"tool_name": producer.tool_name})
        source = self._type(producer.output_schema, reference.path, first_must_be_declared=True)
        if isinstance(source, NotInSchema):
            details = {
                "tool_name": producer.tool_name,
                "field": reference.path[source.position],
                "available_fields": list(source.available),
            }
            return _at(number, found, "field_not_found", details)
        expected = None if input_schema is None else self._type(input_schema, from_pointer(found.pointer))
        actual = "string" if found.embedded else source
        if isinstance(expected, NotInSchema) or _fits(actual, expected):
            return None
        return _at(number, found, "type_mismatch", {"expected": expected, "actual": actual})

    def arguments(
        self, number: int, arguments: dict[str, Any], found: Sequence[Occurrence], tool: ToolDefinition | None
    ) -> Iterator[PlanError]:
        if tool is None:
            return
        known = _blanked(arguments, (), {from_pointer(item.pointer) for item in found}) if found else arguments
        schema = compile_schema(tool.input_schema)
        value = unscoped(known, tool.user_scoped)
        for violation in schema.violations(value, partial=bool(found), steps=self._steps):
            details = {"tool_name": tool.name, "message": violation.message}
            yield PlanError(number, violation.pointer, None, "invalid_argument", details)

    def _is_more_than_a_path(self, reference: Reference) -> bool:
        """True when a segment has what names seldom have, and the output schema declares no field of that name."""
        odd = odd_segments(reference)
        if not odd:
            return False
        known = self._producers[reference.step : reference.step + 1]
        return not known or not set(odd) <= declared_names(known[0].output_schema)

    def _misplaced(self, number: int, reference: Reference) -> tuple[str, dict[str, Any]] | None:
        step = reference.step
        if step == number:
            return "self_reference", {}
        if step > number:
            return "forward_reference", {"referenced_index": step}
        if step >= len(self._producers):
            last = max(0, len(self._producers) - 1)
            return "index_out_of_bounds", {"referenced_index": step, "max_valid_index": last}
        return None

    def _type(
        self, schema: Mapping[str, Any], path: tuple[str, ...], *, first_must_be_declared: bool = False
    ) -> NotInSchema | str | None:
        key = (id(schema), path, first_must_be_declared)
        if key not in self._types:
            end = follow(schema, path, first_must_be_declared=first_must_be_declared)
            self._types[key] = end if isinstance(end, NotInSchema) else declared_type(schema, end.schemas)
        return self._types[key]


def _at(number: int, found: Occurrence, kind: str, details: Mapping[str, Any] | None = None) -> PlanError:
    return PlanError(number, found.pointer, found.template, kind, details or {})


def _fits(actual: str | None, expected: str | None) -> bool:
    """Compare only what is known to be one type; an integer is a number, and a number may be one (1-1 is 0)."""
    return actual is None or expected is None or actual == expected or {actual, expected} == {"integer", "number"}


def _sizes(plan: Outline) -> Sequence[int]:
    known = [() if found is None else one.call.arguments for one, found in zip(plan.bound, plan.found, strict=True)]
    if _size(known) <= MAX_ARGUMENTS_BYTES:  # together; a thousand small ones cost four times as much one by one
        return [0] * len(known)
    return [_size(arguments) for arguments in known]


def _size(arguments: Any) -> int:
    # default=str: arguments built in Python rather than decoded from JSON are measured, not refused, here.
    return len(json.dumps(arguments, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass"))


def _blanked(value: Any, place: tuple[str, ...], places: Container[tuple[str, ...]]) -> Any:
    """Return a copy of arguments with `UNKNOWN` at these places; precondition: not deeper than `MAX_DEPTH`."""
    if place in places:
        return UNKNOWN
    if isinstance(value, dict):
        return {key: _blanked(item, (*place, str(key)), places) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_blanked(item, (*place, str(index)), places) for index, item in enumerate(value)]
    return value
