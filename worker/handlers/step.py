"""One attempt at a step: resolve, validate, call under the timeout, validate, finish (docs/architecture.md).

The call runs in an asyncio task of its own, so that a tool which ignores its timeout is left behind. What comes
before the call is done in the same task. Otherwise a thousand steps that begin together would all be prepared before
the first of them calls its tool, and then end together as well, after a time in which nobody worked.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any

from planq.shared.agentic.tools.contract import (
    AskingPerson,
    AsksPeople,
    FindsOut,
    Gathers,
    KeepsSecrets,
    NotHappened,
    Ownership,
    Reports,
    RichOutput,
    Suspended,
    Tool,
    Toolbox,
    ToolContext,
)
from planq.shared.agentic.tools.policy import ToolPolicy
from planq.shared.agentic.tools.scoping import PARAMETER_OVERRIDE, SUSPICIOUS_ARGUMENTS
from planq.shared.agentic.turns.wording import suspicious_arguments
from planq.shared.kernel.budget import ReservationRequest, check_reserved
from planq.shared.kernel.children import Delegated
from planq.shared.kernel.claims import Claim, StageClaim, StepClaim
from planq.shared.kernel.follow_ups import after_end
from planq.shared.kernel.job_store import JobStore, TransitionResult, UnitStep
from planq.shared.kernel.questions import StepQuestion
from planq.shared.kernel.retry import AskPerson, GiveUp, Next, Phase, RunAgain, after_error
from planq.shared.kernel.states import TERMINAL_JOB, Effect, QuestionKind, StepKind, StepStatus
from planq.shared.kernel.steps import PlannedStep
from planq.shared.platform.errors import (
    ErrorRecord,
    ExecutionFailed,
    InternalFault,
    OutcomeUnknown,
    StorageFull,
    StorageUnavailable,
    TooManyQuestions,
    UnknownTool,
)
from planq.shared.platform.lacking import LackedHere, as_failure
from planq.shared.platform.logs import attempt_fields
from planq.shared.platform.values.encoding import JsonText
from planq.shared.subjects.tenants.config import Tenants
from planq.worker.engine.chain import LOCAL_FAN_OUT, Chain, WakeOutcome, after_release
from planq.worker.engine.lease import Owner, is_looked_into
from planq.worker.engine.persist import persist
from planq.worker.engine.running import InFlightWork, attempt_of, reports_late_outcome
from planq.worker.handlers.alarms import Alarms
from planq.worker.handlers.questions import Approvals, CallQuestions, PlanQuestion
from planq.worker.handlers.step_values import AttemptOutcome, ReadyOutput, Values
from planq.worker.handlers.tool_call import Calling, CallProgress, CallSecrets, SecretsOf, no_secrets
from planq.worker.handlers.unit import FUSED_SECONDS, MAX_FUSED_STEPS, claim_ahead, may_run_ahead, next_claim

_log = logging.getLogger("planq.engine")

_MOST_WARNINGS = 20

_QUICK_SECONDS = 0.02
"""A tool whose last call took longer is not called before the plan of its step is stored."""


class StepRunner:
    """Runs single steps. `draw` returns uniform numbers from [0, 1) for jitter.

    No tool is called before `in_flight` knows what this worker still holds. Calls of tools are counted in `counts`,
    as `Calling.count` says. `policy` is the server's, to which those of `tenants` and jobs add.
    """

    def __init__(
        self,
        store: JobStore,
        toolbox: Toolbox,
        *,
        values: Values,
        draw: Callable[[], float],
        in_flight: InFlightWork,
        tenants: Tenants,
        policy: ToolPolicy | None = None,
        counts: Counter[tuple[str, ...]] | None = None,
        has_processes: bool = False,
        secrets: SecretsOf = no_secrets,
        can_seal: bool = False,
        alarms: Alarms | None = None,
    ) -> None:
        self._secrets = secrets
        self._can_seal = can_seal
        self._alarms = alarms
        self._has_processes = has_processes
        self._quick: set[str] = set()
        self._approvals = Approvals(store, policy or {}, tenants)
        self._counts = Counter() if counts is None else counts
        self._store = store
        self._toolbox = toolbox
        self._values = values
        self._draw = draw
        self._in_flight = in_flight
        self._conclude = in_flight.conclude

    async def carry_out(self, claim: StepClaim, chain: Chain) -> WakeOutcome:
        """Run the attempt, and the rest of the unit that it begins; store what that came to.

        Takes over what `chain` may; returns what it led to.
        """
        since = monotonic()
        known, chain.known = chain.known, None
        outcome = known[1] if known is not None and known[0].ref == claim.ref else await self._attempt(claim)
        if outcome.is_elsewhere:
            return await self._leave(claim, code=UnknownTool.code)
        if outcome.suspended is not None:
            waiting = outcome.suspended
            applied = await persist(self._conclude, self._store.suspend_step, claim, waiting.delay, waiting.output)
            if applied and self._alarms is not None:
                self._alarms.after_wait(claim, waiting.delay)
            return WakeOutcome.by(claim, TransitionResult(applied))
        if outcome.delegated is not None:
            delegated = outcome.delegated
            result = await persist(self._conclude, self._store.delegate_step, claim, delegated)
            _log_transition("step_delegated", claim, result.applied)
            return WakeOutcome.by(claim, result)
        if outcome.asked is not None:
            question = await self._approvals.addressed(claim, outcome.asked)
            ahead = await self._ask_ahead(claim) if question.kind is QuestionKind.APPROVAL else ()
            try:
                applied = await persist(self._conclude, self._store.ask_step, claim, question, ahead=ahead)
            except TooManyQuestions as error:
                return await self.break_off(claim, error, chain, phase=Phase.PREPARING, since=since)
            _log_transition("step_asking", claim, applied, kind=str(question.kind))
            return WakeOutcome.by(claim, TransitionResult(applied, status=StepStatus.WAITING))
        if outcome.output is None:
            failure = outcome.failure or InternalFault("the attempt ended without an outcome")
            return await self.break_off(
                claim, failure, chain, phase=outcome.phase, poisoned=outcome.poisoned, since=since
            )
        output = outcome.output
        unit = (
            await self._rest_of_unit(claim, output, chain, since) if chain.units and claim.ref in chain.units else ()
        )
        ready = min((unit[-1].claim if unit else claim).dependents, LOCAL_FAN_OUT)  # more are shared out
        try:
            if output.has_payload:
                result = await persist(self._succeed_large, claim, output, unit, chain, ready)
            else:
                stored, take = JsonText(output.body), chain.take(ready)
                result = await persist(
                    self._conclude, self._store.succeed_step, claim, stored, output.artifact, unit=unit, take=take
                )
        except StorageFull as error:
            return await self.break_off(claim, error, chain, since=since)
        _log_transition("step_succeeded", claim, result.applied)
        if not result.applied:
            return await self._record_late_outcome(WakeOutcome.by(claim, result), claim, output)
        return WakeOutcome.by(claim, result, unit=unit[: result.steps - 1])

    async def _leave(self, claim: StepClaim, why: str = "tool_has_gone", **fields: Any) -> WakeOutcome:
        """Give a step back that this worker cannot run: its tool has gone just now, or this process lacks what its
        call needs.

        The sweeper publishes its wake-up, so that this worker does not take it again and again meanwhile.
        """
        result = await persist(self._store.release, claim)
        _log_transition(why, claim, result.applied, **fields)
        wakes = after_release(claim, result)
        others = [wake for wake in wakes if wake.ref != claim.ref]
        return WakeOutcome(claim.attempt, others, has_ended=result.job_status in TERMINAL_JOB)

    async def _rest_of_unit(
        self, head: StepClaim, output: ReadyOutput, chain: Chain, since: float
    ) -> Sequence[UnitStep]:
        """Run the other steps of the unit that `head` begins; returns those that succeeded with a small output.

        What another one came to is kept for its own claim, which comes with the commit of these.
        """
        unit: list[UnitStep] = []
        following = next_claim(chain.units, head, output)
        while following and len(unit) < MAX_FUSED_STEPS and monotonic() - since < FUSED_SECONDS and chain.goes_on:
            if not self._has_tool_of(chain.units[unit[-1].claim.ref if unit else head.ref]):
                break  # who may run it, its own claim decides
            began = monotonic()
            try:
                outcome = await self._attempt(following, head)
            except Exception:  # a defect ends the step's own attempt
                break
            if (small := outcome.small) is None:
                chain.known = following, outcome
                break
            unit.append(UnitStep(following, JsonText(small.body), small.artifact, monotonic() - began))
            following = next_claim(chain.units, following, small)
        return unit

    def _has_tool_of(self, step: PlannedStep) -> bool:
        tool = self._toolbox.find(step.tool_name)
        return tool is not None and step.digest in (None, tool.definition.digest)

    async def break_off(
        self,
        claim: StepClaim,
        failure: ExecutionFailed | StorageUnavailable,
        chain: Chain,
        *,
        phase: Phase = Phase.CALLING,
        poisoned: bool = False,
        since: float | None = None,
    ) -> WakeOutcome:
        """End an attempt that came to nothing: decide what becomes of the step, and store that.

        `since` is when the attempt began (`time.monotonic`), None when that was long ago.
        """
        may_leave = phase is Phase.PREPARING or claim.effect is not Effect.UNSAFE
        if may_leave and isinstance(failure.__cause__, LackedHere):
            return await self._leave(claim, "lacked_here", reason=failure.message)
        next_ = after_error(
            claim,
            ErrorRecord.of(failure),
            phase=phase,
            jitter=self._draw(),
            retry_after=failure.retry_after if isinstance(failure, ExecutionFailed) else None,
            time_left=_time_left(claim, since),
            waited=claim.waited,
        )
        if isinstance(failure, ExecutionFailed) and (text := failure.traceback):
            await persist(self._store.keep_traceback, claim, text)
        result = await self._store_next(claim, next_, chain)
        _log_transition(f"step_{result.status}", claim, result.applied, code=next_.error.code)
        if isinstance(next_, RunAgain) and result.status is StepStatus.READY and self._alarms is not None:
            self._alarms.after_retry(claim, next_.delay)
        carried = WakeOutcome.by(claim, result, error=next_.error, poisoned=poisoned)
        return carried if result.applied else await self._record_late_outcome(carried, claim, next_.error)

    async def _record_late_outcome(
        self, carried: WakeOutcome, claim: StepClaim, came_to: ReadyOutput | ErrorRecord
    ) -> WakeOutcome:
        """Tell the conversation of a turn that was cancelled what its call came to; returns what that led to, too."""
        if not reports_late_outcome(claim):
            return carried
        error = came_to if isinstance(came_to, ErrorRecord) else None
        preview = None if isinstance(came_to, ErrorRecord) else came_to.preview
        output = None if isinstance(came_to, ErrorRecord) else JsonText(preview or came_to.body)
        followed = await persist(self._store.serve_end, claim.ref.job_id)
        noted = await persist(self._store.note_outcome, claim, output, error, is_preview=preview is not None)
        _log_transition("late_outcome_noted", claim, noted)
        return replace(carried, wakes=[*carried.wakes, *after_end(followed, claim)])

    async def _store_next(self, claim: StepClaim, next_: Next, chain: Chain) -> TransitionResult:
        match next_:
            case RunAgain(error, delay, in_doubt, anew, is_wait):
                how = {"in_doubt": in_doubt, "anew": anew, "is_wait": is_wait}
                return await persist(
                    self._conclude, self._store.fail_step, claim, error, delay, **how, take=chain.take()
                )
            case AskPerson(error, question):
                applied = await persist(self._conclude, self._store.ask_step, claim, question, error)
                return TransitionResult(applied, status=StepStatus.WAITING)
            case GiveUp(error):
                return await persist(self._conclude, self._store.fail_step, claim, error, None, take=chain.take())

    async def _succeed_large(
        self, claim: StepClaim, output: ReadyOutput, unit: Sequence[UnitStep], chain: Chain, ready: int
    ) -> TransitionResult:
        """Store the output; a repeat puts its payload again, so that none is referred to that has been collected."""
        artifact, payload = await self._values.put(claim, output)
        stored = None if payload is not None else JsonText(output.body)
        given, take = (claim, stored, artifact, payload), chain.take(ready)
        return await self._conclude(self._store.succeed_step, *given, unit=unit, take=take)

    async def run_ahead(self, stage: StageClaim, steps: Sequence[PlannedStep], chain: Chain) -> Sequence[UnitStep]:
        """Run quick `pure` steps of a plan that `stage` is about to store; returns those that succeeded.

        What another one came to is thrown away: it runs again once the plan is stored.
        """
        ran: list[UnitStep] = []
        if not may_run_ahead(stage):
            return ran
        outputs: dict[int, Any] = {}
        shown, tried = attempt_fields.get(), ""
        try:
            async with asyncio.timeout(FUSED_SECONDS):
                for step in steps:
                    if not (chain.goes_on and len(ran) < MAX_FUSED_STEPS):
                        break
                    if not self._is_quick(step) or step.pool != chain.pool or {*step.depends_on} - outputs.keys():
                        continue
                    claim, began, tried = claim_ahead(stage, step, outputs), monotonic(), step.tool_name
                    small = (await self._attempt(claim, stage)).small
                    if small is None or small.artifact is not None:
                        break
                    tried = ""
                    ran.append(UnitStep(claim, JsonText(small.body), None, monotonic() - began))
                    outputs[step.index] = json.loads(small.body)
        except Exception as error:  # also for want of time: the step's own attempt shows what is wrong
            _log.debug("ran_ahead_in_vain", extra={"cause": type(error).__name__})
        self._quick.discard(tried)
        attempt_fields.set(shown)
        return ran

    def _is_quick(self, step: PlannedStep) -> bool:
        """Return whether a step may run ahead: its tool took little time before, and leaves nothing but an output."""
        tool = self._toolbox.find(step.tool_name) if step.tool_name in self._quick else None
        if tool is None or tool.definition.price_usd is not None or tool.definition.user_scoped:
            return False
        is_pure_tool = (step.effect, step.kind, step.known) == (Effect.PURE, StepKind.TOOL, None)
        return is_pure_tool and self._has_tool_of(step)

    async def _attempt(self, claim: StepClaim, head: Claim | None = None) -> AttemptOutcome:
        """Return what the call comes to: `_call`, in a task of its own, and then the check of its answer.

        `head` is the claim by which it is held, where that is another one; to that of a stage nothing can be charged.
        """
        began = monotonic()
        is_held = partial(self._store.holds_step, head if isinstance(head, StepClaim) else claim)
        owner = Owner(claim, self._in_flight.lease, self._in_flight.writes, is_held)
        calling = Calling(claim, owner, CallSecrets(claim.tenant_id, self._secrets))
        attempt_fields.set(
            {
                "job": str(claim.ref.job_id),
                "step": claim.ref.index,
                "attempt": claim.attempt,
                "tool": claim.tool_name,
                "tenant": claim.tenant_id,
            }
        )
        try:
            is_question = claim.kind is StepKind.QUESTION
            tool = PlanQuestion() if is_question else self._toolbox.find(claim.tool_name)
            if tool is None:
                return AttemptOutcome(is_elsewhere=True)
            answer = await calling.answer(self._call(claim, tool, calling))
            if calling.secrets.given:
                answer = calling.secrets.hidden_in(answer)
            if isinstance(answer, Suspended):
                calling.count(self._counts, "suspended")
                return AttemptOutcome(suspended=answer)
            if isinstance(answer, Delegated):
                delegated = _checked(answer, claim, tool)
                calling.count(self._counts, "delegated")
                return AttemptOutcome(delegated=delegated)
            cost = answer.cost_usd if isinstance(answer, RichOutput) else None
            if isinstance(answer, RichOutput) and cost is not None:
                if isinstance(head, StageClaim):
                    return AttemptOutcome()
                await self._charge(claim, cost)
                answer = answer if answer.artifacts or answer.content else answer.output
            output = await self._values.ready(claim, tool, answer)
            calling.count(self._counts, "succeeded")
            if claim.effect is Effect.PURE:
                is_small = output.artifact is None and not output.has_payload
                is_quick = is_small and cost is None and monotonic() - began < _QUICK_SECONDS
                (self._quick.add if is_quick else self._quick.discard)(claim.tool_name)
            return AttemptOutcome(output=output)
        except AskingPerson as asking:
            calling.count(self._counts, "asked")
            return AttemptOutcome(asked=calling.secrets.hidden_in_question(asking.question))
        except LackedHere as lacked:
            return AttemptOutcome(failure=as_failure(lacked.with_traceback(None)), phase=calling.phase)
        except (ExecutionFailed, StorageUnavailable) as failure:
            calling.count(self._counts, failure.code)
            calling.secrets.hide_in_error(failure)
            is_poisoned = calling.is_abandoned and self._has_processes
            if calling.is_abandoned and not is_poisoned and is_looked_into(claim):
                # Who finds out that nothing has happened must not be proved wrong by a thread that hangs.
                await self._in_flight.writes.until_stopped(attempt_of(claim))
            # Its traceback leads by way of this frame to those that carry the outcome on: a circle for the collector.
            return AttemptOutcome(failure=failure.with_traceback(None), phase=calling.phase, poisoned=is_poisoned)

    async def _call(self, claim: StepClaim, tool: Tool, calling: Calling) -> Any:
        """Return the tool's answer: what it finds out of an earlier call, what it gathers, or that of a new call."""
        given = await calling.secrets.opened(claim.answers) if claim.answers else ()
        arguments = await self._values.arguments(claim, tool)
        if dropped := [name for name in tool.definition.user_scoped if name in claim.arguments]:
            data = {"tool": claim.tool_name, "parameters": dropped}
            await persist(self._store.note, claim, PARAMETER_OVERRIDE, data)
        # They go on: they only look like code.
        if claim.conversation_id is not None and (warnings := suspicious_arguments(arguments)):
            data = {"tool": claim.tool_name, "warnings": warnings[:_MOST_WARNINGS]}
            await persist(self._store.note, claim, SUSPICIOUS_ARGUMENTS, data)
        if claim.in_doubt:
            calling.phase = Phase.FINDING_OUT
            if not isinstance(tool, FindsOut):
                raise OutcomeUnknown(
                    f"an earlier call of the unsafe tool {claim.tool_name!r} may have taken effect, and this worker "
                    "knows no way to find out; start its workers with the same tools"
                )
            with calling:
                context = _context(claim, calling.owner, secrets=calling.secrets)
                found = await tool.find_out(arguments, context)
            if not isinstance(found, NotHappened):
                return found
            _log_transition("step_had_not_happened", claim, True)
        if not claim.joined and claim.kind is not StepKind.QUESTION:
            await self._approvals.check(claim, tool, arguments)
        await self._in_flight.until_held()
        price = None if claim.joined else tool.definition.price_usd
        if price is not None:
            await self._charge(claim, price, is_ahead=True)
        calling.phase = Phase.CALLING
        if claim.joined:
            if not isinstance(tool, Gathers):
                raise InternalFault(f"tool {claim.tool_name!r} delegated and knows no way to gather")
            children = await persist(self._store.children, claim)
            try:
                with calling:
                    return await tool.gather(arguments, children, claim.note, _context(claim))
            except ExecutionFailed:
                calling.phase = Phase.GATHERED
                raise
        longest = tool.definition.longest_seconds
        if longest is not None and self._has_processes:
            calling.seconds = longest  # its worker sees that the process lives, and can end it
        began = monotonic()
        calling.begin_progress = lambda: CallProgress(
            partial(self._store.report_progress, claim),
            calling.prolong,
            seconds=claim.timeout_seconds,
            longest=None if self._has_processes else longest,
            began=began,
            hide=calling.secrets.hidden_in,
        )
        is_plan = claim.kind is StepKind.QUESTION
        people = CallQuestions(given, can_seal=self._can_seal, is_plan=is_plan)
        context = _context(claim, calling.owner, people, calling.secrets, calling)
        try:
            with calling.owner.calling(calling.seconds), calling:
                return await tool.call(arguments, context)
        except AskingPerson:
            if price is not None:  # it has done nothing yet, and is called anew with the answer
                await self._charge(claim, 0)
            raise

    async def _charge(self, claim: StepClaim, usd: float, *, is_ahead: bool = False) -> None:
        """Count what a call costs; raises `BudgetExceeded` where it `is_ahead` and the budget does not suffice."""
        charged = await persist(self._store.charge_step, claim, usd, is_ahead=is_ahead)
        check_reserved(ReservationRequest(), charged)

    async def _ask_ahead(self, claim: StepClaim) -> Sequence[tuple[int, StepQuestion]]:
        """Return the approvals that other steps of the round will need, as far as that is known by now.

        What else is wrong with one of these is told in its own turn.
        """
        found: list[tuple[int, StepQuestion]] = []
        for other in await persist(self._store.steps_to_ask_about, claim):
            if (tool := self._toolbox.find(other.tool_name)) is not None:
                try:
                    await self._approvals.check(other, tool, await self._values.arguments(other, tool))
                except AskingPerson as asking:
                    found.append((other.ref.index, asking.question))
                except (ExecutionFailed, StorageUnavailable):
                    continue
        return found


def _checked(delegated: Delegated, claim: StepClaim, tool: Tool) -> Delegated:
    """Return what a tool delegated; raises `InternalFault` where nobody could gather, or there is nothing to."""
    if not isinstance(tool, Gathers) or claim.joined or not delegated.children:
        raise InternalFault(
            f"tool {claim.tool_name!r} delegated without a way to gather, to no child job, or a second time"
        )
    return delegated


def _time_left(claim: StepClaim, since: float | None) -> timedelta | None:
    """Return how long the plan still has; its deadline stands in the claim."""
    if claim.time_left is None or since is None:
        return None
    return claim.time_left - timedelta(seconds=monotonic() - since)


def _context(
    claim: StepClaim,
    owner: Ownership | None = None,
    people: AsksPeople | None = None,
    secrets: KeepsSecrets | None = None,
    reports: Reports | None = None,
) -> ToolContext:
    job_id = str(claim.ref.job_id)
    return ToolContext(
        job_id=job_id,
        step_index=claim.ref.index,
        attempt=claim.attempt,
        tool_name=claim.tool_name,
        tenant_id=claim.tenant_id,
        user_id=claim.user_id,
        context_id=claim.context_id,
        request_id=job_id,
        trace_id=claim.trace_id,
        round=claim.ref.round,
        depth=claim.depth,
        root_job_id=str(claim.root_job_id) if claim.root_job_id else job_id,
        agent=claim.agent_name,
        limits=claim.limits,
        time_left_seconds=None if claim.time_left is None else claim.time_left.total_seconds(),
        timeout_seconds=claim.timeout_seconds,
        planned=claim.arguments,
        skill_id=claim.skill_id,
        owner=owner,
        people=people,
        secrets=secrets,
        reports=reports,
    )


def _log_transition(event: str, claim: StepClaim, applied: bool, **fields: Any) -> None:
    level = (
        logging.DEBUG if applied and not fields else logging.INFO
    )  # a line per step costs more than its transition
    if not _log.isEnabledFor(level):
        return
    _log.log(
        level,
        event if applied else "late_outcome_rejected",
        extra={
            "job": str(claim.ref.job_id),
            "step": claim.ref.index,
            "attempt": claim.attempt,
            "tool": claim.tool_name,
            **fields,
        },
    )
