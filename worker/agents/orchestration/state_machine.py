"""The states of an orchestration: the table of cases/fsm_transitions.json (docs/decisions.md, D16).

    pending -start_plan-> planning -planner_finished-> dispatching -dispatch_step-> awaiting_results
    awaiting_results -step_succeeded | parallel_complete-> merging -planner_finished-> dispatching …
    merging -parallel_complete-> completed;  step_failed, timeout, panic -> failed;  validation_failed -> failed

The steps of an orchestration are rows in the database, so the machine decides nothing: every process derives the same
numbered transitions from the phases of the steps (`transitions_of`). The store appends those with a new number, so
each transition is published once, no matter which process dies. `timeout` and `panic` do fire here: for an agent that
ran out of time, and for a fault of planq or of a tool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from planq.shared.agentic.orchestration.plan import OrchestrationEvent, StepType


class State(StrEnum):
    PENDING = "pending"
    PLANNING = "planning"
    DISPATCHING = "dispatching"
    AWAITING_RESULTS = "awaiting_results"
    MERGING = "merging"
    COMPLETED = "completed"
    FAILED = "failed"


ALIASES: Mapping[str, State] = {
    "plan_init": State.PENDING,
    "planner_active": State.PLANNING,
    "plan_validated": State.DISPATCHING,
    "dispatching_step": State.DISPATCHING,
    "awaiting_results": State.AWAITING_RESULTS,
    "merging_results": State.MERGING,
    "completed": State.COMPLETED,
    "failed": State.FAILED,
}
"""The published names of the states; `plan_validated` has no state of its own here."""

_PUBLISHED: Mapping[State, str] = {state: name for name, state in ALIASES.items()}


class StepPhase(StrEnum):
    UNREACHED = "unreached"
    DISPATCHED = "dispatched"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    PANICKED = "panicked"


@dataclass(frozen=True, slots=True)
class StepProgress:
    id: str
    type: StepType
    phase: StepPhase


@dataclass(frozen=True, slots=True)
class StateTransition:
    """The `number`-th transition of an orchestration, counted from 0; `step_id` is empty for one of no step."""

    number: int
    event: OrchestrationEvent
    source: State
    target: State
    step_id: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the form in the job's event stream; `aliases` are the published names of source and target."""
        is_planned = self.source is State.PLANNING and self.target is not State.FAILED
        shown = {
            "n": self.number,
            "event": self.event.value,
            "source": self.source.value,
            "target": self.target.value,
            "aliases": [_PUBLISHED[self.source], "plan_validated" if is_planned else _PUBLISHED[self.target]],
        }
        return shown | ({"step_id": self.step_id} if self.step_id else {})


class UnknownEvent(ValueError):
    """There is no event of this name."""


class InvalidEvent(ValueError):
    """The event means nothing in the present state."""


_Event = OrchestrationEvent
_ENDS = {_Event.STEP_FAILED: State.FAILED, _Event.TIMEOUT: State.FAILED, _Event.PANIC: State.FAILED}

_TRANSITIONS: Mapping[State, Mapping[OrchestrationEvent, State]] = {
    State.PENDING: {_Event.START_PLAN: State.PLANNING},
    State.PLANNING: {_Event.PLANNER_FINISHED: State.DISPATCHING, _Event.VALIDATION_FAILED: State.FAILED},
    State.DISPATCHING: {
        _Event.DISPATCH_STEP: State.AWAITING_RESULTS,
        _Event.PARALLEL_COMPLETE: State.COMPLETED,
        **_ENDS,
    },
    State.AWAITING_RESULTS: {_Event.STEP_SUCCEEDED: State.MERGING, _Event.PARALLEL_COMPLETE: State.MERGING, **_ENDS},
    State.MERGING: {_Event.PLANNER_FINISHED: State.DISPATCHING, _Event.PARALLEL_COMPLETE: State.COMPLETED},
    State.COMPLETED: {},
    State.FAILED: {},
}

_FAILURES: Mapping[StepPhase, OrchestrationEvent] = {
    StepPhase.FAILED: _Event.STEP_FAILED,
    StepPhase.TIMED_OUT: _Event.TIMEOUT,
    StepPhase.PANICKED: _Event.PANIC,
}


def next_state(state: State, event: str) -> State:
    """Return the state that an event leads to; raises `UnknownEvent` or `InvalidEvent`."""
    if event not in frozenset(OrchestrationEvent):
        raise UnknownEvent(f"unknown event {event!r}; expected one of {', '.join(OrchestrationEvent)}")
    target = _TRANSITIONS[state].get(OrchestrationEvent(event))
    if target is None:
        raise InvalidEvent(f"the event {event!r} means nothing in the state {state.value!r}")
    return target


def transitions_of(
    steps: Sequence[StepProgress], *, is_valid: bool = True, is_over: bool = False
) -> list[StateTransition]:
    """Return an orchestration's transitions from the phases of its steps; `is_over`: no step is to come."""
    made: list[StateTransition] = []
    state = State.PENDING

    def send(event: OrchestrationEvent, step_id: str = "") -> None:
        nonlocal state
        source, state = state, next_state(state, event)
        made.append(StateTransition(len(made), event, source, state, step_id))

    send(_Event.START_PLAN)
    send(_Event.PLANNER_FINISHED if is_valid else _Event.VALIDATION_FAILED)
    for step in steps if is_valid else ():
        if step.phase is StepPhase.UNREACHED:
            break
        if state is State.MERGING:
            send(_Event.PLANNER_FINISHED, step.id)
        send(_Event.DISPATCH_STEP, step.id)
        if step.phase in _FAILURES:
            send(_FAILURES[step.phase], step.id)
        elif step.phase is StepPhase.SUCCEEDED:
            send(_Event.STEP_SUCCEEDED if step.type is StepType.AGENT else _Event.PARALLEL_COMPLETE, step.id)
        if step.phase is not StepPhase.SUCCEEDED:
            break
    if is_over and state is State.MERGING:
        send(_Event.PARALLEL_COMPLETE)
    return made
