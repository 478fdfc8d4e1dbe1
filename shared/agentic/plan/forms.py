"""The forms in which authors write plans, each read into the one internal plan (docs/decisions.md, D1, D36).

    calls            {"calls": [{"tool_name", "arguments", …}]}, planq's own (`document.py`)
    orchestration    {"bindings", "steps": [{"id", "type": "agent" | "parallel", …}]}, plans for agents
    numbered_steps   {"steps": [{"step_number", "description", "tool_name", "tool_arguments", "depends_on"}]}
    typed_steps      {"intention", "steps": [{"type": "tool" | "elicitation" | "noop" | "abort", "name", "args",
                     "reason", "retries", "content"}], "elicitation": {"message", "schema" or "requestedSchema"}}

A question may also stand by itself, as a step or as the whole document:

    {"type": "elicitation", "message", "schema" or "requestedSchema"}, earlier {"type": "clarify_intent", "content"}

The index of a step is its place in the list, in every form: `$0.output.x` is the first one's. All defects come at
once, each with its place in the document as it was written. Only the structure is looked at; `validation.py` does
the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from planq.shared.agentic.orchestration.compiling import compile_orchestration
from planq.shared.agentic.orchestration.plan import ORCHESTRATE, OrchestrationPlan
from planq.shared.agentic.orchestration.request import OrchestrateLimits
from planq.shared.agentic.orchestration.validation import pointer_of
from planq.shared.agentic.orchestration.validation import read_plan as read_orchestration
from planq.shared.agentic.plan.document import Plan, ReadablePart, cut_short, readable_part, structural_errors, whole
from planq.shared.agentic.plan.errors import PlanError, by_call, invalid_plan
from planq.shared.agentic.schema.schemas import MAX_DEPTH
from planq.shared.agentic.tools.names import to_registry
from planq.shared.platform.errors import capped
from planq.shared.platform.values.decoding import decode
from planq.shared.platform.values.defects import Defect
from planq.shared.platform.values.describe import excerpt, is_deeper_than
from planq.shared.platform.values.pointers import path_pointer

_MAX_DOCUMENT_DEPTH = MAX_DEPTH + 8
"""Around the arguments stand at most the plan, its list, a step, a group, its list, an agent and what it is given."""

QUESTION_TYPES: Final = ("elicitation", "clarify_intent")
_STEP_TYPES = ("tool", *QUESTION_TYPES, "noop", "abort")
_TYPED_FIELDS = frozenset({"id", "type", "name", "args", "reason", "retries", "content", "elicitation"})
_QUESTION_FIELDS = frozenset({"message", "schema", "requestedSchema", "question"})
_NUMBERED_FIELDS = frozenset(
    {"step_number", "description", "tool_name", "tool_arguments", "depends_on", "success_criteria", "status"}
)


class PlanForm(StrEnum):
    """A form in which a plan may be written."""

    CALLS = "calls"
    ORCHESTRATION = "orchestration"
    NUMBERED_STEPS = "numbered_steps"
    TYPED_STEPS = "typed_steps"


_ARGUMENTS: Final = {
    PlanForm.CALLS: "arguments",
    PlanForm.NUMBERED_STEPS: "tool_arguments",
    PlanForm.TYPED_STEPS: "args",
}
"""What the arguments of a call are called."""

_FIELDS: Final[Mapping[PlanForm, Mapping[str, str]]] = {
    PlanForm.NUMBERED_STEPS: {"arguments": "tool_arguments", "reason": "description"},
    PlanForm.TYPED_STEPS: {"tool_name": "name", "arguments": "args", "message": "elicitation/message"},
}
"""Fields of a call that are called otherwise."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """A plan that was read; `dropped` steps after a question or an `abort` are not in it."""

    form: PlanForm
    plan: Plan
    dropped: int = 0

    def place(self, error: PlanError) -> str:
        """Return where a defect stands: a JSON pointer (RFC 6901) into the document, `""` for the whole."""
        return defect_place(error, self.form)


def orchestrations_in(raw: Any) -> Iterator[tuple[int | None, Mapping[str, Any]]]:
    """Yield the arguments of each call of `cp__agent_orchestrate` with a literal plan, and which call it is.

    A document that is a plan for agents itself yields it without a number. Looks at decoded JSON of any form.
    """
    form = form_of(raw)
    if form is PlanForm.ORCHESTRATION:
        yield None, {"plan": raw}
        return
    steps = (raw.get("calls" if form is PlanForm.CALLS else "steps")) if isinstance(raw, Mapping) else None
    for number, step in enumerate(steps if isinstance(steps, list) else ()):
        if not isinstance(step, Mapping):
            continue
        name = step.get("name" if form is PlanForm.TYPED_STEPS else "tool_name")
        arguments = step.get(_ARGUMENTS[form])
        if isinstance(name, str) and to_registry(name) == ORCHESTRATE and isinstance(arguments, Mapping):
            yield number, arguments


def defect_place(error: PlanError, form: PlanForm) -> str:
    """Return where a defect of a plan in this form stands; see `ReadPlan.place`."""
    if error.type == "invalid_plan":
        return str(error.details["path"])
    if error.tool_index is None:
        return ""
    step = f"/{'calls' if form is PlanForm.CALLS else 'steps'}/{error.tool_index}"
    if not error.argument or form not in _ARGUMENTS:
        return step
    return f"{step}/{_ARGUMENTS[form]}{error.argument}"


def form_of(raw: Any) -> PlanForm:
    """Return the form in which a document is written, `calls` where it shows the marks of none."""
    if not isinstance(raw, Mapping) or "calls" in raw:
        return PlanForm.CALLS
    steps = raw.get("steps")
    found = [step for step in steps if isinstance(step, Mapping)] if isinstance(steps, list) else []
    if "bindings" in raw or any(step.get("type") in ("agent", "parallel") for step in found):
        return PlanForm.ORCHESTRATION
    if any("agent" in step or "parallel" in step for step in found):
        return PlanForm.ORCHESTRATION
    if any("step_number" in step or "tool_name" in step or "tool_arguments" in step for step in found):
        return PlanForm.NUMBERED_STEPS
    is_typed = "steps" in raw or "elicitation" in raw or raw.get("type") in QUESTION_TYPES
    return PlanForm.TYPED_STEPS if is_typed else PlanForm.CALLS


def read_any_form(
    raw: Any, *, limits: OrchestrateLimits | None = None, from_model: bool = False
) -> ReadPlan | list[PlanError]:
    """Return the plan that decoded JSON is, in whichever form, or all its defects.

    `limits` bound an orchestration. A model's plan may have fields that mean nothing, and nothing of it is dropped
    here; a caller's may not.
    """
    form = form_of(raw)
    if form is PlanForm.CALLS:
        read = structural_errors(raw)
        return ReadPlan(form, read) if isinstance(read, Plan) else read
    if is_deeper_than(raw, _MAX_DOCUMENT_DEPTH):
        return [PlanError(None, "", None, "too_deep", {"limit": MAX_DEPTH})]
    if form is PlanForm.ORCHESTRATION:
        return _orchestration(raw, limits or OrchestrateLimits())
    found = _steps(raw, form, _READERS[form], is_strict=not from_model)
    if not isinstance(found, Plan):
        return found
    kept, dropped = (found, 0) if from_model else cut_short(found)
    return ReadPlan(form, kept, dropped)


def readable_part_of(raw: Any) -> ReadablePart | None:
    """Return what can be read of a document that `read_any_form` refuses; None where that is nothing.

    Of plans for agents nothing more is known.
    """
    form = form_of(raw)
    if form is PlanForm.ORCHESTRATION or is_deeper_than(raw, _MAX_DOCUMENT_DEPTH) or not isinstance(raw, Mapping):
        return None
    listed = raw.get("calls" if form is PlanForm.CALLS else "steps")
    if not isinstance(listed, list) or not listed:
        return None
    calls = listed if form is PlanForm.CALLS else list(_READERS[form](listed, []))
    # What stands for a step that cannot be read is no `noop` of its author's.
    return readable_part([None if call is _SOMETHING else call for call in calls])


def has_typed_steps(raw: Any) -> bool:
    """True for JSON in a model's text that is a plan of typed steps, and not an answer that happens to list steps."""
    if not isinstance(raw, Mapping) or "calls" in raw or not isinstance(raw.get("steps"), list):
        return False
    if not raw["steps"]:
        return set(raw) <= {"id", "intention", "steps", "elicitation", "answer"}
    return any(
        isinstance(step, Mapping) and (step.get("type") in _STEP_TYPES or {"name", "args"} <= step.keys())
        for step in raw["steps"]
    )


def is_question(raw: Any) -> bool:
    """True for JSON that is nothing but a question to a person, and says what it asks."""
    if not isinstance(raw, Mapping) or raw.get("type") not in QUESTION_TYPES or raw.get("calls") or raw.get("steps"):
        return False
    return _asked(raw, "") != ({}, [])


def is_without_steps(raw: Mapping[str, Any]) -> bool:
    """True for a plan whose list of steps is empty, and that asks nothing either: nothing is left to do."""
    return raw.get("steps") == [] and _question_of(raw.get("elicitation"), "") == ({}, [])


def _orchestration(raw: Any, limits: OrchestrateLimits) -> ReadPlan | list[PlanError]:
    plan = read_orchestration(raw, max_steps=limits.max_steps)
    compiled = compile_orchestration(plan, limits) if isinstance(plan, OrchestrationPlan) else plan
    if isinstance(compiled, list):
        return [of_agents(defect) for defect in compiled]
    read = structural_errors(compiled.plan)
    return ReadPlan(PlanForm.ORCHESTRATION, read) if isinstance(read, Plan) else read


def of_agents(defect: Defect) -> PlanError:
    """Return a defect whose path is written `steps[0].agent.prompt` in the shape of all others."""
    path = pointer_of(defect.pointer)
    tokens = path.split("/")[1:]
    is_within = tokens[:1] in (["steps"], ["bindings"], ["id"])
    index = int(tokens[1]) if tokens[:1] == ["steps"] and len(tokens) > 1 and tokens[1].isdigit() else None
    found = invalid_plan(defect.message, path if is_within else "", index)
    return replace(found, details={**found.details, "rule": defect.code})


_Reader = Callable[[Sequence[Any], list[PlanError]], Iterator[dict[str, Any]]]


def _steps(raw: Mapping[str, Any], form: PlanForm, reader: _Reader, *, is_strict: bool) -> Plan | list[PlanError]:
    """Read the steps of a document into calls, and these as a plan of planq's own."""
    errors: list[PlanError] = []
    steps = raw.get("steps")
    if steps is None or steps == []:
        question, errors = _asked(raw, "")
        calls = [{"kind": "elicitation", **question}] if question else []
        if not calls and not errors:
            errors.append(invalid_plan("the plan has no steps", "/steps"))
    elif isinstance(steps, list):
        known = _TYPED_FIELDS if form is PlanForm.TYPED_STEPS else _NUMBERED_FIELDS
        if is_strict:
            errors += _unknown_fields(steps, known)
        calls = list(reader(steps, errors))
    else:
        return [invalid_plan(f"expected a list of steps, found {excerpt(steps)}", "/steps")]
    intention = raw.get("intention")
    document = {"calls": calls, "reasoning": intention if isinstance(intention, str) else None}
    read = structural_errors(document) if calls else []
    if isinstance(read, Plan) and not errors:
        return read
    return by_call([*errors, *(_renamed(error, form) for error in read if isinstance(error, PlanError))])


def _renamed(error: PlanError, form: PlanForm) -> PlanError:
    """Return a defect of the calls with the place that it has in the document."""
    if error.type != "invalid_plan":
        return error
    parts = str(error.details["path"]).split("/")
    if parts[1:2] == ["calls"]:
        parts[1] = "steps"
    if len(parts) > 3:
        parts[3] = _FIELDS[form].get(parts[3], parts[3])
    return invalid_plan(error.details["message"], "/".join(parts), error.tool_index)


def _unknown_fields(steps: Sequence[Any], known: frozenset[str]) -> Iterator[PlanError]:
    for number, step in enumerate(steps):
        if not isinstance(step, Mapping):
            continue
        is_asking = step.get("type") in QUESTION_TYPES
        for name in step:
            if name not in known and not (is_asking and name in _QUESTION_FIELDS):
                place = path_pointer(("steps", number, capped(str(name), 100)))
                yield invalid_plan(f"unknown field; known ones are {', '.join(sorted(known))}", place, number)


_SOMETHING = {"kind": "noop"}
"""Stands for a step that could not be read, so that the others are checked too."""


def _typed(steps: Sequence[Any], errors: list[PlanError]) -> Iterator[dict[str, Any]]:
    for number, step in enumerate(steps):
        place = f"/steps/{number}"
        if not isinstance(step, Mapping):
            errors.append(invalid_plan(f"expected an object, found {excerpt(step)}", place, number))
            yield _SOMETHING
            continue
        kind = step.get("type") or ("tool" if step.get("name") else None)
        if kind not in _STEP_TYPES:
            found = "none" if kind is None else excerpt(kind)
            message = f"expected a type of {', '.join(_STEP_TYPES)}; found {found}"
            errors.append(invalid_plan(message, f"{place}/type", number))
            yield _SOMETHING
        elif kind == "tool":
            yield _present(
                tool_name=step.get("name"),
                arguments=_decoded(step.get("args")),
                reason=step.get("reason"),
                retries=step.get("retries"),
            )
        elif kind in QUESTION_TYPES:
            question, wrong = _asked(step, place, number)
            errors += wrong
            if not question and not wrong:
                message = "a question needs a message (elicitation.message, message or content) or a schema"
                errors.append(invalid_plan(message, f"{place}/elicitation", number))
            yield _present(kind="elicitation", reason=step.get("reason"), **question) if question else _SOMETHING
        else:
            yield _present(kind=kind, reason=step.get("reason") or step.get("content"))


def _asked(raw: Mapping[str, Any], place: str, number: int | None = None) -> tuple[dict[str, Any], list[PlanError]]:
    is_flat = raw.get("elicitation") is None and raw.get("type") in QUESTION_TYPES
    if is_flat:
        return _question_of(raw, place, number, raw.get("content"))
    return _question_of(raw.get("elicitation"), f"{place}/elicitation", number, raw.get("content"))


def _question_of(
    raw: Any, place: str, number: int | None = None, content: Any = None
) -> tuple[dict[str, Any], list[PlanError]]:
    """Return the message and the schema of a question, empty where it asks nothing, and what is wrong with it."""
    if raw is not None and not isinstance(raw, Mapping):
        return {}, [invalid_plan(f"expected an object with a message, found {excerpt(raw)}", place, number)]
    given = {} if raw is None else raw
    field = "requestedSchema" if given.get("requestedSchema") is not None else "schema"
    schema = _decoded(given.get(field))
    if schema is not None and not isinstance(schema, Mapping):
        found = excerpt(schema)
        return {}, [invalid_plan(f"expected JSON Schema of an object, found {found}", f"{place}/{field}", number)]
    texts = (given.get("message"), content, given.get("question"))
    message = next((text for text in texts if isinstance(text, str) and text.strip()), None)
    return _present(message=message, requested_schema=schema or None), []


def _numbered(steps: Sequence[Any], errors: list[PlanError]) -> Iterator[dict[str, Any]]:
    positions: dict[int, int] = {}
    for number, step in enumerate(steps):
        stated = whole(step.get("step_number")) if isinstance(step, Mapping) else None
        if not isinstance(stated, int) or isinstance(stated, bool):
            continue
        if stated in positions:
            message = f"step number {stated} is also that of /steps/{positions[stated]}"
            errors.append(invalid_plan(message, f"/steps/{number}/step_number", number))
        positions.setdefault(stated, number)
    for number, step in enumerate(steps):
        place = f"/steps/{number}"
        if not isinstance(step, Mapping):
            errors.append(invalid_plan(f"expected an object, found {excerpt(step)}", place, number))
            yield _SOMETHING
            continue
        stated = step.get("step_number")
        if not isinstance(whole(stated), int) or isinstance(stated, bool):
            found = "none" if stated is None else excerpt(stated)
            errors.append(invalid_plan(f"expected a whole number, found {found}", f"{place}/step_number", number))
        waits = _waits(step.get("depends_on"), positions, number, errors)
        if step.get("tool_name") is None:
            # Advice: there is nothing to call, and nothing to wait for.
            yield _present(kind="noop", reason=step.get("description"))
            continue
        yield _present(
            tool_name=step["tool_name"],
            arguments=_decoded(step.get("tool_arguments")),
            reason=step.get("description"),
            depends_on=waits or None,
        )


def _waits(raw: Any, positions: Mapping[int, int], number: int, errors: list[PlanError]) -> list[int]:
    """Return the positions of the steps whose numbers are listed; an empty list leaves the order to be derived."""
    place = f"/steps/{number}/depends_on"
    if raw is None:
        return []
    if not isinstance(raw, list):
        errors.append(invalid_plan(f"expected a list of step numbers, found {excerpt(raw)}", place, number))
        return []
    found: list[int] = []
    for at, one in enumerate(raw):
        stated = whole(one)
        if isinstance(stated, int) and not isinstance(stated, bool) and stated in positions:
            found.append(positions[stated])
        else:
            errors.append(invalid_plan(f"no step has the number {excerpt(one)}", f"{place}/{at}", number))
    return found


def _decoded(value: Any) -> Any:
    """Return what a JSON text says; any other text, one nested too deeply and any other value as it is.

    The bound is planq's own: how deep a text Python reads differs from version to version (3.11: 994, 3.13: 10 000).
    """
    if not isinstance(value, str):
        return value
    try:
        said = decode(value)
    except (ValueError, RecursionError):
        return value
    return value if is_deeper_than(said, _MAX_DOCUMENT_DEPTH) else said


def _present(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


_READERS: Final[Mapping[PlanForm, _Reader]] = {PlanForm.TYPED_STEPS: _typed, PlanForm.NUMBERED_STEPS: _numbered}
