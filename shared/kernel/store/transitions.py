"""The engine's side of the store: the port `JobStore` over PostgreSQL, one commit a transition.

Calls of the hot path go through a `Batcher`: calls of one kind that come at the same time share a statement and a
commit. Each caller makes its own item and reads its own result, so a defect there fails nobody else.
"""

from __future__ import annotations

import json
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from decimal import Decimal
from functools import partial
from itertools import compress
from operator import attrgetter
from typing import Any
from uuid import UUID

from planq.shared.kernel.budget import Holder, Reservation, ReservationRequest
from planq.shared.kernel.children import ChildOutcome, Delegated
from planq.shared.kernel.claims import Claim, ReusedStep, StageClaim, StepClaim
from planq.shared.kernel.deferral import DeferredCall
from planq.shared.kernel.ids import PLAN, RESPOND, StepRef
from planq.shared.kernel.job_store import (
    ONE_ROUND,
    Approved,
    ArtifactRecord,
    ClaimRequest,
    Consequence,
    FollowUp,
    JobEnd,
    Message,
    PayloadRecord,
    TransitionResult,
    UnitStep,
)
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.questions import MAX_OPEN_QUESTIONS, StepQuestion
from planq.shared.kernel.retry import StageTries
from planq.shared.kernel.states import AskedOf, JobStatus, Pool, QuestionKind, StopReason
from planq.shared.kernel.steps import PlannedStep
from planq.shared.kernel.store.children import children_text, outcomes
from planq.shared.kernel.store.codec import (
    NO_ROUNDS,
    NOTHING,
    AsCalled,
    BatchItem,
    CachedRounds,
    SqlValue,
    array_of,
    calls_fields,
    end_fields,
    made_fields,
    outcome_fields,
    question_text,
    stage_claim,
    stage_fence,
    step_claim,
    step_to_json,
    transition_result,
)
from planq.shared.kernel.store.ends import serve_ends
from planq.shared.kernel.store.signals import ENDED, Notifier
from planq.shared.kernel.usage import ModelCall
from planq.shared.platform.batching import Batcher
from planq.shared.platform.database import Database, Row, as_json, json_text, query, stored_text
from planq.shared.platform.errors import ErrorRecord, InternalFault, TooManyQuestions, storable

_MAX_CACHED_BYTES = 32 * 1024 * 1024
"""Maximum size of the cached rounds of a process, as JSON. In memory they take several times as much."""


class RoundCache:
    """The cached rounds of a process: those of the jobs that it claimed last.

    A round that is over does not change. So a claim says which rounds the worker has, and returns those after them.
    Where the worker has none, or the database has lost what it has, the claim returns all.
    """

    def __init__(self, max_bytes: int = _MAX_CACHED_BYTES) -> None:
        """`max_bytes` bounds the JSON of all rounds."""
        self._max_bytes = max_bytes
        self._jobs: OrderedDict[UUID, CachedRounds] = OrderedDict()
        self._bytes = 0

    def of(self, job_id: UUID) -> CachedRounds:
        """Return the rounds of a job; `NO_ROUNDS` where none are cached."""
        return self._jobs.get(job_id, NO_ROUNDS)

    def keep(self, job_id: UUID, rounds: CachedRounds) -> None:
        """Cache the rounds of a job in place of those before, and drop those of the jobs that were claimed first."""
        self.drop(job_id)
        self._jobs[job_id] = rounds
        self._bytes += rounds.bytes
        while self._bytes > self._max_bytes:
            self.drop(next(iter(self._jobs)))

    def drop(self, job_id: UUID) -> None:
        """Drop the rounds of a job; it may have none."""
        self._bytes -= self._jobs.pop(job_id, NO_ROUNDS).bytes


_MOST_WOKEN = 1_000

_LONGEST_DEFERRAL_SECONDS = 26 * 3_600.0
"""How long a job may wait for a provider's batch: the 24 hours that providers take, and the time around them."""
"""Maximum number of stages that one reply of a model wakes."""

_STEPS_TOGETHER = 2_000
"""Steps of the plans that are stored in one commit; a larger plan goes alone."""

_SUCCESSES_TOGETHER = 256
"""Weight of successes in one statement. Of 1000 steps that end together the last is stored 50 ms earlier than with
64, and PostgreSQL spends a tenth less on them (two cores, 11/2026)."""

_BYTES_OF_A_SUCCESS = 16 * 1024
"""A success that is longer counts as several, so that a statement stays within a few megabytes."""

_OWNER = attrgetter("owner")
_LATE: SqlValue = {"applied": False}

_MOST_ASKED_ABOUT = 100
"""Steps at which a worker looks that is about to ask whether it may call its own."""


class PostgresJobStore:
    """`JobStore` for one worker process, whose id it writes into every claim."""

    def __init__(
        self,
        database: Database,
        worker_id: UUID,
        as_called: AsCalled,
        stage_timeout: timedelta = timedelta(minutes=15),
    ) -> None:
        """`stage_timeout` is more than any stage takes: what is claimed for longer is taken back from this worker."""
        self._database = database
        self._worker_id = worker_id
        self._seconds = stage_timeout.total_seconds()
        self._as_called = as_called
        self._rounds = RoundCache()
        self._claiming = Batcher(self._claim_stages)
        self._accepting = Batcher(
            self._accept_plans, max_weight=_STEPS_TOGETHER, weigh=lambda item: item.weight, owner_of=_OWNER
        )
        self._ending = Batcher(self._end_jobs, owner_of=_OWNER)
        self._ended = Notifier(database, ENDED)
        # What is taken over in one statement is of one pool; a process has one, and takes nothing over of others.
        self._succeeding = defaultdict[Pool, Batcher[BatchItem, SqlValue]](
            lambda: Batcher(
                partial(self._end_steps, "planq_succeed_steps"),
                max_weight=_SUCCESSES_TOGETHER,
                weigh=lambda item: item.weight + len(item.text) // _BYTES_OF_A_SUCCESS,
                owner_of=_OWNER,
            )
        )
        self._failing = defaultdict[Pool, Batcher[BatchItem, SqlValue]](
            lambda: Batcher(partial(self._end_steps, "planq_fail_steps"), owner_of=_OWNER)
        )

    async def claim(self, refs: Sequence[StepRef]) -> Sequence[Claim]:
        if not refs:
            return ()
        first = refs[0]
        if any((ref.job_id, ref.round) != (first.job_id, first.round) for ref in refs):
            raise ValueError("what is claimed together belongs to one round of one job")
        if not first.is_stage:
            rows = await self._database.call_table("planq_claim_steps", *_several(refs), self._worker_id)
            return [step_claim(row["claim"]) for row in rows]
        if len(refs) > 1:
            raise ValueError("a stage is claimed alone")
        cached = self._rounds.of(first.job_id)
        fields = {"job": str(first.job_id), "statuses": _STAGE_STATUSES[first.index], "cached": cached.mark}
        value = await self._claiming.do(BatchItem.of(fields))
        return () if value is None else (self._stage(cached, value),)

    async def accept_plan(
        self,
        claim: StageClaim,
        source: str,
        body: Any,
        steps: Sequence[PlannedStep],
        calls: Sequence[ModelCall],
        *,
        follow: FollowUp = ONE_ROUND,
        take: ClaimRequest | None = None,
        ran: Sequence[UnitStep] = (),
    ) -> TransitionResult:
        fields = {
            **stage_fence(claim, calls),
            "source": source,
            "body": stored_text(body),
            "reuses": bool(claim.reuse),
            "seconds": follow.seconds or claim.limits.plan_timeout_seconds,
            "take_stage": take is not None and take.stage,
            "after_steps": str(follow.after_steps),
            "on_failure": str(follow.on_failure),
            "reply": stored_text(follow.reply),
            "errors": stored_text(list(follow.errors) or None),
            "ignored": stored_text(list(follow.ignored) or None),
            "cached": (cached := self._rounds.of(claim.job_id)).mark,
        }
        if any(step.known is not None and step.known.output_of is not None for step in steps):
            fields["copies"] = True
        if follow.stop_reason is not None:
            fields |= {"answer": follow.answer, "stop_reason": str(follow.stop_reason)}
            fields["output"] = None if follow.output is None else stored_text(follow.output)
            fields["incomplete"] = None if follow.incomplete is None else json_text(follow.incomplete.to_json())
        planned = _Planned.of(steps, claim.reuse, take or NOTHING, ran)
        value = await self._accepting.do(BatchItem.of(fields | planned.fields, claim, weight=1 + len(steps)))
        if ran and not value["applied"]:  # the job is paused, or it is too late for the plan as well
            ran, planned = (), _Planned.of(steps, claim.reuse, take or NOTHING)
            value = await self._accepting.do(BatchItem.of(fields | planned.fields, claim, weight=1 + len(steps)))
        if not value["applied"]:
            await self._record_late(claim, calls)
        if value.get("gone"):
            raise InternalFault("the job whose outcomes this fork takes over is gone; submit its plan as a new job")
        result = transition_result({**value, "ready": planned.ready_after(value)}, partial(self._stage, cached))
        return replace(result, ran=tuple(ran)) if ran else result

    async def refuse_plan(
        self,
        claim: StageClaim,
        source: str,
        body: Any,
        errors: Sequence[Mapping[str, Any]],
        calls: Sequence[ModelCall],
        *,
        error: ErrorRecord | None = None,
        take: ClaimRequest | None = None,
    ) -> TransitionResult:
        value = await self._database.call(
            "planq_refuse_plan",
            json_text(
                {
                    **stage_fence(claim, calls),
                    "source": source,
                    "body": stored_text(body),
                    "errors": json_text(list(errors)),
                    "error": None if error is None else json_text(error.to_json()),
                    "take_stage": take is not None and take.stage,
                }
            ),
            self._worker_id,
            self._seconds,
        )
        return transition_result(value, partial(stage_claim, as_called=self._as_called))

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
        stop_reason: StopReason | None = None,
    ) -> bool:
        end = JobEnd(status, answer, error, output, chained, messages, stop_reason)
        self._rounds.drop(claim.job_id)
        return await self._end(claim, calls, end_fields(end))

    async def end_kept(self, claim: StageClaim) -> bool:
        return await self._end(claim, (), json.loads(claim.kept or "{}"))

    async def _end(self, claim: StageClaim, calls: Sequence[ModelCall], end: Mapping[str, Any]) -> bool:
        item = {**stage_fence(claim, calls), "has_rounds": claim.strategy.has_rounds, **end}
        applied = await self._ending.do(BatchItem.of(item, claim))
        if not applied:
            await self._record_late(claim, calls)
        return applied

    async def _record_late(self, claim: StageClaim, calls: Sequence[ModelCall]) -> None:
        """Record the calls of a transition that did not apply: what was spent was spent."""
        if calls:
            await self.record_calls(claim.job_id, calls)

    async def chain_tool(
        self,
        claim: StageClaim,
        output: Any,
        answer: str | None,
        step: PlannedStep,
        calls: Sequence[ModelCall],
        *,
        stop_reason: StopReason | None = None,
        incomplete: ErrorRecord | None = None,
        take: ClaimRequest | None = None,
    ) -> TransitionResult:
        value = await self._database.call(
            "planq_chain_tool",
            json_text(
                {
                    **stage_fence(claim, calls),
                    "output": stored_text(output),
                    "answer": answer,
                    "stop_reason": None if stop_reason is None else str(stop_reason),
                    "incomplete": None if incomplete is None else json_text(incomplete.to_json()),
                    "step": {**step_to_json(step), "pending": 0, "taken": False},
                    "take_steps": take.steps if take else 0,
                }
            ),
            str(take.pool if take else step.pool),
            self._worker_id,
        )
        return transition_result(value)

    async def reserve(self, holder: Holder, wanted: ReservationRequest) -> Reservation:
        by = {
            "job": str(holder.job_id),
            "round": holder.round,
            "index": holder.index,
            "attempt": holder.attempt,
            "call": None if wanted.call_id is None else str(wanted.call_id),
        }
        asked = {
            "asked": wanted.asked_tokens,
            "reply": wanted.reply_tokens,
            "least": wanted.least_tokens,
            "calls": wanted.model_calls,
            "steps": wanted.steps,
            "asked_usd": None if wanted.price is None else wanted.price.asked_usd,
            "token_usd": None if wanted.price is None else wanted.price.token_usd,
            "may_ask": wanted.may_ask,
        }
        unrecorded = {
            "input": sum(call.input_tokens for call in wanted.made),
            "output": sum(call.output_tokens for call in wanted.made),
            "cost": float(sum(call.cost_usd or 0 for call in wanted.made)),
            "calls": len(wanted.made),
        }
        value = await self._database.call(
            "planq_reserve", *map(as_json, (by, asked, unrecorded, dict(wanted.own) or None))
        )
        return Reservation(
            reply_tokens=value.get("reply_tokens"),
            exceeded=value.get("exceeded"),
            most=value.get("most", 0),
            used=value.get("used", 0),
            is_paused=value.get("paused", False),
            is_late=value.get("late", False),
        )

    async def charge_step(self, claim: StepClaim, usd: float, *, is_ahead: bool) -> Reservation:
        given = claim.ref.job_id, claim.ref.index, claim.attempt, Decimal(str(usd)), is_ahead
        return Reservation(**await self._database.call("planq_charge_step", *given))

    async def note(self, claim: Claim, kind: str, data: Mapping[str, Any]) -> bool:
        function, given = (
            ("planq_warn", (claim.job_id, claim.attempt))
            if claim.ref.is_stage
            else ("planq_note_step", _place(claim))
        )
        applied: bool = await self._database.call(function, *given, kind, as_json(data))
        return applied

    async def release(self, claim: Claim) -> TransitionResult:
        if not claim.ref.is_stage:
            return transition_result(await self._database.call("planq_hand_back_step", *self._fence(claim)))
        given = claim.job_id, claim.attempt, False, self._worker_id
        if not await self._database.call("planq_release_stage", *given):
            return TransitionResult(False)
        return TransitionResult(True, job_status=_STATUS_OF[claim.ref.index], stage_attempt=claim.attempt)

    async def retry_stage(
        self,
        claim: StageClaim,
        error: ErrorRecord,
        delay: timedelta,
        tried: StageTries,
        calls: Sequence[ModelCall],
        *,
        is_sent: bool = True,
        end: JobEnd | None = None,
    ) -> bool:
        kept = claim.kept if end is None else json_text({**end_fields(end), **made_fields(calls)})
        applied: bool = await self._database.call(
            "planq_retry_stage",
            claim.job_id,
            claim.attempt,
            as_json(error.to_json()),
            delay,
            as_json(asdict(tried)),
            as_json(calls_fields(calls)),
            kept,
            is_sent,
            self._worker_id,
        )
        return applied

    async def defer_stage(self, claim: StageClaim, call: DeferredCall | None) -> bool:
        given = None if call is None else as_json(asdict(call))
        applied: bool = await self._database.call(
            "planq_defer_call", claim.job_id, claim.attempt, self._worker_id, given, _LONGEST_DEFERRAL_SECONDS
        )
        return applied

    async def wake_awaiting(self, tenant_id: str, models: Sequence[str]) -> int:
        count: int = await self._database.call("planq_wake_awaiting", tenant_id, list(models), _MOST_WOKEN)
        return count

    async def hand_on(self, refs: Sequence[StepRef]) -> Sequence[StepRef]:
        if not refs:
            return ()
        found = await self._database.call_table("planq_hand_on_steps", *_several(refs), self._worker_id)
        return [replace(refs[0], index=row["index"]) for row in found]

    async def report_progress(
        self, claim: StepClaim, done: float | None, message: str, seconds: float | None
    ) -> bool:
        given = *self._fence(claim), done, storable(message), seconds
        applied: bool = await self._database.call("planq_report_progress", *given)
        return applied

    async def claim_suspects(self, pool: Pool) -> Sequence[Claim]:
        rows = await self._database.call_table("planq_claim_suspects", str(pool), self._worker_id, self._seconds)
        values = [row["claim"] for row in rows]
        return [step_claim(value) if "index" in value else self._stage(NO_ROUNDS, value) for value in values]

    async def succeed_step(
        self,
        claim: StepClaim,
        output: Any,
        artifact: ArtifactRecord | None,
        payload: PayloadRecord | None = None,
        *,
        unit: Sequence[UnitStep] = (),
        take: ClaimRequest | None = None,
    ) -> TransitionResult:
        cached = self._rounds.of(claim.ref.job_id)
        fields = {**outcome_fields(output, artifact, payload), "cached": cached.mark}
        if claim.joined:
            given = "{" + _step_item(claim, fields, take).text, self._worker_id, self._seconds
            joined = await self._database.call("planq_finish_joined", *given)
            return transition_result(joined, partial(self._stage, cached))
        if unit:
            fields["unit"] = [
                {
                    "index": step.claim.ref.index,
                    "seconds": step.seconds,
                    **outcome_fields(step.output, step.artifact, None),
                }
                for step in unit
            ]
            fields["unit_seconds"] = sum(step.seconds for step in unit)
        item = _step_item(claim, fields, take, weight=1 + len(unit))
        value = await self._succeeding[item.take.pool].do(item)
        return transition_result(value, partial(self._stage, cached))

    async def fail_step(
        self,
        claim: StepClaim,
        error: ErrorRecord,
        retry_in: timedelta | None,
        *,
        in_doubt: bool = False,
        anew: bool = False,
        is_wait: bool = False,
        take: ClaimRequest | None = None,
    ) -> TransitionResult:
        cached = self._rounds.of(claim.ref.job_id)
        fields = {
            "cached": cached.mark,
            "error": json_text(error.to_json()),
            "retry_in": None if retry_in is None else retry_in.total_seconds(),
            "in_doubt": in_doubt,
            "anew": anew,
            "is_wait": is_wait,
        }
        item = _step_item(claim, fields, take)
        value = await self._failing[item.take.pool].do(item)
        return transition_result(value, partial(self._stage, cached))

    async def ask_step(
        self,
        claim: StepClaim,
        question: StepQuestion,
        error: ErrorRecord | None = None,
        ahead: Sequence[tuple[int, StepQuestion]] = (),
    ) -> bool:
        failure = None if error is None else as_json(error.to_json())
        first, *ids = sorted(new_id() for _ in range(1 + len(ahead)))  # what is asked first is answered first
        asked = question_text(first, question)
        others = ",".join(question_text(id, other, index) for id, (index, other) in zip(ids, ahead, strict=True))
        given = failure, asked, False, f"[{others}]"
        if question.kind is QuestionKind.OUTCOME:  # whoever may have acted twice has to be asked
            applied: bool = await self._database.call("planq_ask_step", *self._fence(claim), *given)
            return applied
        questions = {"tenant_id": claim.tenant_id, "ids": [first, *ids], "most": MAX_OPEN_QUESTIONS}
        async with self._database.connection() as connection, connection.transaction():
            # Apart, and before the lock on the job: what others ask counts after it.
            await connection.execute(query("lock_questions"), questions)
            statement = b"SELECT planq_ask_step(%s, %s, %s, %s, %s, %s, %s, %s, %s) AS applied"
            row = await (await connection.execute(statement, (*self._fence(claim), *given))).fetchone()
            full = await (await connection.execute(query("too_many_questions"), questions)).fetchone()
            if full is not None:  # what was asked is rolled back
                raise TooManyQuestions(
                    f"expected at most {full['most']} open questions of the tenant; answer or decline some",
                    limit=full["most"],
                )
        return row is not None and bool(row["applied"])

    async def steps_to_ask_about(self, claim: StepClaim) -> Sequence[StepClaim]:
        ref = claim.ref
        place = {"tenant_id": claim.tenant_id, "job_id": ref.job_id, "round": ref.round, "limit": _MOST_ASKED_ABOUT}
        rows = await self._database.fetch_all("steps_to_ask_about", **place)
        return [step_claim(row["claim"]) for row in rows]

    async def approvals(self, claim: StepClaim) -> Approved:
        row = await self._database.fetch_one("approvals", job_id=claim.ref.job_id)
        if row is None:
            return Approved((), 0, 0.0, 0)
        tools = [(name, AskedOf(asked_of)) for name, asked_of in row["tools"] or ()]
        return Approved(tools, row["tokens"], row["cost"], row["calls"])

    async def record_calls(self, job_id: UUID, calls: Sequence[ModelCall]) -> None:
        await self._database.call("planq_record_calls", job_id, as_json(calls_fields(calls)))

    async def suspend_step(self, claim: StepClaim, delay: timedelta, output: Any) -> bool:
        applied: bool = await self._database.call("planq_suspend_step", *self._fence(claim), delay, as_json(output))
        return applied

    async def fire_timer(self, claim: StepClaim) -> TransitionResult:
        return transition_result(await self._database.call("planq_fire_timer", *_place(claim), claim.attempt))

    async def delegate_step(self, claim: StepClaim, delegated: Delegated) -> TransitionResult:
        value = await self._database.call(
            "planq_delegate_step",
            *self._fence(claim),
            children_text(claim, delegated),
            str(delegated.until),
            delegated.max_parallel,
            as_json(delegated.note),
        )
        return transition_result(value)

    async def children(self, claim: StepClaim) -> Sequence[ChildOutcome]:
        found = await outcomes(self._database, claim.ref, claim.ref.index)
        return found.get(claim.ref.index, ())

    async def serve_end(self, job_id: UUID) -> Consequence:
        return await serve_ends(self._database, [job_id])

    async def note_outcome(
        self, claim: StepClaim, output: Any, error: ErrorRecord | None, *, is_preview: bool = False
    ) -> bool:
        key, outcome = (
            ("preview" if is_preview else "output", output) if error is None else ("error", error.to_json())
        )
        given = claim.ref.job_id, claim.ref.index, claim.attempt, key, as_json(outcome)
        applied: bool = await self._database.call("planq_note_outcome", *given)
        return applied

    async def keep_traceback(self, claim: StepClaim, text: str) -> bool:
        return await self._database.fetch_one("keep_traceback", **self._owned(claim), text=text) is not None

    async def holds_step(self, claim: StepClaim) -> bool:
        return await self._database.fetch_one("holds_step", **self._owned(claim)) is not None

    def _fence(self, claim: Claim) -> tuple[UUID, int, int, int, UUID]:
        """Return the attempt at a step, and its owner, as the functions take them that only the owner may call."""
        return *_place(claim), claim.attempt, self._worker_id

    def _owned(self, claim: StepClaim) -> dict[str, Any]:
        ref = claim.ref
        place = {"job_id": ref.job_id, "round": ref.round, "index": ref.index}
        return {**place, "attempt": claim.attempt, "worker_id": self._worker_id}

    def _stage(self, cached: CachedRounds, value: SqlValue) -> StageClaim:
        """Return the claim of a stage that was made with these rounds cached, and cache those of the job."""
        if value["rounds_ended"] is None:
            return stage_claim(value, self._as_called)
        all_rounds = cached.after(value, self._as_called)
        claim = stage_claim(value, self._as_called, all_rounds.records)
        self._rounds.keep(claim.job_id, all_rounds)
        return claim

    async def _claim_stages(self, items: Sequence[BatchItem]) -> Sequence[SqlValue | None]:
        rows = await self._answers("planq_claim_stages", items, self._worker_id, self._seconds)
        return [None if row is None else row["claim"] for row in rows]

    async def _accept_plans(self, items: Sequence[BatchItem]) -> Sequence[SqlValue]:
        rows = await self._answers("planq_accept_plans", items, self._worker_id, self._seconds)
        return [_LATE if row is None else row["result"] for row in rows]

    async def _end_jobs(self, items: Sequence[BatchItem]) -> Sequence[bool]:
        applied = [row is not None for row in await self._answers("planq_end_jobs", items, self._worker_id)]
        for item in compress(items, applied):
            self._ended.send(UUID(item.job))
        return applied

    async def _end_steps(self, function: str, items: Sequence[BatchItem]) -> Sequence[SqlValue]:
        given = array_of(items), str(items[0].take.pool), self._worker_id, self._seconds
        found = {row["n"]: row["result"] for row in await self._database.call_table(function, *given)}
        return [found.get(n, _LATE) for n in range(len(items))]

    async def _answers(self, function: str, items: Sequence[BatchItem], *given: Any) -> Sequence[Row | None]:
        """Call a function with a batch and return the row of each item; one that came too late has none."""
        rows = {row["n"]: row for row in await self._database.call_table(function, array_of(items), *given)}
        return [rows.get(n) for n in range(len(items))]


@dataclass(frozen=True, slots=True)
class _Planned:
    """The steps of a plan as they are stored, their JSON as `text`.

    `open` counts those without an outcome: a known one, one that is taken over from another job, or that of a run
    ahead of the plan. `ready` are those of them that wait for nothing, first what will be `taken`, each from the
    longest `path` to the shortest: in this order they get the job's places.
    """

    text: str
    open: int
    ready: Sequence[PlannedStep]
    taken: frozenset[int]
    has_run: bool

    @classmethod
    def of(
        cls,
        steps: Sequence[PlannedStep],
        reuse: Mapping[int, ReusedStep],
        take: ClaimRequest,
        ran: Sequence[UnitStep] = (),
    ) -> _Planned:
        ago, done = 0.0, dict[int, dict[str, Any]]()
        for one in reversed(ran):
            fields = outcome_fields(one.output, None, None)
            done[one.claim.ref.index] = {**fields, "seconds": one.seconds, "ago": ago}
            ago += one.seconds
        ended = reuse.keys() | done.keys() | {step.index for step in steps if step.known is not None}
        opened = [step for step in steps if step.index not in ended]
        ready = [step for step in opened if all(other in ended for other in step.depends_on)]
        ready.sort(key=lambda step: -step.path)
        taken = frozenset([step.index for step in ready if step.pool == take.pool][: take.steps])
        ready.sort(key=lambda step: step.index not in taken)
        places = {step.index: place for place, step in enumerate(ready, 1)}
        shapes = [
            {
                **step_to_json(step, reuse.get(step.index)),
                "pending": 0 if step.known else sum(1 for other in step.depends_on if other not in ended),
                "taken": step.index in taken,
                "place": places.get(step.index),
                **done.get(step.index, {}),
            }
            for step in steps
        ]
        return cls(json_text(shapes), len(opened), ready, taken, bool(ran))

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields of an item of `planq_accept_plans` that say which steps there are."""
        counts = {"open": self.open, "ready": len(self.ready), "take_steps": bool(self.taken)}
        return {"steps": self.text, **counts, **({"has_run": True} if self.has_run else {})}

    def ready_after(self, accepted: SqlValue) -> list[SqlValue]:
        """Return the steps to be dispatched: what the worker could not take, and nothing beyond a window."""
        out = self.ready[: accepted.get("places")]
        taken = {claim["index"] for claim in accepted.get("taken") or ()}
        left = [step for step in out if step.index not in taken]
        return [{"index": step.index, "pool": step.pool, "tool_name": step.tool_name} for step in left]


def _step_item(claim: StepClaim, fields: Mapping[str, Any], take: ClaimRequest | None, weight: int = 1) -> BatchItem:
    ref = claim.ref
    guarded: dict[str, Any] = {
        "job": str(ref.job_id),
        "round": ref.round,
        "index": ref.index,
        "attempt": claim.attempt,
        "take_steps": take.steps if take else 0,
        "take_stage": take is not None and take.stage,
        **fields,
    }
    owner = f"{claim.priority} {claim.tenant_id}"
    return BatchItem(guarded["job"], json_text(guarded)[1:], take or NOTHING, weight, owner)


def _place(claim: Claim) -> tuple[UUID, int, int]:
    return claim.job_id, claim.round, claim.ref.index


def _several(refs: Sequence[StepRef]) -> tuple[UUID, int, list[int]]:
    """Return steps of one round as the SQL functions take them."""
    return refs[0].job_id, refs[0].round, [ref.index for ref in refs]


_STATUS_OF = {PLAN: JobStatus.PLANNING, RESPOND: JobStatus.RESPONDING}
_STAGE_STATUSES = {PLAN: ["queued", "planning"], RESPOND: ["responding"]}
"""In which statuses a job stands that has a stage to claim."""
