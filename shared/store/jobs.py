"""The engine's side of the store: the port `JobStore` over PostgreSQL, one statement and one commit a transition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from shared.domain.budget import Holder, Reserved, Wanted
from shared.domain.compile import PlannedStep
from shared.domain.errors import ErrorRecord
from shared.domain.ids import StepRef
from shared.domain.model import ModelCall
from shared.domain.retry import StageTries
from shared.domain.states import JobStatus, Lane
from shared.domain.tool import ToolDefinition
from shared.ports import (
    ArtifactRecord,
    ChildOutcome,
    Delegated,
    Message,
    ParentTransition,
    PayloadRecord,
    StageClaim,
    StepClaim,
    Take,
    TransitionResult,
    UnitStep,
)
from shared.store.catalogue import Catalogue, list_tools
from shared.store.children import children_text, outcomes, tell_parent
from shared.store.codec import (
    call_to_json,
    holder_to_json,
    made_to_json,
    stage_claim,
    step_claim,
    step_to_json,
    transition_result,
    wanted_to_json,
)
from shared.store.database import Database, as_json, json_text, stored_text
from shared.store.transitions import Transitions, stage_fence


class PostgresJobStore:
    """`JobStore` for one worker process, whose id it writes into every claim."""

    def __init__(self, database: Database, worker_id: UUID, stage_timeout: timedelta = timedelta(minutes=15)) -> None:
        """`stage_timeout` is more than any stage takes: what is claimed for longer is taken back from this worker."""
        self._database = database
        self._worker_id = worker_id
        self._stage_timeout = stage_timeout
        self._transitions = Transitions(database, worker_id, stage_timeout)
        self._catalogue = Catalogue(partial(list_tools, database))

    async def claim_stage(self, job_id: UUID, statuses: Sequence[JobStatus]) -> StageClaim | None:
        return await self._transitions.claim_stage(job_id, statuses)

    async def accept_plan(
        self,
        claim: StageClaim,
        source: str,
        body: Any,
        steps: Sequence[PlannedStep],
        calls: Sequence[ModelCall],
        *,
        take: Take | None = None,
    ) -> TransitionResult:
        return await self._transitions.accept_plan(claim, source, body, steps, calls, take)

    async def refuse_plan(
        self,
        claim: StageClaim,
        source: str,
        body: Any,
        errors: Sequence[Mapping[str, Any]],
        calls: Sequence[ModelCall],
        *,
        take: Take | None = None,
    ) -> TransitionResult:
        value = await self._database.call(
            "planq_refuse_plan",
            json_text(
                {
                    **stage_fence(claim, calls),
                    "source": source,
                    "body": stored_text(body),
                    "errors": json_text(list(errors)),
                    "take_stage": take is not None and take.stage,
                }
            ),
            self._worker_id,
            self._stage_timeout.total_seconds(),
        )
        return transition_result(value)

    async def end_job(
        self,
        claim: StageClaim,
        status: JobStatus,
        answer: str | None,
        error: ErrorRecord | None,
        calls: Sequence[ModelCall],
        *,
        output: Any = None,
        chained: Any = None,
        messages: Sequence[Message] = (),
    ) -> bool:
        return await self._transitions.end_job(
            claim, status, answer, error, calls, output=output, chained=chained, messages=messages
        )

    async def chain_tool(
        self,
        claim: StageClaim,
        output: Any,
        answer: str | None,
        step: PlannedStep,
        calls: Sequence[ModelCall],
        *,
        take: Take | None = None,
    ) -> TransitionResult:
        value = await self._database.call(
            "planq_chain_tool",
            json_text(
                {
                    **stage_fence(claim, calls),
                    "output": stored_text(output),
                    "answer": answer,
                    "step": step_to_json(step),
                    "take_steps": take.steps if take else 0,
                }
            ),
            str(take.lane if take else step.lane),
            self._worker_id,
        )
        return transition_result(value)

    async def reserve(self, holder: Holder, wanted: Wanted) -> Reserved:
        value = await self._database.call(
            "planq_reserve",
            *map(as_json, (holder_to_json(holder, wanted), wanted_to_json(wanted), made_to_json(wanted.made))),
            as_json(dict(wanted.own) or None),
        )
        return Reserved(
            reply_tokens=value.get("reply_tokens"),
            exceeded=value.get("exceeded"),
            most=value.get("most", 0),
            used=value.get("used", 0),
            is_paused=value.get("paused", False),
            is_late=value.get("late", False),
        )

    async def warn(self, claim: StageClaim, kind: str, data: Mapping[str, Any]) -> bool:
        applied: bool = await self._database.call("planq_warn", claim.job_id, claim.attempt, kind, as_json(data))
        return applied

    async def release_stage(self, claim: StageClaim) -> bool:
        applied: bool = await self._database.call("planq_release_stage", claim.job_id, claim.attempt, False)
        return applied

    async def retry_stage(
        self, claim: StageClaim, error: ErrorRecord, delay: timedelta, tried: StageTries, calls: Sequence[ModelCall]
    ) -> bool:
        applied: bool = await self._database.call(
            "planq_retry_stage",
            claim.job_id,
            claim.attempt,
            as_json(error.to_json()),
            delay,
            as_json(asdict(tried)),
            as_json([call_to_json(call) for call in calls]),
        )
        return applied

    async def claim_step(self, ref: StepRef) -> StepClaim | None:
        return next(iter(await self.claim_steps([ref])), None)

    async def claim_steps(self, refs: Sequence[StepRef]) -> Sequence[StepClaim]:
        if not refs:
            return []
        first = refs[0]
        if any((ref.job_id, ref.round) != (first.job_id, first.round) for ref in refs):
            raise ValueError("the steps to claim together belong to one round of one job")
        indices = [ref.index for ref in refs]
        rows = await self._database.call_table(
            "planq_claim_steps", first.job_id, first.round, indices, self._worker_id
        )
        return [step_claim(row["claim"]) for row in rows]

    async def claim_suspects(self, group: UUID | None, lane: Lane) -> Sequence[StageClaim | StepClaim]:
        seconds = self._stage_timeout.total_seconds()
        rows = await self._database.call_table("planq_claim_suspects", group, str(lane), self._worker_id, seconds)
        values = [row["claim"] for row in rows]
        return [step_claim(value) if "index" in value else stage_claim(value) for value in values]

    async def succeed_step(
        self,
        claim: StepClaim,
        output: Any,
        artifact: ArtifactRecord | None,
        payload: PayloadRecord | None = None,
        *,
        unit: Sequence[UnitStep] = (),
        take: Take | None = None,
    ) -> TransitionResult:
        return await self._transitions.succeed_step(claim, output, artifact, payload, unit, take)

    async def fail_step(
        self,
        claim: StepClaim,
        error: ErrorRecord,
        retry_in: timedelta | None,
        *,
        in_doubt: bool = False,
        anew: bool = False,
        take: Take | None = None,
    ) -> TransitionResult:
        return await self._transitions.fail_step(claim, error, retry_in, take, in_doubt=in_doubt, anew=anew)

    async def ask_step(self, claim: StepClaim, error: ErrorRecord, question: Mapping[str, Any]) -> bool:
        applied: bool = await self._database.call(
            "planq_ask_step", *_fence(claim), as_json(error.to_json()), as_json(question), False
        )
        return applied

    async def record_calls(self, job_id: UUID, calls: Sequence[ModelCall]) -> None:
        await self._database.call("planq_record_calls", job_id, as_json([call_to_json(call) for call in calls]))

    async def suspend_step(self, claim: StepClaim, delay: timedelta, output: Any) -> bool:
        applied: bool = await self._database.call("planq_suspend_step", *_fence(claim), delay, as_json(output))
        return applied

    async def delegate_step(self, claim: StepClaim, delegated: Delegated) -> TransitionResult:
        value = await self._database.call(
            "planq_delegate_step",
            *_fence(claim),
            children_text(claim, delegated),
            str(delegated.until),
            delegated.max_parallel,
            as_json(delegated.note),
        )
        return transition_result(value)

    async def children(self, claim: StepClaim) -> Sequence[ChildOutcome]:
        found = await outcomes(self._database, claim.ref, claim.ref.index)
        return found.get(claim.ref.index, ())

    async def child_ended(self, job_id: UUID) -> ParentTransition | None:
        return await tell_parent(self._database, job_id)

    async def holds_step(self, claim: StepClaim) -> bool:
        ref = claim.ref
        row = await self._database.fetch_one(
            "holds_step",
            job_id=ref.job_id,
            round=ref.round,
            index=ref.index,
            attempt=claim.attempt,
            worker_id=self._worker_id,
        )
        return row is not None

    async def release_step(self, claim: StepClaim) -> TransitionResult:
        return transition_result(await self._database.call("planq_hand_back_step", *_fence(claim)))

    async def tool_definitions(self, tenant_id: str) -> Mapping[str, ToolDefinition]:
        return await self._catalogue.tools(tenant_id)


def _fence(claim: StepClaim) -> tuple[UUID, int, int, int]:
    return claim.ref.job_id, claim.ref.round, claim.ref.index, claim.attempt
