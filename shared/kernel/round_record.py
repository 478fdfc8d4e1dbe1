"""A round of a job that is over, as its next planner sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planq.shared.kernel.steps import StepResult


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """A round: the plan as it was stored, and one result for each of its steps, in plan order.

    `source` is who made the plan (`caller`, `model`, `chained`). `plan` is its body, of which call i is the step
    `first_index` + i. `reply` is what the model said, with what its provider needs back (`reply_to_json`); None where
    no model made the plan. A step that was skipped has a result whose `code` is `skipped`, or, as the repetition of
    step N of the same plan, `duplicate_of` with `details` `{"step": N}`. A call that was blocked as a repetition has
    the code `duplicate_call_blocked`, and as `output` the last successful output of the same call. A plan that was
    refused has its defects as `errors`, and no results. `merged` are messages of its conversation that came while it
    ran. `memo` is what was computed from the record: a worker keeps the records of a loop from round to round.
    """

    number: int
    source: str
    plan: Any
    reply: Any
    first_index: int
    results: Sequence[StepResult]
    errors: Sequence[Mapping[str, Any]] = ()
    merged: Sequence[str] = ()
    memo: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
