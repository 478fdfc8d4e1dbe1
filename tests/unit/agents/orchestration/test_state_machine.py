"""The state machine of orchestrations, beyond the table of the cases: refused events, and progress read again."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planq.shared.agentic.orchestration.plan import StepType
from planq.worker.agents.orchestration.state_machine import (
    ALIASES,
    InvalidEvent,
    State,
    StepPhase,
    StepProgress,
    UnknownEvent,
    next_state,
    transitions_of,
)


def test_an_event_that_means_nothing_in_a_state_is_refused() -> None:
    with pytest.raises(InvalidEvent, match="means nothing in the state 'completed'"):
        next_state(State.COMPLETED, "start_plan")
    with pytest.raises(UnknownEvent, match="expected one of start_plan"):
        next_state(State.PENDING, "begin")


def test_a_transition_is_shown_in_both_namings() -> None:
    planned = transitions_of([], is_over=True)[-1].to_json()
    refused = transitions_of([], is_valid=False)[-1].to_json()

    assert (planned["target"], planned["aliases"]) == ("dispatching", ["planner_active", "plan_validated"])
    assert (refused["target"], refused["aliases"]) == ("failed", ["planner_active", "failed"])


def test_every_state_has_a_published_name() -> None:
    assert set(ALIASES.values()) == set(State)


@pytest.mark.parametrize(
    ("outcome", "event"),
    [(StepPhase.FAILED, "step_failed"), (StepPhase.TIMED_OUT, "timeout"), (StepPhase.PANICKED, "panic")],
)
@pytest.mark.parametrize("kind", list(StepType))
def test_every_way_to_fail_fires_its_own_event(kind: StepType, outcome: StepPhase, event: str) -> None:
    last = transitions_of([StepProgress("a", kind, outcome)], is_over=True)[-1]

    assert (last.event.value, last.target, last.step_id) == (event, State.FAILED, "a")


PLANS = st.lists(st.sampled_from(list(StepType)), min_size=1, max_size=5)


@settings(max_examples=30)
@given(PLANS, st.sampled_from([one for one in StepPhase if one is not StepPhase.UNREACHED]), st.data())
def test_what_was_told_is_told_the_same_way_later(kinds: list[StepType], end: StepPhase, data: st.DataObject) -> None:
    reached = data.draw(st.integers(0, len(kinds) - 1))
    late = [
        StepProgress(
            str(n), kind, StepPhase.SUCCEEDED if n < reached else end if n == reached else StepPhase.UNREACHED
        )
        for n, kind in enumerate(kinds)
    ]
    earlier = [
        *[StepProgress(one.id, one.type, StepPhase.SUCCEEDED) for one in late[:reached]],
        StepProgress(late[reached].id, late[reached].type, StepPhase.DISPATCHED),
    ]

    before, after = transitions_of(earlier), transitions_of(late, is_over=True)

    assert after[: len(before)] == before
    assert [one.number for one in after] == list(range(len(after)))
    assert all(one.source is two.target for two, one in pairwise(after))
