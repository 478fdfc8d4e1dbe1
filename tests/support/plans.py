"""Random plans over simulated tools, one for each effect class."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from planq.shared.agentic.plan.compile import compile_plan
from planq.shared.agentic.plan.document import Plan
from planq.shared.agentic.plan.validation import validate_plan
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.states import Effect, Pool
from planq.shared.kernel.steps import PlannedStep

OUTPUT_SCHEMA = {"type": "object", "properties": {"value": {"type": "string"}}, "required": ["value"]}

TOOLS = {
    f"sim_{effect}": ToolDefinition(
        name=f"sim_{effect}",
        input_schema={"type": "object", "properties": {"inputs": {"type": "array"}}},
        output_schema=OUTPUT_SCHEMA,
        effect=effect,
        pool=Pool.IO,
        retries=1,
    )
    for effect in Effect
}


@st.composite
def plans(draw: st.DrawFn, *, max_steps: int = 12, explicit: bool = False) -> Plan:
    """A valid plan: random effects, references to earlier steps, with `explicit` some explicit `depends_on` too."""
    size = draw(st.integers(1, max_steps))
    calls: list[dict[str, Any]] = []
    for index in range(size):
        effect = draw(st.sampled_from(list(Effect)))
        earlier = draw(st.lists(st.integers(0, index - 1), max_size=3, unique=True)) if index else []
        call: dict[str, Any] = {
            "tool_name": f"sim_{effect}",
            "arguments": {"inputs": [f"${i}.output.value" for i in earlier]},
        }
        if explicit and draw(st.booleans()):
            call["depends_on"] = draw(st.lists(st.integers(0, size - 1), max_size=3, unique=True))
        calls.append(call)
    plan = Plan.model_validate({"calls": calls})
    if explicit and validate_plan(plan, TOOLS, max_steps=100):
        for call in calls:
            call.pop("depends_on", None)
        plan = Plan.model_validate({"calls": calls})
    return plan


def compiled(plan: Plan) -> tuple[PlannedStep, ...]:
    """The steps of a valid plan over the simulated tools, as if workers needed no tool for them."""
    assert validate_plan(plan, TOOLS, max_steps=10_000) == []
    return tuple(replace(step, digest=None) for step in compile_plan(plan, TOOLS).steps)
