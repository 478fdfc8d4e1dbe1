"""What becomes of each call that a model makes in a round."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.agentic.plan.document import Plan, parse_plan
from planq.shared.agentic.plan.graph import topological_order
from planq.shared.agentic.rounds.compile import (
    CompiledRound,
    asking_for,
    compile_round,
    compile_single,
    with_defaults,
)
from planq.shared.agentic.rounds.guard import DUPLICATE_CALL_BLOCKED, DUPLICATE_OF, SKIPPED, GuardLimits
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.states import Effect, StepKind, StepStatus
from planq.shared.kernel.steps import RoundRecord, StepResult
from planq.shared.platform.errors import PlanInvalid


def tool(name: str, effect: Effect = Effect.READ, *required: str, **options: Any) -> ToolDefinition:
    return ToolDefinition(
        name=name,
        effect=effect,
        input_schema={
            "type": "object",
            "properties": {"q": {"type": "string"}, "n": {"type": "integer", "default": 5}},
            "required": list(required),
        },
        output_schema={"type": "object", "properties": {"text": {"type": "string"}}},
        **options,
    )


TOOLS = {
    one.name: one
    for one in (
        tool("web_search"),
        tool("fetch", Effect.READ, "q"),
        tool("count", Effect.PURE, "n"),
        tool("send", Effect.UNSAFE),
        tool("wait", Effect.IDEMPOTENT, repeatable=True),
    )
}


def plan(*calls: tuple[str, dict[str, Any]] | dict[str, Any]) -> Plan:
    return parse_plan(
        {
            "calls": [
                call if isinstance(call, dict) else {"tool_name": call[0], "arguments": call[1]} for call in calls
            ]
        }
    )


def past(first: int, *results: StepResult, source: str = "model") -> RoundRecord:
    return RoundRecord(first, source, None, None, first, results)


def done(index: int, name: str, arguments: dict[str, Any], output: Any = None, **options: Any) -> StepResult:
    return StepResult(name, arguments, output or {"text": f"of {index}"}, index=index, **options)


def failed(index: int, name: str, arguments: dict[str, Any], code: str = "tool_error", **options: Any) -> StepResult:
    return StepResult(name, arguments, None, code, index=index, code=code, **options)


def compiled(wanted: Plan, *rounds: RoundRecord, **options: Any) -> CompiledRound:
    base = sum(len(record.results) for record in rounds)
    return compile_round(wanted, TOOLS, rounds, base=base, max_steps=options.pop("max_steps", 10), **options)


def outcomes(found: CompiledRound) -> list[tuple[StepStatus, str | None] | None]:
    return [
        None if step.known is None else (step.known.status, step.known.error.code if step.known.error else None)
        for step in found.steps
    ]


def test_indices_count_on_over_the_rounds_and_earlier_steps_are_inputs_only() -> None:
    before = past(0, done(0, "web_search", {"q": "a"}), done(1, "send", {"q": "b"}))

    found = compiled(
        plan(
            ("fetch", {"q": "$0.output.text"}),
            ("fetch", {"q": "{{ $2.output.text }} and {{ $1.output.text }}"}),
            ("send", {"q": "x"}),
        ),
        before,
    )

    assert [step.index for step in found.steps] == [2, 3, 4]
    assert [step.inputs for step in found.steps] == [(0,), (1, 2), ()]
    assert [step.depends_on for step in found.steps] == [(), (2,), (3,)]
    assert [step.dependents for step in found.steps] == [(3,), (4,), ()]
    assert found.steps[0].wanted == (("text",),)
    assert outcomes(found) == [None, None, None]


def test_a_call_that_cannot_be_made_has_failed_and_what_needs_it_is_skipped() -> None:
    found = compiled(
        plan(
            ("ghost", {"q": "a"}),
            ("fetch", {"q": "$0.output.text"}),
            ("fetch", {"q": "{{ $1.output.text }}!"}),
            ("fetch", {"q": 5}),
            ("fetch", {"q": "$7.output.text"}),
            ("send", {"q": "runs"}),
            {"tool_name": "send", "arguments": {"q": "after"}, "depends_on": [3]},
            {"tool_name": "send", "arguments": {"q": "never"}, "depends_on": [7]},
        )
    )

    assert outcomes(found) == [
        (StepStatus.FAILED, "unknown_tool"),
        (StepStatus.SKIPPED, SKIPPED),
        (StepStatus.SKIPPED, SKIPPED),
        (StepStatus.FAILED, "invalid_arguments"),
        (StepStatus.FAILED, "invalid_arguments"),
        None,
        None,
        (StepStatus.FAILED, "invalid_arguments"),
    ]
    assert found.steps[0].tool_name == "ghost"
    assert all(step.depends_on == step.dependents == step.inputs == () for step in found.steps)
    assert [(one.tool_index, one.type) for one in found.defects] == [
        (0, "unknown_tool"),
        (3, "invalid_argument"),
        (4, "forward_reference"),
        (7, "invalid_dependency"),
    ]
    assert found.steps[1].known is not None
    assert found.steps[1].known.error is not None
    assert found.steps[1].known.error.details == {"step": 0}


def test_all_calls_of_a_cycle_have_failed_and_the_others_run() -> None:
    found = compiled(
        plan(
            {"tool_name": "send", "arguments": {"q": "a"}, "depends_on": [1]},
            {"tool_name": "send", "arguments": {"q": "b"}, "depends_on": [0]},
            ("send", {"q": "c"}),
        ),
        past(0),
    )

    assert outcomes(found) == [
        (StepStatus.FAILED, "invalid_arguments"),
        (StepStatus.FAILED, "invalid_arguments"),
        None,
    ]


def test_what_a_step_without_an_outcome_waited_for_the_steps_after_it_wait_for() -> None:
    found = compiled(plan(("send", {"q": "a"}), ("send", {"q": 1}), ("send", {"q": "b"})))

    assert [step.depends_on for step in found.steps] == [(), (), (0,)]


def test_a_reference_to_a_later_round_or_a_failed_step_says_so() -> None:
    before = past(0, failed(0, "fetch", {"q": "a"}), done(1, "fetch", {"q": "b"}))

    found = compiled(
        plan(
            ("fetch", {"q": "$0.output.text"}),
            ("fetch", {"q": "$9.output.text"}),
            ("fetch", {"q": "$1.output.nothing"}),
            ("fetch", {"q": "$4.output.text"}),
            ("fetch", {"q": "$6.output.text"}),
        ),
        before,
    )

    assert outcomes(found)[0] == (StepStatus.SKIPPED, SKIPPED)
    assert [one.type for one in found.defects] == ["forward_reference", "field_not_found", "self_reference"]
    assert outcomes(found)[3] is not None  # it needs step 4, which has failed
    assert [error.tool_index for error in found.defects] == [3, 4, 6]


def test_repetitions_in_a_plan_are_aliases_and_no_index_shifts() -> None:
    found = compiled(
        plan(
            ("web_search", {"q": "a"}),
            ("web.search", {"q": "a"}),
            ("fetch", {"q": "$1.output.text"}),
            ("fetch", {"q": "$0.output.text"}),
            ("fetch", {"q": "{{ $3.output.text }}, \\{{ $3.output.text }}"}),
            ("wait", {}),
            ("wait", {}),
            {"tool_name": "send", "arguments": {"q": "b"}, "depends_on": [1, 6]},
        )
    )

    alias = (StepStatus.SKIPPED, DUPLICATE_OF)
    assert outcomes(found) == [None, alias, None, alias, None, None, None, None]
    assert found.steps[2].arguments == {"q": "$0.output.text"}
    assert found.steps[4].arguments == {"q": "{{ $2.output.text }}, \\{{ $3.output.text }}"}
    assert found.steps[7].depends_on == (0, 6)
    assert [step.known.error.details for step in found.steps if step.known and step.known.error] == [
        {"step": 0},
        {"step": 2},
    ]


def test_a_reference_to_an_alias_of_an_earlier_round_leads_to_the_first() -> None:
    before = past(0, done(0, "fetch", {"q": "a"}), failed(1, "fetch", {"q": "a"}, DUPLICATE_OF, details={"step": 0}))

    found = compiled(plan(("fetch", {"q": "$1.output.text"})), before)

    assert (found.steps[0].inputs, found.steps[0].arguments) == ((0,), {"q": "$0.output.text"})


def test_the_third_of_the_same_calls_is_blocked_and_shows_the_last_output() -> None:
    before = [
        past(0, done(0, "web_search", {"q": "urls"}, {"text": "x"})),
        past(1, done(1, "fetch", {"q": "x"})),
        past(2, done(2, "fetch", {"q": "x"})),
    ]

    # The reference is compared by what it points at: as planned it would be another call.
    found = compiled(
        plan(("fetch", {"q": "$0.output.text"}), ("count", {"n": 1}), ("fetch", {"q": "$3.output.text"})), *before
    )

    assert outcomes(found) == [(StepStatus.FAILED, DUPLICATE_CALL_BLOCKED), None, None]
    assert found.blocked == [3]
    assert found.steps[0].known is not None
    assert found.steps[0].known.output_of == 2
    assert found.steps[0].arguments == {"q": "x"}
    assert found.steps[2].inputs == (2,)
    again = past(3, failed(3, "fetch", {"q": "x"}, DUPLICATE_CALL_BLOCKED))
    after = compiled(plan(("fetch", {"q": "$0.output.text"}), ("send", {"q": "$3.output.text"})), *before, again)
    assert after.blocked == [4]
    assert after.steps[1].inputs == (2,)


def test_a_reference_to_a_blocked_call_leads_to_what_it_showed_whatever_came_later() -> None:
    before = [
        past(0, done(0, "fetch", {"q": "x"})),
        past(1, failed(1, "fetch", {"q": "x"}, DUPLICATE_CALL_BLOCKED)),
        past(2, done(2, "fetch", {"q": "x"})),
    ]

    assert compiled(plan(("send", {"q": "$1.output.text"})), *before).steps[0].inputs == (0,)


def test_a_blocked_call_without_an_earlier_output_shows_none() -> None:
    before = [past(0, failed(0, "fetch", {"q": "x"})), past(1, failed(1, "fetch", {"q": "x"}))]

    found = compiled(plan(("fetch", {"q": "x"}), ("fetch", {"q": "$2.output.text"})), *before)

    assert outcomes(found) == [(StepStatus.FAILED, DUPLICATE_CALL_BLOCKED), (StepStatus.SKIPPED, SKIPPED)]


def test_repeatable_tools_and_rounds_that_no_model_planned_are_no_concern_of_the_guard() -> None:
    waits = [past(number, done(number, "wait", {})) for number in range(8)]
    own = past(8, *(done(8 + number, "send", {}) for number in range(8)), source="caller")

    found = compiled(plan(("wait", {}), ("send", {})), *waits, own, guard=GuardLimits(consecutive_limit=2))

    assert outcomes(found) == [None, None]


def test_required_arguments_are_filled_from_defaults_and_what_is_missing_can_be_asked_for() -> None:
    wanted = plan(("count", {}), {"tool_name": "fetch", "arguments": {}, "reason": "the page"}, ("send", {"q": "x"}))

    found = compiled(wanted)

    assert found.steps[0].arguments == {"n": 5}
    assert outcomes(found) == [None, (StepStatus.FAILED, "invalid_arguments"), None]
    assert [(one.step, one.tool_name, list(one.names)) for one in found.missing] == [(1, "fetch", ["q"])]
    asked = compiled(asking_for(wanted, found.missing, base=0))
    assert outcomes(asked) == [None, None]
    assert asked.dropped == 1
    assert asked.steps[1].arguments == {
        "message": 'Tool "fetch" requires additional parameters.',
        "schema": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
    }
    assert asked.steps[1].kind is StepKind.QUESTION


def test_only_required_arguments_with_a_default_are_filled_in() -> None:
    schema = {
        "properties": {"a": {"default": 1}, "b": {"default": 2}, "c": {"default": None}},
        "required": ["b", "c"],
    }

    assert with_defaults({}, schema) == {"b": 2}
    assert with_defaults({"b": None}, schema) == {"b": None}
    assert with_defaults({}, {"required": "b", "properties": []}) == {}


def test_what_follows_a_question_or_an_abort_is_dropped_and_counted() -> None:
    question = {"kind": "elicitation", "message": "Which of {{ $0.output.text }}?"}

    found = compiled(plan(("web_search", {}), question, ("send", {}), ("send", {"q": "x"})))
    ended = compiled(plan({"kind": "noop"}, ("send", {}), {"kind": "abort", "reason": "no use"}, ("send", {})))

    assert found.dropped == 2
    assert [(step.kind, step.depends_on, step.inputs) for step in found.steps] == [
        (StepKind.TOOL, (), ()),
        (StepKind.QUESTION, (0,), (0,)),
    ]
    assert len(found.plan.calls) == 2
    assert ended.dropped == 1
    assert outcomes(ended) == [(StepStatus.SUCCEEDED, None), None, (StepStatus.SUCCEEDED, None)]
    assert [step.depends_on for step in ended.steps] == [(), (), ()]
    assert ended.steps[2].arguments == {"reason": "no use"}


def test_verbatim_arguments_hold_no_references() -> None:
    calls: tuple[tuple[str, dict[str, Any]], ...] = (
        ("fetch", {"q": "$0.output.x"}),
        ("fetch", {"q": "$0.output.x"}),
        ("fetch", {}),
        ("ghost", {}),
    )

    found = compiled(plan(*calls), past(0, done(0, "fetch", {"q": "a"})), verbatim=True)

    assert found.steps[0].arguments == {"q": "$0.output.x"}
    assert all(step.verbatim and not step.inputs for step in found.steps)
    assert outcomes(found) == [
        None,
        (StepStatus.SKIPPED, DUPLICATE_OF),
        (StepStatus.FAILED, "invalid_arguments"),
        (StepStatus.FAILED, "unknown_tool"),
    ]


def test_a_call_whose_arguments_could_not_be_read_has_failed_and_repeats_nothing() -> None:
    wanted = plan(("fetch", {}), ("fetch", {}), ("web_search", {}))

    found = compiled(wanted, verbatim=True, broken={0: "no JSON", 1: "no JSON either"})

    assert outcomes(found) == [
        (StepStatus.FAILED, "invalid_arguments"),
        (StepStatus.FAILED, "invalid_arguments"),
        None,
    ]
    assert found.missing == []


def test_calls_beyond_the_limit_of_a_round_have_failed_by_policy() -> None:
    found = compiled(plan(*(("send", {"q": str(number)}) for number in range(4))), max_steps=2)

    assert outcomes(found) == [None, None, (StepStatus.FAILED, "policy"), (StepStatus.FAILED, "policy")]


def test_a_question_with_a_schema_that_is_none_has_failed() -> None:
    found = compiled(plan({"kind": "elicitation", "message": "?", "requested_schema": {"properties": 5}}))

    assert outcomes(found) == [(StepStatus.FAILED, "invalid_arguments")]


@pytest.mark.parametrize(
    "call",
    [
        {"kind": "elicitation"},
        {"kind": "elicitation", "message": "  "},
        {"kind": "noop", "message": "x"},
        {"kind": "abort", "arguments": {"x": 1}},
        {"kind": "noop", "tool_name": "send"},
        {"kind": "pause"},
        {"tool_name": "send", "message": "x"},
    ],
)
def test_a_step_that_contradicts_its_kind_is_no_step(call: dict[str, Any]) -> None:
    with pytest.raises(Exception, match="Plan validation failed"):
        plan(call)


_TEXTS = st.one_of(
    st.integers(0, 9).map(lambda step: f"$step[{step}].output.text"),
    st.integers(0, 9).map(lambda step: f"See {{{{ ${step}.output.text }}}}."),
    st.sampled_from(["a", "b", "$x.output.y", "\\$0.output.text", ""]),
)
_CALLS = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {
                "tool_name": st.sampled_from([*TOOLS, "ghost"]),
                "arguments": st.dictionaries(
                    st.sampled_from(["q", "n"]), st.one_of(_TEXTS, st.integers(0, 2)), max_size=2
                ),
            },
            optional={"depends_on": st.lists(st.integers(-1, 9), max_size=2)},
        ),
        st.sampled_from([{"kind": "noop"}, {"kind": "elicitation", "message": "$1.output.text"}, {"kind": "abort"}]),
    ),
    min_size=1,
    max_size=6,
)


@given(calls=_CALLS, verbatim=st.booleans(), has_failed=st.lists(st.booleans(), max_size=4), most=st.integers(1, 6))
def test_whatever_a_model_wants_becomes_steps_that_can_be_stored_and_carried_out(
    calls: list[dict[str, Any]], verbatim: bool, has_failed: list[bool], most: int
) -> None:
    before = [
        past(index, (failed if bad else done)(index, "fetch", {"q": "a"})) for index, bad in enumerate(has_failed)
    ]
    base = len(before)

    found = compiled(plan(*calls), *before, verbatim=verbatim, max_steps=most)

    steps = found.steps
    assert [step.index for step in steps] == list(range(base, base + len(found.plan.calls)))
    assert len(found.plan.calls) + found.dropped == len(calls)
    open_steps = {step.index: step for step in steps if step.known is None}
    succeeded = {index for index, bad in enumerate(has_failed) if not bad}
    for step in steps:
        json.dumps(step.arguments)
        assert set(step.depends_on) <= open_steps.keys()
        assert {later for later, one in open_steps.items() if step.index in one.depends_on} == set(step.dependents)
        assert {one for one in step.inputs if one >= base} <= set(step.depends_on)
        assert {one for one in step.inputs if one < base} <= succeeded
        if step.known is not None:
            assert step.depends_on == step.dependents == step.inputs == ()
    order = [[one - base for one in step.depends_on] for step in steps]
    assert topological_order(order) is not None
    assert sum(step.kind is StepKind.TOOL for step in open_steps.values()) <= most


def test_the_one_plan_of_a_model_is_guarded_too() -> None:
    again = ("send", {"q": "hello"})
    wanted = plan(*[again] * 6, ("fetch", {"q": "$5.output.text"}), *[("wait", {"q": "1"})] * 5)

    found = compile_single(wanted, TOOLS, max_steps=20, guard=GuardLimits())
    strict = compile_single(wanted, TOOLS, max_steps=20, guard=GuardLimits(consecutive_limit=2))

    blocked = (StepStatus.FAILED, DUPLICATE_CALL_BLOCKED)
    assert outcomes(found) == [None, None, *[blocked] * 4, *[None] * 6]
    assert found.steps[6].arguments == {"q": "$0.output.text"}
    assert found.steps[6].depends_on == (0, 1)
    assert outcomes(strict) == [None, *[blocked] * 5, *[None] * 6]


def test_the_one_plan_of_a_model_is_refused_as_a_whole() -> None:
    with pytest.raises(PlanInvalid) as refused:
        compile_single(plan(("nowhere", {}), ("fetch", {})), TOOLS, max_steps=20, guard=GuardLimits())

    assert [error["error"]["type"] for error in refused.value.errors] == ["unknown_tool", "invalid_argument"]
