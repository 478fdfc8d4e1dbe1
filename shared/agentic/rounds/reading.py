"""Read a model's turn of `loop` or `react`: tolerant about where the decision is, strict about its content.

A `react` model that calls a tool with bad arguments has still called it: only that call fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from planq.shared.agentic.models.exchange import ToolCallRequest, TurnForm
from planq.shared.agentic.plan.document import (
    MAX_TOOL_NAME_CHARS,
    Plan,
    structural_errors,
    whole,
    without_meaningless,
)
from planq.shared.agentic.plan.errors import PlanError, by_call, invalid_plan
from planq.shared.agentic.plan.forms import QUESTION_TYPES, ReadPlan, has_typed_steps, is_without_steps, read_any_form
from planq.shared.agentic.plan.interpret import (
    DIRECT,
    PLANNING_TOOL_NAME,
    TOOL_CALLS,
    Direct,
    MalformedPlan,
    decision_in,
    decoded,
    malformed,
    planning_tool,
)
from planq.shared.agentic.schema.schemas import MAX_DEPTH
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.platform.values.describe import excerpt, is_deeper_than

ANSWER: Final = "answer"
QUESTION: Final = "elicitation"
ABORT: Final = "abort"
NOOP: Final = "noop"

_KINDS = (DIRECT, ANSWER, TOOL_CALLS, *QUESTION_TYPES, ABORT, NOOP)
_BESIDE = ("content", ANSWER, QUESTION, "message", "schema", "requestedSchema", "reason", "calls")
"""Fields of one kind of decision; empty ones next to another kind are ignored."""


@dataclass(frozen=True, slots=True)
class TurnCalls:
    """The model wants these calls; only the plan's structure has been checked.

    Per call: `numbers` are the stated indices or None, `ids` the provider's or "". `broken` maps positions to defects
    of arguments; the plan has none there. The fields at `ignored` have no meaning, and are not in it.
    """

    plan: Plan
    numbers: tuple[int | None, ...]
    ids: tuple[str, ...]
    broken: Mapping[int, str] = field(default_factory=dict)
    ignored: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TurnQuestion:
    """The model asks a person; `schema` is the JSON Schema of the answer, maybe empty."""

    message: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Abort:
    """The model gives up; `reason` is never blank."""

    reason: str


@dataclass(frozen=True, slots=True)
class NothingLeft:
    """The model has nothing left to do or say."""


Turn = Direct | TurnCalls | TurnQuestion | Abort | NothingLeft | MalformedPlan


def interpret_turn(text: str, tool_calls: Sequence[ToolCallRequest], form: TurnForm) -> Turn:
    """Read a model's reply to a turn; never raises.

    The order is: a call of `__planning__`; native calls, with the text as reasoning; a JSON decision in the text,
    fenced or its outermost `{…}`; else the text is the answer. In the form `ANSWER` only the text counts.
    """
    if form is TurnForm.ANSWER:
        return Direct(text) if text.strip() else NothingLeft()
    if any(call.name == PLANNING_TOOL_NAME for call in tool_calls):
        return _from_forced(tool_calls)
    if tool_calls:
        return _from_native(text, tool_calls, form)
    # Prompts of `react` describe no further kinds: a text in such a form is its answer.
    found = decision_in(text, _KINDS) if form is TurnForm.LOOP else decision_in(text)
    if found is not None:
        return _from_decision(found)
    return Direct(text) if text.strip() else NothingLeft()


def number_errors(calls: TurnCalls, next_index: int) -> list[PlanError]:
    """Return a defect for each call whose stated number is not its index, counted from `next_index`."""
    return [
        invalid_plan(f"the number of this call is {index}, found {stated}", f"/calls/{position}/number", index)
        for position, (index, stated) in enumerate(zip(count(next_index), calls.numbers, strict=False))
        if stated not in (None, index)
    ]


def loop_tool(tools: Sequence[ToolDefinition]) -> dict[str, Any]:
    """Return the forced tool of `loop`: that of the PLAN stage with three more decisions and numbered calls."""
    tool = planning_tool(tools)
    properties = tool["parameters"]["properties"]
    kinds = [DIRECT, TOOL_CALLS, QUESTION, ABORT, NOOP] if tools else [DIRECT, QUESTION, ABORT, NOOP]
    properties["type"] = {"type": "string", "enum": kinds, "description": "What to do next."}
    properties["message"] = {"type": "string", "description": f"The question to a person; only with {QUESTION}."}
    properties["schema"] = {
        "type": "object",
        "description": f"JSON Schema of an object, which the answer shall satisfy; only with {QUESTION}.",
        "additionalProperties": True,
    }
    properties["reason"] = {"type": "string", "description": f"Why the work cannot be done; only with {ABORT}."}
    if tools:
        properties["calls"]["items"] = _numbered(properties["calls"]["items"])
    return tool


_NUMBER = {"type": "integer", "minimum": 0, "description": "The call's number, counted on over all rounds from 0."}


def _numbered(items: Mapping[str, Any]) -> dict[str, Any]:
    alternatives = items.get("anyOf") or [items]
    numbered = [
        {
            "type": "object",
            "properties": {"number": _NUMBER, **one["properties"]},
            "required": ["number", *one["required"]],
        }
        for one in alternatives
    ]
    return numbered[0] if len(numbered) == 1 else {"anyOf": numbered}


def _from_forced(tool_calls: Sequence[ToolCallRequest]) -> Turn:
    if len(tool_calls) > 1:
        return malformed(
            invalid_plan(f"expected exactly one call of {PLANNING_TOOL_NAME}, found {len(tool_calls)} tool calls")
        )
    arguments = decoded(tool_calls[0].arguments)
    if isinstance(arguments, str):
        found = excerpt(arguments)
        return malformed(invalid_plan(f"the arguments of {PLANNING_TOOL_NAME} are no JSON object; found {found}"))
    return _from_decision(arguments)


def _from_native(text: str, tool_calls: Sequence[ToolCallRequest], form: TurnForm) -> Turn:
    ids = tuple(call.id for call in tool_calls)
    broken: dict[int, str] = {}
    calls = []
    for position, call in enumerate(tool_calls):
        arguments = decoded(call.arguments)
        wrong = _wrong_with(arguments)
        if wrong is not None and form is TurnForm.REACT:
            broken[position] = wrong
            arguments = {}
        calls.append({"tool_name": call.name[:MAX_TOOL_NAME_CHARS] or "(no name)", "arguments": arguments})
    return _calls({"type": TOOL_CALLS, "reasoning": text, "calls": calls}, ids=ids, broken=broken)


def _wrong_with(arguments: Any) -> str | None:
    """Return why a call cannot have these arguments, or None."""
    if not isinstance(arguments, Mapping):
        return f"the arguments are no JSON object; found {excerpt(arguments)}"
    if is_deeper_than(arguments, MAX_DEPTH):
        return f"the arguments are nested more than {MAX_DEPTH} levels deep"
    if isinstance(checked := structural_errors({"calls": [{"tool_name": "x", "arguments": arguments}]}), Plan):
        return None
    wrong = str(checked[0].details.get("message", "no JSON object"))
    return f"the arguments cannot be read: {wrong.removeprefix('the plan is ')}"


def _from_decision(document: Any) -> Turn:
    if not isinstance(document, Mapping):
        return malformed(invalid_plan(f"expected an object with a type, found {excerpt(document)}"))
    if has_typed_steps(document):
        return _from_steps(document)
    given = {
        str(key): value
        for key, value in document.items()
        if value is not None and not (key in _BESIDE and value in ("", [], {}))
    }
    kind = given.get("type")
    if kind is not None and kind not in _KINDS:
        return malformed(invalid_plan(f"expected a type of {', '.join(_KINDS)}; found {excerpt(kind)}", "/type"))
    if kind in (DIRECT, ANSWER, ABORT) and given.get("calls"):
        return malformed(invalid_plan(f"calls belong to {TOOL_CALLS} only; decide for one of both", "/calls"))
    if given.get("calls"):
        return _planned(given)
    match kind:
        case "direct_response" | "answer":
            return _answered(given)
        case "abort":
            return Abort(_text(given, "reason", "content", "reasoning") or "the planner gave no reason")
        case "noop":
            return NothingLeft()
    # A question only counts without calls.
    if kind in QUESTION_TYPES or QUESTION in given:
        return _question(given)
    return NothingLeft() if kind == TOOL_CALLS else malformed(invalid_plan("expected a type, found none", "/type"))


def _from_steps(document: Mapping[str, Any]) -> Turn:
    """Read a plan of typed steps; an empty one answers, asks, or ends the loop."""
    if not document["steps"]:
        answer = document.get(ANSWER)
        if isinstance(answer, str) and answer.strip():
            return Direct(answer)
        return NothingLeft() if is_without_steps(document) else _question(document)
    read = read_any_form(document, from_model=True)
    if not isinstance(read, ReadPlan):
        return malformed(*read)
    size = len(read.plan.calls)
    return TurnCalls(read.plan, (None,) * size, ("",) * size)


def _planned(given: Mapping[str, Any]) -> Turn:
    errors: list[PlanError] = []
    if given.get("content") or given.get(ANSWER):
        errors.append(invalid_plan(f"content belongs to {DIRECT} only; answer or call tools, not both", "/content"))
    calls = decoded(given["calls"])
    document = {key: value for key, value in given.items() if key not in _BESIDE}
    numbers: list[int | None] = []
    if isinstance(calls, list):
        read = [_read_call(position, call, errors) for position, call in enumerate(calls)]
        numbers, calls = [number for number, _ in read], [call for _, call in read]
    # A question does not count with calls, and `reasoning` is optional.
    document |= {"type": TOOL_CALLS, "reasoning": given.get("reasoning", ""), "calls": calls}
    return _calls(document, errors, numbers=numbers)


def _read_call(position: int, call: Any, errors: list[PlanError]) -> tuple[int | None, Any]:
    """Return a call's stated number, and the call in a plan's form."""
    if not isinstance(call, Mapping):
        return None, call
    rest = dict(call)
    stated = whole(rest.pop("number", None))
    if stated is not None and (not isinstance(stated, int) or isinstance(stated, bool)):
        found = excerpt(stated)
        errors.append(invalid_plan(f"expected the number of the call, found {found}", f"/calls/{position}/number"))
        stated = None
    if isinstance(rest.get("arguments"), str):
        rest["arguments"] = decoded(rest["arguments"])
    if "type" in rest:
        rest["kind"] = rest.pop("type")
    return stated, rest


def _calls(
    document: Mapping[str, Any],
    errors: Sequence[PlanError] = (),
    *,
    numbers: Sequence[int | None] = (),
    ids: tuple[str, ...] = (),
    broken: Mapping[int, str] | None = None,
) -> TurnCalls | MalformedPlan:
    known, ignored, meant = without_meaningless(document)
    plan = structural_errors(known, from_model=True)
    wrong = [*errors, *meant]
    if not isinstance(plan, Plan):
        return malformed(*by_call([*errors, *plan, *meant]))
    if wrong:
        return malformed(*wrong)
    size = len(plan.calls)
    return TurnCalls(plan, tuple(numbers) or (None,) * size, ids or ("",) * size, broken or {}, ignored)


def _answered(given: Mapping[str, Any]) -> Direct | MalformedPlan:
    content = given.get("content", given.get(ANSWER))
    if isinstance(content, str) and content.strip():
        return Direct(content)
    found = "nothing" if content is None else excerpt(content)
    return malformed(invalid_plan(f"a {DIRECT} needs its answer in content, a text; found {found}", "/content"))


def _question(given: Mapping[str, Any]) -> TurnQuestion | MalformedPlan:
    nested = decoded(given.get(QUESTION, given))
    if not isinstance(nested, Mapping):
        found = excerpt(nested)
        return malformed(invalid_plan(f"expected a message and a schema, found {found}", f"/{QUESTION}"))
    schema = decoded(nested.get("requestedSchema", nested.get("schema")) or {})
    if not isinstance(schema, Mapping):
        return malformed(invalid_plan(f"expected JSON Schema of an object, found {excerpt(schema)}", "/schema"))
    message = _text(nested, "message", "question") or _text(given, "content")
    if not message and not schema:
        return malformed(invalid_plan(f"an {QUESTION} needs a message, a text", "/message"))
    return TurnQuestion(message, dict(schema))


def _text(given: Mapping[str, Any], *names: str) -> str:
    """Return the first text under these names that is not blank, stripped, or ""."""
    texts = (given.get(name) for name in names)
    return next((text.strip() for text in texts if isinstance(text, str) and text.strip()), "")
