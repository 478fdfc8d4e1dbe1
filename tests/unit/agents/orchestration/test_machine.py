"""The state machine of orchestrations, beyond the table of the cases: observers, and progress that is read again."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.agents.orchestration.machine import Machine, follow
from worker.agents.orchestration.progress import ALIASES, Outcome, Progress, State, state_named
from worker.agents.orchestration.words import Event, StepType


class Listener:
    def __init__(self) -> None:
        self.heard: list[tuple[str, Event, State, State]] = []

    def before_event(self, event: Event, source: State, target: State) -> None:
        self.heard.append(("before", event, source, target))

    def enter_state(self, event: Event, source: State, target: State) -> None:
        self.heard.append(("enter", event, source, target))

    def after_event(self, event: Event, source: State, target: State) -> None:
        self.heard.append(("after", event, source, target))


def test_observers_hear_of_a_transition_before_on_entering_and_after_it() -> None:
    listener = Listener()
    machine = Machine([listener])

    machine.send("start_plan")

    told = (Event.START_PLAN, State.PENDING, State.PLANNING)
    assert listener.heard == [("before", *told), ("enter", *told), ("after", *told)]


def test_observers_hear_nothing_of_an_event_that_is_refused() -> None:
    listener = Listener()
    machine = Machine([listener], state=State.COMPLETED)

    with pytest.raises(ValueError, match="means nothing in the state 'completed'"):
        machine.send("start_plan")

    assert (listener.heard, machine.state) == ([], State.COMPLETED)


def test_every_published_name_means_a_state_and_so_does_every_real_one() -> None:
    assert {state_named(name) for name in ALIASES} == set(State)
    assert {state_named(state.value) for state in State} == set(State)


@pytest.mark.parametrize(
    ("outcome", "event"),
    [(Outcome.FAILED, "step_failed"), (Outcome.TIMED_OUT, "timeout"), (Outcome.PANICKED, "panic")],
)
@pytest.mark.parametrize("kind", list(StepType))
def test_every_way_to_fail_fires_its_own_event(kind: StepType, outcome: Outcome, event: str) -> None:
    last = follow([Progress("a", kind, outcome)], is_over=True)[-1]

    assert (last.event.value, last.target, last.step_id) == (event, State.FAILED, "a")


PLANS = st.lists(st.sampled_from(list(StepType)), min_size=1, max_size=5)


@settings(max_examples=30)
@given(PLANS, st.sampled_from([one for one in Outcome if one is not Outcome.UNREACHED]), st.data())
def test_what_was_told_is_told_the_same_way_later(kinds: list[StepType], end: Outcome, data: st.DataObject) -> None:
    reached = data.draw(st.integers(0, len(kinds) - 1))
    late = [
        Progress(str(n), kind, Outcome.SUCCEEDED if n < reached else end if n == reached else Outcome.UNREACHED)
        for n, kind in enumerate(kinds)
    ]
    earlier = [
        *[Progress(one.id, one.type, Outcome.SUCCEEDED) for one in late[:reached]],
        Progress(late[reached].id, late[reached].type, Outcome.DISPATCHED),
    ]

    before, after = follow(earlier), follow(late, is_over=True)

    assert after[: len(before)] == before
    assert [one.number for one in after] == list(range(len(after)))
    assert all(one.source is two.target for two, one in pairwise(after))
