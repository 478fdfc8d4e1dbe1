"""Excerpts: a plan resolved over them gives exactly what it gives over the whole outputs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.agentic.plan.compile import compile_plan
from planq.shared.agentic.plan.document import Plan
from planq.shared.agentic.references.resolution import resolve, uncovered
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.states import Effect, Pool
from planq.shared.platform.errors import InvalidArguments
from planq.shared.platform.values import excerpts
from planq.shared.platform.values.excerpts import Excerpts, MissingField, excerpts_json
from tests.unit.agentic.strategies import finite_json_values

DIGEST = b"h" * 32
KNOWING = {"properties": {"x y": {}}, "additionalProperties": True}
TOOLS = {"t": ToolDefinition(name="t", input_schema={}, output_schema=KNOWING, effect=Effect.PURE, pool=Pool.IO)}

segments = st.sampled_from(["a", "b", "c", "items", "0", "1", "01", "x y", "", "é", "null", "a.b"])
outputs_with_fields = st.recursive(
    finite_json_values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(segments, inner, max_size=4),
    max_leaves=20,
)


@st.composite
def references(draw: st.DrawFn, steps: int) -> str:
    """A reference to one of the first `steps` steps, whole or inside a text, to a path that may lead nowhere."""
    path = draw(st.lists(segments, max_size=4).filter(lambda drawn: drawn != [""]))
    if "a.b" in path:
        text = f"${draw(st.integers(0, steps - 1))}.output" + "".join(f"[{json.dumps(name)}]" for name in path)
        return draw(st.sampled_from([text, f"see {{{{ {text} }}}} and {{{{{text}}}}}"]))
    text = ".".join([f"${draw(st.integers(0, steps - 1))}.output", *path])
    if draw(st.booleans()):
        text = text.replace(".0", "[0]")
    return draw(st.sampled_from([text, f"see {{{{ {text} }}}} and {{{{{text}}}}}"]))


@st.composite
def plans_with_outputs(draw: st.DrawFn) -> tuple[Plan, list[Any]]:
    """A plan in which any step references earlier ones, and an output for every step."""
    size = draw(st.integers(1, 5))
    calls = []
    for index in range(size):
        found = draw(st.lists(references(index), max_size=4)) if index else []
        calls.append({"tool_name": "t", "arguments": {"inputs": found, "text": "$plain {{ braces }}"}})
    return Plan.model_validate({"calls": calls}), [draw(outputs_with_fields) for _ in range(size)]


def stored(output: Any, wanted: Any) -> Excerpts:
    """What a dependent gets: written as JSON and read again."""
    return Excerpts.read(DIGEST, 1, json.loads(excerpts_json(output, wanted)))


def completed(arguments: Any, known: dict[int, Any], outputs: list[Any]) -> dict[int, Any]:
    """Load what the excerpts do not cover, as a worker does."""
    lacking = uncovered(arguments, known)
    return known | {step: known[step].extended(outputs[step], paths) for step, paths in lacking.items()}


@given(plans_with_outputs(), st.data())
def test_a_plan_resolves_over_excerpts_exactly_as_over_full_outputs(
    drawn: tuple[Plan, list[Any]], data: st.DataObject
) -> None:
    plan, outputs = drawn
    steps = compile_plan(plan, TOOLS).steps
    large = data.draw(st.sets(st.integers(0, len(outputs) - 1)))
    limit = data.draw(st.sampled_from([0, 5, 40, excerpts.MAX_VALUE_BYTES]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(excerpts, "MAX_VALUE_BYTES", limit)
        patch.setattr(excerpts, "MAX_TOTAL_BYTES", 2 * limit)
        known = {step.index: stored(outputs[step.index], step.wanted) for step in steps if step.index in large}
    everything = dict(enumerate(outputs))

    for step in steps:
        at_hand = {index: known.get(index, everything[index]) for index in step.inputs}
        full = {index: everything[index] for index in step.inputs}
        if limit == excerpts.MAX_VALUE_BYTES:
            assert uncovered(step.arguments, at_hand) == {}, "small values are all at hand"
        at_hand = completed(step.arguments, at_hand, outputs)
        assert uncovered(step.arguments, at_hand) == {}
        assert resolved(step.arguments, at_hand) == resolved(step.arguments, full)


def resolved(arguments: Any, outputs: dict[int, Any]) -> Any:
    """What a resolution comes to: its arguments as JSON and what is missing, or the words in which it is refused."""
    try:
        found = resolve(arguments, outputs)
    except InvalidArguments as error:
        return str(error)
    return json.dumps(found.arguments), found


def test_a_step_learns_the_paths_that_later_steps_reference() -> None:
    plan = Plan.model_validate(
        {
            "calls": [
                {"tool_name": "t"},
                {"tool_name": "t", "arguments": {"a": "$0.output.title", "b": ["{{ $0.output.items[0].id }}"]}},
                {"tool_name": "t", "arguments": {"a": "$step[0].output.items.0.id", "b": "$1.output.x"}},
            ]
        }
    )

    steps = compile_plan(plan, TOOLS).steps

    assert [step.wanted for step in steps] == [(("items", "0", "id"), ("title",)), (("x",),), ()]


def test_large_values_are_left_out_and_absent_paths_are_told() -> None:
    output = {"title": "T", "body": "x" * excerpts.MAX_VALUE_BYTES, "list": [1, 2]}

    kept = stored(output, [("title",), ("body",), ("list", "2"), ("list", "7"), ("none", "deep")])

    assert kept.parts == {
        ("title",): "T",
        ("list", "2"): MissingField("2", "an array of 2"),
        ("list", "7"): MissingField("7", "an array of 2"),
        ("none", "deep"): MissingField("none", "an object", ("title", "body", "list")),
    }
    assert not kept.covers(("body",))


def test_all_excerpts_together_are_bounded_and_the_small_ones_stay() -> None:
    output = {f"f{n}": "x" * 50_000 for n in range(20)} | {"small": 1}

    text = excerpts_json(output, [(name,) for name in output])

    assert len(text) < excerpts.MAX_TOTAL_BYTES + 1_000
    assert stored(output, [(name,) for name in output]).at(("small",)) == 1


def test_a_reference_that_is_not_covered_is_a_defect_of_the_caller() -> None:
    known = {0: Excerpts(DIGEST, 1, {("a",): 1})}

    assert uncovered("$0.output.b", known) == {0: (("b",),)}
    with pytest.raises(KeyError):
        resolve("$0.output.b", known)


def test_an_output_of_an_earlier_release_has_no_excerpts() -> None:
    assert Excerpts.read(DIGEST, 7, None) == Excerpts(DIGEST, 7, {})
