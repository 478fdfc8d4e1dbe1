"""The one shape of every defect of a plan, for programs (`to_json`) and for people and models (`render`).

The types up to `no_output_schema` and their fields were there before planq, which adds the others
(docs/decisions.md, D4):

    invalid_template_syntax · self_reference · forward_reference{referenced_index}
    index_out_of_bounds{referenced_index, max_valid_index} · no_output_schema{tool_name}
    field_not_found{tool_name, field, available_fields} · type_mismatch{expected, actual}
    unknown_tool{tool_name, available_tools} · ambiguous_tool{tool_name, candidates}
    invalid_argument{tool_name, message} · invalid_dependency{dependency, reason} · dependency_cycle{steps}
    after_abort{steps} · too_many_steps{limit, actual} · too_many_dependencies{limit}
    too_deep{limit} · too_large{limit, actual} · invalid_plan{path, message}, of a plan for agents with its rule
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from planq.shared.agentic.models.ending import Incomplete
from planq.shared.agentic.tools.names import suggestion
from planq.shared.platform.errors import PlanInvalid, capped

MAX_RENDERED = 50
"""How many defects the text for people and models lists; the JSON form always carries all of them."""

_QUOTED_CHARS = 120


@dataclass(frozen=True, slots=True)
class PlanError:
    """One defect of a plan.

    `tool_index` is the call it is about, None for the plan as a whole; `argument` the JSON pointer (RFC 6901) into
    that call's arguments, `""` for the call itself; `template` the reference as written, None when it is about none.
    """

    tool_index: int | None
    argument: str
    template: str | None
    type: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return `{"tool_index", "argument", "template", "error": {"type", …}}`."""
        return {
            "tool_index": self.tool_index,
            "argument": self.argument,
            "template": self.template,
            "error": {"type": self.type, **self.details},
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        details = dict(stored["error"])
        return cls(stored["tool_index"], stored["argument"], stored["template"], details.pop("type"), details)

    def render(self) -> str:
        """Return one line of text; what came from a model or a user is quoted and cut."""
        place = "Plan" if self.tool_index is None else f"Call {self.tool_index}"
        if self.argument:
            place += f", argument {_quoted(self.argument)}"
        if self.template is not None:
            place += f" ({_quoted(self.template)})"
        return f"{place}: {_SENTENCES[self.type](self.details)}"


def format_plan_errors(errors: Sequence[PlanError | Mapping[str, Any]], limit: int = MAX_RENDERED) -> str:
    """Return `Plan validation failed:` and one bulleted line for each of the first `limit` errors (case per-050).

    Takes the errors themselves or their JSON form, as it is stored.
    """
    shown = [error if isinstance(error, PlanError) else PlanError.from_json(error) for error in errors[:limit]]
    lines = ["Plan validation failed:", *(f"- {error.render()}" for error in shown)]
    if len(errors) > limit:
        lines.append(f"- … and {len(errors) - limit} more")
    return "\n".join(lines)


def plan_refused(errors: Sequence[Mapping[str, Any]]) -> PlanInvalid:
    """Return the error of a job whose plan was refused with these defects, of which it names the first."""
    return PlanInvalid(format_plan_errors(errors), errors[:MAX_RENDERED])


def cut_off_plan(incomplete: Incomplete) -> PlanError:
    """Return the defect of a plan, or of calls, whose reply was cut off: what came last may be missing."""
    return invalid_plan(f"the reply was cut off, and calls of it may be missing or damaged: {incomplete.sentence}")


def invalid_plan(message: str, path: str = "", tool_index: int | None = None) -> PlanError:
    """Return a structural defect; `path` is a JSON pointer into the plan document."""
    return PlanError(tool_index, "", None, "invalid_plan", {"path": path, "message": capped(message, 300)})


def by_call(errors: Sequence[PlanError]) -> list[PlanError]:
    """Return defects in the order of the calls that they are about, those of the plan as a whole first."""
    return sorted(errors, key=lambda error: -1 if error.tool_index is None else error.tool_index)


def _quoted(text: Any) -> str:
    # One defect is one line, whatever the text holds.
    return repr(capped(str(text), _QUOTED_CHARS))


def _names(names: Sequence[Any]) -> str:
    return ", ".join(_quoted(name) for name in names[:20]) + (", …" if len(names) > 20 else "") if names else "none"


_SENTENCES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "invalid_template_syntax": lambda _: (
        "Invalid template syntax; expected $<index of an earlier call>.output.<field>, for example $0.output.title, "
        "as the whole text, or {{ $0.output.title }} inside a longer one; \\$ and \\{{ stand for the signs themselves"
    ),
    "self_reference": lambda _: "a call cannot reference itself; refer to an earlier call",
    "forward_reference": lambda d: (
        f"forward reference: call {d['referenced_index']} comes later; refer to an earlier call"
    ),
    "index_out_of_bounds": lambda d: (
        f"call {d['referenced_index']} is out of bounds; the last valid index is {d['max_valid_index']}"
    ),
    "no_output_schema": lambda d: (
        f"tool {_quoted(d['tool_name'])} has no output schema, so its output cannot be referenced"
    ),
    "field_not_found": lambda d: (
        f"field {_quoted(d['field'])} not found in the output of {_quoted(d['tool_name'])}; "
        f"available fields: {_names(d['available_fields'])}"
    ),
    "type_mismatch": lambda d: f"type mismatch: expected {d['expected']}, the reference yields {d['actual']}",
    "unknown_tool": lambda d: (
        f"unknown tool {_quoted(d['tool_name'])}; {suggestion(str(d['tool_name']), map(str, d['available_tools']))}"
        f"available tools: {_names(d['available_tools'])}"
    ),
    "ambiguous_tool": lambda d: (
        f"tool name {_quoted(d['tool_name'])} is ambiguous; write one of {_names(d['candidates'])}"
    ),
    "invalid_argument": lambda d: f"invalid argument for {_quoted(d['tool_name'])}: {d['message']}",
    "invalid_dependency": lambda d: f"cannot depend on {d['dependency']}: {d['reason']}",
    "dependency_cycle": lambda d: (
        f"dependency cycle: calls {', '.join(map(str, d['steps'][:20]))} wait for each other"
    ),
    "after_abort": lambda d: f"an abort ends the job, so the {d['steps']} calls after it would never run",
    "too_many_steps": lambda d: f"too many calls: at most {d['limit']} are allowed, found {d['actual']}",
    "too_many_dependencies": lambda d: f"the order has more than {d['limit']} dependencies between calls",
    "too_deep": lambda d: f"arguments nested more than {d['limit']} levels deep",
    "too_large": lambda d: f"arguments too large: at most {d['limit']} bytes are allowed, found {d['actual']}",
    "invalid_plan": lambda d: f"invalid plan{' at ' + _quoted(d['path']) if d['path'] else ''}: {d['message']}",
}
