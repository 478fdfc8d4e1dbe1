"""Workers and their leases, and the queries of the sweeper. Database time decides everywhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from uuid import UUID

from shared.domain.errors import ErrorRecord
from shared.domain.ids import StepRef
from shared.domain.states import Effect, JobStatus, Lane
from shared.domain.tool import ToolDefinition
from shared.ports import DueTimer, ExpiredPlan, LostStage, LostStep, Moved, PlanWake, RespondWake, StepWake, Wake
from shared.store.database import Database, Row, as_json, json_text
from shared.store.rows import moved


class _Silence:
    """How long this process could not beat itself, and for how long that still counts.

    After such a gap perhaps nobody could: the leases of others get as much time again before they are judged, or the
    first worker to reach a database that was away would take everybody for dead.
    """

    def __init__(self, lease_seconds: float, clock: Callable[[], float]) -> None:
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._beat_at: float | None = None  # a process that has never beaten has missed none
        self._gap_seconds = 0.0
        self._gap_until = 0.0

    def beat(self) -> None:
        """Take note of a heartbeat that landed."""
        now = self._clock()
        if self._beat_at is not None and now - self._beat_at > self._lease_seconds:
            self._gap_seconds, self._gap_until = now - self._beat_at, now + self._lease_seconds
        self._beat_at = now

    @property
    def seconds(self) -> float:
        """Return by how much to lengthen the leases of others."""
        now = self._clock()
        if self._beat_at is not None and now - self._beat_at > self._lease_seconds:
            return now - self._beat_at
        return self._gap_seconds if now < self._gap_until else 0.0


class Fleet:
    """The worker processes as the database knows them, and what they may have left behind."""

    def __init__(self, database: Database, lease: timedelta, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` (seconds, monotonic) only measures this process's own silence; database time decides the rest."""
        self._database = database
        self._lease_seconds = lease.total_seconds()
        self._silence = _Silence(self._lease_seconds, clock)

    async def register(
        self, worker_id: UUID, name: str, lanes: Sequence[Lane], tools: Sequence[str], capacity: int, version: str
    ) -> None:
        """Announce a worker process, or refresh what it offers."""
        await self._database.execute(
            "register_worker",
            id=worker_id,
            name=name,
            lanes=[str(lane) for lane in lanes],
            tools=list(tools),
            capacity=capacity,
            version=version,
        )

    async def heartbeat(self, worker_id: UUID, lag: timedelta) -> bool:
        """Renew a lease; False when the worker's row is gone, so that its lease cannot be renewed any more."""
        row = await self._database.fetch_one("heartbeat", id=worker_id, lag_ms=round(lag.total_seconds() * 1000))
        self._silence.beat()
        return row is not None

    async def forget(self, worker_id: UUID) -> None:
        """Give a lease up at once."""
        await self._database.execute("forget_worker", id=worker_id)

    async def disown(self, worker_id: UUID, ref: StepRef, attempt: int) -> bool:
        """Say that the process of this worker that ran an attempt has died; False when that attempt does not run."""
        touched = await self._database.execute(
            "disown_step", job_id=ref.job_id, round=ref.round, index=ref.index, attempt=attempt, worker_id=worker_id
        )
        return touched == 1

    async def live(self) -> Sequence[Row]:
        """Return the workers whose lease is alive."""
        return await self._database.fetch_all("live_workers", lease_seconds=self._lease_seconds)

    async def publish_tools(self, tenant_id: str, definitions: Sequence[ToolDefinition]) -> None:
        """Put tool definitions where the API and the planner read them; idempotent."""
        tools = [{"name": d.name, "definition": json_text(d.model_dump(mode="json"))} for d in definitions]
        await self._database.execute("publish_tools", tenant_id=tenant_id, tools=as_json(tools))

    async def unfinished(self) -> Sequence[Row]:
        """Return counts (kind, status, n) of what is not finished."""
        return await self._database.fetch_all("count_unfinished")

    async def broken_invariants(self, limit: int = 100) -> Sequence[Row]:
        """Return rows (invariant, job_id, step_index) of what must never be; reads the whole history.

        `running_without_lease` is expected between the death of a worker and the next sweep, nothing else ever is.
        """
        return await self._database.fetch_all("broken_invariants", lease_seconds=self._lease_seconds, limit=limit)

    # The sweeper: port `SweepStore` -------------------------------------------------------------------------------

    async def take_due_wakes(self, limit: int) -> Sequence[Wake]:
        return [_wake(row) for row in await self._database.call_table("planq_take_due_wakes", limit)]

    async def return_wakes(self, wakes: Sequence[Wake]) -> None:
        stages = [wake.job_id for wake in wakes if not isinstance(wake, StepWake)]
        refs = [wake.ref for wake in wakes if isinstance(wake, StepWake)]
        steps = [{"job_id": str(ref.job_id), "round": ref.round, "index": ref.index} for ref in refs]
        await self._database.execute("return_wakes", stages=stages, steps=as_json(steps))

    async def lost_steps(self, limit: int, deadline_grace: timedelta) -> Sequence[LostStep]:
        rows = await self._database.fetch_all(
            "lost_steps",
            lease_seconds=self._lease_seconds + self._silence.seconds,
            deadline_grace_seconds=deadline_grace.total_seconds(),
            limit=limit,
        )
        return [_lost_step(row) for row in rows]

    async def take_back_step(self, step: LostStep, error: ErrorRecord, retry_in: timedelta | None) -> Moved:
        value = await self._database.call(
            "planq_finish_step",
            step.ref.job_id,
            step.ref.round,
            step.ref.index,
            step.attempt,
            False,
            None,
            as_json(error.to_json()),
            retry_in,
            step.is_worker_lost,
            None,
        )
        return moved(value)

    async def lost_stages(self, limit: int) -> Sequence[LostStage]:
        lease_seconds = self._lease_seconds + self._silence.seconds
        rows = await self._database.fetch_all("lost_stages", lease_seconds=lease_seconds, limit=limit)
        return [
            LostStage(row["job_id"], JobStatus(row["status"]), row["stage_attempt"], row["stage_losses"])
            for row in rows
        ]

    async def take_back_stage(self, stage: LostStage) -> bool:
        landed: bool = await self._database.call("planq_release_stage", stage.job_id, stage.attempt, True)
        return landed

    async def fail_stage(self, stage: LostStage, error: ErrorRecord) -> bool:
        landed: bool = await self._database.call(
            "planq_end_job", stage.job_id, stage.attempt, "failed", None, as_json(error.to_json()), None
        )
        return landed

    async def due_timers(self, limit: int) -> Sequence[DueTimer]:
        rows = await self._database.fetch_all("due_timers", limit=limit)
        return [DueTimer(_ref(row), row["attempt"]) for row in rows]

    async def fire_timer(self, timer: DueTimer) -> Moved:
        ref = timer.ref
        return moved(await self._database.call("planq_fire_timer", ref.job_id, ref.round, ref.index, timer.attempt))

    async def expired_plans(self, limit: int) -> Sequence[ExpiredPlan]:
        rows = await self._database.fetch_all("expired_plans", limit=limit)
        return [ExpiredPlan(row["job_id"], row["plan_timeout_seconds"]) for row in rows]

    async def expire_plan(self, plan: ExpiredPlan, error: ErrorRecord) -> bool:
        landed: bool = await self._database.call("planq_expire_plan", plan.job_id, as_json(error.to_json()))
        return landed

    async def tidy(self) -> None:
        await self._database.execute("forget_dead_workers")
        await self._database.execute("retire_tools", lease_seconds=self._lease_seconds)


def _ref(row: Row) -> StepRef:
    return StepRef(row["job_id"], row["round"], row["index"])


def _lost_step(row: Row) -> LostStep:
    return LostStep(
        ref=_ref(row),
        attempt=row["attempt"],
        effect=Effect(row["effect"]),
        tries=row["attempt"] - row["worker_losses"] - row["releases"],
        retries=row["retries"],
        worker_losses=row["worker_losses"],
        tool_name=row["tool_name"],
        timeout_seconds=row["timeout_seconds"],
        is_worker_lost=row["is_worker_lost"],
    )


def _wake(row: Row) -> Wake:
    attempt = row["attempt"] + 1
    if row["kind"] == "plan":
        return PlanWake(row["job_id"], attempt)
    if row["kind"] == "respond":
        return RespondWake(row["job_id"], attempt)
    return StepWake(_ref(row), Lane(row["lane"]), row["tool_name"], attempt)
