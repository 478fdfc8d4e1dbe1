"""When a job's attempts waited for a worker, ran, or waited for something else.

Times are seconds of one clock; work in progress ends at `now`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

_LEAST_FOLD_SECONDS = 1.0
_FOLD_SHARE = 0.25
"""Idle time is folded if it exceeds a second and this share of all running time."""

_MOST_FOLDS = 8
_FOLD_WIDTH = 0.03

_WAITS = frozenset({"step_waiting", "step_asking", "step_delegated", "step_awaits_tool"})
_QUEUES = frozenset({"step_retrying", "step_released", "step_settled", "step_gathered"})
_ENDS = frozenset({"step_succeeded", "step_failed", "step_skipped", "step_cancelled"})
_CUTS = _ENDS | _WAITS | {"step_retrying", "step_released"}
_STAGE_ENDS = frozenset(
    {
        *("plan_accepted", "plan_refused", "stage_retrying", "stage_released", "stage_deferred"),
        "job_paused",
        *("job_completed", "job_failed", "job_cancelled"),
    }
)


class PhaseKind(StrEnum):
    """An attempt waits for a worker, runs, or waits for a time, a person or child jobs."""

    QUEUE = "queue"
    RUN = "run"
    WAIT = "wait"


class JobMoment(NamedTuple):
    """An event of a job or step; `stage` began then, `worker` claimed the attempt."""

    kind: str
    at: float
    step: int | None = None
    attempt: int = 0
    stage: str = ""
    error: str | None = None
    worker: str | None = None


class AttemptPhase(NamedTuple):
    """A phase of an attempt."""

    kind: PhaseKind
    attempt: int
    begin: float
    end: float


class AttemptSpan(NamedTuple):
    """One try of a step: times, outcome (None while it runs), error code, worker."""

    number: int
    begin: float
    end: float | None
    came_to: str | None
    error: str | None
    worker: str | None = None


class Scale(NamedTuple):
    """A line of the length 1; `folds` are spans (begin, end) drawn short."""

    first: float
    last: float
    folds: tuple[tuple[float, float], ...]

    @property
    def folded_seconds(self) -> float:
        return sum(end - begin for begin, end in self.folds)

    def place(self, at: float) -> float:
        """Return a moment's place from 0 to 1."""
        room = 1.0 - _FOLD_WIDTH * len(self.folds)
        drawn = max(self.last - self.first - self.folded_seconds, 1e-6)
        shown, passed = min(max(at, self.first), self.last) - self.first, 0.0
        for begin, end in self.folds:
            if at <= begin:
                break
            share = min(at - begin, end - begin)
            shown -= share
            passed += _FOLD_WIDTH * share / (end - begin)
        return passed + room * shown / drawn


def step_phases(
    ready_at: float | None, moments: Iterable[JobMoment], now: float, *, is_over: bool
) -> list[AttemptPhase]:
    """Return the phases of a step from `ready_at` on; one that `is_over` ends with its last phase."""
    phases: list[AttemptPhase] = []
    kind: PhaseKind | None = None if ready_at is None else PhaseKind.QUEUE
    begin, attempt = ready_at or 0.0, 0
    for moment in moments:
        following = _following(moment.kind)
        if following is None and moment.kind not in _ENDS:
            continue
        if kind is not None and moment.at > begin:
            phases.append(AttemptPhase(kind, attempt, begin, moment.at))
        attempt = moment.attempt if moment.kind == "step_started" else attempt
        kind, begin = following, moment.at
    if kind is not None and not is_over and now > begin:
        phases.append(AttemptPhase(kind, attempt, begin, now))
    return phases


def _following(kind: str) -> PhaseKind | None:
    if kind == "step_started":
        return PhaseKind.RUN
    if kind in _WAITS:
        return PhaseKind.WAIT
    return PhaseKind.QUEUE if kind in _QUEUES else None


def step_attempts(moments: Iterable[JobMoment]) -> list[AttemptSpan]:
    found: list[AttemptSpan] = []
    for moment in moments:
        if moment.kind == "step_started":
            if found and found[-1].number == moment.attempt:
                found[-1] = found[-1]._replace(end=None, came_to=None, worker=moment.worker)
            else:
                found.append(AttemptSpan(moment.attempt, moment.at, None, None, None, moment.worker))
        elif found and moment.kind in _CUTS:
            found[-1] = found[-1]._replace(end=moment.at, came_to=moment.kind, error=moment.error)
    return found


def stage_phases(moments: Sequence[JobMoment], now: float, *, is_over: bool) -> list[tuple[str, AttemptPhase]]:
    """Return the named runs of a job's stages, in order."""
    found: list[tuple[str, AttemptPhase]] = []
    stage, attempt, begin = "", 0, 0.0
    for moment in moments:
        if stage and (moment.kind in _STAGE_ENDS or moment.stage):
            found.append((stage, AttemptPhase(PhaseKind.RUN, attempt, begin, moment.at)))
            stage = ""
        if moment.kind == "stage_started":
            stage, attempt, begin = moment.stage, moment.attempt, moment.at
    if stage and not is_over:
        found.append((stage, AttemptPhase(PhaseKind.RUN, attempt, begin, now)))
    return found


def critical_path(graph: Sequence[Sequence[int]], ends: Sequence[float | None]) -> list[int]:
    """Return the steps that decided the last end, each after the one it waited for longest.

    `graph` lists each step's dependencies, `ends` their ends, None if not run.
    """
    at = max(
        (step for step, end in enumerate(ends) if end is not None), key=lambda one: ends[one] or 0.0, default=None
    )
    found: list[int] = []
    while at is not None and len(found) < len(graph):  # a cycle, which no plan that ran has, ends too
        found.append(at)
        before = [one for one in graph[at] if ends[one] is not None]
        at = max(before, key=lambda one: ends[one] or 0.0, default=None)
    return found[::-1]


def scale_of(spans: Iterable[tuple[float, float]], first: float, last: float) -> Scale:
    """Return a line with the longest gaps between busy `spans` folded."""
    gaps: list[tuple[float, float]] = []
    reached, busy = first, 0.0
    for begin, end in sorted(spans):
        if begin > reached:
            gaps.append((reached, begin))
        busy += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    if last > reached:
        gaps.append((reached, last))
    least = max(_LEAST_FOLD_SECONDS, _FOLD_SHARE * busy)
    longest = sorted((gap for gap in gaps if gap[1] - gap[0] > least), key=lambda gap: gap[0] - gap[1])[:_MOST_FOLDS]
    return Scale(first, last, tuple(sorted(longest)))
