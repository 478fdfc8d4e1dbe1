"""The transitions of the hot path, many calls of one kind in one commit (`grouping.py`, `sql/0003_*.sql`).

What an item needs is made, and what came of it is read, by its own caller: a defect there concerns nobody else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from shared.domain.compile import PlannedStep
from shared.domain.errors import ErrorRecord, InternalFault
from shared.domain.model import ModelCall
from shared.domain.states import JobStatus, Lane, StepStatus
from shared.ports import ArtifactRecord, Moved, PayloadRecord, StageClaim, StepClaim, Take
from shared.store.claims import moved, stage_claim
from shared.store.database import Database, Row, json_text, stored_text
from shared.store.grouping import Group
from shared.store.rows import artifact_text, call_to_json, payload_fields, step_to_json

_STEPS_TOGETHER = 2_000
"""Steps of the plans that are stored in one commit; a larger plan goes alone."""

_NOTHING = Take(Lane.IO, 0, False)

_Value = Mapping[str, Any]
_LATE: _Value = {"landed": False}


@dataclass(frozen=True, slots=True)
class _Item:
    """One call: `text` is its JSON object without the opening brace and its number."""

    text: str
    take: Take = _NOTHING
    weight: int = 1
    has_extras: bool = False
    has_reuse: bool = False


class Transitions:
    """The grouped transitions of one worker process."""

    def __init__(self, database: Database, worker_id: UUID, stage_timeout: timedelta) -> None:
        self._database = database
        self._worker_id = worker_id
        self._seconds = stage_timeout.total_seconds()
        self._claiming = Group(self._claim_stages)
        self._ending = Group(self._end_jobs)
        # What is taken over in one statement is of one lane; a process has one.
        self._accepting: dict[Lane, Group[_Item, _Value]] = {}
        self._succeeding: dict[Lane, Group[_Item, _Value]] = {}
        self._failing: dict[Lane, Group[_Item, _Value]] = {}
        for lane in Lane:
            self._accepting[lane] = Group(self._accept_plans, most=_STEPS_TOGETHER, weigh=lambda item: item.weight)
            self._succeeding[lane] = Group(self._succeed_steps)
            self._failing[lane] = Group(self._fail_steps)

    async def claim_stage(self, job_id: UUID, statuses: Sequence[JobStatus]) -> StageClaim | None:
        fields = {"job": str(job_id), "statuses": [str(status) for status in statuses]}
        value = await self._claiming.do(_item(fields))
        return None if value is None else stage_claim(value)

    async def accept_plan(
        self,
        claim: StageClaim,
        source: str,
        body: Any,
        steps: Sequence[PlannedStep],
        calls: Sequence[ModelCall],
        take: Take | None,
    ) -> Moved:
        reused = sum(1 for step in steps if step.index in claim.reuse)
        fields = {
            **_stage_fence(claim, calls),
            "source": source,
            "body": stored_text(body),
            "steps": json_text([step_to_json(step, claim.reuse.get(step.index)) for step in steps]),
            "open": len(steps) - reused,
            "reuses": reused > 0,
            "seconds": claim.limits.plan_timeout_seconds,
            **_taking(take),
        }
        item = _item(
            fields, take=take or _NOTHING, weight=1 + len(steps), has_extras=bool(calls), has_reuse=reused > 0
        )
        value = await self._accepting[item.take.lane].do(item)
        if value.get("gone"):
            raise InternalFault("the job whose outcomes this fork takes over is gone; submit its plan as a new job")
        return moved(value)

    async def end_job(
        self,
        claim: StageClaim,
        status: JobStatus,
        answer: str | None,
        error: ErrorRecord | None,
        calls: Sequence[ModelCall],
    ) -> bool:
        fields = {**_stage_fence(claim, calls), "status": str(status), "answer": answer, "error": _error(error)}
        return await self._ending.do(_item(fields, has_extras=bool(calls)))

    async def succeed_step(
        self,
        claim: StepClaim,
        output: Any,
        artifact: ArtifactRecord | None,
        payload: PayloadRecord | None,
        take: Take | None,
    ) -> Moved:
        fields: dict[str, Any] = {**_step_fence(claim), "output": stored_text(output), **_taking(take)}
        if artifact is not None:
            fields["artifact"] = artifact_text(artifact)
        if payload is not None:
            fields |= payload_fields(payload)
        has_extras = artifact is not None or payload is not None
        item = _item(fields, take=take or _NOTHING, has_extras=has_extras)
        return moved(await self._succeeding[item.take.lane].do(item))

    async def fail_step(
        self, claim: StepClaim, error: ErrorRecord, retry_in: timedelta | None, unsure: bool, take: Take | None
    ) -> Moved:
        fields = {
            **_step_fence(claim),
            "error": _error(error),
            "retry_in": None if retry_in is None else retry_in.total_seconds(),
            "unsure": unsure,
            **_taking(take),
        }
        item = _item(fields, take=take or _NOTHING)
        return moved(await self._failing[item.take.lane].do(item))

    async def _claim_stages(self, items: Sequence[_Item]) -> Sequence[_Value | None]:
        rows = await self._database.call_table("planq_claim_stages", _array(items), self._worker_id, self._seconds)
        claims = {row["n"]: row["claim"] for row in rows}
        return [claims.get(n) for n in range(len(items))]

    async def _accept_plans(self, items: Sequence[_Item]) -> Sequence[_Value]:
        rows = await self._database.call_table(
            "planq_accept_plans",
            _array(items),
            any(item.has_extras for item in items),
            any(item.has_reuse for item in items),
            *self._taker(items),
        )
        return _in_order(items, rows)

    async def _fail_steps(self, items: Sequence[_Item]) -> Sequence[_Value]:
        rows = await self._database.call_table("planq_fail_steps", _array(items), *self._taker(items))
        return _in_order(items, rows)

    async def _end_jobs(self, items: Sequence[_Item]) -> Sequence[bool]:
        spends = any(item.has_extras for item in items)
        rows = await self._database.call_table("planq_end_jobs", _array(items), spends)
        landed = {row["n"] for row in rows}
        return [n in landed for n in range(len(items))]

    async def _succeed_steps(self, items: Sequence[_Item]) -> Sequence[_Value]:
        keeps = any(item.has_extras for item in items)
        rows = await self._database.call_table("planq_succeed_steps", _array(items), keeps, *self._taker(items))
        outcomes = [_LATE] * len(items)
        for row in rows:
            for n, outcome in _shared_out(items, row):
                outcomes[n] = outcome
        return outcomes

    def _taker(self, items: Sequence[_Item]) -> tuple[str, UUID, float]:
        return str(items[0].take.lane), self._worker_id, self._seconds


def _item(fields: Mapping[str, Any], **about: Any) -> _Item:
    return _Item(json_text(fields)[1:], **about)


def _array(items: Sequence[_Item]) -> str:
    return "[" + ",".join([f'{{"n":{n},{item.text}' for n, item in enumerate(items)]) + "]"


def _in_order(items: Sequence[_Item], rows: Sequence[Row]) -> Sequence[_Value]:
    values = {row["n"]: row["moved"] for row in rows}
    return [values.get(n, _LATE) for n in range(len(items))]


def _shared_out(items: Sequence[_Item], row: Row) -> Iterator[tuple[int, _Value]]:
    """Yield what each of the items gets that landed in one job: every one what it takes over, the last one the rest.

    For the others it is as if they had come before: the job went on executing.
    """
    landed: list[int] = sorted(row["landed"])
    claims = list(row["taken"] or ())
    stage = row["stage"]
    for n in landed:
        take = items[n].take
        outcome: dict[str, Any] = {
            "landed": True,
            "status": StepStatus.SUCCEEDED,
            "job_status": row["job_status"],
            "stage_attempt": row["stage_attempt"],
            "taken": claims[: take.steps],
        }
        claims = claims[take.steps :]
        if n == landed[-1]:
            outcome["ready"] = row["ready"]
            outcome["stage"] = stage
        else:
            outcome["job_status"] = (
                JobStatus.EXECUTING if row["job_status"] == JobStatus.RESPONDING else row["job_status"]
            )
        yield n, outcome


def _stage_fence(claim: StageClaim, calls: Sequence[ModelCall]) -> dict[str, Any]:
    told = json_text([call_to_json(call) for call in calls]) if calls else None
    return {"job": str(claim.job_id), "attempt": claim.attempt, "calls": told}


def _step_fence(claim: StepClaim) -> dict[str, Any]:
    ref = claim.ref
    return {"job": str(ref.job_id), "round": ref.round, "index": ref.index, "attempt": claim.attempt}


def _taking(take: Take | None) -> dict[str, Any]:
    return {"take_steps": take.steps, "take_stage": take.stage} if take else {"take_steps": 0, "take_stage": False}


def _error(error: ErrorRecord | None) -> str | None:
    return None if error is None else json_text(error.to_json())
