"""The transitions of the hot path, many calls of one kind in one commit (`grouping.py`, `sql/functions/`).

What an item needs is made, and what came of it is read, by its own caller: a defect there concerns nobody else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from shared.domain.compile import PlannedStep
from shared.domain.errors import ErrorRecord, InternalFault
from shared.domain.model import ModelCall
from shared.domain.states import JobStatus, Lane, StepStatus
from shared.ports import (
    ArtifactRecord,
    Message,
    PayloadRecord,
    ReusedStep,
    StageClaim,
    StepClaim,
    Take,
    TransitionResult,
    UnitStep,
)
from shared.store.codec import (
    call_to_json,
    message_to_json,
    outcome_fields,
    stage_claim,
    step_to_json,
    transition_result,
)
from shared.store.database import Database, Row, json_text, stored_text
from shared.store.grouping import Group

_STEPS_TOGETHER = 2_000
"""Steps of the plans that are stored in one commit; a larger plan goes alone."""

_CROWD = 8
"""Steps of one job in a batch from which on they are finished set by set: less costs more that way."""

_SUCCESSES_TOGETHER = 256
"""Weight of successes in one statement. Of 1000 steps that end together the last is stored 50 ms earlier than with
64, and PostgreSQL spends a tenth less on them (two cores, 11/2026)."""

_BYTES_OF_A_SUCCESS = 16 * 1024
"""A success that is longer counts as several, so that a statement stays within a few megabytes."""

_NOTHING = Take(Lane.IO, 0, False)

_Value = Mapping[str, Any]
_LATE: _Value = {"applied": False}


@dataclass(frozen=True, slots=True)
class _Item:
    """One call: `text` is its JSON object without the opening brace and its number."""

    job: str
    text: str
    take: Take = _NOTHING
    weight: int = 1


class Transitions:
    """The grouped transitions of one worker process."""

    def __init__(self, database: Database, worker_id: UUID, stage_timeout: timedelta) -> None:
        self._database = database
        self._worker_id = worker_id
        self._seconds = stage_timeout.total_seconds()
        self._claiming = Group(self._claim_stages)
        self._accepting = Group(self._accept_plans, most=_STEPS_TOGETHER, weigh=lambda item: item.weight)
        self._ending = Group(self._end_jobs)
        # What is taken over in one statement is of one lane; a process has one.
        self._succeeding: dict[Lane, Group[_Item, _Value]] = {
            lane: Group(self._succeed_steps, most=_SUCCESSES_TOGETHER, weigh=_weight_of_success) for lane in Lane
        }
        self._failing: dict[Lane, Group[_Item, _Value]] = {lane: Group(self._fail_steps) for lane in Lane}

    async def claim_stage(self, job_id: UUID, statuses: Sequence[JobStatus]) -> StageClaim | None:
        """See `JobStore`."""
        value = await self._claiming.do(_item({"job": str(job_id), "statuses": [str(s) for s in statuses]}))
        return None if value is None else stage_claim(value)

    async def accept_plan(
        self,
        claim: StageClaim,
        source: str,
        body: Any,
        steps: Sequence[PlannedStep],
        calls: Sequence[ModelCall],
        take: Take | None,
    ) -> TransitionResult:
        """See `JobStore`."""
        planned = _Planned.of(steps, claim.reuse, take or _NOTHING)
        fields = {
            **stage_fence(claim, calls),
            "source": source,
            "body": stored_text(body),
            "steps": planned.text,
            "open": planned.open,
            "reuses": planned.open < len(steps),
            "seconds": claim.limits.plan_timeout_seconds,
            "take_steps": bool(planned.taken),
            "take_stage": take is not None and take.stage,
        }
        value = await self._accepting.do(_item(fields, weight=1 + len(steps)))
        if value.get("gone"):
            raise InternalFault("the job whose outcomes this fork takes over is gone; submit its plan as a new job")
        return transition_result({**value, "ready": planned.ready_after(is_free=value.get("is_free", False))})

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
        """See `JobStore`."""
        fields: dict[str, Any] = {
            **stage_fence(claim, calls),
            "status": str(status),
            "answer": answer,
            "error": None if error is None else json_text(error.to_json()),
        }
        if output is not None:
            fields["output"] = stored_text(output)
        if chained is not None:
            fields["chained"] = stored_text(chained)
        if messages:
            fields["messages"] = [message_to_json(message) for message in messages]
        return await self._ending.do(_item(fields))

    async def succeed_step(
        self,
        claim: StepClaim,
        output: Any,
        artifact: ArtifactRecord | None,
        payload: PayloadRecord | None,
        unit: Sequence[UnitStep],
        take: Take | None,
    ) -> TransitionResult:
        """See `JobStore`."""
        fields = {**_step_fence(claim, take), **outcome_fields(output, artifact, payload)}
        if claim.joined:
            given = json_text(fields), self._worker_id, self._seconds
            return transition_result(await self._database.call("planq_finish_joined", *given))
        if unit:
            fields |= {"unit": list(map(_unit_step, unit)), "unit_seconds": sum(step.seconds for step in unit)}
        item = _item(fields, take=take or _NOTHING, weight=1 + len(unit))
        return transition_result(await self._succeeding[item.take.lane].do(item))

    async def fail_step(
        self,
        claim: StepClaim,
        error: ErrorRecord,
        retry_in: timedelta | None,
        take: Take | None,
        *,
        in_doubt: bool = False,
        anew: bool = False,
    ) -> TransitionResult:
        """See `JobStore`."""
        fields = {
            **_step_fence(claim, take),
            "error": json_text(error.to_json()),
            "retry_in": None if retry_in is None else retry_in.total_seconds(),
            "in_doubt": in_doubt,
            "anew": anew,
        }
        item = _item(fields, take=take or _NOTHING)
        return transition_result(await self._failing[item.take.lane].do(item))

    async def _claim_stages(self, items: Sequence[_Item]) -> Sequence[_Value | None]:
        rows = await self._database.call_table("planq_claim_stages", _array(items), self._worker_id, self._seconds)
        claims = {row["n"]: row["claim"] for row in rows}
        return [claims.get(n) for n in range(len(items))]

    async def _accept_plans(self, items: Sequence[_Item]) -> Sequence[_Value]:
        return _in_order(
            items,
            await self._database.call_table("planq_accept_plans", _array(items), self._worker_id, self._seconds),
        )

    async def _end_jobs(self, items: Sequence[_Item]) -> Sequence[bool]:
        applied = {row["n"] for row in await self._database.call_table("planq_end_jobs", _array(items))}
        return [n in applied for n in range(len(items))]

    async def _fail_steps(self, items: Sequence[_Item]) -> Sequence[_Value]:
        return _in_order(items, await self._finish("planq_fail_steps", items))

    async def _succeed_steps(self, items: Sequence[_Item]) -> Sequence[_Value]:
        has_unit = any(item.weight > 1 for item in items)  # which only the former of the two functions knows
        if has_unit or max(Counter(item.job for item in items).values()) < _CROWD:
            return _in_order(items, await self._finish("planq_succeed_steps", items))
        outcomes = [_LATE] * len(items)
        for row in await self._finish("planq_succeed_many", items):
            for n, outcome in _shared_out(items, row):
                outcomes[n] = outcome
        return outcomes

    async def _finish(self, function: str, items: Sequence[_Item]) -> Sequence[Row]:
        lane = str(items[0].take.lane)
        return await self._database.call_table(function, _array(items), lane, self._worker_id, self._seconds)


@dataclass(frozen=True, slots=True)
class _Planned:
    """The steps of a plan as they are stored, their JSON as `text`.

    `open` counts those whose outcome is not taken over from another job. `ready` are those of them that wait for
    nothing; what will be `taken` is among these.
    """

    text: str
    open: int
    ready: Sequence[PlannedStep]
    taken: frozenset[int]

    @classmethod
    def of(cls, steps: Sequence[PlannedStep], reuse: Mapping[int, ReusedStep], take: Take) -> _Planned:
        opened = [step for step in steps if step.index not in reuse]
        ready = [step for step in opened if all(other in reuse for other in step.depends_on)]
        taken = frozenset([step.index for step in ready if step.lane is take.lane][: take.steps])
        shapes = [
            {
                **step_to_json(step, reuse.get(step.index)),
                "pending": sum(1 for other in step.depends_on if other not in reuse),
                "taken": step.index in taken,
            }
            for step in steps
        ]
        return cls(json_text(shapes), len(opened), ready, taken)

    def ready_after(self, *, is_free: bool) -> list[_Value]:
        """Return the steps to be dispatched; in a paused job nothing was taken."""
        left = [step for step in self.ready if not (is_free and step.index in self.taken)]
        return [{"index": step.index, "lane": step.lane, "tool_name": step.tool_name} for step in left]


def _item(fields: Mapping[str, Any], *, take: Take = _NOTHING, weight: int = 1) -> _Item:
    return _Item(fields["job"], json_text(fields)[1:], take, weight)


def _weight_of_success(item: _Item) -> int:
    return item.weight + len(item.text) // _BYTES_OF_A_SUCCESS


def _array(items: Sequence[_Item]) -> str:
    """Return the items as the SQL functions take them: numbered, in the order of their jobs' ids."""
    ordered = sorted(enumerate(items), key=lambda numbered: numbered[1].job)
    return "[" + ",".join([f'{{"n":{n},{item.text}' for n, item in ordered]) + "]"


def _in_order(items: Sequence[_Item], rows: Sequence[Row]) -> Sequence[_Value]:
    values = {row["n"]: row["moved"] for row in rows}
    return [values.get(n, _LATE) for n in range(len(items))]


def _shared_out(items: Sequence[_Item], row: Row) -> Iterator[tuple[int, _Value]]:
    """Yield what each of the items gets that applied in one job: every one what it takes over, the last one the rest.

    For the others it is as if they had come before: the job went on executing.
    """
    applied: list[int] = sorted(row["applied"])
    claims = list(row["taken"] or ())
    for n in applied:
        is_last = n == applied[-1]
        status = row["job_status"]
        steps = items[n].take.steps
        outcome = {
            "applied": True,
            "status": StepStatus.SUCCEEDED,
            "job_status": status if is_last or status != JobStatus.RESPONDING else JobStatus.EXECUTING,
            "stage_attempt": row["stage_attempt"],
            "taken": claims[:steps],
            "ready": row["ready"] if is_last else (),
            "stage": row["stage"] if is_last else None,
        }
        claims = claims[steps:]
        yield n, outcome


def stage_fence(claim: StageClaim, calls: Sequence[ModelCall]) -> dict[str, Any]:
    """Return the attempt at a stage and what it has spent, as the transitions take them."""
    fence: dict[str, Any] = {"job": str(claim.job_id), "attempt": claim.attempt}
    if calls:
        costs = [call.cost_usd for call in calls if call.cost_usd is not None]
        fence |= {
            "calls": json_text([call_to_json(call) for call in calls]),
            "spent_calls": len(calls),
            "spent_input": sum(call.input_tokens for call in calls),
            "spent_output": sum(call.output_tokens for call in calls),
            "spent_usd": str(sum(costs)) if costs else None,
        }
    return fence


def _unit_step(step: UnitStep) -> dict[str, Any]:
    fields = outcome_fields(step.output, step.artifact, None)
    return {"index": step.claim.ref.index, "seconds": step.seconds, **fields}


def _step_fence(claim: StepClaim, take: Take | None) -> dict[str, Any]:
    ref = claim.ref
    return {
        "job": str(ref.job_id),
        "round": ref.round,
        "index": ref.index,
        "attempt": claim.attempt,
        "take_steps": take.steps if take else 0,
        "take_stage": take is not None and take.stage,
    }
