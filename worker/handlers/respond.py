"""The RESPOND stage, and how the job of an agent or of an orchestration ends.

RESPOND is one model call over the results, or over the defects of the plan (docs/decisions.md, D6, D7). Wherever an
agent's job comes to an answer (directly, without tools, from results, from the defects of a plan), `Answering` checks
it, puts it right once, and hands it to the chained tool, so that no path leaves that out (docs/decisions.md, D23). An
orchestration concludes without a model.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import uuid5

from planq.shared.agentic.agents.answers import InvalidAnswer, ValidAnswer, read_answer
from planq.shared.agentic.agents.chaining import ChainedCall, NoSuchTool, chained_call, chained_result
from planq.shared.agentic.models.contract import Responder
from planq.shared.agentic.models.ending import Incomplete
from planq.shared.agentic.models.exchange import Ask, Background, Findings, ModelFailed, ModelReply, Repair
from planq.shared.agentic.results.texts import failure_text
from planq.shared.agentic.rounds.evaluate import AFTER_SOURCE
from planq.shared.agentic.tools.contract import ToolCatalogue
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.claims import StageClaim
from planq.shared.kernel.job_store import JobStore, Message
from planq.shared.kernel.states import StopReason
from planq.shared.kernel.steps import PlannedStep, StepResult
from planq.shared.platform.errors import (
    BudgetExceeded,
    ErrorRecord,
    ExecutionFailed,
    InternalFault,
    InvalidArguments,
    InvalidRequest,
    PlanTimedOut,
    UnknownAgent,
    storable,
)
from planq.shared.platform.lacking import LackedHere
from planq.shared.platform.values.encoding import encode
from planq.shared.subjects.orchestrations.contract import PLAN_SOURCE, Conclude
from planq.worker.engine.chain import Chain, WakeOutcome
from planq.worker.engine.persist import persist
from planq.worker.handlers.agent_job import AgentJob, ask_of, call_limits
from planq.worker.handlers.budget import Budget, ModelCallRecorder, PausedByBudget
from planq.worker.handlers.stage_context import Backgrounds


class RespondStage:
    """Carries out RESPOND for one claim."""

    def __init__(
        self,
        recorder: ModelCallRecorder,
        budget: Budget,
        answering: Answering,
        backgrounds: Backgrounds,
        conclude: Conclude | None = None,
    ) -> None:
        self._recorder = recorder
        self._budget = budget
        self._answering = answering
        self._backgrounds = backgrounds
        self._orchestrations = OrchestrationStage(self._recorder, conclude)

    async def carry_out(self, claim: StageClaim, chain: Chain) -> WakeOutcome:
        """Answer from what was found; `chain` ends here. If the model fails, the job fails but keeps its results.

        After the round of a chained tool, or of what follows the last round, nothing is left to answer.
        """
        if claim.plan_source == CHAINED:
            return await self._answering.conclude_chained(claim)
        if self._orchestrations.is_for(claim):
            return await self._orchestrations.carry_out(claim)
        try:
            background = await self._backgrounds.of(claim)
            job = AgentJob.of(claim, background)
            if claim.plan_source == AFTER_SOURCE:
                return await self._answering.conclude_after(claim, job, chain)
            return await self._respond(claim, job, background, chain)
        except (InvalidArguments, InvalidRequest, UnknownAgent) as error:
            return await self._recorder.end(claim, None, ErrorRecord.of(error), chain.calls)
        except (PausedByBudget, LackedHere):
            return await self._budget.put_back(claim, chain.calls)

    async def _respond(
        self, claim: StageClaim, job: AgentJob | None, background: Background, chain: Chain
    ) -> WakeOutcome:
        findings = Findings(plan_errors=claim.plan_errors or ())
        if not findings.plan_errors:
            findings = Findings(results=claim.results or ())
        try:
            ask = await self._budget.reserved(claim, ask_of(claim, job, background), findings, own=call_limits(job))
            reply = await self._answering.asked(claim, chain, ask, findings)
        except ModelFailed as failure:
            return await self._recorder.end_or_retry(claim, failure, chain.calls, partial(_with_results, findings))
        except BudgetExceeded as refused:
            return await self._recorder.end(claim, None, ErrorRecord.of(refused), [])
        if job is not None:
            return await self._answering.finish(
                claim, job, chain, AgentReply(reply.text, findings, incomplete=reply.incomplete)
            )
        return await self._recorder.end(claim, storable(reply.text), None, chain.calls, incomplete=reply.incomplete)


def _with_results(findings: Findings, error: ErrorRecord) -> ErrorRecord:
    """Return the error of a job whose answer failed: what its steps failed with comes first."""
    shown = failure_text(findings.results)
    if shown is None:
        return error
    return ErrorRecord(error.code, f"{shown} (and the answer failed: {error.message})", details=error.details)


_log = logging.getLogger("planq.engine")

CHAINED = "chained"
"""The source of the plan whose only step is the chained tool."""


@dataclass(frozen=True, slots=True)
class AgentReply:
    """What an agent said in reply to what was found; `stop_reason` is why its loop of rounds ended, if it had one.

    `incomplete` says why the text was cut off, None where it is whole.
    """

    text: str
    findings: Findings
    stop_reason: StopReason | None = None
    incomplete: Incomplete | None = None


@dataclass(frozen=True, slots=True)
class CheckedAnswer:
    """An agent's answer, a text or with a schema an object; `incomplete` says why the text was cut off."""

    answer: ValidAnswer | str
    incomplete: Incomplete | None

    def error(self) -> ErrorRecord | None:
        """Return the error of a job with this answer, None for a whole one."""
        return None if self.incomplete is None else self.incomplete.error()


class Answering:
    """Ends the jobs of agents; one per engine."""

    def __init__(
        self,
        store: JobStore,
        catalogue: ToolCatalogue,
        responder: Responder,
        recorder: ModelCallRecorder,
        budget: Budget,
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._responder = responder
        self._recorder = recorder
        self._budget = budget

    async def ask(self, claim: StageClaim, job: AgentJob, chain: Chain) -> WakeOutcome:
        """Carry out the job of an agent that has no tools: one call, and its text is the answer."""
        findings = Findings(is_direct=True)
        try:
            ask = replace(job.ask, deferral=claim.deferral)  # the job's only call, but for a repair
            ask = await self._budget.reserved(claim, ask, findings, own=job.limits)
            reply = await self.asked(claim, chain, ask, findings)
        except ModelFailed as failure:
            return await self._recorder.end_or_retry(claim, failure, chain.calls)
        except BudgetExceeded as refused:
            return await self._recorder.end(claim, None, ErrorRecord.of(refused), [])
        return await self.finish(claim, job, chain, AgentReply(reply.text, findings, incomplete=reply.incomplete))

    async def finish(self, claim: StageClaim, job: AgentJob, chain: Chain, said: AgentReply) -> WakeOutcome:
        """End the job with what its agent said, or open the round of its chained tool with it.

        What that took are the calls of the `chain`, to which a repair adds its own.
        """
        found = await self.checked(claim, job, chain, said)
        if isinstance(found, WakeOutcome):
            return found
        if isinstance(found.answer, str):
            return await self._recorder.end(
                claim, found.answer, None, chain.calls, stop_reason=said.stop_reason, incomplete=found.incomplete
            )
        return await self._conclude(claim, job, chain, found.answer, said.stop_reason, found.incomplete)

    async def checked(
        self, claim: StageClaim, job: AgentJob, chain: Chain, said: AgentReply
    ) -> CheckedAnswer | WakeOutcome:
        """Return what an agent said as its answer: a text, or with a schema an object, put right once if need be.

        Returns how the job has ended where nothing was left but that.
        """
        schema, incomplete = job.ask.answer_schema, said.incomplete
        if schema is None:
            return CheckedAnswer(storable(said.text), incomplete)
        found = read_answer(said.text, schema)
        if isinstance(found, InvalidAnswer):
            _log.info("answer_rejected", extra={"job": str(claim.job_id), "errors": len(found.errors)})
            unrepaired = partial(_unrepaired, found)
            try:
                found, incomplete = await self._repaired(claim, job, chain, said, found)
            except ModelFailed as failure:
                return await self._recorder.end_or_retry(claim, failure, chain.calls, unrepaired)
        if isinstance(found, InvalidAnswer):
            return await self._recorder.end(claim, None, ErrorRecord.of(found.failure()), chain.calls)
        return CheckedAnswer(found, incomplete)

    async def conclude_after(self, claim: StageClaim, job: AgentJob | None, chain: Chain) -> WakeOutcome:
        """End the job after the calls that followed its last round: the answer stands, whatever came of them."""
        if job is None or job.ask.answer_schema is None:
            return await self._recorder.end(claim, claim.answer, None, [])
        return await self._conclude(claim, job, chain, ValidAnswer(claim.output), None)

    async def _repaired(
        self, claim: StageClaim, job: AgentJob, chain: Chain, said: AgentReply, rejected: InvalidAnswer
    ) -> tuple[ValidAnswer | InvalidAnswer, Incomplete | None]:
        """Show the model what is wrong with its answer, once, and return the new one and why that is not whole.

        Raises `ModelFailed` where that may pass.
        """
        findings = replace(said.findings, repair=Repair(rejected.raw, rejected.errors))
        try:
            async with self._recorder.kept(claim.job_id, chain.calls):
                ask = await self._budget.reserved(claim, job.ask, findings, chain.calls, own=job.limits)
            reply = await self.asked(claim, chain, ask, findings)
        except ModelFailed as failure:
            if failure.error.retryable:
                raise
            return _with_error(rejected, f"and the repair failed: {failure.error.message}"), None
        except BudgetExceeded as refused:
            return _with_error(rejected, f"and there was no repair: {refused.message}"), None
        return read_answer(reply.text, job.ask.answer_schema or {}), reply.incomplete

    async def asked(self, claim: StageClaim, chain: Chain, ask: Ask, findings: Findings) -> ModelReply:
        """Return what the model answers; raises `ModelFailed`. The call is then among those of the `chain`."""
        return await self._recorder.asked(
            claim, chain.calls, lambda cut_off: self._responder.respond(ask, findings, cut_off=cut_off)
        )

    async def _conclude(
        self,
        claim: StageClaim,
        job: AgentJob,
        chain: Chain,
        answered: ValidAnswer,
        stop: StopReason | None,
        incomplete: Incomplete | None = None,
    ) -> WakeOutcome:
        if incomplete is not None and incomplete.is_failure:
            return await self._recorder.end(
                claim, answered.text, None, chain.calls, stop_reason=stop, incomplete=incomplete
            )
        async with self._recorder.kept(claim.job_id, chain.calls):
            known = await persist(self._catalogue.tools, claim.tenant_id)
            follows = chained_call(job.document, answered.value, known)
            if isinstance(follows, NoSuchTool):
                await self._warn_missing(claim, follows)
        if isinstance(follows, ChainedCall):
            return await self._open_round(claim, chain, CheckedAnswer(answered, incomplete), follows, known, stop)
        return await self._recorder.end(
            claim, answered.text, None, chain.calls, output=answered.value, stop_reason=stop, incomplete=incomplete
        )

    async def _warn_missing(self, claim: StageClaim, missing: NoSuchTool) -> None:
        _log.warning("chained_tool_missing", extra={"job": str(claim.job_id), "tool": missing.tool_name})
        data = {"agent": claim.agent_name, "tool": missing.tool_name}
        await persist(self._store.note, claim, "chained_tool_missing", data)

    async def _open_round(
        self,
        claim: StageClaim,
        chain: Chain,
        said: CheckedAnswer,
        call: ChainedCall,
        known: Mapping[str, ToolDefinition],
        stop: StopReason | None,
    ) -> WakeOutcome:
        answered = said.answer
        assert isinstance(answered, ValidAnswer)
        step = _step(claim, call, known[call.tool_name])
        try:
            async with self._recorder.kept(claim.job_id, chain.calls):
                await self._budget.steps(claim, 1, chain.calls)
        except BudgetExceeded as refused:
            return await self._end_unchained(
                claim, chain, answered, call.tool_name, ErrorRecord.of(refused), said.incomplete
            )
        given = claim, answered.value, answered.text, step, chain.calls
        take = chain.take(1 if step.pool == chain.pool else 0)
        result = await self._recorder.conclude(
            self._store.chain_tool, *given, stop_reason=stop, incomplete=said.error(), take=take
        )
        shown = {"job": str(claim.job_id), "tool": call.tool_name, "applied": result.applied}
        _log.info("chained_tool_called", extra=shown)
        return WakeOutcome.by(claim, result, round=claim.round + 1)

    async def _end_unchained(
        self,
        claim: StageClaim,
        chain: Chain,
        answered: ValidAnswer,
        tool_name: str,
        error: ErrorRecord,
        incomplete: Incomplete | None,
    ) -> WakeOutcome:
        """End the job with its answer although its chained tool may not be called: its error does not touch it."""
        _log.warning("chained_tool_failed", extra={"job": str(claim.job_id), "tool": tool_name, "code": error.code})
        chained, messages = _chained_record(claim, claim.round + 1, tool_name, answered.value, None, error)
        return await self._recorder.end(
            claim,
            answered.text,
            None,
            chain.calls,
            output=answered.value,
            chained=chained,
            messages=messages,
            incomplete=incomplete,
        )

    async def conclude_chained(self, claim: StageClaim) -> WakeOutcome:
        """End the job after the round of its chained tool, without a model turn: the answer stands, whatever came."""
        result = next(iter(claim.results or ()), None)
        error: ErrorRecord | None = None
        name = "" if result is None else result.tool_name
        if result is None:
            name = str((claim.agent or {}).get("chained_tool") or "")
            error = ErrorRecord(PlanTimedOut.code, "the chained tool was not begun in time")
        elif result.error is not None:
            error = ErrorRecord(result.code or ExecutionFailed.code, result.error)
        if error is not None:
            _log.warning("chained_tool_failed", extra={"job": str(claim.job_id), "tool": name, "code": error.code})
        chained, messages = _chained_record(claim, claim.round, name, claim.output, result, error)
        return await self._recorder.end(claim, claim.answer, None, [], chained=chained, messages=messages)


def _with_error(rejected: InvalidAnswer, error: str) -> InvalidAnswer:
    return replace(rejected, errors=(*rejected.errors, error))


def _unrepaired(rejected: InvalidAnswer, error: ErrorRecord) -> ErrorRecord:
    shown = ErrorRecord.of(
        replace(rejected, errors=(*rejected.errors, f"and the repair failed: {error.message}")).failure()
    )
    return replace(shown, details={**shown.details, **error.details})


def _chained_record(
    claim: StageClaim, round: int, name: str, output: Any, result: StepResult | None, error: ErrorRecord | None
) -> tuple[dict[str, Any], list[Message]]:
    """Return what is kept of a round's chained tool that got `output`: beside the job, and as messages.

    The same id on every try, so that a try that did not land leaves no trace.
    """
    call_id = str(uuid5(claim.job_id, f"{CHAINED}/{round}"))
    shown = chained_result(None if result is None else result.output, error)
    outcome: dict[str, Any] = {"result": shown}
    if error is not None:
        outcome = {"error": {"code": error.code, "message": error.message}}
    is_preview = error is None and result is not None and result.payload is not None
    if is_preview and result is not None and result.payload is not None:
        whole = {"sha256": result.payload.hex(), "bytes": result.shortened_from, "step": result.index}
        outcome = {"preview": shown, "output_ref": whole}
    response = Message("tool_response", call_id, name, shown, is_preview)
    messages = [Message("tool_call", call_id, name, output), response]
    return {"tool_name": name, "call_id": call_id, **outcome}, messages


def _step(claim: StageClaim, call: ChainedCall, tool: ToolDefinition) -> PlannedStep:
    return PlannedStep(
        index=claim.next_index,
        kind=tool.kind,
        tool_name=tool.name,
        pool=tool.pool,
        effect=tool.effect,
        arguments=call.arguments,
        inputs=(),
        depends_on=(),
        dependents=(),
        verbatim=True,
        # Called once (docs/decisions.md, D23); what a lost worker began is for its effect class.
        retry=tool.retry.model_copy(update={"retries": 0}),
        timeout_seconds=min(tool.timeout_seconds, claim.limits.step_timeout_seconds),
        recovery=tool.recovery,
        digest=tool.digest,
        longest_seconds=tool.longest_seconds,
    )


class OrchestrationStage:
    """Ends orchestration jobs; one per engine. `conclude` None is a process that has no tools for agents."""

    def __init__(self, recorder: ModelCallRecorder, conclude: Conclude | None) -> None:
        self._recorder = recorder
        self._conclude = conclude

    @staticmethod
    def is_for(claim: StageClaim) -> bool:
        return claim.plan_source == PLAN_SOURCE

    async def carry_out(self, claim: StageClaim) -> WakeOutcome:
        """End the job with its rendered output, as JSON and as text; completed, also where the plan failed."""
        if self._conclude is None:
            fault = InternalFault("this worker cannot conclude orchestrations; start its workers with the same tools")
            return await self._recorder.end(claim, None, ErrorRecord.of(fault), [])
        output = await persist(self._conclude, claim.job_id, claim.plan_errors or ())
        return await self._recorder.end(claim, encode(output).decode(), None, [], output=output)
