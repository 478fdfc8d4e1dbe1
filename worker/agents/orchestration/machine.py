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
from functools import cache
from typing import Any, Protocol

from statemachine import State as _State
from statemachine import StateMachine as _StateMachine
from statemachine.exceptions import TransitionNotAllowed

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


class _Table(_StateMachine):
    """The transitions, in the library's words."""

    pending = _State(value=State.PENDING, initial=True)
    planning = _State(value=State.PLANNING)
    dispatching = _State(value=State.DISPATCHING)
    awaiting_results = _State(value=State.AWAITING_RESULTS)
    merging = _State(value=State.MERGING)
    completed = _State(value=State.COMPLETED, final=True)
    failed = _State(value=State.FAILED, final=True)

    start_plan = pending.to(planning)
    planner_finished = planning.to(dispatching) | merging.to(dispatching)
    validation_failed = planning.to(failed)
    dispatch_step = dispatching.to(awaiting_results)
    step_succeeded = awaiting_results.to(merging)
    parallel_complete = awaiting_results.to(merging) | merging.to(completed) | dispatching.to(completed)
    step_failed = awaiting_results.to(failed) | dispatching.to(failed)
    timeout = awaiting_results.to(failed) | dispatching.to(failed)
    panic = awaiting_results.to(failed) | dispatching.to(failed)


class _Listening:
    """From the library's callbacks, found by their names, to those of an observer."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def before_transition(self, event: Any, source: _State, target: _State) -> None:
        self._observer.before_event(Event(str(event)), State(source.value), State(target.value))

    def on_enter_state(self, event: Any, source: _State | None, target: _State) -> None:
        if str(event) in _EVENTS and source is not None:  # the entry into the first state is nobody's event
            self._observer.enter_state(Event(str(event)), State(source.value), State(target.value))

    def after_transition(self, event: Any, source: _State, target: _State) -> None:
        self._observer.after_event(Event(str(event)), State(source.value), State(target.value))


_EVENTS = frozenset(Event)


class Machine:
    """One machine, standing in `state`; observers hear of every transition."""

    def __init__(self, observers: Iterable[Observer] = (), *, state: State = State.PENDING) -> None:
        self._table = _Table(start_value=state, listeners=[_Listening(one) for one in observers])

    @property
    def state(self) -> State:
        """Where the machine stands."""
        return State(self._table.current_state_value)

    def send(self, event: str) -> State:
        """Carry out the event and return the state it leads to; raises `UnknownEvent` or `InvalidEvent`."""
        if event not in _EVENTS:
            raise UnknownEvent(f"unknown event {event!r}; expected one of {', '.join(Event)}")
        # A machine of the library that has come to its end takes events without a word.
        if event not in _allowed(self.state):
            raise InvalidEvent(f"the event {event!r} means nothing in the state {self.state.value!r}")
        try:
            self._table.send(event)
        except TransitionNotAllowed as error:
            raise InvalidEvent(str(error)) from error
        return self.state


@cache
def _allowed(state: State) -> frozenset[str]:
    return frozenset(str(event) for event in _Table.states_map[state].transitions.unique_events)


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
