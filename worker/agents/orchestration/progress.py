"""How far an orchestration has come, in the words of its state machine: states, events, transitions.

The states are those of docs/decisions.md, D16. Plain data, apart from `machine.py`, which brings a library that only
processes with orchestrations under way need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from worker.agents.orchestration.words import Event, StepType


class State(StrEnum):
    """Where an orchestration stands."""

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


_PUBLISHED: Mapping[State, str] = {state: name for name, state in ALIASES.items()} | {
    State.DISPATCHING: "dispatching_step"
}


def state_named(name: str) -> State:
    """Return the state of this name, by either naming; raises `ValueError` for another."""
    return ALIASES[name] if name in ALIASES else State(name)


class Outcome(StrEnum):
    """How far one step has come."""

    UNREACHED = "unreached"
    DISPATCHED = "dispatched"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    PANICKED = "panicked"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a step has come: its id, its type and its outcome."""

    id: str
    type: StepType
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Transition:
    """The `number`-th transition of an orchestration, counted from 0; `step_id` is empty where it is about none."""

    number: int
    event: Event
    source: State
    target: State
    step_id: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return `{"n", "event", "source", "target", "aliases", "step_id"?}`, as the job's event stream shows it.

        `aliases` are source and target in the published names, in which planning leads to `plan_validated`.
        """
        target = "plan_validated" if self.source is State.PLANNING else _PUBLISHED[self.target]
        target = _PUBLISHED[self.target] if self.target is State.FAILED else target
        told = {
            "n": self.number,
            "event": self.event.value,
            "source": self.source.value,
            "target": self.target.value,
            "aliases": [_PUBLISHED[self.source], target],
        }
        return told | ({"step_id": self.step_id} if self.step_id else {})
