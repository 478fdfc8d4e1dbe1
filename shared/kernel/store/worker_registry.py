"""Workers and their leases, and the queries of the sweeper. Database time decides everywhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from planq.shared.kernel.claims import OfferedTool
from planq.shared.kernel.ids import PLAN, RESPOND, Attempt, StepRef
from planq.shared.kernel.job_store import Consequence, TransitionResult
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.questions import StepQuestion
from planq.shared.kernel.schema_version import functions_schema
from planq.shared.kernel.states import (
    STAGES,
    Effect,
    JobStatus,
    Pool,
    Priority,
    WakeQueue,
)
from planq.shared.kernel.store.codec import (
    question_text,
    suspects_of,
    transition_result,
)
from planq.shared.kernel.store.ends import serve_ends
from planq.shared.kernel.sweep import (
    Due,
    DueTimer,
    ExpiredJob,
    ExpiredPlan,
    HeldAttempt,
    LostStage,
    LostStep,
    MissedTool,
    Standing,
)
from planq.shared.kernel.wakes import TaskLinks, Wake
from planq.shared.platform.database import QUERIES, Database, Row, as_json, json_text, record
from planq.shared.platform.errors import ErrorRecord


class WorkerRegistry:
    """The worker processes as the database knows them, and what they may have left behind."""

    def __init__(
        self,
        database: Database,
        lease: timedelta,
        margin: timedelta = timedelta(0),
        clock: Callable[[], float] = time.monotonic,
        *,
        tool_wait: timedelta = timedelta(minutes=10),
    ) -> None:
        """`clock` (seconds, monotonic) only measures this process's own silence; database time decides the rest.

        `margin` is how long after its time-out a call of a lost worker counts as one that may still act. A step waits
        for `tool_wait` for a worker that has its tool.
        """
        self._database = database
        self._margin_seconds = margin.total_seconds()
        self._lease_seconds = lease.total_seconds()
        self._tool_wait_seconds = tool_wait.total_seconds()
        self._silence = Silence(self._lease_seconds, clock)

    async def register(
        self,
        worker_id: UUID,
        name: str,
        pools: Sequence[Pool],
        tools: Iterable[OfferedTool],
        capacity: int,
        version: str,
        *,
        process: str | None = None,
        has_processes: bool = False,
        bulk_capacity: int | None = None,
        planners: Sequence[str] | None = None,
        provides: Sequence[str] = (),
        only: Priority | None = None,
        left_out: Sequence[str] = (),
    ) -> None:
        """Announce a worker process, or refresh its tools; `process` tells others on its machine which it is.

        It claims steps of these tools alone; one that names none claims any step.

        Bulk work takes at most `bulk_capacity` of its capacity; None: all of it. With `only` it serves that priority
        alone. `planners` are those that are
        installed there; None where it plans nothing. One that `has_processes` runs each step in one of its own.
        `left_out` says in sentences which tools of MCP servers it does not offer, and why. `provides` is what its own
        configuration gives it and others may lack.
        """
        await self._database.execute(
            "register_worker",
            id=worker_id,
            name=name,
            pools=[str(pool) for pool in pools],
            tools=as_json([asdict(one) for one in tools]),
            lease_seconds=self._lease_seconds,
            capacity=capacity,
            bulk_capacity=capacity if bulk_capacity is None else bulk_capacity,
            version=version,
            functions=self._database.functions or "",
            process=process,
            has_processes=has_processes,
            planners=None if planners is None else list(planners),
            provides=list(provides),
            only_priority=None if only is None else str(only),
            left_out=list(left_out) or None,
        )

    async def planners(self) -> Collection[str] | None:
        """Return the planners that workers alive have installed, by name; None while no such worker is there."""
        rows = await self._database.fetch_all("live_planners", lease_seconds=self._lease_seconds)
        return {name for row in rows for name in row["planners"]} if rows else None

    async def is_provided(self, what: str, pool: Pool, only: Priority | None = None) -> bool:
        """Return whether a live worker of `pool` provides `what`: one of all priorities, or of `only`."""
        given = {"pool": str(pool), "what": what, "only": None if only is None else str(only)}
        row = await self._database.fetch_one("is_provided", lease_seconds=self._lease_seconds, **given)
        return row is not None and bool(row["is_provided"])

    async def heartbeat(
        self,
        worker_id: UUID,
        lag: timedelta,
        *,
        in_flight: int = 0,
        late_outcomes: int = 0,
        counts: Any = None,
        missing: Sequence[str] = (),
    ) -> Standing | None:
        """Renew a lease and say how the worker fares: its loop's lag, its attempts, the outcomes that came too late.

        `counts` are totals since its start, `[[name, label, …, number], …]`; `missing` says in sentences what it
        needs and lacks. None when the worker's row is gone, so that its lease cannot be renewed any more.
        """
        row = await self._database.fetch_one(
            "heartbeat",
            id=worker_id,
            lag_ms=round(lag.total_seconds() * 1000),
            in_flight=in_flight,
            late_outcomes=late_outcomes,
            counts=as_json(counts),
            missing=list(missing) or None,
            lease_seconds=self._lease_seconds,
        )
        self._silence.beat()
        return None if row is None else Standing(row["holds"], row["alive"])

    async def held(self, worker_id: UUID) -> Sequence[HeldAttempt]:
        """Return the attempts that a worker holds: those that only it may conclude."""
        return [_held(row) for row in await self._database.fetch_all("held_work", id=worker_id)]

    async def hand_back(self, worker_id: UUID, held: HeldAttempt) -> Sequence[Wake]:
        """Give back an attempt that this worker owns, and that has not begun or may be repeated.

        A step after one that has failed for good is skipped instead. Returns what to publish, nothing if refused.
        """
        ref, number = held.attempt.ref, held.attempt.number
        if ref.is_stage:
            applied = await self._database.call("planq_release_stage", ref.job_id, number, False, worker_id)
            return [held.again] if applied else []
        given = ref.job_id, ref.round, ref.index, number, worker_id
        value = await self._database.call("planq_hand_back_step", *given)
        outcome = transition_result(value)
        again: list[Wake] = [held.again] if outcome.ready else []
        if outcome.job_status in STAGES:
            of_job = {"priority": held.again.priority, "links": held.again.links, "tenant": held.again.tenant}
            again.append(Wake.stage(ref.job_id, outcome.job_status, outcome.stage_attempt + 1, **of_job))
        return again

    async def unanswered_wakes(
        self, pool: Pool, idle: timedelta, settled: timedelta, only: Priority | None = None
    ) -> int:
        """Count the work of a pool (of one priority with `only`) that no worker claims though it was published again.

        The last time lies within `idle`, but longer ago than `settled`, which a wake-up takes to arrive.
        """
        row = await self._database.fetch_one(
            "unanswered_wakes",
            pool=str(pool),
            idle_seconds=idle.total_seconds(),
            settled_seconds=settled.total_seconds(),
            only=None if only is None else str(only),
        )
        return 0 if row is None else int(row["n"])

    async def forget(self, worker_id: UUID) -> None:
        await self._database.execute("forget_worker", id=worker_id)

    async def abandon(self, worker_id: UUID, attempt: Attempt) -> bool:
        """Let the next sweep take a step back as from a lost worker, because the process that ran it has died.

        False when that attempt does not run, or is one at a stage.
        """
        ref = attempt.ref
        if ref.is_stage:
            return False
        touched = await self._database.execute(
            "abandon_step",
            job_id=ref.job_id,
            round=ref.round,
            index=ref.index,
            attempt=attempt.number,
            worker_id=worker_id,
        )
        return touched == 1

    async def watch_steps(self, worker_id: UUID, ages: Mapping[Attempt, float]) -> int:
        """Let steps run on whose processes live, and that may take longer; returns how many there are.

        `ages` says of a worker's attempts for how many seconds they have run.
        """
        items = [
            {
                "job": str(attempt.job_id),
                "round": attempt.ref.round,
                "index": attempt.ref.index,
                "attempt": attempt.number,
                "age": age,
            }
            for attempt, age in ages.items()
            if not attempt.ref.is_stage
        ]
        row = await self._database.fetch_one("watch_steps", id=worker_id, items=as_json(items)) if items else None
        return 0 if row is None else int(row["watched"])

    async def enter_quarantine(self, worker_id: UUID, pool: Pool) -> bool:
        """Return whether suspects wait that this worker is to carry out, and nothing else, until it leaves.

        At most half of the pool's workers do so at a time.
        """
        enters: bool = await self._database.call("planq_enter_quarantine", str(pool), worker_id, self._lease_seconds)
        return enters

    async def leave_quarantine(self, worker_id: UUID) -> None:
        """Let other workers do that."""
        await self._database.execute("leave_quarantine", id=worker_id)

    async def live(self) -> Sequence[Row]:
        return await self._database.fetch_all("live_workers", lease_seconds=self._lease_seconds)

    async def differing_tools(self) -> Sequence[Row]:
        """Return the tools of live workers with different schemas, for each (name, digest, version, workers)."""
        return await self._database.fetch_all("differing_tools", lease_seconds=self._lease_seconds)

    async def has_our_functions(self) -> bool:
        """Return whether the database has this release's SQL functions; raises `DatabaseUnavailable`."""
        row = await self._database.fetch_one("has_functions", schema=self._database.functions or functions_schema())
        return row is not None and row["found"]

    async def awaited_tools(self) -> Sequence[Row]:
        """Return the tools for which steps wait that no live worker has: (name, pool, n, since), n of steps."""
        return await self._database.fetch_all("awaited_tools")

    async def publish_tools(self, documents: Sequence[Mapping[str, Any]]) -> None:
        """Put tool definitions, as JSON, where the API and the planner read them; idempotent."""
        tools = [{"name": document["name"], "definition": json_text(document)} for document in documents]
        await self._database.execute("publish_tools", tools=as_json(tools))

    async def unfinished(self) -> Sequence[Row]:
        """Return counts (kind, status, n) of what is not finished.

        Of the kind `bulk`: how many bulk jobs are `unfinished`, and their `window`, how many there may be now.
        """
        return await self._database.fetch_all("count_unfinished", lease_seconds=self._lease_seconds)

    async def ended(self) -> Mapping[str, int]:
        """Return how many jobs have ended with each `Outcome` since the tables were made; the number never falls."""
        return {row["outcome"]: row["n"] for row in await self._database.fetch_all("count_ended")}

    async def broken_invariants(self, limit: int = 100) -> Sequence[Row]:
        """Return rows (invariant, job_id, step_index) of what must never be; reads the whole history.

        `running_without_lease` is expected between the death of a worker and the next sweep, nothing else ever is; a
        call that may still act is waited for.
        """
        return await self._database.fetch_all(
            "broken_invariants",
            lease_seconds=self._lease_seconds,
            margin_seconds=self._margin_seconds,
            limit=limit,
        )

    # The sweeper: port `SweepStore` -------------------------------------------------------------------------------

    async def look(self, deadline_grace: timedelta, ahead: timedelta, place: str | None = None) -> Due:
        silence = self._silence.seconds
        rows = await self._database.fetch_all(
            "sweep_look",
            lease_seconds=self._lease_seconds + silence,
            deadline_grace_seconds=deadline_grace.total_seconds() + silence,
            ahead_seconds=ahead.total_seconds(),
            margin_seconds=self._margin_seconds,
            tool_wait_seconds=self._tool_wait_seconds,
            place=place,
        )
        next_in = min((row["seconds"] for row in rows if row["seconds"] is not None), default=None)
        return Due(
            parts={row["part"] for row in rows if row["pool"] is None and row["seconds"] is None},
            unclaimed={WakeQueue(row["pool"]) for row in rows if row["part"] == "unclaimed"},
            next_in=None if next_in is None else timedelta(seconds=next_in),
            peers={row["pool"] for row in rows if row["part"] == "peer"},
        )

    async def end_lease(self, process: str) -> str | None:
        row = await self._database.fetch_one("end_lease", process=process)
        return None if row is None else row["name"]

    async def take_due_wakes(self, limit: int, empty: Collection[WakeQueue] = ()) -> Sequence[Wake]:
        queues = [str(queue) for queue in empty]
        return [_wake(row) for row in await self._database.call_table("planq_take_due_wakes", limit, queues)]

    async def with_jobs(self, wakes: Sequence[Wake]) -> Sequence[Wake]:
        asked = [wake.job_id for wake in wakes]
        rows = await self._database.fetch_all("woken_jobs", ids=asked) if asked else ()
        jobs = {row["id"]: row for row in rows}
        return [_of_job(wake, jobs[wake.job_id]) if wake.job_id in jobs else wake for wake in wakes]

    async def return_wakes(self, wakes: Sequence[Wake]) -> None:
        stages = [wake.job_id for wake in wakes if wake.ref.is_stage]
        refs = [wake.ref for wake in wakes if not wake.ref.is_stage]
        steps = [{"job_id": str(ref.job_id), "round": ref.round, "index": ref.index} for ref in refs]
        await self._database.execute("return_wakes", stages=stages, steps=as_json(steps))

    async def lost_steps(self, limit: int, deadline_grace: timedelta) -> Sequence[LostStep]:
        # What ended while nobody reached the database is stored by its own worker first: the outcome waits there.
        silence = self._silence.seconds
        await self._note_suspects()
        rows = await self._database.fetch_all(
            "lost_steps",
            lease_seconds=self._lease_seconds + silence,
            deadline_grace_seconds=deadline_grace.total_seconds() + silence,
            margin_seconds=self._margin_seconds,
            limit=limit,
        )
        return [record(LostStep, row, ref=row) for row in rows]

    async def take_back_step(
        self, step: LostStep, error: ErrorRecord, retry_in: timedelta | None, *, in_doubt: bool = False
    ) -> TransitionResult:
        value = await self._database.call(
            "planq_take_back",
            json_text(
                {
                    "job": str(step.ref.job_id),
                    "round": step.ref.round,
                    "index": step.ref.index,
                    "attempt": step.attempt,
                    "error": json_text(error.to_json()),
                    "retry_in": None if retry_in is None else retry_in.total_seconds(),
                    "in_doubt": in_doubt,
                    "lost": step.is_worker_lost and step.company == 1,
                }
            ),
        )
        return transition_result(value)

    async def ask_lost_step(self, step: LostStep, question: StepQuestion, error: ErrorRecord) -> bool:
        ref = step.ref
        applied: bool = await self._database.call(
            "planq_ask_step",
            ref.job_id,
            ref.round,
            ref.index,
            step.attempt,
            None,
            as_json(error.to_json()),
            question_text(new_id(), question),
            step.is_worker_lost and step.company == 1,
            "[]",
        )
        return applied

    async def lost_stages(self, limit: int) -> Sequence[LostStage]:
        lease_seconds = self._lease_seconds + self._silence.seconds
        await self._note_suspects()
        rows = await self._database.fetch_all("lost_stages", lease_seconds=lease_seconds, limit=limit)
        return [record(LostStage, row) for row in rows]

    async def _note_suspects(self) -> None:
        lease_seconds = self._lease_seconds + self._silence.seconds
        lost = await self._database.fetch_all("lost_attempts", lease_seconds=lease_seconds)
        if lost:
            await self._database.execute("note_suspects", suspects=as_json(suspects_of(lost)))

    async def take_back_stage(self, stage: LostStage) -> bool:
        item = {"job": str(stage.job_id), "index": -1, "attempt": stage.attempt, "lost": stage.company == 1}
        return bool((await self._database.call("planq_take_back", json_text(item)))["applied"])

    async def fail_stage(self, stage: LostStage, error: ErrorRecord) -> bool:
        failure = json_text(error.to_json())
        item = {"n": 0, "job": str(stage.job_id), "attempt": stage.attempt, "status": "failed", "error": failure}
        return bool(await self._database.call_table("planq_end_jobs", json_text([item]), None))

    async def due_timers(self, limit: int) -> Sequence[DueTimer]:
        rows = await self._database.fetch_all("due_timers", limit=limit)
        return [record(DueTimer, row, ref=row) for row in rows]

    async def fire_timer(self, timer: DueTimer) -> TransitionResult:
        ref = timer.ref
        return transition_result(
            await self._database.call("planq_fire_timer", ref.job_id, ref.round, ref.index, timer.attempt)
        )

    async def expired_plans(self, limit: int) -> Sequence[ExpiredPlan]:
        rows = await self._database.fetch_all("expired_plans", limit=limit)
        return [record(ExpiredPlan, row) for row in rows]

    async def expire_plan(self, plan: ExpiredPlan, error: ErrorRecord) -> JobStatus | None:
        status = await self._database.call("planq_expire_plan", plan.job_id, as_json(error.to_json()))
        return None if status is None else JobStatus(status)

    async def wake_offered(self, limit: int) -> int:
        return await self._database.execute("wake_offered", limit=limit)

    async def missed_tools(self, limit: int) -> Sequence[MissedTool]:
        rows = await self._database.fetch_all("missed_tools", limit=limit, tool_wait_seconds=self._tool_wait_seconds)
        return [record(MissedTool, row, ref=row) for row in rows]

    async def miss_tool(self, step: MissedTool, error: ErrorRecord) -> TransitionResult:
        item = {
            "job": str(step.ref.job_id),
            "round": step.ref.round,
            "index": step.ref.index,
            "attempt": step.attempt,
            "error": json_text(error.to_json()),
            "unoffered": True,
        }
        (row,) = await self._database.fetch_all("miss_tool", item=json_text(item))
        return transition_result(row["result"])

    async def expired_jobs(self, limit: int) -> Sequence[ExpiredJob]:
        return [record(ExpiredJob, row) for row in await self._database.fetch_all("expired_jobs", limit=limit)]

    async def expire_job(self, job: ExpiredJob, error: ErrorRecord) -> Sequence[UUID]:
        ended = await self._database.call("planq_expire_job", job.job_id, job.is_queued, as_json(error.to_json()))
        return ended or ()

    async def unserved_ends(self, limit: int, besides: Collection[UUID] = ()) -> Sequence[Sequence[UUID]]:
        rows = await self._database.fetch_all("unserved_ends", limit=limit, besides=list(besides))
        return [row["jobs"] for row in rows]

    async def serve_ends(self, jobs: Sequence[UUID]) -> Consequence:
        return await serve_ends(self._database, jobs)

    async def open_windows(self, limit: int) -> int:
        followed: int = await self._database.call("planq_open_windows", limit)
        return followed

    async def tidy(self) -> None:
        for name in QUERIES:
            if name.startswith("tidy_"):
                await self._database.execute(name, lease_seconds=self._lease_seconds)


def _ref(row: Row) -> StepRef:
    return StepRef(row["job_id"], row["round"], row["index"])


def _of_job(wake: Wake, row: Row) -> Wake:
    """Return a wake-up with what its job adds: the priority, the agent, the root, the tenant."""
    name = row["agent_name"] if wake.ref.is_stage else wake.name
    return replace(wake, name=name, **_job_fields(row))


def _job_fields(row: Row) -> dict[str, Any]:
    links = None if row["root_job_id"] is None else TaskLinks.below(row["root_job_id"])
    return {"priority": Priority(row["priority"]), "links": links, "tenant": row["tenant_id"]}


def _held(row: Row) -> HeldAttempt:
    ref, number = _ref(row), row["attempt"]
    effect = None if row["effect"] is None else Effect(row["effect"])
    again = Wake(ref, Pool(row["pool"]), row["name"], number + 1, **_job_fields(row))
    return HeldAttempt(Attempt(ref, number), effect, again, row["releases"])


_STAGES = {"plan": PLAN, "respond": RESPOND}


def _wake(row: Row) -> Wake:
    """Return the wake-up that a row of `planq_take_due_wakes` is."""
    attempt, again = row["attempt"] + 1, _job_fields(row)
    if (index := _STAGES.get(row["kind"])) is not None:
        return Wake(StepRef(row["job_id"], 0, index), name=row["agent_name"], attempt=attempt, **again)
    return Wake(_ref(row), Pool(row["pool"]), row["tool_name"], attempt, **again)


_NEW_SECONDS = 2.0
"""Twice what a worker that cannot reach the database pauses between two beats."""

_EVER_SECONDS = 86_400.0


class Silence:
    """How long this process could not beat itself, and for how long that still counts.

    After such a gap perhaps nobody could: the leases of others get as much time again before they are judged, or the
    first worker to reach a database that was away would take everybody for dead. A process that has just begun cannot
    know of a gap: it judges nobody before those who live have had time to beat.
    """

    def __init__(self, lease_seconds: float, clock: Callable[[], float]) -> None:
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._beat_at: float | None = None  # a process that has never beaten has missed none
        self._gap_seconds = 0.0
        self._gap_until = 0.0

    def beat(self) -> None:
        """Take note of a heartbeat that applied."""
        now = self._clock()
        if self._beat_at is None:
            self._gap_seconds, self._gap_until = _EVER_SECONDS, now + min(self._lease_seconds, _NEW_SECONDS)
        elif now - self._beat_at > self._lease_seconds:
            self._gap_seconds, self._gap_until = now - self._beat_at, now + self._lease_seconds
        self._beat_at = now

    @property
    def seconds(self) -> float:
        """Return by how much to lengthen the leases of others."""
        now = self._clock()
        if self._beat_at is not None and now - self._beat_at > self._lease_seconds:
            return now - self._beat_at
        return self._gap_seconds if now < self._gap_until else 0.0
