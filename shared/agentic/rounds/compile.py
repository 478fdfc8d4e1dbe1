"""From a model's calls of one round to steps: every call becomes a step, and one defect does not refuse the others.

The model has to see the result of each call of `loop` and `react`. So an unknown tool or wrong arguments become a
step that failed before it began, a call that needs its output a skipped one, and a repetition a step that names the
first (docs/decisions.md, D17, D30, D31, D35, D36). Indices are those in the job; the first call is the step `base`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from planq.shared.agentic.orchestration.request import OrchestrateLimits
from planq.shared.agentic.plan.compile import (
    Bound,
    Outline,
    Producer,
    bind,
    compile_outline,
    order_errors,
    outline,
    reordered,
)
from planq.shared.agentic.plan.document import Call, Plan, cut_short
from planq.shared.agentic.plan.errors import PlanError, format_plan_errors
from planq.shared.agentic.plan.validation import outline_errors
from planq.shared.agentic.references.grammar import find_references, redirected
from planq.shared.agentic.references.resolution import resolve
from planq.shared.agentic.rounds.guard import (
    DUPLICATE_CALL_BLOCKED,
    DUPLICATE_OF,
    SKIPPED,
    GuardLimits,
    PastCall,
    call_key,
    is_repeatable,
    judged,
    past_calls,
)
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.limits import MAX_TIMEOUT_SECONDS
from planq.shared.kernel.states import Effect, StepStatus
from planq.shared.kernel.steps import KnownOutcome, PlannedStep, RoundRecord
from planq.shared.platform.errors import ErrorRecord, InvalidArguments, PlanInvalid, PolicyDenied, UnknownTool, capped

_MAX_COMPARED = 1_000_000
"""Maximum characters of arguments that the guard compares with references resolved."""

_ANY_OUTPUT = {"type": "object", "additionalProperties": True}

_OF_REFERENCES = ("no_output_schema", "field_not_found", "type_mismatch")


@dataclass(frozen=True, slots=True)
class MissingArguments:
    """A call without the required `names`, which have no defaults; `input_schema` is the tool's."""

    step: int
    tool_name: str
    names: Sequence[str]
    input_schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CompiledRound:
    """A round, ready to be accepted: call i of `plan` is `steps[i]`, the step `base` + i of the job.

    `dropped` calls came after a question or an `abort`, and are not in `plan`. `blocked` steps repeat others.
    `missing` calls lack arguments and are worth one more question. `defects` made steps fail beforehand.
    """

    plan: Plan
    steps: Sequence[PlannedStep]
    dropped: int = 0
    blocked: Sequence[int] = ()
    missing: Sequence[MissingArguments] = ()
    defects: Sequence[PlanError] = ()


def compile_round(
    plan: Plan,
    tools: Mapping[str, ToolDefinition],
    rounds: Sequence[RoundRecord],
    *,
    base: int,
    max_steps: int,
    verbatim: bool = False,
    broken: Mapping[int, str] | None = None,
    guard: GuardLimits | None = None,
    agents: OrchestrateLimits | None = None,
    step_timeout_seconds: float = MAX_TIMEOUT_SECONDS,
) -> CompiledRound:
    """Turn a model's plan for a further round into steps; see the module.

    `rounds` are the ones before, oldest first. With `verbatim`, arguments have no references and nothing is dropped.
    `broken` maps positions to why their arguments could not be read. Calls after the first `max_steps` fail by
    policy. Precondition: the plan comes from `structural_errors`, `interpret` or `interpret_turn`. Raises
    `PlanInvalid` only if the order would need too many edges.
    """
    kept, dropped = (plan, 0) if verbatim else cut_short(plan)
    work = _Work(kept, tools, rounds, base, verbatim)
    work.refuse(broken or {})
    work.name_repetitions()
    work.block(GuardLimits() if guard is None else guard)
    work.limit(max_steps)
    drawn = work.outlined()
    work.fail(outline_errors(drawn, max_steps=len(kept.calls), agents=agents), drawn)
    drawn = reordered(drawn, work.known)
    if drawn.order is None:
        errors = order_errors(drawn)
        raise PlanInvalid(format_plan_errors(errors), [error.to_json() for error in errors])
    return CompiledRound(
        plan=kept,
        steps=work.steps(compile_outline(drawn, step_timeout_seconds=step_timeout_seconds).steps),
        dropped=dropped,
        blocked=work.blocked,
        missing=work.missing(),
        defects=work.defects,
    )


def compile_single(
    plan: Plan,
    tools: Mapping[str, ToolDefinition],
    *,
    max_steps: int,
    guard: GuardLimits,
    agents: OrchestrateLimits | None = None,
    step_timeout_seconds: float = MAX_TIMEOUT_SECONDS,
) -> CompiledRound:
    """Turn a job's only plan into steps; blocked calls have failed beforehand. Raises `PlanInvalid`."""
    work = _Work(plan, tools, (), 0, False)
    work.block(guard)
    drawn = work.outlined()
    errors = outline_errors(drawn, max_steps=max_steps, agents=agents)
    if not errors:
        drawn = reordered(drawn, work.known)
        errors = order_errors(drawn) if drawn.order is None else []
    if errors:
        raise PlanInvalid(format_plan_errors(errors), [error.to_json() for error in errors])
    compiled = compile_outline(drawn, step_timeout_seconds=step_timeout_seconds)
    return CompiledRound(plan, work.steps(compiled.steps), blocked=work.blocked)


def asking_for(plan: Plan, missing: Sequence[MissingArguments], *, base: int) -> Plan:
    """Return the plan with a question to a person in place of each call of `missing`."""
    lacking = {one.step: one for one in missing}
    calls = [
        call if number not in lacking else _question(lacking[number], call)
        for number, call in enumerate(plan.calls, base)
    ]
    return plan.model_copy(update={"calls": calls})


def with_defaults(arguments: Mapping[str, Any], input_schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with the schema's defaults for missing required ones."""
    filled = dict(arguments)
    for name in _required(input_schema):
        default = _property(input_schema, name).get("default")
        if name not in filled and default is not None:
            filled[name] = default
    return filled


@dataclass(slots=True)
class _Work:
    """The state of one compilation, by index of steps in the job."""

    plan: Plan
    tools: Mapping[str, ToolDefinition]
    rounds: Sequence[RoundRecord]
    base: int
    verbatim: bool
    bound: list[Bound] = field(default_factory=list)
    history: Sequence[PastCall] = ()
    known: dict[int, KnownOutcome] = field(default_factory=dict)
    unread: set[int] = field(default_factory=set)
    blocked: list[int] = field(default_factory=list)
    defects: list[PlanError] = field(default_factory=list)
    redirects: dict[int, int] = field(default_factory=dict)
    outputs: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bound = bind(self.plan, self.tools, base=self.base)
        self.history = past_calls(self.rounds, self.tools)
        self.redirects = _earlier_redirects(self.rounds, self.history)
        self.outputs = {
            result.index: result.output
            for record in self.referred
            for result in record.results
            if result.succeeded and result.shortened_from is None
        }

    @property
    def referred(self) -> Sequence[RoundRecord]:
        return () if self.verbatim else self.rounds

    def refuse(self, broken: Mapping[int, str]) -> None:
        for position, wrong in broken.items():
            error = ErrorRecord(InvalidArguments.code, capped(wrong))
            self.known[self.base + position] = KnownOutcome(StepStatus.FAILED, error)
            self.unread.add(self.base + position)

    def name_repetitions(self) -> None:
        """Fill in defaults, redirect references to the steps with the outputs, and find duplicates."""
        first: dict[str, int] = {}
        for number, one in enumerate(self.bound, self.base):
            arguments: Mapping[str, Any] = one.call.arguments
            if one.call.kind is None and one.tool is not None:
                arguments = with_defaults(arguments, one.tool.input_schema)
            one = self._redirect(number, arguments)
            if one.call.kind is not None or number in self.unread or is_repeatable(one.tool):
                continue
            earlier = first.setdefault(call_key(_name(one), one.call.arguments), number)
            if earlier != number:
                self.redirects[number] = earlier
                self.known[number] = _skipped(DUPLICATE_OF, f"the same call as ${earlier} of this plan", earlier)

    def block(self, limits: GuardLimits) -> None:
        concerned = [
            (number, one)
            for number, one in enumerate(self.bound, self.base)
            if one.call.kind is None and number not in self.known and not is_repeatable(one.tool)
        ]
        calls = [(_name(one), self._resolved(one)) for _, one in concerned]
        first: dict[str, int] = {}
        for (number, one), verdict in zip(concerned, judged(calls, self.history, limits), strict=True):
            made = first.setdefault(verdict.key, number)
            if not verdict.is_blocked:
                continue
            self.blocked.append(number)
            message = f"{_name(one)!r} was called with the same arguments again and again; do something else"
            error = ErrorRecord(DUPLICATE_CALL_BLOCKED, capped(message))
            self.known[number] = KnownOutcome(StepStatus.FAILED, error, verdict.output_of)
            if verdict.output_of is not None:
                self.redirects[number] = verdict.output_of
            elif made != number:
                self.redirects[number] = made
        if self.blocked:
            for number, one in enumerate(self.bound, self.base):
                self._redirect(number, one.call.arguments)

    def limit(self, max_steps: int) -> None:
        refused = PolicyDenied(f"at most {max_steps} calls are allowed in one round; make this one in the next")
        for number in range(self.base + max_steps, self.base + len(self.bound)):
            self.known.setdefault(number, KnownOutcome(StepStatus.FAILED, ErrorRecord.of(refused)))

    def outlined(self) -> Outline:
        plan = self.plan.model_copy(update={"calls": [one.call for one in self.bound]})
        return outline(plan, self.tools, earlier=self._producers(), verbatim=self.verbatim)

    def fail(self, errors: Iterable[PlanError], drawn: Outline) -> None:
        """Set the outcome of every step that has defects, or needs an output that will not exist."""
        own: dict[int | None, list[PlanError]] = {}
        for error in errors:
            concerned = error.details["steps"] if error.type == "dependency_cycle" else [error.tool_index]
            for number in concerned:
                own.setdefault(number, []).append(error)
        dead = {
            result.index for record in self.referred for result in record.results if not result.succeeded
        } - self.redirects.keys()
        for at, number in enumerate(range(self.base, self.base + len(self.bound))):
            if number not in self.known:
                needed = [step for step in drawn.inputs[at] if step in dead]
                found = [error for error in own.get(number, ()) if not _is_about(error, needed)]
                if found:
                    self.defects += found
                    self.known[number] = _failed(found)
                elif needed:
                    message = f"needs the output of ${needed[0]}, which has none"
                    self.known[number] = _skipped(SKIPPED, message, needed[0])
            if number in self.known:
                dead.add(number)

    def steps(self, compiled: Sequence[PlannedStep]) -> list[PlannedStep]:
        """Return the steps; those with a known outcome wait for nothing."""
        found: list[PlannedStep] = []
        by_index = {step.index: step for step in compiled}
        for number, one in enumerate(self.bound, self.base):
            step = by_index.get(number) or _placeholder(number, one)
            outcome = self.known.get(number, step.known)
            if outcome is None:
                found.append(replace(step, verbatim=True) if self.verbatim else step)
                continue
            found.append(replace(step, arguments=self._resolved(one), inputs=(), verbatim=True, known=outcome))
        return found

    def missing(self) -> list[MissingArguments]:
        """Return the calls that lack required arguments and are neither skipped nor blocked."""
        return [
            MissingArguments(number, one.tool.name, names, one.tool.input_schema)
            for number, one in enumerate(self.bound, self.base)
            if one.call.kind is None and one.tool is not None
            if number not in self.known
            or (number not in self.unread and _code(self.known[number]) == InvalidArguments.code)
            if (names := [name for name in _required(one.tool.input_schema) if name not in one.call.arguments])
        ]

    def _redirect(self, number: int, arguments: Mapping[str, Any]) -> Bound:
        """Set a call's arguments, with references redirected to the steps that have the outputs."""
        one = self.bound[number - self.base]
        call, to = one.call, self.redirects
        waits = None if call.depends_on is None else [to.get(step, step) for step in call.depends_on]
        changed: dict[str, Any] = {"arguments": arguments, "depends_on": waits}
        if not self.verbatim:
            changed |= {"arguments": redirected(arguments, to), "message": redirected(call.message, to)}
        self.bound[number - self.base] = replace(one, call=call.model_copy(update=changed))
        return self.bound[number - self.base]

    def _resolved(self, one: Bound) -> Mapping[str, Any]:
        """Return a call's arguments, with references to earlier rounds resolved if all outputs are known."""
        arguments = one.call.arguments
        if self.verbatim or not self.outputs:
            return arguments
        found = find_references(arguments)
        if not found or any(item.reference is None or item.reference.step not in self.outputs for item in found):
            return arguments
        try:
            resolved: Mapping[str, Any] = resolve(arguments, self.outputs, max_size=_MAX_COMPARED).arguments
        except InvalidArguments:
            return arguments
        return resolved

    def _producers(self) -> list[Producer]:
        """Return the outputs of all earlier steps; unknown ones fit everything."""
        producers = [Producer("unknown", _ANY_OUTPUT)] * self.base
        of_tools: dict[str, Producer] = {}
        for result in (result for record in self.referred for result in record.results):
            if 0 <= result.index < self.base:
                name = result.tool_name
                if name not in of_tools:
                    tool = self.tools.get(name)
                    of_tools[name] = Producer(name, _ANY_OUTPUT if tool is None else tool.output_schema)
                producers[result.index] = of_tools[name]
        return producers


def _earlier_redirects(rounds: Sequence[RoundRecord], history: Sequence[PastCall]) -> dict[int, int]:
    """Map earlier steps without an own output to the steps whose output they show."""
    if not any(
        result.code in (DUPLICATE_OF, DUPLICATE_CALL_BLOCKED) for record in rounds for result in record.results
    ):
        return {}
    calls = {call.step: call for call in history}
    last_output: dict[str, int] = {}
    found: dict[int, int] = {}
    for result in (result for record in rounds for result in record.results):
        call = calls.get(result.index)
        if result.code == DUPLICATE_OF:
            first = result.details.get("step")
            if isinstance(first, int):
                found[result.index] = found.get(first, first)
        elif call is not None and call.has_succeeded:
            last_output[call.key] = call.step
        elif call is not None and result.code == DUPLICATE_CALL_BLOCKED and call.key in last_output:
            found[result.index] = last_output[call.key]
    return found


def _name(one: Bound) -> str:
    return one.call.tool_name if one.tool is None else one.tool.name


def _placeholder(number: int, one: Bound) -> PlannedStep:
    """Return a step for a call of an unknown tool; it never runs."""
    unknown = ToolDefinition(name=one.call.tool_name, effect=Effect.PURE)
    drawn = Outline([Bound(one.call, unknown, None)], [()], [()], [()], [Producer("", None)] * number)
    return compile_outline(drawn).steps[0]


def _code(outcome: KnownOutcome) -> str | None:
    return None if outcome.error is None else outcome.error.code


def _skipped(code: str, message: str, step: int) -> KnownOutcome:
    return KnownOutcome(StepStatus.SKIPPED, ErrorRecord(code, message, details={"step": step}))


def _failed(errors: Sequence[PlanError]) -> KnownOutcome:
    is_unknown = any(error.type in ("unknown_tool", "ambiguous_tool") for error in errors)
    code = UnknownTool.code if is_unknown else InvalidArguments.code
    message = "; ".join(error.render() for error in errors)
    details = {"errors": [error.to_json() for error in errors]}
    return KnownOutcome(StepStatus.FAILED, ErrorRecord(code, capped(message), details=details))


def _is_about(error: PlanError, steps: Sequence[int]) -> bool:
    if error.type not in _OF_REFERENCES or error.template is None:
        return False
    return any(
        item.reference is not None and item.reference.step in steps for item in find_references(error.template)
    )


def _required(schema: Mapping[str, Any]) -> list[str]:
    names = schema.get("required")
    return [name for name in names if isinstance(name, str)] if isinstance(names, (list, tuple)) else []


def _property(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    properties = schema.get("properties")
    found = properties.get(name) if isinstance(properties, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _question(missing: MissingArguments, call: Call) -> Call:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: _property(missing.input_schema, name) for name in missing.names},
        "required": list(missing.names),
    }
    schema |= {key: missing.input_schema[key] for key in ("$defs", "definitions") if key in missing.input_schema}
    return Call(
        kind="elicitation",
        tool_name="elicitation",
        message=f'Tool "{missing.tool_name}" requires additional parameters.',
        requested_schema=schema,
        reason=call.reason,
    )
