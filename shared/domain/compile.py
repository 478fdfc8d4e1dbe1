"""From a valid plan to the steps that the engine runs: names resolved, order derived, bounds applied.

The result is what the store writes as rows; nothing in it refers to the plan's author (docs/decisions.md, D9 to D11).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from shared.domain.errors import PlanInvalid
from shared.domain.excerpts import Path
from shared.domain.graph import MAX_EDGES, Node, critical_path_length, cycles, dependencies, dependents
from shared.domain.names import NameIndex
from shared.domain.plan import Call, Plan
from shared.domain.plan_errors import PlanError, format_plan_errors
from shared.domain.references import Occurrence, find_references
from shared.domain.schemas import MAX_DEPTH, is_deeper_than
from shared.domain.states import Effect, Lane, Recovery, StepKind
from shared.domain.tool import MAX_TIMEOUT_SECONDS, ToolDefinition

MAX_AVAILABLE_TOOLS = 100
"""How many names an `unknown_tool` error carries."""


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step, ready to be stored.

    `tool_name` is the registered name. `inputs` are the steps whose outputs the arguments reference; `depends_on` all
    steps that must succeed first (it contains `inputs`), `dependents` the same edges turned round; all sorted.
    `timeout_seconds` bounds one attempt; `retries` are extra attempts; `recovery` says what becomes of an `unsafe`
    call that was cut off. `wanted` are the paths of this step's output that other steps reference, sorted.
    """

    index: int
    kind: StepKind
    tool_name: str
    lane: Lane
    effect: Effect
    arguments: Mapping[str, Any]
    inputs: tuple[int, ...]
    depends_on: tuple[int, ...]
    dependents: tuple[int, ...]
    timeout_seconds: float
    retries: int
    recovery: Recovery = Recovery.FAIL
    wanted: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class CompiledPlan:
    """The steps in plan order; never empty and without a cycle."""

    steps: tuple[PlannedStep, ...]

    @property
    def critical_path_length(self) -> int:
        """Return the number of steps on the longest chain of waits."""
        return critical_path_length([step.depends_on for step in self.steps])


@dataclass(frozen=True, slots=True)
class Bound:
    """A call with what its names mean: `tool` is None when `error` says why there is none."""

    call: Call
    tool: ToolDefinition | None
    error: PlanError | None


@dataclass(frozen=True, slots=True)
class Outline:
    """What both the checks of a plan and its compilation need, by call: made once, by `outline`.

    `found` are the references in a call's arguments, None where these are nested too deeply to be looked through;
    `inputs` the earlier calls that they name. `order` says which calls each call waits for, None where that would be
    too many edges.
    """

    bound: Sequence[Bound]
    found: Sequence[Sequence[Occurrence] | None]
    inputs: Sequence[tuple[int, ...]]
    order: Sequence[tuple[int, ...]] | None


def outline(plan: Plan, tools: Mapping[str, ToolDefinition]) -> Outline:
    """Read a plan as far as it can be read, whatever is wrong with it."""
    bound = bind(plan, tools)
    # Pointers into something thousands of levels deep would cost its square; validation refuses it in any case.
    found = [
        None if is_deeper_than(one.call.arguments, MAX_DEPTH) else find_references(one.call.arguments)
        for one in bound
    ]
    inputs = [earlier_steps(occurrences, number) if occurrences else () for number, occurrences in enumerate(found)]
    return Outline(bound, found, inputs, _order(bound, inputs))


def bind(plan: Plan, tools: Mapping[str, ToolDefinition]) -> list[Bound]:
    """Find the tool of every call; `tools` maps registered names to definitions."""
    index = NameIndex(tools)
    available = sorted(tools)[:MAX_AVAILABLE_TOOLS]
    candidates = {name: index.candidates(name) for name in {call.tool_name for call in plan.calls}}
    bound: list[Bound] = []
    for number, call in enumerate(plan.calls):
        found = candidates[call.tool_name]
        if len(found) == 1:
            bound.append(Bound(call, tools[found[0]], None))
            continue
        details: dict[str, Any] = {"tool_name": call.tool_name}
        details |= {"candidates": found} if found else {"available_tools": available}
        kind = "ambiguous_tool" if found else "unknown_tool"
        bound.append(Bound(call, None, PlanError(number, "", None, kind, details)))
    return bound


def earlier_steps(found: Iterable[Occurrence], number: int) -> tuple[int, ...]:
    """Return the steps before `number` that the references in `found` point at, sorted."""
    steps = {item.reference.step for item in found if item.reference is not None}
    return tuple(sorted(step for step in steps if step < number))


def order_errors(plan: Outline) -> list[PlanError]:
    """Return what is wrong with the order: dependencies that name no other call, cycles, more edges than allowed."""
    size = len(plan.bound)
    errors = [error for number, one in enumerate(plan.bound) for error in _dependency_errors(number, one, size)]
    if plan.order is None:
        return [*errors, PlanError(None, "", None, "too_many_dependencies", {"limit": MAX_EDGES})]
    errors += [
        PlanError(knot[0], "", None, "dependency_cycle", {"steps": list(knot)})
        for knot in cycles(plan.order)
        if len(knot) > 1
    ]
    return errors


def compile_plan(
    plan: Plan, tools: Mapping[str, ToolDefinition], *, step_timeout_seconds: float = MAX_TIMEOUT_SECONDS
) -> CompiledPlan:
    """Turn a plan into steps; see `compile_outline`.

    Precondition: `validation.validate_plan` found nothing. Raises `PlanInvalid` where a plan could not run at all:
    unknown or ambiguous tools, impossible dependencies, a cycle.
    """
    known = outline(plan, tools)
    errors = [one.error for one in known.bound if one.error is not None] + order_errors(known)
    if errors:
        raise PlanInvalid(format_plan_errors(errors), [error.to_json() for error in errors])
    return compile_outline(known, step_timeout_seconds=step_timeout_seconds)


def compile_outline(plan: Outline, *, step_timeout_seconds: float = MAX_TIMEOUT_SECONDS) -> CompiledPlan:
    """Turn a plan in which nothing is wrong into steps.

    The timeout of a step is the least of the call's own, the tool's, and `step_timeout_seconds`: a request can only
    lower a limit. Retries are the call's own, else the tool's.
    """
    graph = plan.order or ()
    turned = dependents(graph)
    wanted = _wanted(occurrences for occurrences in plan.found if occurrences)
    return CompiledPlan(
        tuple(
            PlannedStep(
                index=number,
                kind=tool.kind,
                tool_name=tool.name,
                lane=tool.lane,
                effect=tool.effect,
                arguments=one.call.arguments,
                inputs=plan.inputs[number],
                depends_on=graph[number],
                dependents=turned[number],
                timeout_seconds=_timeout(one.call, tool, step_timeout_seconds),
                retries=tool.retries if one.call.retries is None else one.call.retries,
                recovery=tool.recovery,
                wanted=wanted.get(number, ()),
            )
            for number, one in enumerate(plan.bound)
            if (tool := one.tool) is not None
        )
    )


def _wanted(found: Iterable[Iterable[Occurrence]]) -> dict[int, tuple[Path, ...]]:
    """Return the paths that are referenced of each step's output, each once."""
    wanted: dict[int, set[Path]] = {}
    for occurrence in chain.from_iterable(found):
        if occurrence.reference is not None:
            wanted.setdefault(occurrence.reference.step, set()).add(occurrence.reference.path)
    return {step: tuple(sorted(paths)) for step, paths in wanted.items()}


def _timeout(call: Call, tool: ToolDefinition, cap: float) -> float:
    return min(call.timeout_seconds or tool.timeout_seconds, tool.timeout_seconds, cap)


def _order(bound: Sequence[Bound], inputs: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]] | None:
    """Derive the order; impossible dependencies are left out, and a call without a tool waits for its inputs only."""
    size = len(bound)
    return dependencies(
        [
            Node(
                one.tool.effect if one.tool is not None else Effect.PURE,
                needed,
                None
                if one.call.depends_on is None
                else [step for step in one.call.depends_on if 0 <= step < size and step != number],
            )
            for number, (one, needed) in enumerate(zip(bound, inputs, strict=True))
        ]
    )


def _dependency_errors(number: int, one: Bound, size: int) -> Iterable[PlanError]:
    for step in dict.fromkeys(one.call.depends_on or ()):
        if step == number:
            reason = "a call cannot wait for itself"
        elif not 0 <= step < size:
            reason = f"the plan has the calls 0 to {size - 1}"
        else:
            continue
        yield PlanError(number, "", None, "invalid_dependency", {"dependency": step, "reason": reason})
