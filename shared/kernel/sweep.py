"""What the sweeper needs: finding what was lost or is due, and putting it right, fenced like every transition."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

from planq.shared.kernel.ids import Attempt, StepRef
from planq.shared.kernel.job_store import Consequence, TransitionResult
from planq.shared.kernel.questions import StepQuestion
from planq.shared.kernel.retry import RetryTerms
from planq.shared.kernel.states import Effect, JobStatus, Pool, Recovery, WakeQueue
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.errors import ErrorRecord


class LossKind(StrEnum):
    """The evidence that an attempt has lost its worker."""

    LEASE = "lease"  # the worker's lease ended, or was given up
    GONE = "gone"  # the worker's process has gone
    ABANDONED = "abandoned"  # the worker lives and let go of it: the process of it that ran the step died, say


@dataclass(frozen=True, slots=True)
class Standing:
    """What the answer to a heartbeat says: whether the worker `holds` attempts, and who is `alive`, itself included.

    Those are in the order of their ids, each with `id`, `pools` and `only_priority`.
    """

    holds: bool
    alive: Sequence[Mapping[str, Any]]


class LocalPeers(Protocol):
    """The machine on which this process runs, as far as it can see the others there."""

    @property
    def place(self) -> str | None:
        """The beginning of the `process` of each worker that it can see; None when it sees nobody."""
        ...

    def has_gone(self, process: str) -> bool:
        """True when a process is certain to do nothing any more, nor what it has forked; False when in doubt."""
        ...


@dataclass(frozen=True, slots=True)
class LostStep:
    """A running step whose worker's lease has ended (`is_worker_lost`), or whose deadline passed unenforced.

    `company` is how many attempts were in flight in that worker, this one included.
    """

    ref: StepRef
    attempt: int
    effect: Effect
    tries: int
    retry: RetryTerms
    worker_losses: int
    tool_name: str
    timeout_seconds: float
    is_worker_lost: bool
    recovery: Recovery = Recovery.FAIL
    in_doubt: bool = False
    seen: LossKind = LossKind.LEASE
    company: int = 1


@dataclass(frozen=True, slots=True)
class LostStage:
    """A PLAN or RESPOND stage whose worker's lease has ended, or that has taken longer than any stage can.

    `company` as of a `LostStep`.
    """

    job_id: UUID
    status: JobStatus
    attempt: int
    losses: int
    is_worker_lost: bool = True
    seen: LossKind = LossKind.LEASE
    company: int = 1


@dataclass(frozen=True, slots=True)
class DueTimer:
    """A waiting step whose timer has run out."""

    ref: StepRef
    attempt: int


@dataclass(frozen=True, slots=True)
class ExpiredPlan:
    """An executing job whose plan has used up its time; of its steps some wait for the `awaited_tools`."""

    job_id: UUID
    plan_timeout_seconds: float
    awaited_tools: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class MissedTool:
    """A step that has waited for `seconds`, as long as it may, for a worker of its pool that has its tool."""

    ref: StepRef
    attempt: int
    tool_name: str
    pool: Pool
    seconds: float


@dataclass(frozen=True, slots=True)
class ExpiredJob:
    """An unfinished job that has used up its time: that in the queue when it `is_queued`, else the whole.

    It `is_awaited` where its end is to be served at once (`SweepStore.serve_ends`).
    """

    job_id: UUID
    is_queued: bool
    limit_seconds: float
    is_awaited: bool = False


class SweepPart(StrEnum):
    """What a sweep may have to do beside its duties: the method of `SweepStore` in the comment finds it."""

    TIMERS = "timers"  # due_timers
    STEPS = "steps"  # lost_steps
    STAGES = "stages"  # lost_stages
    PLANS = "plans"  # expired_plans
    JOBS = "jobs"  # expired_jobs
    ENDS = "ends"  # unserved_ends
    WINDOWS = "windows"  # open_windows
    TOOLS = "tools"  # wake_offered, missed_tools
    WAKES = "wakes"  # take_due_wakes
    SUSPECTS = "suspects"  # JobStore.claim_suspects, by a worker in quarantine


@dataclass(frozen=True, slots=True)
class Due:
    """What one look found: parts and duties with something to do, queues whose work was published and is not claimed.

    `next_in` is when the next job or plan runs out of time, None where that is not soon. `peers` are the processes of
    workers in the place that was asked for, as text, whose leases nobody has ended.
    """

    parts: Collection[str]
    unclaimed: Collection[WakeQueue]
    next_in: timedelta | None = None
    peers: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What one pass of a duty has led to: how many things it did, which jobs it ended, and whom to wake.

    `goes_on`: there may be more to do, so the next pass should not wait for its turn.
    """

    count: int = 0
    ended: Sequence[UUID] = ()
    wakes: Sequence[Wake] = ()
    goes_on: bool = False


class SweepDuty(Protocol):
    """What a sweep does for a subject that stands on jobs, and of which the engine knows nothing else."""

    @property
    def part(self) -> str:
        """The part of a look that says whether there is something to do."""
        ...

    async def carry_out(self, limit: int) -> SweepResult:
        """Do a part of it, at most `limit` things; every write is guarded, for others may be at it too.

        Raises `DatabaseUnavailable`.
        """
        ...


class SweepStore(Protocol):
    """The sweeper's side of the store. Finding is bounded by `limit`; acting is guarded and may not land.

    All methods raise `DatabaseUnavailable`.
    """

    async def look(self, deadline_grace: timedelta, ahead: timedelta, place: str | None = None) -> Due:
        """Return what there is to do, in one round trip: at rest, nothing. `ahead` is what counts as soon.

        `unclaimed` are the queues with work that was published a while ago, is not yet due again, and is unclaimed.
        `peers` are those of workers that say they run in `place`; none where that is None.
        """
        ...

    async def end_lease(self, process: str) -> str | None:
        """End the lease of the worker whose process has gone; return its name, None when it was ended before.

        What it held is lost from then on, and found by `look`. To end it twice does no harm.
        """
        ...

    async def take_due_wakes(self, limit: int, empty: Collection[WakeQueue] = ()) -> Sequence[Wake]:
        """Return wake-ups that are due and were not claimed; each is due again later, twice as long each time.

        In the queues `empty`, which hold nothing, what was published a while ago has got lost: it is due now.
        """
        ...

    async def with_jobs(self, wakes: Sequence[Wake]) -> Sequence[Wake]:
        """Return wake-ups, in their order, with the priorities, the agents and the roots of their jobs."""
        ...

    async def return_wakes(self, wakes: Sequence[Wake]) -> None:
        """Make wake-ups that the broker did not take due at once, as if they had not been taken."""
        ...

    async def lost_steps(self, limit: int, deadline_grace: timedelta) -> Sequence[LostStep]:
        """Return running steps whose worker is lost, or whose deadline passed `deadline_grace` ago unenforced.

        Who was in flight with whom in lost workers is noted before, once for each attempt.
        """
        ...

    async def take_back_step(
        self, step: LostStep, error: ErrorRecord, retry_in: timedelta | None, *, in_doubt: bool = False
    ) -> TransitionResult:
        """Fail or retry a lost attempt; a worker that did finish meanwhile wins. `in_doubt` as in `fail_step`.

        The loss is charged to a step that was alone. A second one in a row puts it in quarantine: it is claimed next
        by `JobStore.claim_suspects`, or by any worker after half an hour in vain.
        """
        ...

    async def ask_lost_step(self, step: LostStep, question: StepQuestion, error: ErrorRecord) -> bool:
        """Let a lost step wait for a person, as long as its job allows; True when it applied."""
        ...

    async def lost_stages(self, limit: int) -> Sequence[LostStage]:
        """Return stages whose worker is lost, or holds them for longer than any stage can take; as `lost_steps`."""
        ...

    async def take_back_stage(self, stage: LostStage) -> bool:
        """Free a stage, as `take_back_step` does a step; True when it applied."""
        ...

    async def fail_stage(self, stage: LostStage, error: ErrorRecord) -> bool:
        """Fail a job whose stage keeps losing its workers; True when it applied."""
        ...

    async def due_timers(self, limit: int) -> Sequence[DueTimer]:
        """Return waiting steps whose timer has run out."""
        ...

    async def fire_timer(self, timer: DueTimer) -> TransitionResult:
        """Let the step succeed with the output it was suspended with."""
        ...

    async def expired_plans(self, limit: int) -> Sequence[ExpiredPlan]:
        """Return executing jobs whose plan has used up its time."""
        ...

    async def expire_plan(self, plan: ExpiredPlan, error: ErrorRecord) -> JobStatus | None:
        """Fail what has begun or could have, skip the rest; returns the stage that opens, None: it did not apply."""
        ...

    async def wake_offered(self, limit: int) -> int:
        """Make steps due whose tool no live worker had, and one has now; return how many."""
        ...

    async def missed_tools(self, limit: int) -> Sequence[MissedTool]:
        """Return steps that have waited for their tools for as long as they may."""
        ...

    async def miss_tool(self, step: MissedTool, error: ErrorRecord) -> TransitionResult:
        """Fail a step that waits for its tool; no attempt is used up."""
        ...

    async def expired_jobs(self, limit: int) -> Sequence[ExpiredJob]:
        """Return unfinished jobs that have used up their time."""
        ...

    async def expire_job(self, job: ExpiredJob, error: ErrorRecord) -> Sequence[UUID]:
        """Fail the job and cancel its child jobs; returns all that ended by it, none when it did not land."""
        ...

    async def unserved_ends(self, limit: int, besides: Collection[UUID] = ()) -> Sequence[Sequence[UUID]]:
        """Return jobs whose ends nobody was served with, but for `besides`, as sets for `serve_ends`."""
        ...

    async def serve_ends(self, jobs: Sequence[UUID]) -> Consequence:
        """Serve whoever waits for these jobs, as `JobStore.serve_end`; several of them are lines of batches."""
        ...

    async def open_windows(self, limit: int) -> int:
        """Let steps follow that are held in jobs whose windows have room, and make them due; return how many."""
        ...

    async def tidy(self) -> None:
        """Remove what nobody refers to any more, of all subjects: their statements that begin with `tidy_`."""
        ...


@dataclass(frozen=True, slots=True)
class HeldAttempt:
    """An attempt that a worker holds in the database: `effect` is None for a stage, `again` wakes the next one.

    `releases` counts the attempts before it that used up no retry; 0 for a stage.
    """

    attempt: Attempt
    effect: Effect | None
    again: Wake
    releases: int = 0


@dataclass(frozen=True, slots=True)
class RemovalBatch:
    """The count of rows that one batch removed; `kind` is the status of the jobs, or a table. Never 0."""

    kind: str
    count: int


class RetentionStore(Protocol):
    """Jobs that have ended, and the large values that nobody refers to any more."""

    def remove(self) -> AsyncIterator[RemovalBatch]:
        """Remove what has been kept for long enough, oldest first, each batch bounded and committed by itself.

        Ends when nothing is left to remove, or others are at it. The caller sets the pace. Raises `Unavailable`
        when the database or an object store does not answer; what was yielded is done.
        """
        ...
