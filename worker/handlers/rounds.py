"""The PLAN stage of a job that plans by rounds: one model call, which plans the next round or ends the job.

`loop` and `react` differ in the form in which the model is asked, and in their limits, alone (docs/decisions.md, D6
and D28 to D36). `guided` is `react` after a first round in which the model writes a guide for its turns. A reply that
cannot be read, states wrong numbers, or leaves required arguments out is put right by one further call; arguments
that are missing then are asked of a person. When a limit ends the loop, one call without tools answers from what
there is.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planq.shared.agentic.agents.answers import with_answers_as_text
from planq.shared.agentic.models.contract import TurnPlanner
from planq.shared.agentic.models.ending import Incomplete
from planq.shared.agentic.models.exchange import (
    Ask,
    Background,
    ChatMessage,
    Findings,
    ModelFailed,
    ModelReply,
    TurnForm,
    TurnPrompt,
    reply_to_json,
)
from planq.shared.agentic.orchestration.request import OrchestrateLimits
from planq.shared.agentic.plan.document import Call, Plan
from planq.shared.agentic.plan.errors import cut_off_plan, invalid_plan
from planq.shared.agentic.plan.interpret import Direct, MalformedPlan
from planq.shared.agentic.plan.planner import PlanningRequest
from planq.shared.agentic.results.texts import format_summary
from planq.shared.agentic.rounds.block import LoopBlock, parse_block
from planq.shared.agentic.rounds.compile import CompiledRound, asking_for, compile_round
from planq.shared.agentic.rounds.ending import limit_reached, planned_rounds, rounds_left, time_for_steps
from planq.shared.agentic.rounds.evaluate import (
    AFTER_SOURCE,
    ON_ERROR_SOURCE,
    ErrorReaction,
    RuleCall,
    after_steps,
    errors_matched,
    loop_variables,
    prompt_text,
    until_holds,
)
from planq.shared.agentic.rounds.guard import MODEL_SOURCE, GuardLimits
from planq.shared.agentic.rounds.guide import GUIDE_SOURCE, Guide, guide_text, read_guide
from planq.shared.agentic.rounds.reading import (
    Abort,
    NothingLeft,
    Turn,
    TurnCalls,
    TurnQuestion,
    interpret_turn,
    number_errors,
)
from planq.shared.agentic.rounds.transcript import transcript, with_refusal
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.claims import StageClaim
from planq.shared.kernel.job_store import FollowUp, JobStore
from planq.shared.kernel.states import AfterSteps, OnFailure, StopReason, Strategy
from planq.shared.kernel.steps import PlannedStep, RoundRecord, StepResult
from planq.shared.platform.computing import off_loop
from planq.shared.platform.errors import (
    Aborted,
    BudgetExceeded,
    ErrorRecord,
    InvalidArguments,
    InvalidRequest,
    PlanInvalid,
    StorageUnavailable,
    capped,
    storable,
)
from planq.worker.engine.chain import Chain, WakeOutcome
from planq.worker.engine.persist import persist
from planq.worker.handlers.agent_job import AgentJob, ask_of, call_limits, most_steps
from planq.worker.handlers.budget import Budget, ModelCallRecorder
from planq.worker.handlers.respond import AgentReply, Answering
from planq.worker.handlers.step_values import Values
from planq.worker.handlers.unit import RunsAhead, units_of
from planq.worker.models.planners import InstalledPlanners

_log = logging.getLogger("planq.engine")

_UNGUARDED = GuardLimits(1_000_000, 1_000_000, 1_000_000)

_TRANSCRIPT_TOKENS = 50_000
"""Maximum size of the earlier rounds in a question to a planner; the longest results are shortened first."""
"""For calls that no model made."""


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """The tools that the model of a job may call, and all that are `known`, by registered name."""

    tools: Mapping[str, ToolDefinition]
    known: Mapping[str, ToolDefinition]


@dataclass(frozen=True, slots=True)
class _Round:
    """A claim that is carried out in a `chain`: what is asked, over which `tools`, in the name of which `agent`.

    Its `rounds` are without that of the `guide`, which is advice; `early` are messages that came meanwhile.

    The calls of rules in the job's `block` are to any of the tools that are `known`. `whole` are the rounds with
    whole outputs, where the block reads results.
    """

    claim: StageClaim
    chain: Chain
    ask: Ask
    tools: Mapping[str, ToolDefinition]
    agent: AgentJob | None
    form: TurnForm
    block: LoopBlock
    known: Mapping[str, ToolDefinition]
    guard: GuardLimits
    guide: Guide | None
    planner_model: str | None
    early: Sequence[ChatMessage]
    whole: Sequence[RoundRecord] = ()

    @property
    def variables(self) -> Mapping[str, Any]:
        return loop_variables(self.whole, query=self.claim.input, own=self.block.vars)


@dataclass(frozen=True, slots=True)
class _TurnReply:
    """A reply to a turn, as it is read; with its calls as they would be accepted where it holds calls."""

    reply: ModelReply
    turn: Turn
    compiled: CompiledRound | None = None

    @property
    def defects(self) -> Sequence[Mapping[str, Any]]:
        """Return what is worth one more question to the model."""
        if isinstance(self.turn, MalformedPlan):
            return self.turn.errors
        if self.compiled is None or not isinstance(self.turn, TurnCalls):
            return ()
        lacking = {one.step for one in self.compiled.missing}
        errors = [*number_errors(self.turn, self.compiled.steps[0].index), *self.compiled.defects]
        return [error.to_json() for error in errors if error.type == "invalid_plan" or error.tool_index in lacking]


class RoundStage:
    """Carries out PLAN of jobs that plan round by round, one per engine."""

    def __init__(
        self,
        store: JobStore,
        values: Values,
        planner: TurnPlanner,
        recorder: ModelCallRecorder,
        budget: Budget,
        answering: Answering,
        run_ahead: RunsAhead,
        *,
        counts: Counter[tuple[str, ...]] | None = None,
        own_planners: InstalledPlanners | None = None,
    ) -> None:
        """Fallbacks are counted in `counts`. `own_planners` are those that a loop block may name."""
        self._store = store
        self._values = values
        self._planner = planner
        self._recorder = recorder
        self._budget = budget
        self._answering = answering
        self._run_ahead = run_ahead
        self._counts = Counter() if counts is None else counts
        self._own = own_planners

    async def carry_out(
        self, claim: StageClaim, job: AgentJob | None, background: Background, offered: ToolOffer, chain: Chain
    ) -> WakeOutcome:
        """Plan the next round, or end the job."""
        try:
            work = _begun(claim, job, background, offered, chain)
            if work.block.reads_results:
                whole = await self._values.whole_rounds(claim.tenant_id, work.claim.rounds)
                work = replace(work, whole=whole)
            return await self._carry_out(work)
        except ModelFailed as failure:
            return await self._recorder.end_or_retry(claim, failure, chain.calls)
        except (InvalidArguments, StorageUnavailable) as error:
            return await self._recorder.end(claim, None, ErrorRecord.of(error), chain.calls)

    async def _carry_out(self, work: _Round) -> WakeOutcome:
        claim = work.claim
        try:
            if _needs_guide(work):
                return await self._guide(work)
            reaction = await off_loop(_reaction, work) if claim.rounds and work.block.on_error else ErrorReaction()
            if reaction.calls:
                return await self._call(work, ON_ERROR_SOURCE, reaction.calls, further_round(claim))
            if reaction.abort_reason is not None:
                return await self.abort(claim, reaction.abort_reason, work.chain)
            stop = limit_reached(claim.strategy, claim.rounds, claim.limits, claim.rounds_time_left)
            if (
                stop is None
                and claim.rounds
                and work.block.until
                and await off_loop(lambda: until_holds(work.block, work.variables))
            ):
                stop = StopReason.UNTIL
            if stop is not None or not work.tools:
                return await self._answer(work, stop or StopReason.ANSWERED)
            return await self._next(work)
        except BudgetExceeded as refused:
            return await self._end_unasked(work, refused)

    def guard_of(self, claim: StageClaim) -> GuardLimits:
        """Return what the guard allows the model of a job; raises `InvalidArguments` for a block that is none."""
        return GuardLimits() if claim.loop is None else _guard(_block_of(claim))

    async def abort(self, claim: StageClaim, reason: str, chain: Chain) -> WakeOutcome:
        """End the job as failed for a reason that its planner gave; its results stay (docs/decisions.md, D34)."""
        return await self._recorder.end(claim, None, ErrorRecord.of(Aborted(reason)), chain.calls)

    async def _guide(self, work: _Round) -> WakeOutcome:
        """Let the model write the job's guide; where it cannot, the turns go on without (docs/decisions.md, D8)."""
        found = await self._written(work)
        body, errors = (None, found.errors) if isinstance(found, MalformedPlan) else (found.to_json(), ())
        if errors:
            _log.warning("guide_failed", extra={"job": str(work.claim.job_id), "errors": len(errors)})
            self._counts["planner_fallback", "unguided"] += 1
        follow = replace(further_round(work.claim), errors=errors)
        return await self.accept(work.claim, work.chain, GUIDE_SOURCE, body, (), follow)

    async def _written(self, work: _Round) -> Guide | MalformedPlan:
        """Return what the planning call says; the gateway has tried it as often as the settings allow."""
        claim, calls, offered = work.claim, work.chain.calls, _sorted(work.tools)
        ask = replace(work.ask, answer_schema=None, model=work.planner_model or work.ask.model)
        ask = await self._budget.reserved(claim, ask, made=calls, tools=offered, own=call_limits(work.agent))
        try:
            reply = await self._recorder.asked(
                claim, calls, lambda cut_off: self._planner.guide(ask, offered, cut_off=cut_off)
            )
        except ModelFailed as failure:
            message = f"the planning call failed ({failure.error.code}): {failure.error.message}"
            return MalformedPlan((invalid_plan(message).to_json(),))
        return read_guide(reply.text, work.tools)

    async def _next(self, work: _Round) -> WakeOutcome:
        said = await self._decided(work)
        if isinstance(said.turn, MalformedPlan) and work.form is TurnForm.LOOP and work.block.planner is None:
            work = replace(work, form=TurnForm.REACT)
            await self._note_fallback(work, said.turn)
            said = await self._decided(work)
        match said.turn:
            case Direct(content):
                return await self._finish(work, content, StopReason.ANSWERED, said.reply.incomplete)
            case NothingLeft():
                return await self._answer(work, StopReason.NO_STEPS)
            case Abort(reason):
                return await self.abort(work.claim, reason, work.chain)
            case MalformedPlan(errors):
                refused = PlanInvalid(_all_of(errors), list(errors))
                return await self._recorder.end(work.claim, None, ErrorRecord.of(refused), work.chain.calls)
        if said.compiled is None:
            raise AssertionError(said.turn)
        ignored = said.turn.ignored if isinstance(said.turn, TurnCalls) else ()
        follow = replace(further_round(work.claim), reply=reply_to_json(said.reply), ignored=ignored)
        return await self._accept(work, MODEL_SOURCE, said.compiled, follow)

    async def _decided(self, work: _Round) -> _TurnReply:
        """Return what the model wants, put right by one further call where that is worth it."""
        messages = self._messages(work)
        said = _read(work, await self._asked(work, messages))
        if not said.defects:
            return said
        _log.info("turn_repaired", extra={"job": str(work.claim.job_id), "errors": len(said.defects)})
        refused = with_refusal(messages, said.reply, said.defects)
        again = _read(work, await self._asked(work, refused, said.defects))
        if again.compiled is None or not again.compiled.missing:
            return again
        return _asking(work, again)

    def _messages(self, work: _Round) -> Sequence[ChatMessage]:
        messages = transcript(work.claim.rounds, max_tokens=_TRANSCRIPT_TOKENS, form=work.form)
        return [*work.early, *messages]

    async def _asked(
        self, work: _Round, messages: Sequence[ChatMessage], errors: Sequence[Mapping[str, Any]] = ()
    ) -> ModelReply:
        claim, calls = work.claim, work.chain.calls
        offered = [] if work.block.planner is not None and work.form is TurnForm.ANSWER else _sorted(work.tools)
        if work.block.planner is not None and work.form is not TurnForm.ANSWER:
            return await self._decided_by(work.block.planner, work, offered, errors)
        own = call_limits(work.agent)
        async with self._recorder.kept(claim.job_id, calls):
            ask = _worded(work)
            ask = await self._budget.reserved(claim, ask, made=calls, tools=offered, own=own, transcript=messages)
        return await self._recorder.asked(
            claim,
            calls,
            lambda cut_off: self._planner.turn(ask, offered, messages, work.form, cut_off=cut_off),
        )

    async def _decided_by(
        self, name: str, work: _Round, offered: Sequence[ToolDefinition], errors: Sequence[Mapping[str, Any]]
    ) -> ModelReply:
        """Return the decision of a package's planner, which costs nothing of a budget in tokens or money."""
        own, claim = self._own, work.claim
        if own is None:
            raise InvalidArguments(f"loop/planner: no planner {capped(name, 80)!r} is installed here")
        request = PlanningRequest(
            job_id=str(claim.job_id),
            input=claim.input,
            tools=offered,
            variables=work.variables,
            next_index=claim.next_index,
            rounds_left=rounds_left(claim.strategy, claim.rounds, claim.limits),
            instructions=work.ask.instructions,
            data=work.ask.data,
            errors=errors,
        )
        return await self._recorder.asked(
            claim, work.chain.calls, lambda cut_off: own.decide(name, request, cut_off=cut_off)
        )

    async def _answer(self, work: _Round, stop: StopReason) -> WakeOutcome:
        """Let the model answer from what there is, without further calls."""
        messages = self._messages(work)
        work = replace(work, form=TurnForm.ANSWER)
        reply = await self._asked(work, messages)
        return await self._finish(work, reply.text, stop, reply.incomplete)

    async def _finish(self, work: _Round, text: str, stop: StopReason, incomplete: Incomplete | None) -> WakeOutcome:
        """End the job with its answer, or open the round of the calls that follow the last one."""
        claim, chain = work.claim, work.chain
        has_failed = incomplete is not None and incomplete.is_failure
        follows = work.block.after and not has_failed
        calls = await off_loop(lambda: after_steps(work.block, work.variables)) if follows else ()
        if work.agent is None:
            if calls:
                error = None if incomplete is None else incomplete.error()
                follow = FollowUp(stop_reason=stop, answer=storable(text), incomplete=error)
                return await self._call(work, AFTER_SOURCE, calls, follow)
            return await self._recorder.end(
                claim, storable(text), None, chain.calls, stop_reason=stop, incomplete=incomplete
            )
        findings = Findings(results=_results(claim)) if claim.rounds else Findings(is_direct=True)
        said = AgentReply(text, findings, stop, incomplete)
        if not calls:
            return await self._answering.finish(claim, work.agent, chain, said)
        found = await self._answering.checked(claim, work.agent, chain, said)
        if isinstance(found, WakeOutcome):
            return found
        said_at_last = found.answer
        answer, output = (
            (said_at_last, None) if isinstance(said_at_last, str) else (said_at_last.text, said_at_last.value)
        )
        follow = FollowUp(stop_reason=stop, answer=answer, output=output, incomplete=found.error())
        return await self._call(work, AFTER_SOURCE, calls, follow)

    async def _call(self, work: _Round, source: str, calls: Sequence[RuleCall], follow: FollowUp) -> WakeOutcome:
        """Open a round of calls that rules make: values in them are data, and no guard concerns them."""
        plan = Plan(calls=[Call(tool_name=call.tool, arguments=dict(call.arguments)) for call in calls])
        compiled = compile_round(
            plan,
            work.known,
            work.claim.rounds,
            base=work.claim.next_index,
            max_steps=len(calls),
            verbatim=True,
            guard=_UNGUARDED,
            agents=OrchestrateLimits.of(work.claim.limits),
            step_timeout_seconds=work.claim.limits.step_timeout_seconds,
        )
        return await self._accept(work, source, compiled, replace(follow, on_failure=OnFailure.RECORD))

    async def _end_unasked(self, work: _Round, refused: BudgetExceeded) -> WakeOutcome:
        """End a job whose budget allows no further call: from results that there are, in planq's own words."""
        claim, results = work.claim, _results(work.claim)
        if not results or work.agent is not None:
            return await self._recorder.end(claim, None, ErrorRecord.of(refused), work.chain.calls)
        text = f"No model could answer: {refused.message}. These are the results.\n\n{format_summary(results)}"
        return await self._recorder.end(claim, storable(text), None, work.chain.calls, stop_reason=StopReason.BUDGET)

    async def _accept(self, work: _Round, source: str, compiled: CompiledRound, follow: FollowUp) -> WakeOutcome:
        body = compiled.plan.model_dump(mode="json", exclude_none=True)
        if compiled.dropped:
            body["dropped"] = compiled.dropped
        if compiled.blocked:
            _log.info("calls_blocked", extra={"job": str(work.claim.job_id), "steps": list(compiled.blocked)})
        return await self.accept(work.claim, work.chain, source, body, compiled.steps, follow)

    async def accept(
        self,
        claim: StageClaim,
        chain: Chain,
        source: str,
        body: Mapping[str, Any] | None,
        steps: Sequence[PlannedStep],
        follow: FollowUp,
    ) -> WakeOutcome:
        """Store the plan of a round, be it the only one, and take over what `chain` may.

        Raises `BudgetExceeded` and `PausedByBudget`.
        """
        open_steps = [step for step in steps if step.known is None]
        async with self._recorder.kept(claim.job_id, chain.calls):
            await self._budget.steps(claim, len(open_steps), chain.calls)
            ran = await self._run_ahead(claim, steps, chain)
        chain.units = units_of(claim, steps)
        ended = {one.claim.ref.index for one in ran}
        left = [step for step in open_steps if step.index not in ended]
        take = chain.take(sum(ended.issuperset(step.depends_on) and step.pool == chain.pool for step in left))
        given = claim, source, body, steps, chain.calls
        result = await self._recorder.conclude(self._store.accept_plan, *given, follow=follow, take=take, ran=ran)
        shown = {"job": str(claim.job_id), "round": claim.round, "steps": len(steps), "applied": result.applied}
        _log.log(logging.DEBUG if result.applied else logging.INFO, "plan_accepted", extra=shown)
        return WakeOutcome.by(claim, result, unit=result.ran)

    async def _note_fallback(self, work: _Round, malformed: MalformedPlan) -> None:
        claim = work.claim
        _log.warning("planner_fell_back", extra={"job": str(claim.job_id), "errors": len(malformed.errors)})
        self._counts["planner_fallback", "react"] += 1
        data = {"round": claim.round, "to": Strategy.REACT, "errors": list(malformed.errors)}
        async with self._recorder.kept(claim.job_id, work.chain.calls):
            await persist(self._store.note, claim, "planner_fell_back", data)


def _read(work: _Round, reply: ModelReply) -> _TurnReply:
    decided = reply.tool_calls
    if work.form is TurnForm.LOOP and work.ask.answer_schema is not None:
        decided = with_answers_as_text(decided)
    turn = interpret_turn(reply.text, decided, work.form)
    if reply.incomplete is not None and not isinstance(turn, (Direct, NothingLeft)):
        return _TurnReply(reply, MalformedPlan((cut_off_plan(reply.incomplete).to_json(),)))
    if isinstance(turn, TurnQuestion):
        call = Call(kind="elicitation", tool_name="elicitation", message=turn.message, requested_schema=turn.schema)
        return _TurnReply(reply, turn, _compiled(work, Plan(calls=[call])))
    if not isinstance(turn, TurnCalls):
        return _TurnReply(reply, turn)
    try:
        compiled = _compiled(work, turn.plan, turn.broken)
    except PlanInvalid as refused:
        return _TurnReply(reply, MalformedPlan(tuple(dict(error) for error in refused.errors)))
    return _TurnReply(reply, turn, compiled)


def _compiled(work: _Round, plan: Plan, broken: Mapping[int, str] | None = None) -> CompiledRound:
    return compile_round(
        plan,
        work.tools,
        work.claim.rounds,
        base=work.claim.next_index,
        max_steps=most_steps(work.claim, work.agent),
        verbatim=work.form is TurnForm.REACT,
        broken=broken,
        guard=work.guard,
        agents=OrchestrateLimits.of(work.claim.limits),
        step_timeout_seconds=work.claim.limits.step_timeout_seconds,
    )


def _asking(work: _Round, said: _TurnReply) -> _TurnReply:
    compiled = said.compiled
    assert compiled is not None
    plan = asking_for(compiled.plan, compiled.missing, base=work.claim.next_index)
    return replace(said, compiled=_compiled(work, plan))


def _results(claim: StageClaim) -> Sequence[StepResult]:
    return [result for record in claim.rounds for result in record.results]


def _begun(
    claim: StageClaim,
    job: AgentJob | None,
    background: Background,
    offered: ToolOffer,
    chain: Chain,
) -> _Round:
    """Return the round, within what the job's block allows; raises `InvalidArguments` for one that is none."""
    block = _block_of(claim)
    claim = replace(claim, limits=block.lowered(claim.limits, claim.strategy))
    tools = {name: offered.tools[name] for name in block.tool_names(list(offered.tools))}
    guides = [record for record in claim.rounds if record.source == GUIDE_SOURCE]
    claim = replace(claim, rounds=[record for record in claim.rounds if record.source != GUIDE_SOURCE])
    early = [ChatMessage("user", text) for record in guides for text in record.merged]
    guide = Guide.of_json(guides[0].plan) if guides else None
    return _Round(
        claim,
        chain,
        ask_of(claim, job, background),
        tools,
        job,
        TurnForm.REACT if claim.strategy.is_by_turns else TurnForm.LOOP,
        block,
        offered.known,
        _guard(block),
        guide,
        background.planner_model,
        early,
    )


def _block_of(claim: StageClaim) -> LoopBlock:
    try:
        return LoopBlock() if claim.loop is None else parse_block(claim.loop)
    except InvalidRequest as error:
        raise InvalidArguments(error.message) from error


def _guard(block: LoopBlock) -> GuardLimits:
    return GuardLimits() if block.guard is None else GuardLimits(**block.guard.model_dump(exclude_none=True))


def _reaction(work: _Round) -> ErrorReaction:
    """Return what the rules say about failures that nothing has followed yet; precondition: a round is over.

    The calls of `on_error` are a round of their own; once that is over, what is left is whether the job is aborted.
    """
    rounds = work.whole
    if rounds[-1].source != ON_ERROR_SOURCE:
        return errors_matched(work.block, rounds[-1], work.variables)
    before = loop_variables(rounds[:-1], query=work.claim.input, own=work.block.vars)
    return replace(errors_matched(work.block, rounds[-2], before), calls=())


def further_round(claim: StageClaim) -> FollowUp:
    return FollowUp(AfterSteps.PLANNING, OnFailure.RECORD, seconds=time_for_steps(claim.strategy, claim.limits))


def _needs_guide(work: _Round) -> bool:
    is_first = work.claim.strategy.begins_with_guide and work.claim.round == 0
    return is_first and bool(work.tools) and work.block.planner is None


def _sorted(tools: Mapping[str, ToolDefinition]) -> Sequence[ToolDefinition]:
    return [tools[name] for name in sorted(tools)]


def _worded(work: _Round) -> Ask:
    """Return the question of a turn with the words of the caller's block, and with what it is told of the guide."""
    ask, claim, template = work.ask, work.claim, prompt_text(work.block)
    if work.guide is not None:
        ask = replace(ask, guide=guide_text(claim.input, [step.description for step in work.guide.steps]))
    if template is None:
        return ask
    left = rounds_left(claim.strategy, claim.rounds, claim.limits)
    return replace(ask, prompt=TurnPrompt(template, planned_rounds(claim.rounds), left, work.block.vars))


def _all_of(errors: Sequence[Mapping[str, Any]]) -> str:
    return "the planner's reply cannot be read: " + "; ".join(str(error.get("error", error)) for error in errors)
