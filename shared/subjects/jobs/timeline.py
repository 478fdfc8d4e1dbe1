"""When the attempts of a job waited for a worker, ran, or waited for something else; and what took it so long.

Times are seconds of one clock. Nothing here looks at the clock: what is still under way ends at `now`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

_LEAST_FOLD_SECONDS = 1.0
_FOLD_SHARE = 0.25
"""Time in which nothing runs is folded where it is longer than a second and than this share of all that ran."""

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
    """What an attempt does: it waits for a worker, it runs, or it waits for a time, a person, child jobs."""

    QUEUE = "queue"
    RUN = "run"
    WAIT = "wait"


class JobMoment(NamedTuple):
    """An event of a job: of one of its steps, None for the job itself; `stage` where a stage began.

    `worker` is the id of who took an attempt over.
    """

    kind: str
    at: float
    step: int | None = None
    attempt: int = 0
    stage: str = ""
    error: str | None = None
    worker: str | None = None


class AttemptPhase(NamedTuple):
    """What an attempt did from `begin` to `end`."""

    kind: PhaseKind
    attempt: int
    begin: float
    end: float


class AttemptSpan(NamedTuple):
    """One try at a step: when, what it came to (None while it runs), its error's code, and the id of its worker."""

    number: int
    begin: float
    end: float | None
    came_to: str | None
    error: str | None
    worker: str | None = None


class Scale(NamedTuple):
    """Where moments stand on a line of the length 1; `folds` are spans of (begin, end) that are drawn short."""

    first: float
    last: float
    folds: tuple[tuple[float, float], ...]

    @property
    def folded_seconds(self) -> float:
        return sum(end - begin for begin, end in self.folds)

    def place(self, at: float) -> float:
        """Return where a moment stands, from 0 to 1."""
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
    """Return the phases of one step, from when it could have begun; `moments` are its own, in their order.

    A step that `is_over` without an event that says so, such as one that was cancelled, ends with its last phase.
    """
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
    """Return when the stages of a job ran, each with its name, the first one first."""
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
    """Return the steps that decided when the last one ended: before each stands the one it waited for longest.

    `graph` holds for each step those that it waits for, `ends` when each ended, None for one that has not run.
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
    """Return the line from `first` to `last` on which the longest spans are folded in which nothing runs.

    `spans` are those in which something does.
    """
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
