"""The words of orchestrations: kinds of steps, strategies, events. Below everything that reads or publishes them.

The order of the names is that of messages and of published schemas.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class StepType(StrEnum):
    """What a step calls."""

    AGENT = "agent"
    PARALLEL = "parallel"


COLLECT_ALL: Final = "collect_all"
"""An accepted alias of `collect`, the default strategy (docs/decisions.md, D13)."""


class MergeStrategy(StrEnum):
    """What becomes of the outputs of a group (docs/decisions.md, D13)."""

    COLLECT = "collect"
    FIRST_SUCCESS = "first_success"
    BEST_EFFORT = "best_effort"

    @classmethod
    def _missing_(cls, value: object) -> MergeStrategy | None:
        return cls.COLLECT if value == COLLECT_ALL else None


class Event(StrEnum):
    """What happens to an orchestration (docs/decisions.md, D16)."""

    START_PLAN = "start_plan"
    PLANNER_FINISHED = "planner_finished"
    VALIDATION_FAILED = "validation_failed"
    DISPATCH_STEP = "dispatch_step"
    STEP_SUCCEEDED = "step_succeeded"
    STEP_FAILED = "step_failed"
    PARALLEL_COMPLETE = "parallel_complete"
    TIMEOUT = "timeout"
    PANIC = "panic"


TYPES: Final = tuple(kind.value for kind in StepType)
STRATEGIES: Final = (MergeStrategy.COLLECT.value, COLLECT_ALL, *(one.value for one in list(MergeStrategy)[1:]))
EVENTS: Final = tuple(event.value for event in Event)
