"""What becomes of the outputs of agents: merged within a group, bound to names for later steps.

The strategies and the bindings are those of docs/decisions.md, D13 and D14:

    collect        {result_key: output} of the children; one failure fails the group, and nothing of it is bound
    first_success  the output of the first child that succeeded; the others are not needed any more
    best_effort    as collect, of whichever succeeded; never fails

Cases orchestrate_engine, `merge` and `parallel_status`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from worker.agents.orchestration.words import MergeStrategy


class Status(StrEnum):
    """How a step or an agent came out, as it is published; `partial` is a group's alone.

    An agent that was not needed any more, or never begun, is skipped.
    """

    SUCCESS = "success"
    FAILED = "failed"
    PARTIAL = "partial"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class ChildResult:
    """How one agent of a group came out; `order` grows with the moment it ended."""

    status: Status
    result_key: str = ""
    output: Any = None
    order: float = 0.0


def group_status(statuses: Sequence[str], strategy: MergeStrategy = MergeStrategy.COLLECT) -> Status:
    """Return the status of a group: all, none or some succeeded; of `first_success` one is all it takes."""
    succeeded = sum(status == Status.SUCCESS for status in statuses)
    if succeeded and (succeeded == len(statuses) or strategy is MergeStrategy.FIRST_SUCCESS):
        return Status.SUCCESS
    return Status.PARTIAL if succeeded else Status.FAILED


def is_failure(status: Status, strategy: MergeStrategy) -> bool:
    """True when a group that came out so halts its plan (docs/decisions.md, D7, D13)."""
    return status is not Status.SUCCESS and strategy is not MergeStrategy.BEST_EFFORT


def first_success(children: Sequence[ChildResult]) -> ChildResult | None:
    """Return the child that succeeded first, None when none did; of two at the same moment the earlier one."""
    return min((one for one in children if one.status is Status.SUCCESS), key=lambda one: one.order, default=None)


def merge(strategy: MergeStrategy, children: Sequence[ChildResult]) -> Any:
    """Return the output of a group; null for `first_success` where none did."""
    if strategy is MergeStrategy.FIRST_SUCCESS:
        winner = first_success(children)
        return None if winner is None else winner.output
    return {
        one.result_key: one.output
        for one in children
        if one.result_key and one.status is Status.SUCCESS and one.output is not None
    }


def bound(
    bindings: Mapping[str, Any], strategy: MergeStrategy, children: Sequence[ChildResult], group_key: str = ""
) -> dict[str, Any]:
    """Return `bindings` with what a group adds to them; precondition: the group did not fail.

    Children without a key or an output add nothing; the group's own key is set even to an empty object.
    """
    counted = children
    if strategy is MergeStrategy.FIRST_SUCCESS:
        winner = first_success(children)
        counted = [] if winner is None else [winner]
    keyed = merge(MergeStrategy.COLLECT, counted)
    return {**bindings, **keyed, **({group_key: merge(strategy, children)} if group_key else {})}
