"""How long work that a fault interrupted lay still. Pure; the times come from the database's events.

**Recovery time** of an interrupted attempt: from the moment at which the fault was dealt, to the first of these in
the job's events, after the start of the interrupted attempt:

- a later attempt at the same step (or stage) started: the work is running again;
- the step, or the job, ended: succeeded, failed for good (`outcome_unknown` among them), skipped, cancelled, expired.

An attempt is interrupted when it was running, as the database told right after the fault, on a process that was
killed (SIGKILL: worker, child of a worker) or frozen for longer than its lease (SIGSTOP). For a child of a `cpu`
worker the ledger tells which attempts ran in it. The time for which PostgreSQL itself was down, restarted by another
fault, does not count: nobody can go on then, however soon the lease had run out.

**Gap** of an attempt that a stopping worker gave back (SIGTERM): from its `step_released` to its next start. An
attempt that ended within the drain has no gap.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

STEP_ENDS = frozenset({"step_succeeded", "step_failed", "step_asking"})
JOB_ENDS = frozenset({"job_completed", "job_failed", "job_cancelled", "plan_expired"})
STAGE_ENDS = frozenset({"plan_accepted", "plan_refused", "guide_failed"})

AT_ONCE_SECONDS = 1.0
"""A claim that was under way when a job was paused may still be told after the pause."""


@dataclass(frozen=True, slots=True)
class Happened:
    """One row of `events`; `at` in seconds since 1970."""

    sequence: int
    job: str
    kind: str
    data: Mapping[str, Any]
    at: float


@dataclass(frozen=True, slots=True)
class Interruption:
    """An attempt that a fault cut off at `at`; a stage has no `index`."""

    job: str
    index: int | None
    attempt: int
    at: float
    fault: str


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of seconds, by nearest rank; all None when there is nothing to rank."""

    count: int
    p50: float | None
    p95: float | None
    maximum: float | None

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Spread:
        """Rank some durations."""
        ranked = sorted(seconds)
        if not ranked:
            return cls(0, None, None, None)
        at = [ranked[math.ceil(share * len(ranked)) - 1] for share in (0.5, 0.95)]
        return cls(len(ranked), round(at[0], 3), round(at[1], 3), round(ranked[-1], 3))


def recovery_seconds(
    interruption: Interruption, history: Sequence[Happened], outages: Sequence[tuple[float, float]] = ()
) -> float | None:
    """Return the recovery time of an interrupted attempt, None when it never went on.

    `history` are the events of its job in order; `outages` say when the database was down (from, to), in order.
    """
    begun = False
    for event in history:
        if not begun:
            begun = _starts(event, interruption) == interruption.attempt
        elif _goes_on(event, interruption):
            down = sum(max(0.0, min(end, event.at) - max(start, interruption.at)) for start, end in outages)
            return max(0.0, event.at - interruption.at - down)
    return None


def _starts(event: Happened, interruption: Interruption) -> int | None:
    """Return the number of the attempt at this step or stage that the event begins, None for other events."""
    if interruption.index is None:
        return event.data["attempt"] if event.kind == "stage_started" else None
    if event.kind == "step_started" and event.data["index"] == interruption.index:
        attempt: int = event.data["attempt"]
        return attempt
    return None


def _goes_on(event: Happened, interruption: Interruption) -> bool:
    later = _starts(event, interruption)
    if later is not None:
        return later > interruption.attempt
    if event.kind in JOB_ENDS:
        return True
    if interruption.index is None:
        return event.kind in STAGE_ENDS
    return event.kind in STEP_ENDS and event.data["index"] == interruption.index


def gaps(histories: Iterable[Sequence[Happened]]) -> list[float]:
    """Return the gap of every step that was given back and started again."""
    found = []
    for history in histories:
        released: dict[int, float] = {}
        for event in history:
            if event.kind == "step_released":
                released[event.data["index"]] = event.at
            elif event.kind == "step_started" and event.data["index"] in released:
                found.append(max(0.0, event.at - released.pop(event.data["index"])))
    return found


def successes(histories: Iterable[Sequence[Happened]]) -> dict[str, tuple[int, float]]:
    """Return for every step that succeeded, by idempotency key: the attempt that did, and when."""
    found: dict[str, tuple[int, float]] = {}
    for history in histories:
        for event in history:
            if event.kind == "step_succeeded":
                found.setdefault(f"{event.job}/{event.data['index']}", (event.data["attempt"], event.at))
    return found


def started_after_success(histories: Iterable[Sequence[Happened]]) -> list[str]:
    """Return the idempotency keys of steps that started again after they had succeeded."""
    found = set()
    for history in histories:
        done: set[int] = set()
        for event in history:
            if event.kind == "step_succeeded":
                done.add(event.data["index"])
            elif event.kind == "step_started" and event.data["index"] in done:
                found.add(f"{event.job}/{event.data['index']}")
    return sorted(found)


def unrecorded_calls(history: Sequence[Happened], recorded: int) -> int:
    """Return how many model calls of a job that has ended are accounted for by nothing.

    Each attempt at a stage makes one call. It is among the `recorded` ones, or was lost with the attempt, which was
    then taken from its worker or given back.
    """
    begun = sum(event.kind == "stage_started" for event in history)
    released = sum(event.kind == "stage_released" for event in history)
    return max(0, begun - released - recorded)


def started_while_paused(histories: Iterable[Sequence[Happened]]) -> list[str]:
    """Return the idempotency keys of steps that started while their job was paused."""
    found = set()
    for history in histories:
        paused_at: float | None = None
        for event in history:
            if event.kind == "job_paused":
                paused_at = event.at
            elif event.kind in JOB_ENDS or event.kind == "job_resumed":
                paused_at = None
            elif event.kind == "step_started" and paused_at is not None and event.at > paused_at + AT_ONCE_SECONDS:
                found.add(f"{event.job}/{event.data['index']}")
    return sorted(found)
