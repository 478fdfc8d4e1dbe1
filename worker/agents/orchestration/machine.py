"""The state machine of an orchestration: the table of cases/fsm_transitions.json (docs/decisions.md, D16).

    pending -start_plan-> planning -planner_finished-> dispatching -dispatch_step-> awaiting_results
    awaiting_results -step_succeeded | parallel_complete-> merging -planner_finished-> dispatching …
    merging -parallel_complete-> completed;  step_failed, timeout, panic -> failed;  validation_failed -> failed

The steps of an orchestration are rows in the database, so the machine decides nothing: it is driven through what has
happened (`Progress`), by every process that looks, and always comes to the same numbered transitions. Whoever stores
them appends those with a number not yet there, so each is told once whatever dies in between. `timeout` and `panic`
do fire here: for an agent that ran out of time, and for a fault of planq or of a tool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from worker.agents.orchestration.progress import Outcome, Progress, State, Transition
from worker.agents.orchestration.words import Event, StepType


class UnknownEvent(ValueError):
    """There is no event of this name."""


class InvalidEvent(ValueError):
    """The event means nothing in the present state."""


class Observer(Protocol):
    """Is told of every transition, in this order; what it raises is raised to whoever sent the event."""

    def before_event(self, event: Event, source: State, target: State) -> None:
        """The event is accepted; the machine still stands in `source`."""
        ...

    def enter_state(self, event: Event, source: State, target: State) -> None:
        """The machine has entered `target`."""
        ...

    def after_event(self, event: Event, source: State, target: State) -> None:
        """The transition is over."""
        ...


_TRANSITIONS: Mapping[State, Mapping[Event, State]] = {
    State.PENDING: {Event.START_PLAN: State.PLANNING},
    State.PLANNING: {Event.PLANNER_FINISHED: State.DISPATCHING, Event.VALIDATION_FAILED: State.FAILED},
    State.DISPATCHING: {
        Event.DISPATCH_STEP: State.AWAITING_RESULTS,
        Event.PARALLEL_COMPLETE: State.COMPLETED,
        Event.STEP_FAILED: State.FAILED,
        Event.TIMEOUT: State.FAILED,
        Event.PANIC: State.FAILED,
    },
    State.AWAITING_RESULTS: {
        Event.STEP_SUCCEEDED: State.MERGING,
        Event.PARALLEL_COMPLETE: State.MERGING,
        Event.STEP_FAILED: State.FAILED,
        Event.TIMEOUT: State.FAILED,
        Event.PANIC: State.FAILED,
    },
    State.MERGING: {Event.PLANNER_FINISHED: State.DISPATCHING, Event.PARALLEL_COMPLETE: State.COMPLETED},
    State.COMPLETED: {},
    State.FAILED: {},
}


class Machine:
    """One machine, standing in `state`; observers hear of every transition."""

    def __init__(self, observers: Iterable[Observer] = (), *, state: State = State.PENDING) -> None:
        self.state = state
        self._observers = tuple(observers)

    def send(self, event: str) -> State:
        """Carry out the event and return the state it leads to; raises `UnknownEvent` or `InvalidEvent`."""
        if event not in _EVENTS:
            raise UnknownEvent(f"unknown event {event!r}; expected one of {', '.join(Event)}")
        known, source = Event(event), self.state
        target = _TRANSITIONS[source].get(known)
        if target is None:
            raise InvalidEvent(f"the event {event!r} means nothing in the state {source.value!r}")
        for one in self._observers:
            one.before_event(known, source, target)
        self.state = target
        for one in self._observers:
            one.enter_state(known, source, target)
        for one in self._observers:
            one.after_event(known, source, target)
        return target


_EVENTS = frozenset(Event)

_FAILURES: Mapping[Outcome, Event] = {
    Outcome.FAILED: Event.STEP_FAILED,
    Outcome.TIMED_OUT: Event.TIMEOUT,
    Outcome.PANICKED: Event.PANIC,
}


class _Recorder:
    def __init__(self) -> None:
        self.step_id = ""
        self.transitions: list[Transition] = []

    def before_event(self, event: Event, source: State, target: State) -> None: ...

    def enter_state(self, event: Event, source: State, target: State) -> None: ...

    def after_event(self, event: Event, source: State, target: State) -> None:
        self.transitions.append(Transition(len(self.transitions), event, source, target, self.step_id))


def follow(steps: Sequence[Progress], *, is_valid: bool = True, is_over: bool = False) -> list[Transition]:
    """Return the transitions that an orchestration has made, given how far its steps have come, in plan order.

    `is_over` says that no step is to come any more, so that a last success completes the plan. A plan that is not
    valid has no steps. Steps after one that has not succeeded are not looked at: nothing of them was begun.
    """
    recorder = _Recorder()
    machine = Machine([recorder])
    machine.send(Event.START_PLAN)
    if not is_valid:
        machine.send(Event.VALIDATION_FAILED)
        return recorder.transitions
    machine.send(Event.PLANNER_FINISHED)
    for step in steps:
        recorder.step_id = step.id
        if step.outcome is Outcome.UNREACHED:
            break
        if machine.state is State.MERGING:
            machine.send(Event.PLANNER_FINISHED)
        machine.send(Event.DISPATCH_STEP)
        if step.outcome is Outcome.DISPATCHED:
            break
        if step.outcome in _FAILURES:
            machine.send(_FAILURES[step.outcome])
            break
        machine.send(Event.STEP_SUCCEEDED if step.type is StepType.AGENT else Event.PARALLEL_COMPLETE)
    recorder.step_id = ""
    if is_over and machine.state is State.MERGING:
        machine.send(Event.PARALLEL_COMPLETE)
    return recorder.transitions
