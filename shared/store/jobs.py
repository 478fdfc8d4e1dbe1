"""The engine's side of the store: the port `JobStore` over PostgreSQL, one statement and one commit a transition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from typing import Any
from uuid import UUID

from shared.domain.compile import PlannedStep
from shared.domain.errors import ErrorRecord, InternalFault
from shared.domain.excerpts import path_of
from shared.domain.ids import StepRef
from shared.domain.limits import Limits
from shared.domain.model import ModelCall, StepResult
from shared.domain.states import Effect, JobStatus, Lane, Recovery, StepStatus
from shared.domain.tool import ToolDefinition
from shared.ports import ArtifactRecord, Moved, PayloadRecord, ReusedStep, StageClaim, StepClaim, Take
from shared.store.database import Database, Row, as_json
from shared.store.rows import (
    CalledArguments,
    artifact_to_json,
    call_to_json,
    known_output,
    moved,
    payload_parameters,
    step_result,
    step_to_json,
)

_CATALOGUE_SECONDS = 2.0
"""How long a worker trusts its copy of the tool catalogue; a plan over a newer tool waits at most this long."""


class PostgresJobStore:
    """`JobStore` for one worker process, whose id it writes into every claim."""

    def __init__(self, database: Database, worker_id: UUID, stage_timeout: timedelta = timedelta(minutes=15)) -> None:
        """`stage_timeout` is more than any stage takes: what is claimed for longer is taken back from this worker."""
        self._database = database
        self._worker_id = worker_id
        self._stage_timeout = stage_timeout
        self._catalogue: dict[str, tuple[float, Mapping[str, ToolDefinition]]] = {}

    async def claim_stage(self, job_id: UUID, statuses: Sequence[JobStatus]) -> StageClaim | None:
        row = await self._database.fetch_one(
            "claim_stage",
            job_id=job_id,
            worker_id=self._worker_id,
            statuses=[str(s) for s in statuses],
            timeout_seconds=self._stage_timeout.total_seconds(),
        )
        return None if row is None else _stage_claim(row)

    async def accept_plan(
        self,
        claim: StageClaim,
        source: str,
        body: Any,
        steps: Sequence[PlannedStep],
        calls: Sequence[ModelCall],
        *,
        take: Take | None = None,
    ) -> Moved:
        value = await self._database.call(
            "planq_accept_plan",
            claim.job_id,
            claim.attempt,
            source,
            as_json(body),
            as_json([step_to_json(step, claim.reuse.get(step.index)) for step in steps]),
            timedelta(seconds=claim.limits.plan_timeout_seconds),
            as_json([call_to_json(call) for call in calls]),
        )
        if value.get("gone"):
            raise InternalFault("the job whose outcomes this fork takes over is gone; submit its plan as a new job")
        return await self._take(claim.job_id, claim.round, moved({"job_status": "executing", **value}), take)

    async def refuse_plan(
        self,
        claim: StageClaim,
        source: str,
        body: Any,
        errors: Sequence[Mapping[str, Any]],
        calls: Sequence[ModelCall],
        *,
        take: Take | None = None,
    ) -> Moved:
        landed: bool = await self._database.call(
            "planq_refuse_plan",
            claim.job_id,
            claim.attempt,
            source,
            as_json(body),
            as_json(list(errors)),
            as_json([call_to_json(call) for call in calls]),
        )
        if not landed:
            return Moved(False)
        refused = Moved(True, job_status=JobStatus.RESPONDING, stage_attempt=claim.attempt)
        return await self._take(claim.job_id, claim.round, refused, take)

    async def end_job(
        self,
        claim: StageClaim,
        status: JobStatus,
        answer: str | None,
        error: ErrorRecord | None,
        calls: Sequence[ModelCall],
    ) -> bool:
        landed: bool = await self._database.call(
            "planq_end_job",
            claim.job_id,
            claim.attempt,
            str(status),
            answer,
            as_json(error.to_json() if error else None),
            as_json([call_to_json(call) for call in calls]),
        )
        return landed

    async def release_stage(self, claim: StageClaim) -> bool:
        landed: bool = await self._database.call("planq_release_stage", claim.job_id, claim.attempt, False)
        return landed

    async def results(self, claim: StageClaim) -> Sequence[StepResult]:
        rows = await self._database.fetch_all("get_results", job_id=claim.job_id, round=claim.round)
        called = CalledArguments({r["index"]: known_output(r) for r in rows if r["status"] == StepStatus.SUCCEEDED})
        return [step_result(row, called) for row in rows]

    async def claim_step(self, ref: StepRef) -> StepClaim | None:
        row = await self._database.fetch_one(
            "claim_step", job_id=ref.job_id, round=ref.round, index=ref.index, worker_id=self._worker_id
        )
        return None if row is None else _step_claim(ref, row)

    async def claim_steps(self, refs: Sequence[StepRef]) -> Sequence[StepClaim]:
        if len({(ref.job_id, ref.round) for ref in refs}) > 1:
            raise ValueError("the steps to claim together belong to one round of one job")
        claims = [await self.claim_step(ref) for ref in sorted(refs, key=lambda ref: ref.index)]
        return [claim for claim in claims if claim is not None]

    async def succeed_step(
        self,
        claim: StepClaim,
        output: Any,
        artifact: ArtifactRecord | None,
        payload: PayloadRecord | None = None,
        *,
        take: Take | None = None,
    ) -> Moved:
        finished = await self._finish(claim, output=output, artifact=artifact, payload=payload)
        return await self._take(claim.ref.job_id, claim.ref.round, finished, take)

    async def fail_step(
        self,
        claim: StepClaim,
        error: ErrorRecord,
        retry_in: timedelta | None,
        *,
        unsure: bool = False,
        take: Take | None = None,
    ) -> Moved:
        finished = await self._finish(claim, error=error, retry_in=retry_in, unsure=unsure)
        return await self._take(claim.ref.job_id, claim.ref.round, finished, take)

    async def _take(self, job_id: UUID, round: int, moved: Moved, take: Take | None) -> Moved:
        if take is None or not moved.landed:
            return moved
        mine = [step for step in moved.ready if step.lane is take.lane][: take.steps]
        claims = [await self.claim_step(StepRef(job_id, round, step.index)) for step in mine]
        taken: list[StepClaim | StageClaim] = [claim for claim in claims if claim is not None]
        if take.stage and moved.job_status is JobStatus.RESPONDING:
            stage = await self.claim_stage(job_id, (JobStatus.RESPONDING,))
            taken += [replace(stage, results=await self.results(stage))] if stage is not None else []
        held = {claim.ref.index for claim in claims if claim is not None}
        ready = [step for step in moved.ready if step.index not in held]
        return replace(moved, ready=ready, taken=taken)

    async def ask_step(self, claim: StepClaim, error: ErrorRecord, question: Mapping[str, Any]) -> bool:
        landed: bool = await self._database.call(
            "planq_ask_step", *_fence(claim), as_json(error.to_json()), as_json(question), False
        )
        return landed

    async def record_calls(self, job_id: UUID, calls: Sequence[ModelCall]) -> None:
        await self._database.call("planq_record_calls", job_id, as_json([call_to_json(call) for call in calls]))

    async def _finish(
        self,
        claim: StepClaim,
        *,
        output: Any = None,
        error: ErrorRecord | None = None,
        retry_in: timedelta | None = None,
        artifact: ArtifactRecord | None = None,
        payload: PayloadRecord | None = None,
        unsure: bool = False,
    ) -> Moved:
        value = await self._database.call(
            "planq_finish_step",
            *_fence(claim),
            error is None,
            as_json(output),
            as_json(error.to_json() if error else None),
            retry_in,
            False,
            artifact_to_json(artifact),
            *payload_parameters(payload),
            unsure,
        )
        return moved(value)

    async def suspend_step(self, claim: StepClaim, delay: timedelta, output: Any) -> bool:
        landed: bool = await self._database.call("planq_suspend_step", *_fence(claim), delay, as_json(output))
        return landed

    async def release_step(self, claim: StepClaim) -> Moved:
        return moved(await self._database.call("planq_hand_back_step", *_fence(claim)))

    async def tool_definitions(self, tenant_id: str) -> Mapping[str, ToolDefinition]:
        fresh_until, known = self._catalogue.get(tenant_id, (0.0, {}))
        if monotonic() >= fresh_until:
            known = await list_tools(self._database, tenant_id)
            self._catalogue[tenant_id] = (monotonic() + _CATALOGUE_SECONDS, known)
        return known


async def list_tools(database: Database, tenant_id: str) -> Mapping[str, ToolDefinition]:
    """Return the tools that workers have published for a tenant, by name."""
    rows = await database.fetch_all("list_tools", tenant_id=tenant_id)
    definitions = (ToolDefinition.model_validate(row["definition"]) for row in rows)
    return {definition.name: definition for definition in definitions}


def _fence(claim: StepClaim) -> tuple[UUID, int, int, int]:
    return claim.ref.job_id, claim.ref.round, claim.ref.index, claim.attempt


def _stage_claim(row: Row) -> StageClaim:
    return StageClaim(
        job_id=row["id"],
        tenant_id=row["tenant_id"],
        status=JobStatus(row["status"]),
        round=row["round"],
        attempt=row["stage_attempt"],
        model=row["model"],
        input=row["input"],
        tools=row["tools"],
        limits=Limits.from_json(row["limits"]),
        plan_source=row["plan_source"],
        plan_body=row["plan_body"],
        plan_errors=row["plan_errors"],
        reuse=_reuse(row["forked_from"], row["plan_reuse"]),
    )


def _reuse(source: UUID | None, stored: Mapping[str, int] | None) -> Mapping[int, ReusedStep]:
    if source is None or not stored:
        return {}
    return {int(index): ReusedStep(source, reused) for index, reused in stored.items()}


def _step_claim(ref: StepRef, row: Row) -> StepClaim:
    outputs = row["outputs"] or {}
    return StepClaim(
        ref=ref,
        tenant_id=row["tenant_id"],
        tool_name=row["tool_name"],
        effect=Effect(row["effect"]),
        lane=Lane(row["lane"]),
        arguments=row["arguments"],
        outputs={int(index): known_output(stored) for index, stored in outputs.items()},
        attempt=row["attempt"],
        tries=row["attempt"] - row["worker_losses"] - row["releases"],
        retries=row["retries"],
        worker_losses=row["worker_losses"],
        timeout_seconds=row["timeout_seconds"],
        user_id=row["user_id"],
        trace_id=row["trace_id"],
        context_id=str(row["conversation_id"] or ref.job_id),
        recovery=Recovery(row["recovery"]),
        unsure=row["unsure"],
        wanted=tuple(path_of(path) for path in row["wanted"] or ()),
        time_left=row["time_left"],
    )
