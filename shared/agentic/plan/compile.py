"""From a valid plan to the steps that the engine runs: names resolved, order derived, bounds applied.

The result is what the store writes as rows; nothing in it refers to the plan's author (docs/decisions.md, D9 to D11).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from planq.shared.agentic.plan.document import KINDS_WITHOUT_TOOL, Call, Plan
from planq.shared.agentic.plan.errors import PlanError, format_plan_errors
from planq.shared.agentic.plan.graph import (
    MAX_EDGES,
    Node,
    cycles,
    dependencies,
    dependents,
    paths,
)
from planq.shared.agentic.references.grammar import Occurrence, find_references
from planq.shared.agentic.schema.schemas import MAX_DEPTH
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.agentic.tools.names import name_index
from planq.shared.kernel.limits import MAX_TIMEOUT_SECONDS
from planq.shared.kernel.retry import RetryTerms
from planq.shared.kernel.states import Effect, StepKind, StepStatus
from planq.shared.kernel.steps import KnownOutcome, PlannedStep
from planq.shared.platform.errors import PlanInvalid
from planq.shared.platform.values.describe import is_deeper_than
from planq.shared.platform.values.pointers import Path

MAX_AVAILABLE_TOOLS = 100
"""How many names an `unknown_tool` error carries."""

_ANY_OBJECT = {"type": "object", "additionalProperties": True}

ANSWER_SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {"answer": {"type": "string"}}}
"""What a question asks for that comes without a schema."""

_WITHOUT_TOOL: Mapping[StepKind, ToolDefinition] = {
    # What these steps do is written down by planq itself and is safe to repeat. A question is put when everything
    # before it has ended, as a write would be.
    StepKind.NOOP: ToolDefinition(name="noop", effect=Effect.PURE, kind=StepKind.NOOP),
    StepKind.QUESTION: ToolDefinition(
        name="elicitation", effect=Effect.IDEMPOTENT, kind=StepKind.QUESTION, output_schema=_ANY_OBJECT
    ),
    StepKind.ABORT: ToolDefinition(name="abort", effect=Effect.IDEMPOTENT, kind=StepKind.ABORT),
}
"""Steps that call no tool, in the form of the tools that they would call."""


_WITHOUT_ATTEMPT = (StepKind.NOOP, StepKind.ABORT)
"""What is done with the acceptance of its plan: an `abort` ends the job after the steps before it."""


@dataclass(frozen=True, slots=True)
class CompiledPlan:
    """The steps in plan order; never empty and without a cycle."""

    steps: tuple[PlannedStep, ...]


@dataclass(frozen=True, slots=True)
class Bound:
    """A call with what its names mean: `tool` is None when `error` says why there is none."""

    call: Call
    tool: ToolDefinition | None
    error: PlanError | None


@dataclass(frozen=True, slots=True)
class Producer:
    """The output side of a call; `output_schema` is None when there is no such tool, or it declares none."""

    tool_name: str
    output_schema: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Outline:
    """What both the checks of a plan and its compilation need, by call: made once, by `outline`.

    `earlier` are the steps of the rounds before: the first call of this plan is the step `base` of its job, and all
    indices, in the plan too, are those of steps in the job. `found` are the references in a call's arguments, None
    where these are nested too deeply to be looked through; `inputs` the earlier steps that they name. `order` says
    which steps of this plan each call waits for, None where that would be too many edges.
    """

    bound: Sequence[Bound]
    found: Sequence[Sequence[Occurrence] | None]
    inputs: Sequence[tuple[int, ...]]
    order: Sequence[tuple[int, ...]] | None
    earlier: Sequence[Producer] = ()

    @property
    def base(self) -> int:
        return len(self.earlier)


def outline(
    plan: Plan,
    tools: Mapping[str, ToolDefinition],
    *,
    earlier: Sequence[Producer] = (),
    verbatim: bool = False,
) -> Outline:
    """Read a plan as far as it can be read, whatever is wrong with it.

    `earlier` are the steps of the job's rounds before. The arguments of a `verbatim` plan hold no references.
    """
    bound = bind(plan, tools, base=len(earlier))
    # Pointers into something thousands of levels deep would cost its square; validation refuses it in any case.
    found: list[Sequence[Occurrence] | None] = [
        None
        if is_deeper_than(one.call.arguments, MAX_DEPTH)
        else ()
        if verbatim
        else find_references(one.call.arguments)
        for one in bound
    ]
    base = len(earlier)
    inputs = [
        earlier_steps(occurrences, number) if occurrences else () for number, occurrences in enumerate(found, base)
    ]
    return Outline(bound, found, inputs, _order(bound, inputs, base, ()), earlier)


def reordered(plan: Outline, ended: Collection[int]) -> Outline:
    """Return the outline with the order in which nothing waits for the steps that have `ended`, nor they for others.

    What such a step waited for, the steps after it wait for themselves where their order is derived.
    """
    return replace(plan, order=_order(plan.bound, plan.inputs, plan.base, ended)) if ended else plan


def bind(plan: Plan, tools: Mapping[str, ToolDefinition], *, base: int = 0) -> list[Bound]:
    """Find the tool of every call; `tools` maps registered names to definitions, `base` is the first call's index."""
    index = name_index(frozenset(tools))
    available = sorted(tools)[:MAX_AVAILABLE_TOOLS]
    candidates = {name: index.candidates(name) for name in {call.tool_name for call in plan.calls}}
    bound: list[Bound] = []
    for number, call in enumerate(plan.calls, base):
        if call.kind is not None:
            bound.append(Bound(_with_contents(call), _WITHOUT_TOOL[KINDS_WITHOUT_TOOL[call.kind]], None))
            continue
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
    end = plan.base + len(plan.bound)
    errors = [
        error for number, one in enumerate(plan.bound, plan.base) for error in _dependency_errors(number, one, end)
    ]
    if plan.order is None:
        return [*errors, PlanError(None, "", None, "too_many_dependencies", {"limit": MAX_EDGES})]
    errors += [
        PlanError(plan.base + knot[0], "", None, "dependency_cycle", {"steps": [plan.base + one for one in knot]})
        for knot in cycles([[step - plan.base for step in waits] for waits in plan.order])
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
    base, graph = plan.base, plan.order or ()
    own = [[step - base for step in waits] for waits in graph]
    path = paths(own)
    turned = dependents(own)
    wanted = _wanted(occurrences for occurrences in plan.found if occurrences)
    return CompiledPlan(
        tuple(
            PlannedStep(
                index=base + number,
                kind=tool.kind,
                tool_name=tool.name,
                pool=tool.pool,
                effect=tool.effect,
                arguments=one.call.arguments,
                inputs=plan.inputs[number],
                depends_on=graph[number],
                dependents=tuple(base + step for step in sorted(turned[number], key=lambda step: -path[step])),
                path=path[number],
                timeout_seconds=_timeout(one.call, tool, step_timeout_seconds),
                retry=_retry(one.call, tool),
                recovery=tool.recovery,
                wanted=wanted.get(base + number, ()),
                known=KnownOutcome(StepStatus.SUCCEEDED) if tool.kind in _WITHOUT_ATTEMPT else None,
                digest=None if tool.kind in _WITHOUT_TOOL else tool.digest,
                longest_seconds=tool.longest_seconds,
            )
            for number, one in enumerate(plan.bound)
            if (tool := one.tool) is not None
        )
    )


def _with_contents(call: Call) -> Call:
    if call.kind == "elicitation":
        # A schema that does not say so is meant for an object: nothing else can be filled in.
        schema = {"type": "object", **call.requested_schema} if call.requested_schema else dict(ANSWER_SCHEMA)
        message = (call.message or "").strip() or "Please fill in what is asked for."
        return call.model_copy(update={"arguments": {"message": message, "schema": schema}})
    return call if call.reason is None else call.model_copy(update={"arguments": {"reason": call.reason}})


def _wanted(found: Iterable[Iterable[Occurrence]]) -> dict[int, tuple[Path, ...]]:
    """Return the paths that are referenced of each step's output, each once."""
    wanted: dict[int, set[Path]] = {}
    for occurrence in chain.from_iterable(found):
        if occurrence.reference is not None:
            wanted.setdefault(occurrence.reference.step, set()).add(occurrence.reference.path)
    return {step: tuple(sorted(paths)) for step, paths in wanted.items()}


def _retry(call: Call, tool: ToolDefinition) -> RetryTerms:
    return tool.retry if call.retries is None else tool.retry.model_copy(update={"retries": call.retries})


def _timeout(call: Call, tool: ToolDefinition, cap: float) -> float:
    return min(call.timeout_seconds or tool.timeout_seconds, tool.timeout_seconds, cap)


def _order(
    bound: Sequence[Bound], inputs: Sequence[tuple[int, ...]], base: int, ended: Container[int]
) -> list[tuple[int, ...]] | None:
    """Derive the order; impossible dependencies are left out, and a call without a tool waits for its inputs only."""
    live = [number for number, one in enumerate(bound, base) if number not in ended and not _is_done(one)]
    place = {number: at for at, number in enumerate(live)}
    nodes = []
    for number in live:
        one = bound[number - base]
        explicit = one.call.depends_on
        nodes.append(
            Node(
                one.tool.effect if one.tool is not None else Effect.PURE,
                [place[step] for step in inputs[number - base] if step in place],
                None if explicit is None else [place[step] for step in explicit if step in place and step != number],
            )
        )
    derived = dependencies(nodes)
    if derived is None:
        return None
    order: list[tuple[int, ...]] = [()] * len(bound)
    for number, waits in zip(live, derived, strict=True):
        order[number - base] = tuple(live[at] for at in waits)
    return order


def _is_done(one: Bound) -> bool:
    return one.tool is not None and one.tool.kind in _WITHOUT_ATTEMPT


def _dependency_errors(number: int, one: Bound, end: int) -> Iterable[PlanError]:
    for step in dict.fromkeys(one.call.depends_on or ()):
        if step == number:
            reason = "a call cannot wait for itself"
        elif not 0 <= step < end:
            reason = f"the plan has the calls 0 to {end - 1}"
        else:
            continue
        yield PlanError(number, "", None, "invalid_dependency", {"dependency": step, "reason": reason})
