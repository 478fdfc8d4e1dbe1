"""One job in memory: `JobStore` for a job without children, budget and conversation.

Every transition is one of the executable specification (`planq.testing.model`); nothing here decides what follows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from planq.shared.agentic.references.resolution import resolve
from planq.shared.kernel.budget import Holder, Reservation, ReservationRequest
from planq.shared.kernel.claims import Claim, StageClaim, StepClaim, as_planned
from planq.shared.kernel.ids import PLAN, RESPOND, StepRef
from planq.shared.kernel.job_store import ONE_ROUND, Approved, ArtifactRecord, Consequence, FollowUp, TransitionResult
from planq.shared.kernel.questions import (
    FailStep,
    QuestionAnswer,
    StepQuestion,
    SucceedStep,
    after_answer,
)
from planq.shared.kernel.retry import WAITED, StageTries
from planq.shared.kernel.states import JobStatus, Outcome, Respond, Settlement, StepStatus
from planq.shared.kernel.steps import PlannedStep, RoundRecord, StepResult
from planq.shared.kernel.usage import ModelCall
from planq.shared.platform.errors import AnswerIncomplete, ErrorRecord, InternalFault
from planq.shared.platform.values.encoding import JsonText, encode
from planq.testing.model import events
from planq.testing.model.events import Event, Rejected, StepView
from planq.testing.model.simulation import NOW, SimulatedJob


@dataclass
class StepRow:
    planned: PlannedStep
    round: int
    tries: int = 0
    arguments: Mapping[str, Any] | None = None
    output: Any = None
    error: ErrorRecord | None = None
    in_doubt: bool = False
    question: StepQuestion | None = None
    answers: list[QuestionAnswer] = field(default_factory=list)
    artifact: ArtifactRecord | None = None


@dataclass
class RoundRow:
    source: str
    body: Any
    first_index: int
    steps: list[int] = field(default_factory=list)
    errors: Sequence[Mapping[str, Any]] | None = None
    reply: Any = None


class MemoryStore:
    """The store of one job; see `JobStore` for what each method promises. `first` is its claim before it begins."""

    def __init__(self, first: StageClaim, policies: Sequence[Mapping[str, Any]] = ()) -> None:
        self.first = first
        self.state = SimulatedJob()
        self.rows: dict[int, StepRow] = {}
        self.rounds: dict[int, RoundRow] = {}
        self.events: list[tuple[str, Any]] = [("job_submitted", None)]
        self.calls: list[ModelCall] = []
        self.answer: str | None = None
        self.output: Any = None
        self.error: Mapping[str, Any] | None = None
        self.chained: Any = None
        self.incomplete: ErrorRecord | None = None
        self.stop_reason: str | None = None
        self.has_ended = False
        self._policies = tuple(policies)
        if first.plan_body is not None:
            self.rounds[0] = RoundRow("caller", first.plan_body, 0)

    # What stands where -----------------------------------------------------------------------------------------

    @property
    def status(self) -> JobStatus:
        return self.state.job.status

    def ready(self) -> list[StepRef]:
        return [self._ref(index) for index in self.state.in_status(StepStatus.READY)]

    def asking(self) -> list[int]:
        return [index for index, step in sorted(self.state.steps.items()) if step.asks]

    def _ref(self, index: int) -> StepRef:
        return StepRef(self.first.job_id, self.rows[index].round, index)

    def _apply(self, event: Event, index: int | None = None) -> bool:
        effects = self.state.apply(event, index)
        return not (effects and isinstance(effects[0], Rejected))

    def _tell(self, kind: str, /, **data: Any) -> None:
        self.events.append((kind, data))

    def _result(self, index: int | None = None) -> TransitionResult:
        status = None if index is None else self.state.steps[index].status
        return TransitionResult(True, job_status=self.status, status=status)

    # Stages ----------------------------------------------------------------------------------------------------

    async def claim(self, refs: Sequence[StepRef]) -> Sequence[Claim]:
        found = [self._claim_stage(ref) if ref.is_stage else self._claim_step(ref) for ref in refs]
        return [claim for claim in found if claim is not None]

    def _claim_stage(self, ref: StepRef) -> StageClaim | None:
        is_here = (self.status is JobStatus.RESPONDING) == (ref.index == RESPOND)
        if not is_here or not self._apply(events.StageClaimed()):
            return None
        job = self.state.job
        self._tell("stage_started", stage=str(job.status), attempt=job.stage_attempt)
        here = self.rounds.get(job.round)
        responding = job.status is JobStatus.RESPONDING
        results = None
        if responding and here is not None and here.errors is None:
            results = [self._shown(index) for index in here.steps if self._was_begun(index)]
        return replace(
            self.first,
            ref=StepRef(ref.job_id, job.round, RESPOND if responding else PLAN),
            attempt=job.stage_attempt,
            plan_source=None if here is None else here.source,
            plan_body=None if here is None or (responding and here.source in ("caller", "model")) else here.body,
            plan_errors=None if here is None else here.errors,
            results=results,
            output=self.output,
            answer=self.answer,
            next_index=len(self.rows),
            rounds=[self._record(number) for number in sorted(self.rounds) if number < job.round],
        )

    def _was_begun(self, index: int) -> bool:
        return self.state.steps[index].status in (StepStatus.SUCCEEDED, StepStatus.FAILED)

    def _shown(self, index: int) -> StepResult:
        row, step = self.rows[index], self.state.steps[index]
        error = None if step.status is StepStatus.SUCCEEDED else row.error
        return StepResult(
            row.planned.tool_name,
            row.planned.arguments if row.arguments is None else row.arguments,
            row.output if error is None else None,
            None if error is None else error.message,
            index=index,
            code=None if error is None else error.code,
            details={} if error is None else error.details,
            content=None if row.artifact is None else row.artifact.content,
        )

    def _record(self, number: int) -> RoundRecord:
        row = self.rounds[number]
        results = [
            self._shown(index)
            if self.state.steps[index].status is not StepStatus.SKIPPED
            else StepResult(
                self.rows[index].planned.tool_name,
                self.rows[index].planned.arguments,
                error="skipped",
                code="skipped",
                index=index,
            )
            for index in row.steps
        ]
        return RoundRecord(number, row.source, row.body, row.reply, row.first_index, results, row.errors or ())

    async def accept_plan(
        self,
        claim: StageClaim,
        /,
        source: str,
        body: Any,
        steps: Sequence[PlannedStep],
        calls: Sequence[ModelCall],
        *,
        follow: FollowUp = ONE_ROUND,
        take: Any = None,
        ran: Any = (),
    ) -> TransitionResult:
        views = self._plan(steps)
        begun = events.PlanAccepted(claim.attempt, views, follow.after_steps, follow.on_failure)
        if not self._apply(begun):
            return TransitionResult(False)
        self._keep_round(claim.round, source, body, steps, follow.reply)
        if follow.stop_reason is not None:
            self.stop_reason, self.answer, self.output = str(follow.stop_reason), follow.answer, follow.output
            self.incomplete = follow.incomplete
        self.calls += calls
        kind = "plan_accepted" if not follow.errors else "guide_failed"
        ignored = {"ignored": list(follow.ignored)} if follow.ignored else {}
        self._tell(kind, round=claim.round, steps=len(steps), reused=0, **ignored)
        self._end_with_steps()
        return self._result()

    def _plan(self, steps: Sequence[PlannedStep]) -> tuple[StepView, ...]:
        views = self.state.plan(steps)
        known = {step.index: step.known for step in steps if step.known is not None}
        if not known:
            return views
        views = tuple(
            replace(view, status=known[view.index].status) if view.index in known else view for view in views
        )
        self.state.steps |= {view.index: view for view in views}
        return views

    def _keep_round(
        self, number: int, source: str, body: Any, steps: Sequence[PlannedStep], reply: Any = None
    ) -> None:
        row = RoundRow(source, body, len(self.rows), [step.index for step in steps], reply=reply)
        self.rounds[number] = row
        for step in steps:
            known = step.known
            self.rows[step.index] = StepRow(
                step,
                number,
                output=None if known is None or known.output_of is None else self.rows[known.output_of].output,
                error=None if known is None else known.error,
            )

    async def refuse_plan(
        self,
        claim: StageClaim,
        /,
        source: str,
        body: Any,
        errors: Sequence[Mapping[str, Any]],
        calls: Sequence[ModelCall],
        *,
        error: ErrorRecord | None = None,
        take: Any = None,
    ) -> TransitionResult:
        is_answered = self.first.respond is Respond.MODEL
        if not self._apply(events.PlanRefused(claim.attempt) if is_answered else events.StageFailed(claim.attempt)):
            return TransitionResult(False)
        self.rounds[claim.round] = RoundRow(source, body, len(self.rows), errors=errors)
        self.calls += calls
        self.events.append(("plan_refused", list(errors)))
        if not is_answered:
            self._end(None if error is None else error.to_json())
        return self._result()

    async def end_job(
        self,
        claim: StageClaim,
        /,
        status: JobStatus,
        answer: str | None,
        error: ErrorRecord | None,
        calls: Sequence[ModelCall],
        *,
        output: Any = None,
        chained: Any = None,
        messages: Sequence[Any] = (),
        stop_reason: Any = None,
    ) -> bool:
        ends = (
            events.AnswerGiven(claim.attempt) if status is JobStatus.COMPLETED else events.StageFailed(claim.attempt)
        )
        if not self._apply(ends):
            return False
        self.answer = answer
        self.output = self.output if output is None else _decoded(output)
        self.chained = chained
        self.stop_reason = self.stop_reason if stop_reason is None else str(stop_reason)
        self.calls += calls
        error = error or self.incomplete
        failure = None if error is None else error.to_json()
        if failure is None and not claim.strategy.has_rounds and (self.state.job.failed_steps or claim.round):
            failure = self._first_failure()
        self._end(failure)
        return True

    def _first_failure(self) -> dict[str, Any] | None:
        for index, row in sorted(self.rows.items()):
            has_failed = self.state.steps[index].status is StepStatus.FAILED and row.planned.known is None
            if has_failed and row.round == 0 and row.error is not None:
                return {"step": index, "tool_name": row.planned.tool_name, **row.error.to_json()}
        return None

    def _end_with_steps(self) -> None:
        if not self.status.is_terminal or self.has_ended:
            return
        failed = self._first_failure() if self.state.job.failed_steps else None
        last = max(self.rows)
        succeeded = self.state.steps[last].status is StepStatus.SUCCEEDED
        if self.status is JobStatus.COMPLETED and self.first.respond is Respond.OUTPUT and succeeded:
            self.output = self.rows[last].output
            self.answer = _text_of(self.output)
        self._end(failed)

    def _end(self, error: Mapping[str, Any] | None) -> None:
        self.error, self.has_ended = error, True
        self.events.append((f"job_{self.status}", {"outcome": str(self.outcome), **(error or {})}))

    @property
    def outcome(self) -> Outcome | None:
        if not self.status.is_terminal:
            return None
        if self.status is JobStatus.COMPLETED:
            if self.error is None:
                return Outcome.SUCCEEDED
            return Outcome.INCOMPLETE if self.error["code"] == AnswerIncomplete.code else Outcome.PARTIAL
        return Outcome(str(self.status))

    async def chain_tool(
        self,
        claim: StageClaim,
        /,
        output: Any,
        answer: str | None,
        step: PlannedStep,
        calls: Sequence[ModelCall],
        *,
        stop_reason: Any = None,
        incomplete: ErrorRecord | None = None,
        take: Any = None,
    ) -> TransitionResult:
        self.state.plan([step])
        if not self._apply(events.ToolChained(claim.attempt)):
            return TransitionResult(False)
        self._keep_round(claim.round + 1, "chained", None, [step])
        self.output, self.answer, self.incomplete = output, answer, incomplete or self.incomplete
        self.stop_reason = None if stop_reason is None else str(stop_reason)
        self.calls += calls
        self._tell("plan_accepted", round=claim.round + 1, steps=1, reused=0, source="chained")
        return self._result()

    async def retry_stage(
        self,
        claim: StageClaim,
        /,
        error: ErrorRecord,
        delay: timedelta,
        tried: StageTries,
        calls: Sequence[ModelCall],
        *,
        is_sent: bool = True,
        end: Any = None,
    ) -> bool:
        self.calls += calls
        self.first = replace(self.first, tried=tried)
        if is_sent:
            self._tell("stage_retrying", stage=str(claim.status), attempt=claim.attempt, error=error.to_json())
        return self._apply(events.StageRetried(claim.attempt, NOW))

    async def wake_awaiting(self, tenant_id: str, models: Sequence[str]) -> int:
        return 0  # the only job there is

    async def record_calls(self, job_id: UUID, calls: Sequence[ModelCall]) -> None:
        self.calls += calls

    # Steps -----------------------------------------------------------------------------------------------------

    def _claim_step(self, ref: StepRef) -> StepClaim | None:
        index = ref.index
        if not self._apply(events.StepClaimed(), index):
            return None
        row, step, first = self.rows[index], self.state.steps[index], self.first
        row.tries += 1
        planned = row.planned
        outputs = {
            other: self.rows[other].output
            for other in planned.inputs
            if self.state.steps[other].status is StepStatus.SUCCEEDED
        }
        if not planned.verbatim:
            row.arguments = dict(resolve(planned.arguments, outputs).arguments)
        self._tell("step_started", round=ref.round, index=index, attempt=step.attempt, tool_name=planned.tool_name)
        skills = (first.agent or {}).get("skills") or [None]
        return StepClaim(
            ref=ref,
            tenant_id=first.tenant_id,
            outputs=outputs,
            attempt=step.attempt,
            tries=row.tries,
            worker_losses=0,
            user_id=first.user_id,
            trace_id=first.trace_id,
            context_id=first.context_id or str(first.job_id),
            in_doubt=row.in_doubt,
            waited=timedelta(seconds=row.error.details.get(WAITED, 0) if row.error else 0),
            agent_name=first.agent_name,
            limits=first.limits,
            skill_id=skills[0],
            answers=tuple(row.answers),
            policies=self._policies,
            **as_planned(planned),
        )

    async def hand_on(self, refs: Sequence[StepRef]) -> Sequence[StepRef]:
        return ()

    async def report_progress(
        self, claim: StepClaim, done: float | None, message: str, seconds: float | None
    ) -> bool:
        place = {"round": claim.ref.round, "index": claim.ref.index, "attempt": claim.attempt}
        self._tell("step_progress", **place, done=done, message=message)
        return True

    async def succeed_step(
        self,
        claim: StepClaim,
        /,
        output: Any,
        artifact: ArtifactRecord | None,
        payload: Any = None,
        *,
        unit: Sequence[Any] = (),
        take: Any = None,
    ) -> TransitionResult:
        index = claim.ref.index
        if not self._apply(events.StepSucceeded(claim.attempt), index):
            return TransitionResult(False)
        row = self.rows[index]
        row.output, row.artifact, row.error = _decoded(output), artifact, None
        self._tell("step_succeeded", round=claim.ref.round, index=index, attempt=claim.attempt, error=None)
        self._end_with_steps()
        return self._result(index)

    async def fail_step(
        self,
        claim: StepClaim,
        /,
        error: ErrorRecord,
        retry_in: timedelta | None,
        *,
        in_doubt: bool = False,
        anew: bool = False,
        is_wait: bool = False,
        take: Any = None,
    ) -> TransitionResult:
        index = claim.ref.index
        if not self._apply(events.StepFailed(claim.attempt, None if retry_in is None else NOW, anew), index):
            return TransitionResult(False)
        row = self.rows[index]
        row.error, row.in_doubt = error, in_doubt
        row.tries -= is_wait
        status = self.state.steps[index].status
        kind = "step_retrying" if status is StepStatus.READY else f"step_{status}"
        self._tell(kind, round=claim.ref.round, index=index, attempt=claim.attempt, error=error.to_json())
        self._end_with_steps()
        return self._result(index)

    async def ask_step(
        self,
        claim: StepClaim,
        /,
        question: StepQuestion,
        error: ErrorRecord | None = None,
        ahead: Sequence[tuple[int, StepQuestion]] = (),
    ) -> bool:
        index = claim.ref.index
        if not self._apply(events.StepAsked(claim.attempt), index):
            return False
        row = self.rows[index]
        row.question, row.error = question, error
        row.tries -= 1
        self._tell(
            "step_asking", round=claim.ref.round, index=index, kind=str(question.kind), message=question.message
        )
        return True

    def settle(self, index: int, answer: QuestionAnswer) -> None:
        """Give a step the answer to what it asks."""
        row = self.rows[index]
        question, row.question = row.question, None
        if question is None:
            raise InternalFault(f"step {index} asks nothing")
        row.answers.append(answer)
        match after_answer(answer, row.planned.kind):
            case SucceedStep(output):
                row.output, outcome = output, Settlement.HAPPENED
            case FailStep(error):
                row.error, outcome = error, Settlement.UNKNOWN
            case _:
                outcome = Settlement.DID_NOT_HAPPEN
        self._apply(events.StepSettled(outcome), index)
        self._tell("step_settled", round=row.round, index=index, status=str(answer.status))
        self._end_with_steps()

    async def steps_to_ask_about(self, claim: StepClaim) -> Sequence[StepClaim]:
        return ()

    async def approvals(self, claim: StepClaim) -> Approved:
        given = [
            (str(answer.details.get("tool_name")), answer.asked_of)
            for row in self.rows.values()
            for answer in row.answers
            if answer.is_accepted and (answer.content or {}).get("scope") == "job"
        ]
        return Approved(given, 0, 0.0, len(self.calls))

    async def suspend_step(self, claim: StepClaim, /, delay: timedelta, output: Any) -> bool:
        if not self._apply(events.StepSuspended(claim.attempt), claim.ref.index):
            return False
        self._tell("step_waiting", round=claim.ref.round, index=claim.ref.index)
        return (await self.succeed_step(claim, output, None)).applied

    async def fire_timer(self, claim: StepClaim) -> TransitionResult:
        return TransitionResult(applied=False)  # no wait takes time

    async def keep_traceback(self, claim: StepClaim, text: str) -> bool:
        return True

    async def note(self, claim: Claim, kind: str, data: Mapping[str, Any]) -> bool:
        told = dict(data) if claim.ref.is_stage else {"round": claim.round, "index": claim.ref.index, **data}
        if not claim.ref.is_stage or all(earlier != kind for earlier, _ in self.events):
            self.events.append((kind, told))
        return True

    async def holds_step(self, claim: StepClaim) -> bool:
        step = self.state.steps[claim.ref.index]
        return step.status is StepStatus.RUNNING and step.attempt == claim.attempt

    async def release(self, claim: Claim) -> TransitionResult:
        if claim.ref.is_stage:
            return self._result() if self._apply(events.StageReleased(claim.attempt)) else TransitionResult(False)
        if not self._apply(events.StepReleased(claim.attempt), claim.ref.index):
            return TransitionResult(False)
        return self._result(claim.ref.index)

    async def serve_end(self, job_id: UUID) -> Consequence:
        return Consequence()

    async def history(
        self, tenant_id: str, conversation_id: UUID, job_id: UUID, before: int | None = None
    ) -> Sequence[Any]:
        return ()

    async def reserve(self, holder: Holder, wanted: ReservationRequest) -> Reservation:
        # The agent's own limits: jobs here have no other budget.
        made = [*self.calls, *wanted.made]
        put, got = sum(call.input_tokens for call in made), sum(call.output_tokens for call in made)
        counts = {
            "request_limit": (len(made), wanted.model_calls),
            "input_tokens_limit": (put, wanted.asked_tokens),
            "output_tokens_limit": (got, wanted.least_tokens),
            "total_tokens_limit": (put + got, wanted.asked_tokens + wanted.least_tokens),
        }
        for name, (used, more) in counts.items():
            if name in wanted.own and used + more > wanted.own[name]:
                return Reservation(exceeded=name, most=wanted.own[name], used=used)
        left = [wanted.own[name] - counts[name][0] for name in ("output_tokens_limit",) if name in wanted.own]
        if "total_tokens_limit" in wanted.own:
            left.append(wanted.own["total_tokens_limit"] - put - got - wanted.asked_tokens)
        return Reservation(reply_tokens=min([wanted.reply_tokens, *left]))

    async def charge_step(self, claim: StepClaim, usd: float, *, is_ahead: bool) -> Reservation:
        return Reservation()  # no job here has a budget

    def __getattr__(self, name: str) -> Any:
        async def refuse(*_: Any, **__: Any) -> Any:
            # Child jobs, budgets and suspects: a whole planq has them.
            raise InternalFault(f"a job without a server knows no {name!r}: use the fixture planq_server")

        if name.startswith("_"):
            raise AttributeError(name)
        return refuse


def _text_of(output: Any) -> str | None:
    if isinstance(output, dict) and output.keys() == {"text"} and isinstance(output["text"], str):
        return output["text"]
    return output if output is None or isinstance(output, str) else encode(output).decode()


def _decoded(output: Any) -> Any:
    return json.loads(output.body) if isinstance(output, JsonText) else output
