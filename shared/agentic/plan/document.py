"""The plan as its author wrote it: a list of calls (docs/decisions.md, D1, D5, D9, D10).

    {"type": "tool_calls", "reasoning": "…", "calls": [
        {"tool_name": "search", "arguments": {"query": "rust"}},
        {"tool_name": "write_report", "arguments": {"text": "$0.output.text"}, "depends_on": [0]}]}

Only the structure is looked at here; whether the calls make sense is `validation.py`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from planq.shared.agentic.plan.errors import PlanError, format_plan_errors, invalid_plan
from planq.shared.agentic.schema.schemas import MAX_DEPTH
from planq.shared.kernel.limits import MAX_TIMEOUT_SECONDS
from planq.shared.kernel.states import StepKind
from planq.shared.platform.errors import PlanInvalid, capped, storable
from planq.shared.platform.values.describe import excerpt, is_deeper_than
from planq.shared.platform.values.pointers import Tokens, path_pointer, to_pointer

MAX_RETRIES = 100
MAX_TOOL_NAME_CHARS = 200

_MAX_PLAN_DEPTH = MAX_DEPTH + 3
"""The plan, its list of calls and a call stand around the arguments."""


def whole(value: Any) -> Any:
    """Return the integer that a JSON number is, however it is spelt: JSON Schema counts 3.0 among the integers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(whole)
"""Beside a strict `int`: an integer as JSON has it. It stands last, so that bounds get into the schema."""

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)


KINDS_WITHOUT_TOOL: Mapping[str, StepKind] = {
    kind.value: kind for kind in (StepKind.QUESTION, StepKind.NOOP, StepKind.ABORT)
}
"""What a step of a plan may be instead of a call of a tool, by its name."""


class Call(BaseModel):
    """One step of a plan: a tool call, or what its `kind` says, None for a call (`"tool"` is read as that, too).

    `depends_on` (indices of calls; an empty list too) replaces the derived order, None keeps it. `retries` are extra
    attempts, None for the tool's own number. `timeout_seconds` can only lower the tool's own timeout.
    `reason` is why the step is there, and of an `abort`, why the job ends. An `elicitation` has a `message`, a
    `requested_schema` (JSON Schema of an object), or both. What is no call has no arguments, and its kind for a
    `tool_name`.
    """

    model_config = _STRICT

    kind: Literal["elicitation", "noop", "abort"] | None = None
    tool_name: Annotated[str, Field(min_length=1, max_length=MAX_TOOL_NAME_CHARS)]
    arguments: dict[str, Any] = Field(default_factory=dict)
    reason: str | None = None
    message: str | None = None
    requested_schema: dict[str, Any] | None = None
    depends_on: list[Annotated[int, WHOLE]] | None = None
    retries: Annotated[int, Field(ge=0, le=MAX_RETRIES), WHOLE] | None = None
    timeout_seconds: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_SECONDS, allow_inf_nan=False)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping) or "kind" not in raw:
            return raw
        kind = raw["kind"]
        if kind == "tool":
            return {**raw, "kind": None}
        is_known = isinstance(kind, str) and kind in KINDS_WITHOUT_TOOL
        return {"tool_name": kind, "arguments": {}, **raw} if is_known else raw

    @model_validator(mode="after")
    def _check_kind(self) -> Call:
        asks = self.message is not None or self.requested_schema is not None
        if self.kind != "elicitation" and asks:
            raise ValueError("message and requested_schema belong to steps of the kind elicitation")
        if self.kind == "elicitation" and not (self.message or "").strip() and not self.requested_schema:
            raise ValueError("a step of the kind elicitation needs a message or a requested_schema")
        if self.kind is not None and (self.arguments or self.tool_name != self.kind):
            raise ValueError(f"a step of the kind {self.kind} calls no tool; leave out tool_name and arguments")
        return self


class Plan(BaseModel):
    """At least one call, in the order of the sequence that a parallel run must be equal to.

    `on_failure` is what becomes of the caller's job once a step has failed for good (`OnFailure`), None for `fail`;
    nothing in a model's plan.
    """

    model_config = _STRICT

    type: Literal["tool_calls"] = "tool_calls"
    reasoning: str | None = None
    on_failure: Literal["fail", "answer", "continue"] | None = None
    calls: Annotated[list[Call], Field(min_length=1)]


def cut_short(plan: Plan) -> tuple[Plan, int]:
    """Return a plan up to its first question to a person or `abort`, and how many steps came after that.

    The author could not know the answer, so what follows is planned anew after it.
    """
    for number, call in enumerate(plan.calls, 1):
        if call.kind in ("elicitation", "abort"):
            return plan.model_copy(update={"calls": plan.calls[:number]}), len(plan.calls) - number
    return plan, 0


class _ModelCall(Call):
    arguments: dict[str, Any]


class _ModelPlan(Plan):
    """What a model must send: nothing is left out (case per-005)."""

    type: Literal["tool_calls"]
    reasoning: str
    calls: Annotated[list[_ModelCall], Field(min_length=1)]  # type: ignore[assignment]


def parse_plan(raw: Any, *, from_model: bool = False) -> Plan:
    """Read a plan from decoded JSON.

    A caller may leave out `type`, `reasoning` and `arguments`; with `from_model` all three are required.
    Raises `PlanInvalid` with every structural defect, of type `invalid_plan`, when it is no such plan; a plan nested
    too deeply has the one defect `too_deep`.
    """
    errors = structural_errors(raw, from_model=from_model)
    if isinstance(errors, Plan):
        return errors
    raise PlanInvalid(format_plan_errors(errors), [error.to_json() for error in errors])


def without_meaningless(raw: Any) -> tuple[Any, list[str], list[PlanError]]:
    """Return a model's plan without the fields that mean nothing, where these stood (JSON pointers), and defects.

    A field that is nearly one of a plan's is a defect: left out, the calls would run in another order, or otherwise
    than they were meant (docs/decisions.md, D1).
    """
    if not isinstance(raw, Mapping):
        return raw, [], []
    ignored: list[str] = []
    errors: list[PlanError] = []
    kept = _known_fields(raw, tuple(_ModelPlan.model_fields), None, None, ignored, errors)
    calls = kept.get("calls")
    if isinstance(calls, list):
        known = tuple(Call.model_fields)
        kept["calls"] = [
            _known_fields(call, known, ((None, "calls"), number), number, ignored, errors)
            if isinstance(call, Mapping)
            else call
            for number, call in enumerate(calls)
        ]
    return kept, ignored, errors


def _known_fields(
    raw: Mapping[str, Any],
    known: Sequence[str],
    place: Tokens,
    number: int | None,
    ignored: list[str],
    errors: list[PlanError],
) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in raw.items():
        if name in known:
            kept[name] = value
            continue
        where = to_pointer((place, storable(capped(str(name), 100))))
        if near := _meant(str(name), known):
            errors.append(invalid_plan(f"unknown field; did you mean {near!r}?", where, number))
        elif len(ignored) < _MOST_IGNORED:
            ignored.append(where)
    return kept


_MOST_IGNORED = 20
_HARMLESS = frozenset({"reason", "reasoning", "type", "message"})
"""Fields without which a plan runs as it would with them."""


def _meant(name: str, known: Sequence[str]) -> str | None:
    """Return the field that decides something and that a name was probably meant to be."""
    spelt = _spelt(name)[:100]
    fields = {_spelt(one): one for one in known if one not in _HARMLESS}
    for stem, field_name in (("depend", "depends_on"), ("retr", "retries")):
        if spelt.startswith(stem) and field_name in known:
            return field_name
    begun = [one for one in fields if len(spelt) > 3 and one.startswith(spelt)]
    near = begun or difflib.get_close_matches(spelt, fields, 1, 0.8)
    return fields[near[0]] if near else None


def _spelt(name: str) -> str:
    return name.casefold().replace("_", "").replace("-", "").replace(" ", "")


def structural_errors(raw: Any, *, from_model: bool = False) -> Plan | list[PlanError]:
    """Return the plan that `raw` is, or all its structural defects; see `parse_plan`."""
    if not isinstance(raw, Mapping):
        return [invalid_plan(f"expected an object with calls, found {excerpt(raw)}")]
    if is_deeper_than(raw, _MAX_PLAN_DEPTH):
        # Deeper ones can be neither checked nor written out again: the libraries recurse.
        return [PlanError(None, "", None, "too_deep", {"limit": MAX_DEPTH})]
    try:
        # Python's decoder lets NaN, infinities and lone surrogates pass; the first two are no JSON, the last no text.
        json.dumps(raw, allow_nan=False, ensure_ascii=False).encode()
        plan = (_ModelPlan if from_model else Plan).model_validate(dict(raw))
    except ValidationError as error:
        return [
            _to_error(item) for item in error.errors(include_url=False, include_context=False, include_input=False)
        ]
    except (TypeError, ValueError) as error:
        return [invalid_plan(f"the plan is no JSON: {capped(str(error), 200)}")]
    return plan


@dataclass(frozen=True, slots=True)
class ReadablePart:
    """What can be read of a plan with structural defects: `broken` calls say less than was written.

    Of them `unread` ones say nothing: a `noop` stands in their place. `vague` ones have none of their arguments.
    """

    plan: Plan
    broken: frozenset[int]
    vague: frozenset[int]
    unread: frozenset[int]


def readable_part(calls: Sequence[Any]) -> ReadablePart:
    """Return what can be read of the calls of a plan, each by itself; precondition: not nested too deeply."""
    kept: list[Call] = []
    broken, vague, unread = set[int](), set[int](), set[int]()
    for number, raw in enumerate(calls):
        found = _call_of(raw)
        if found is None:
            broken.add(number)
            arguments = raw.get("arguments") if isinstance(raw, Mapping) else None
            if not isinstance(arguments, Mapping):
                vague.add(number)
                arguments = {}
            if isinstance(raw, Mapping) and raw.get("kind") in (None, "tool"):
                found = _call_of({"tool_name": raw.get("tool_name"), "arguments": dict(arguments)})
        if found is None:
            unread.add(number)
            found = Call(kind="noop", tool_name="noop")
        kept.append(found)
    return ReadablePart(Plan(calls=kept), frozenset(broken), frozenset(vague), frozenset(unread))


def _call_of(raw: Any) -> Call | None:
    try:
        return Call.model_validate(raw)
    except ValidationError:
        return None


def _to_error(item: Mapping[str, Any]) -> PlanError:
    place = item["loc"]
    index = place[1] if len(place) > 1 and place[0] == "calls" and isinstance(place[1], int) else None
    return invalid_plan(str(item["msg"]), path_pointer(place), index)
