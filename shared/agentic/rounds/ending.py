"""When a job's loop of rounds ends without asking a model (docs/decisions.md, D29 to D34)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from planq.shared.agentic.rounds.guard import MODEL_SOURCE, is_stalled
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.states import StopReason, Strategy
from planq.shared.kernel.steps import RoundRecord


def limit_reached(
    strategy: Strategy, rounds: Sequence[RoundRecord], limits: Limits, time_left: timedelta | None
) -> StopReason | None:
    """Return why no further round may be planned, or None; `time_left` is None before the first round."""
    if is_stalled(rounds):
        return StopReason.STALLED
    if time_left is not None and time_left <= timedelta(0):
        return StopReason.TIMEOUT
    planned = planned_rounds(rounds)
    if strategy.is_by_turns and planned >= limits.max_tool_steps:
        return StopReason.MAX_TOOL_STEPS
    return StopReason.MAX_ROUNDS if planned >= limits.max_rounds else None


def planned_rounds(rounds: Sequence[RoundRecord]) -> int:
    """Return the number of rounds that the planner made, without those of callers and rules."""
    return sum(record.source == MODEL_SOURCE for record in rounds)


def rounds_left(strategy: Strategy, rounds: Sequence[RoundRecord], limits: Limits) -> int:
    """Return how many rounds may still be planned, including this one."""
    most = min(limits.max_rounds, limits.max_tool_steps) if strategy.is_by_turns else limits.max_rounds
    return max(most - planned_rounds(rounds), 0)


def time_for_steps(strategy: Strategy, limits: Limits) -> float:
    """Return the seconds for the steps of all rounds, from the acceptance of the first plan."""
    if not strategy.has_rounds:
        return limits.plan_timeout_seconds
    if strategy.is_by_turns:
        return min(limits.plan_timeout_seconds, limits.loop_timeout_seconds)
    return limits.loop_timeout_seconds


def abort_reason(rounds: Sequence[RoundRecord]) -> str | None:
    """Return why the last round's plan ends the job; None if it does not."""
    body = rounds[-1].plan if rounds else None
    calls = body.get("calls") if isinstance(body, Mapping) else None
    last = calls[-1] if calls else None
    if not isinstance(last, Mapping) or last.get("kind") != "abort":
        return None
    return str(last.get("reason") or "the plan ends the job")
