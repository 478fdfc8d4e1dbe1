"""What a fork takes over from its source: nothing that an edit touches, and everything that it does not."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.agentic.plan.compile import compile_plan
from planq.shared.agentic.plan.document import Plan
from planq.shared.agentic.plan.fork import SourceStep, in_doubt, reusable
from planq.shared.agentic.references.grammar import find_references
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.states import Effect
from planq.shared.kernel.steps import PlannedStep

EFFECTS = {"calc": Effect.PURE, "look": Effect.READ, "put": Effect.IDEMPOTENT, "mail": Effect.UNSAFE}
TOOLS = {name: ToolDefinition(name=name, effect=effect) for name, effect in EFFECTS.items()}

Call = dict[str, Any]


def call(tool: str, *references: int, text: Any = "", **more: Any) -> Call:
    """A call that says `text` and refers to earlier calls."""
    arguments = {"text": text, "of": [f"${index}.output.a" for index in references]}
    return {"tool_name": tool, "arguments": arguments, **more}


def compiled(calls: Sequence[Call]) -> tuple[PlannedStep, ...]:
    return compile_plan(Plan.model_validate({"calls": list(calls)}), TOOLS).steps


def ran(calls: Sequence[Call], *without: int) -> list[SourceStep]:
    """The steps of a job whose steps have all succeeded but these."""
    return [
        SourceStep(step.tool_name, step.effect, step.arguments, step.index not in without) for step in compiled(calls)
    ]


def fork_of(calls: Sequence[Call], edited: Sequence[Call], *without: int, **options: Any) -> dict[int, int]:
    return reusable(ran(calls, *without), compiled(edited), **options)


def shifted(calls: Sequence[Call], start: int, by: int) -> list[Call]:
    """Calls whose references to step `start` and later ones point further on."""

    def moved(reference: str) -> str:
        step = int(reference[1 : reference.index(".")])
        return f"${step + by if step >= start else step}.output.a"

    return [
        {**one, "arguments": {**one["arguments"], "of": [moved(text) for text in one["arguments"]["of"]]}}
        for one in calls
    ]


@st.composite
def plans(draw: st.DrawFn) -> list[Call]:
    """Plans with many equal calls."""
    calls = []
    for index in range(draw(st.integers(1, 9))):
        references = draw(st.lists(st.integers(0, index - 1), unique=True, max_size=2)) if index else []
        calls.append(call(draw(st.sampled_from(sorted(TOOLS))), *references, text=draw(st.sampled_from("ab"))))
    return calls


@st.composite
def places(draw: st.DrawFn) -> tuple[list[Call], int]:
    calls = draw(plans())
    return calls, draw(st.integers(0, len(calls) - 1))


def affected_by(steps: Sequence[PlannedStep], edited: Iterable[int]) -> set[int]:
    """Say in plain words what edits in place affect."""
    affected = set(edited)
    while True:
        writes = [index for index in affected if steps[index].effect.is_write]
        further = {
            step.index
            for step in steps
            if set(step.inputs) & affected or (step.effect is not Effect.PURE and writes and step.index > min(writes))
        }
        if further <= affected:
            return affected
        affected |= further


@given(plans())
def test_the_same_plan_of_a_succeeded_job_takes_over_everything(calls: list[Call]) -> None:
    assert fork_of(calls, calls) == {index: index for index in range(len(calls))}


@given(plans(), st.data())
def test_an_edit_in_place_runs_what_it_affects_and_nothing_else(calls: list[Call], data: st.DataObject) -> None:
    edited = data.draw(st.sets(st.integers(0, len(calls) - 1)))
    new = [call(one["tool_name"], text=f"new {i}") if i in edited else one for i, one in enumerate(calls)]

    taken = fork_of(calls, new)

    unaffected = set(range(len(calls))) - affected_by(compiled(new), edited)
    assert set(taken) == unaffected
    # An output is a pure step's whoever of its equals made it; all others take over their own.
    assert all(taken[index] == index for index in taken if EFFECTS[calls[index]["tool_name"]] is not Effect.PURE)


@given(plans(), st.data())
def test_an_inserted_step_that_writes_nothing_is_all_that_runs(calls: list[Call], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(calls)))
    tool = data.draw(st.sampled_from(["calc", "look"]))
    new = [*calls[:place], call(tool, text="new"), *shifted(calls[place:], place, 1)]

    assert fork_of(calls, new) == {index if index < place else index + 1: index for index in range(len(calls))}


@given(places())
def test_from_a_step_on_everything_runs_and_before_it_nothing(given_plan: tuple[list[Call], int]) -> None:
    calls, start = given_plan

    assert fork_of(calls, calls, from_step=start) == {index: index for index in range(start)}


@given(places(), plans(), st.data())
def test_what_is_taken_over_rests_on_what_is_taken_over(
    given_plan: tuple[list[Call], int], other: list[Call], data: st.DataObject
) -> None:
    calls, start = given_plan
    failed = data.draw(st.sets(st.integers(0, len(calls) - 1)))
    orders = data.draw(st.lists(st.none() | st.just([]), min_size=len(other), max_size=len(other)))
    new = [{**one, "depends_on": order} for one, order in zip(other, orders, strict=True)]
    source, steps = ran(calls, *failed), compiled(new)

    taken = reusable(source, steps, from_step=start)

    for index, origin in taken.items():
        assert index < start
        assert source[origin].has_succeeded
        assert (source[origin].tool_name, source[origin].arguments["text"]) == (
            steps[index].tool_name,
            steps[index].arguments["text"],
        )
        # Its inputs are the very outputs that its origin was made from, or those of equal pure steps.
        for mine, theirs in zip(
            references(steps[index].arguments), references(source[origin].arguments), strict=True
        ):
            assert mine in taken
            if steps[mine].effect is not Effect.PURE:
                assert taken[mine] == theirs
    never_pure = [taken[index] for index in taken if steps[index].effect is not Effect.PURE]
    assert len(never_pure) == len(set(never_pure))


def references(arguments: Any) -> list[int]:
    return [found.reference.step for found in find_references(arguments) if found.reference is not None]


def test_an_edit_of_a_pure_step_that_nobody_reads_sends_no_mail_twice() -> None:
    calls = [call("calc"), call("look"), call("mail", 1)]

    assert fork_of(calls, [call("calc", text="other"), *calls[1:]]) == {1: 1, 2: 2}


def test_an_edit_in_place_of_one_of_two_equal_reads_leaves_the_other_its_output() -> None:
    calls = [call("look"), call("calc"), call("look"), call("mail", 2), call("calc", 0)]

    assert fork_of(calls, [call("look", text="other"), *calls[1:]]) == {1: 1, 2: 2, 3: 3}


def test_a_new_read_in_front_of_an_equal_one_leaves_it_its_output() -> None:
    calls = [call("calc"), call("look"), call("mail", 1)]

    assert fork_of(calls, [call("look"), call("calc"), call("look"), call("mail", 2)]) == {1: 0, 2: 1, 3: 2}


def test_several_new_steps_leave_equal_reads_in_their_order() -> None:
    calls = [call("look"), call("look"), call("mail", 0), call("mail", 1)]
    new = [call("calc", text="x"), calls[0], call("calc", text="y"), calls[1], call("mail", 1), call("mail", 3)]

    assert fork_of(calls, [*new, call("calc", text="z")]) == {1: 0, 3: 1, 4: 2, 5: 3}


def test_what_was_made_from_another_reading_of_the_same_is_not_taken_over() -> None:
    calls = [call("look"), call("calc"), call("look"), call("put", 2), call("calc", 2, text="b")]

    assert fork_of(calls, [calls[0], calls[1], call("put", 0), call("calc", 0, text="b")]) == {0: 0, 1: 1}


def test_a_read_after_an_edited_write_looks_again_and_one_before_it_does_not() -> None:
    calls = [call("look"), call("put"), call("look"), call("calc", 2), call("calc", 0)]

    assert fork_of(calls, [calls[0], call("put", text="other"), *calls[2:]]) == {0: 0, 4: 4}


@pytest.mark.parametrize("change", ["removed", "moved"])
def test_a_write_that_is_gone_or_stands_elsewhere_changes_the_world(change: str) -> None:
    calls = [call("put"), call("calc"), call("look"), call("mail")]
    new = [calls[1], calls[2], calls[3]] if change == "removed" else [calls[1], calls[2], calls[0], calls[3]]

    taken = fork_of(calls, new)

    assert taken == ({0: 1} if change == "removed" else {0: 1, 2: 0, 3: 3})


def test_steps_may_change_their_places() -> None:
    calls = [call("look", text="a"), call("calc", text="b"), call("calc", 0, 1)]

    assert fork_of(calls, [calls[1], calls[0], call("calc", 1, 0)]) == {0: 1, 1: 0, 2: 2}


def test_only_what_has_succeeded_is_taken_over() -> None:
    calls = [call("look"), call("calc", 0), call("calc")]

    assert fork_of(calls, calls, 1) == {0: 0, 2: 2}
    assert fork_of(calls, calls, 0, 1, 2) == {}


def test_a_pure_step_takes_over_from_any_that_is_equal() -> None:
    calls = [call("calc"), call("calc")]

    assert fork_of(calls, [*calls, call("calc")], 0) == {0: 1, 1: 1, 2: 1}


def test_a_read_that_was_made_once_is_not_the_output_of_two() -> None:
    assert fork_of([call("look")], [call("look"), call("calc"), call("look")]) == {0: 0}


def test_a_removed_explicit_order_runs_what_must_now_wait_for_a_write_that_runs() -> None:
    calls = [call("put"), call("look", depends_on=[]), call("calc", 1)]
    ordered = [call("put"), call("look"), call("calc", 1)]

    assert fork_of(calls, calls, 0) == {1: 1, 2: 2}
    assert fork_of(calls, ordered, 0) == {}
    assert fork_of(calls, ordered) == {0: 0, 1: 1, 2: 2}


def test_waiting_for_a_write_that_runs_through_others_is_waiting_for_it() -> None:
    calls = [call("put"), call("look", depends_on=[]), call("look", text="b", depends_on=[])]

    assert fork_of(calls, [call("put"), call("look"), call("look", text="b", depends_on=[1])], 0) == {}


def test_order_retries_and_time_outs_are_not_what_a_step_does() -> None:
    calls = [call("look"), call("mail", retries=0), call("calc")]
    new = [
        call("look", depends_on=[], retries=5),
        call("mail", timeout_seconds=1.0),
        call("calc", depends_on=[0, 1]),
    ]

    assert fork_of(calls, new) == {0: 0, 1: 1, 2: 2}


def doubts(calls: Sequence[Call], edited: Sequence[Call], *doubtful: int) -> dict[int, int]:
    source = [
        SourceStep(step.tool_name, step.effect, step.arguments, False, step.index in doubtful)
        for step in compiled(calls)
    ]
    return in_doubt(source, compiled(edited))


@given(plans(), st.data())
def test_what_would_have_been_taken_over_had_it_succeeded_is_in_doubt_if_it_is_unsafe(
    calls: list[Call], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(calls)))
    new = [
        *calls[:place],
        call(data.draw(st.sampled_from(sorted(TOOLS))), text="new"),
        *shifted(calls[place:], place, 1),
    ]
    doubtful = data.draw(st.sets(st.integers(0, len(calls) - 1)))

    found = doubts(calls, new, *doubtful)

    taken = fork_of(calls, new)
    hypothetical = {index: own for index, own in taken.items() if own in doubtful}
    assert (
        found.items()
        >= {i: own for i, own in hypothetical.items() if EFFECTS[new[i]["tool_name"]] is Effect.UNSAFE}.items()
    )
    assert set(found.values()) <= doubtful
    assert {new[index]["tool_name"] for index in found} <= {"mail"}
    assert len(set(found.values())) == len(found)


def test_an_unsafe_call_is_in_doubt_though_what_it_refers_to_would_be_made_anew() -> None:
    calls = [call("look"), call("mail", 0), call("mail", 0, text="b")]

    # Equal by content: `from_step`, which would run all of them again, plays no part.
    assert doubts(calls, calls, 1) == {1: 1}
    assert doubts(calls, [call("look", text="other"), *calls[1:]], 1) == {}
    assert doubts(calls, calls[:1], 1) == {}


SAME = [
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    (1.0, 1),
    (-0.0, 0),
    ("$0.output.a[0].b", "$step[0].output.a.0.b"),
    ("{{ $0.output.a }}!", "{{$00.output.a}}!"),
    (r"\{{ x", "{{ x"),
]
DIFFERENT = [
    (True, 1),
    ("1", 1),
    (None, ""),
    ([], {}),
    ([1, 2], [2, 1]),
    ([["a", 1]], {"a": 1}),
    (["object", ["a", 1]], {"a": 1}),
    (1e300, 10**300),
    ("$0.output.a", "{{ $0.output.a }}"),
    ("$0.output.a", "$0.output.b"),
    (["value", "x", "a"], "$0.output.a"),
    ("{{ $0.output.a }}!", "{{ $0.output.a }} !"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_arguments_that_mean_the_same_are_the_same(one: Any, other: Any) -> None:
    calls = [call("look"), call("mail", text=one)]

    assert fork_of(calls, [calls[0], call("mail", text=other)]) == {0: 0, 1: 1}


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_arguments_that_differ_in_type_value_or_place_are_not(one: Any, other: Any) -> None:
    calls = [call("look"), call("mail", text=one)]

    assert fork_of(calls, [calls[0], call("mail", text=other)]) == {0: 0}


def test_a_tool_whose_class_changed_is_judged_by_what_it_is_now() -> None:
    calls = [call("mail"), call("look")]
    # The mail ran when its tool was still declared `pure`; the caller of `reusable` gives the class of today.
    source = ran(calls)

    assert reusable(source, compiled(calls)) == {0: 0, 1: 1}
    assert reusable(source, compiled([call("mail", text="other"), call("look")])) == {}


@pytest.mark.whole
def test_ten_thousand_steps_are_compared_in_seconds() -> None:
    calls = [call("look")] + [call("calc" if i % 3 else "mail", i, text=i) for i in range(9_999)]
    source, steps = ran(calls), compiled(calls)
    edited = compiled([call("look", text="other"), *calls[1:]])

    begun = time.process_time()
    assert len(reusable(source, steps)) == len(calls)
    assert reusable(source, edited) == {}
    assert time.process_time() - begun < 20  # of CPU: the machine may be busy with others
