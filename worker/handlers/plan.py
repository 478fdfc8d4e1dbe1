"""The PLAN stage: one model call at most, then the plan is accepted, refused, or the job is already answered.

A caller's plan needs no call; a direct answer ends the job (1 call); a defective plan goes to RESPOND with all its
errors (2 calls); a planner that cannot be reached fails the job (docs/decisions.md, D4 to D8). An agent plans over
its own tools; one without any answers at once (1 call).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planq.shared.agentic.agents.answers import with_answers_as_text
from planq.shared.agentic.models.contract import Planner
from planq.shared.agentic.models.exchange import NO_BACKGROUND, Background, Findings, ModelFailed
from planq.shared.agentic.orchestration.request import OrchestrateLimits
from planq.shared.agentic.plan.compile import compile_outline, outline
from planq.shared.agentic.plan.document import Plan, parse_plan
from planq.shared.agentic.plan.errors import cut_off_plan, plan_refused
from planq.shared.agentic.plan.interpret import Direct, MalformedPlan, interpret
from planq.shared.agentic.plan.validation import outline_errors
from planq.shared.agentic.rounds.compile import compile_single
from planq.shared.agentic.rounds.ending import abort_reason
from planq.shared.agentic.rounds.guard import CALLER_SOURCE, MODEL_SOURCE, GuardLimits
from planq.shared.agentic.tools.contract import ToolCatalogue
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.claims import StageClaim
from planq.shared.kernel.deferral import CallDeferred
from planq.shared.kernel.job_store import ONE_ROUND, FollowUp, JobStore
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.states import AfterSteps, OnFailure, Respond
from planq.shared.kernel.steps import PlannedStep
from planq.shared.platform.computing import INLINE_CHARS, off_loop
from planq.shared.platform.errors import (
    BudgetExceeded,
    ErrorRecord,
    InvalidArguments,
    InvalidRequest,
    PlanInvalid,
    UnknownAgent,
    storable,
)
from planq.shared.platform.lacking import LackedHere
from planq.shared.platform.values.encoding import is_larger
from planq.worker.engine.chain import Chain, WakeOutcome
from planq.worker.engine.persist import persist
from planq.worker.handlers.agent_job import AgentJob, ask_of, call_limits, most_steps, offered_tools
from planq.worker.handlers.budget import Budget, ModelCallRecorder, PausedByBudget
from planq.worker.handlers.insights import Insights
from planq.worker.handlers.respond import AgentReply, Answering
from planq.worker.handlers.rounds import RoundStage, ToolOffer, further_round
from planq.worker.handlers.stage_context import Backgrounds, config_of

_log = logging.getLogger("planq.engine")

_INLINE_STEPS = 200
"""Up to this many steps, and `INLINE_CHARS`, a plan is checked on the event loop (about 10 ms); longer ones go to a
thread: four arguments of 11 kB may be 22 000 numbers."""


@dataclass(frozen=True, slots=True)
class _CheckedPlan:
    """A plan after validation: `steps` when it is valid, `errors` otherwise."""

    steps: Sequence[PlannedStep]
    errors: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Planning:
    """A claim that is carried out in a `chain`, and where its plan comes from.

    `agent` is the side of an agent's job whose plan the model makes, `guard` what its calls may repeat;
    what stood at `ignored` in it means nothing.
    """

    claim: StageClaim
    chain: Chain
    source: str
    agent: AgentJob | None = None
    background: Background = NO_BACKGROUND
    guard: GuardLimits | None = None
    ignored: Sequence[str] = ()


class PlanStage:
    """Carries out PLAN for one claim."""

    def __init__(
        self,
        store: JobStore,
        catalogue: ToolCatalogue,
        planner: Planner,
        recorder: ModelCallRecorder,
        budget: Budget,
        answering: Answering,
        rounds: RoundStage,
        backgrounds: Backgrounds,
        insights: Insights | None = None,
    ) -> None:
        """`answering` ends the jobs of agents that have nothing to plan; `rounds` plans those of several rounds.

        Without `insights` no planner is told of earlier jobs.
        """
        self._store = store
        self._catalogue = catalogue
        self._planner = planner
        self._recorder = recorder
        self._budget = budget
        self._answering = answering
        self._rounds = rounds
        self._backgrounds = backgrounds
        self._insights = insights

    async def carry_out(self, claim: StageClaim, chain: Chain) -> WakeOutcome:
        """Plan, and store the plan or its defects, taking over what `chain` may."""
        try:
            return await self._carry_out(claim, chain)
        except (PausedByBudget, LackedHere):
            return await self._budget.put_back(claim, chain.calls)
        except CallDeferred as deferred:
            return await self._budget.defer(claim, deferred.call)

    async def _carry_out(self, claim: StageClaim, chain: Chain) -> WakeOutcome:
        if (reason := abort_reason(claim.rounds)) is not None:
            return await self._rounds.abort(claim, reason, chain)
        known = await persist(self._catalogue.tools, claim.tenant_id)
        if claim.plan_source is not None and claim.plan_body is not None:
            tools = known if claim.tools is None else {name: known[name] for name in claim.tools if name in known}
            return await self._take_callers_plan(_Planning(claim, chain, claim.plan_source), tools)
        try:
            background = await self._backgrounds.of(claim)
            job = AgentJob.of(claim, background)
            guard = self._rounds.guard_of(claim)
        except (InvalidArguments, InvalidRequest, UnknownAgent) as error:
            return await self._recorder.end(claim, None, ErrorRecord.of(error), [])
        tools = await offered_tools(self._store, claim, job, known, background.tools)
        if job is not None and not tools and not claim.strategy.has_rounds:
            return await self._answering.ask(claim, job, chain)
        job = None if job is None else job.knowing(tools)
        background, job = await self._advised(claim, background, job, tools)
        if claim.strategy.has_rounds:
            return await self._rounds.carry_out(claim, job, background, ToolOffer(tools, known), chain)
        return await self._plan(_Planning(claim, chain, MODEL_SOURCE, job, background, guard), tools)

    async def _advised(
        self, claim: StageClaim, background: Background, job: AgentJob | None, tools: Mapping[str, ToolDefinition]
    ) -> tuple[Background, AgentJob | None]:
        """Return the question's parts with what earlier jobs have taught."""
        if self._insights is None:
            return background, job
        text = await self._insights.of(claim, await config_of(self._backgrounds.tenants, claim.tenant_id), tools)
        if job is not None:
            job = replace(job, ask=replace(job.ask, insights=text))
        return replace(background, insights=text), job

    async def _plan(self, planning: _Planning, tools: Mapping[str, ToolDefinition]) -> WakeOutcome:
        claim, job, calls = planning.claim, planning.agent, planning.chain.calls
        offered = [tools[name] for name in sorted(tools)]
        try:
            ask = ask_of(claim, job, planning.background)
            if not offered:  # the reply is the answer
                ask = replace(ask, deferral=claim.deferral)
            ask = await self._budget.reserved(claim, ask, tools=offered, own=call_limits(job))
            reply = await self._recorder.asked(
                claim, calls, lambda cut_off: self._planner.plan(ask, offered, cut_off=cut_off)
            )
        except ModelFailed as failure:
            return await self._recorder.end_or_retry(claim, failure, calls)
        except BudgetExceeded as refused:
            return await self._recorder.end(claim, None, ErrorRecord.of(refused), [])
        decided = reply.tool_calls if ask.answer_schema is None else with_answers_as_text(reply.tool_calls)
        draft = interpret(reply.text, decided)
        if reply.incomplete is not None and not isinstance(draft, Direct):
            return await self._refuse(planning, None, [cut_off_plan(reply.incomplete).to_json()])
        if isinstance(draft, Direct):
            if job is not None:
                said = AgentReply(draft.content, Findings(is_direct=True), incomplete=reply.incomplete)
                return await self._answering.finish(claim, job, planning.chain, said)
            return await self._recorder.end(claim, storable(draft.content), None, calls, incomplete=reply.incomplete)
        if isinstance(draft, MalformedPlan):
            return await self._refuse(planning, None, draft.errors)
        planning = replace(planning, ignored=draft.ignored)
        return await self._take(planning, draft.plan, tools, most_steps(claim, job))

    async def _take_callers_plan(self, planning: _Planning, tools: Mapping[str, ToolDefinition]) -> WakeOutcome:
        # The API refused defective plans; what is left are tools that have changed since.
        body = planning.claim.plan_body
        try:
            plan = await off_loop(parse_plan, body) if is_larger(body, INLINE_CHARS) else parse_plan(body)
        except PlanInvalid as error:
            return await self._refuse(planning, body, error.errors)
        return await self._take(planning, plan, tools, planning.claim.limits.max_plan_steps)

    async def _take(
        self, planning: _Planning, plan: Plan, tools: Mapping[str, ToolDefinition], max_steps: int
    ) -> WakeOutcome:
        claim, chain = planning.claim, planning.chain
        work = (plan, tools, max_steps, claim.limits, planning.guard)
        is_short = len(plan.calls) <= _INLINE_STEPS
        if is_short and not is_larger([call.arguments for call in plan.calls], INLINE_CHARS):
            checked = _check(*work)
        else:
            async with self._recorder.kept(claim.job_id, chain.calls):
                checked = await off_loop(_check, *work)
        body = plan.model_dump(mode="json", exclude_none=True)
        if checked.errors:
            return await self._refuse(planning, body, checked.errors)
        try:
            follow = replace(_follow_up(planning, plan), ignored=planning.ignored)
            return await self._rounds.accept(claim, chain, planning.source, body, checked.steps, follow)
        except BudgetExceeded as refused:
            return await self._recorder.end(claim, None, ErrorRecord.of(refused), chain.calls)

    async def _refuse(self, planning: _Planning, body: Any, errors: Sequence[Mapping[str, Any]]) -> WakeOutcome:
        claim, chain = planning.claim, planning.chain
        error = ErrorRecord.of(plan_refused(errors))
        given = claim, planning.source, body, errors, chain.calls
        result = await self._recorder.conclude(self._store.refuse_plan, *given, error=error, take=chain.take(0))
        _log.info("plan_refused", extra={"job": str(claim.job_id), "errors": len(errors), "applied": result.applied})
        return WakeOutcome.by(claim, result)


def _follow_up(planning: _Planning, plan: Plan) -> FollowUp:
    """Return what follows a plan: where rounds go on after it, or it ends its job, there is something to plan."""
    claim = planning.claim
    if claim.strategy.has_rounds:
        return further_round(claim)
    after = AfterSteps.RESPONDING if claim.respond is Respond.MODEL else AfterSteps.COMPLETED
    if plan.calls[-1].kind == "abort":
        after = AfterSteps.PLANNING
    if planning.source != CALLER_SOURCE:
        return replace(ONE_ROUND, after_steps=after)
    return FollowUp(after, OnFailure(plan.on_failure or OnFailure.FAIL))


def _check(
    plan: Plan,
    tools: Mapping[str, ToolDefinition],
    max_steps: int,
    limits: Limits,
    guard: GuardLimits | None,
) -> _CheckedPlan:
    agents, step_timeout_seconds = OrchestrateLimits.of(limits), limits.step_timeout_seconds
    if guard is not None:
        try:
            compiled = compile_single(
                plan,
                tools,
                max_steps=max_steps,
                guard=guard,
                agents=agents,
                step_timeout_seconds=step_timeout_seconds,
            )
        except PlanInvalid as refused:
            return _CheckedPlan((), refused.errors)
        return _CheckedPlan(compiled.steps, ())
    known = outline(plan, tools)
    errors = outline_errors(known, max_steps=max_steps, agents=agents)
    if errors:
        return _CheckedPlan((), [error.to_json() for error in errors])
    return _CheckedPlan(compile_outline(known, step_timeout_seconds=step_timeout_seconds).steps, ())
