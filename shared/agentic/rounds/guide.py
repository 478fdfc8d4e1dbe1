"""The guide of a job: numbered steps as advice for later turns; nothing executes them (docs/decisions.md, D28)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from planq.shared.agentic.plan.errors import invalid_plan
from planq.shared.agentic.plan.interpret import MalformedPlan, decoded, json_candidates
from planq.shared.agentic.schema.schemas import MAX_DEPTH
from planq.shared.agentic.tools.names import name_index
from planq.shared.platform.errors import capped, storable
from planq.shared.platform.values.describe import excerpt, is_deeper_than
from planq.shared.platform.values.encoding import measure

GUIDE_SOURCE: Final = "guide"
"""The source of a guide's row among the plans."""

COMPLEXITIES = ("low", "medium", "high")

_TYPE: Final = "guide"
_MAX_STEPS = 100
_MAX_DESCRIPTION = 2_000
_MAX_ARGUMENTS = 20_000
_SHOWN_STEPS = 5
_SHOWN_GOAL = 500
_SHOWN_DESCRIPTION = 300


@dataclass(frozen=True, slots=True)
class GuideStep:
    """One step; `depends_on` are other steps' numbers as written; `tool` None: no tool."""

    number: int
    description: str
    tool: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    depends_on: tuple[int, ...] = ()
    success_criteria: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "step_number": self.number,
            "description": self.description,
            "tool": self.tool,
            "tool_arguments": dict(self.arguments),
            "depends_on": list(self.depends_on),
            "success_criteria": self.success_criteria,
        }


@dataclass(frozen=True, slots=True)
class Guide:
    """The steps in order, at least one; `estimated_steps` and `complexity` are the planner's guesses."""

    steps: tuple[GuideStep, ...]
    estimated_steps: int
    complexity: str = "medium"
    success_criteria: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the body of a plan of the source `guide`."""
        return {
            "type": _TYPE,
            "steps": [step.to_json() for step in self.steps],
            "estimated_steps": self.estimated_steps,
            "complexity": self.complexity,
            "success_criteria": self.success_criteria,
        }

    @classmethod
    def of_json(cls, stored: Any) -> Self | None:
        """Return the guide in a stored plan; None if it is none, or of another version."""
        read = read_guide(stored, None)
        return read if isinstance(read, cls) else None


def read_guide(said: Any, tools: Collection[str] | None) -> Guide | MalformedPlan:
    """Return the guide in a planner's text or decoded object; never raises.

    Tools that are not among `tools` become None; with None all names stay. Steps without number or description are
    left out, and those after the hundredth. Other defects refuse the guide.
    """
    document = said if isinstance(said, Mapping) else _object_in(str(said))
    if document is None:
        return _refused(f"expected a JSON object, found {excerpt(said)}")
    listed = document.get("steps")
    if not isinstance(listed, list):
        found = excerpt(listed) if "steps" in document else "none"
        return _refused(f"a guide must have a 'steps' array, found {found}", "/steps")
    steps: list[GuideStep] = []
    for position, one in enumerate(listed[:_MAX_STEPS]):
        if not isinstance(one, Mapping) or "step_number" not in one or not _text(one.get("description")):
            continue
        number = _whole(one["step_number"])
        if number is None:
            path = f"/steps/{position}/step_number"
            return _refused(f"expected a whole number, found {excerpt(one['step_number'])}", path)
        steps.append(_step(number, one, tools))
    if not steps:
        return _refused("No valid steps: each needs a step_number and a description", "/steps")
    complexity = document.get("complexity")
    return Guide(
        tuple(steps),
        _whole(document.get("estimated_steps")) or len(steps),
        complexity if complexity in COMPLEXITIES else "medium",
        capped(_text(document.get("success_criteria")), _MAX_DESCRIPTION),
    )


def guide_text(goal: str, guide: Sequence[str]) -> str:
    """Return a guide for the model: the goal, the first five steps on a line each, and the count of the others."""
    lines = [
        "EXECUTION PLAN:",
        f"Goal: {_line(goal, _SHOWN_GOAL)}",
        f"Steps ({len(guide)} total):",
        *(
            f"  {n}. {_line(description, _SHOWN_DESCRIPTION)}"
            for n, description in enumerate(guide[:_SHOWN_STEPS], start=1)
        ),
    ]
    if len(guide) > _SHOWN_STEPS:
        lines.append(f"  ... and {len(guide) - _SHOWN_STEPS} more steps")
    asked = "Follow this plan when executing tools. Update plan status as you progress."
    return "\n".join([*lines, "", asked])


def _object_in(text: str) -> Mapping[str, Any] | None:
    """Return the first object with steps in a text, else the first object."""
    found = [one for one in map(decoded, json_candidates(text)) if isinstance(one, Mapping)]
    return next((one for one in found if "steps" in one), next(iter(found), None))


def _step(number: int, said: Mapping[str, Any], tools: Collection[str] | None) -> GuideStep:
    arguments = decoded(said.get("tool_arguments"))
    is_kept = (
        isinstance(arguments, Mapping)
        and not is_deeper_than(arguments, MAX_DEPTH)
        and measure(arguments, _MAX_ARGUMENTS) < _MAX_ARGUMENTS
    )
    after = said.get("depends_on")
    numbers = map(_whole, after[:_MAX_STEPS]) if isinstance(after, list) else ()
    return GuideStep(
        number=number,
        description=capped(_text(said["description"]), _MAX_DESCRIPTION),
        tool=_tool(_text(said.get("tool_name") or said.get("tool")), tools),
        arguments=dict(arguments) if is_kept else {},
        depends_on=tuple(one for one in numbers if one is not None),
        success_criteria=capped(_text(said.get("success_criteria")), _MAX_DESCRIPTION),
    )


def _tool(name: str, tools: Collection[str] | None) -> str | None:
    if not name or tools is None:
        return name or None
    found = name_index(frozenset(tools)).candidates(name)
    return found[0] if len(found) == 1 else None


def _whole(value: Any) -> int | None:
    """Return a whole number of at most nine digits, also from a text; else None."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str) and len(value.strip()) <= 9 and value.strip().isdecimal():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**9 else None


def _text(value: Any) -> str:
    """Return a stripped text, also of a number; "" for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    return storable(value).strip() if isinstance(value, str) else ""


def _line(text: str, limit: int) -> str:
    return capped(" ".join(text.split()), limit)


def _refused(message: str, path: str = "") -> MalformedPlan:
    return MalformedPlan((invalid_plan(f"Plan generation failed: {message}", path).to_json(),))
