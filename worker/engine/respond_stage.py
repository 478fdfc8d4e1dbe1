"""The RESPOND stage: one model call over the results, or over the defects of the plan (docs/decisions.md, D6, D7)."""

from __future__ import annotations

from functools import partial

from shared.domain.errors import BudgetExceeded, ErrorRecord, InvalidArguments, InvalidRequest, UnknownAgent, storable
from shared.domain.model import Ask, Findings, ModelFailed
from shared.domain.results import failure_text
from shared.domain.states import JobStatus
from shared.ports import JobStore, Prices, Responder, RespondWake, StageClaim
from shared.ports.orchestrations import Conclusions
from worker.engine.agent_job import AgentJob
from worker.engine.answering import CHAINED, Answering, Said
from worker.engine.budget import Budget, PausedByBudget
from worker.engine.carried import Carried
from worker.engine.chain import Chain
from worker.engine.orchestration import OrchestrationStage
from worker.engine.spending import Spending


class RespondStage:
    """Carries out RESPOND for one claim."""

    def __init__(
        self,
        store: JobStore,
        responder: Responder,
        spending: Spending,
        conclusions: Conclusions | None = None,
        prices: Prices | None = None,
    ) -> None:
        self._store = store
        self._spending = spending
        self._budget = Budget(store, self._spending, prices)
        self._answering = Answering(store, responder, self._spending, self._budget)
        self._orchestrations = OrchestrationStage(self._spending, conclusions)

    async def claim(self, wake: RespondWake) -> StageClaim | None:
        """Take the stage; None when somebody else has it or it is over."""
        return await self._store.claim_stage(wake.job_id, (JobStatus.RESPONDING,))

    async def carry_out(self, claim: StageClaim, chain: Chain) -> Carried:
        """Answer from what was found; `chain` ends here. If the model fails, the job fails but keeps its results.

        After the round of a chained tool nothing is left to answer.
        """
        if claim.plan_source == CHAINED:
            return await self._answering.conclude_chained(claim)
        if self._orchestrations.is_for(claim):
            return await self._orchestrations.carry_out(claim)
        try:
            job = AgentJob.of(claim)
            return await self._respond(claim, job, chain)
        except (InvalidArguments, InvalidRequest, UnknownAgent) as error:
            return await self._spending.end(claim, None, ErrorRecord.of(error), chain.calls)
        except PausedByBudget:
            return await self._budget.put_back(claim, chain.calls)

    async def _respond(self, claim: StageClaim, job: AgentJob | None, chain: Chain) -> Carried:
        findings = Findings(plan_errors=claim.plan_errors or ())
        if not findings.plan_errors:
            findings = Findings(results=claim.results or ())
        ask = Ask(job_id=str(claim.job_id), input=claim.input, model=claim.model) if job is None else job.ask
        try:
            ask = await self._budget.reserved(claim, ask, findings, own={} if job is None else job.limits)
            reply = await self._answering.asked(claim, chain, ask, findings)
        except ModelFailed as failure:
            return await self._spending.end_or_retry(claim, failure, chain.calls, partial(_with_results, findings))
        except BudgetExceeded as refused:
            return await self._spending.end(claim, None, ErrorRecord.of(refused), [])
        if job is not None:
            return await self._answering.finish(claim, job, chain, Said(reply.text, findings))
        return await self._spending.end(claim, storable(reply.text), None, chain.calls)


def _with_results(findings: Findings, error: ErrorRecord) -> ErrorRecord:
    """Return the error of a job whose answer failed: what its steps failed with comes first."""
    told = failure_text(findings.results)
    if told is None:
        return error
    return ErrorRecord(error.code, f"{told} (and the answer failed: {error.message})", details=error.details)
