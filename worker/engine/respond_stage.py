"""The RESPOND stage: one model call over the results, or over the defects of the plan (readings rows 6, 7)."""

from __future__ import annotations

from shared.domain.errors import ErrorRecord, storable
from shared.domain.model import Ask, Findings, ModelFailed
from shared.domain.results import failure_text
from shared.domain.states import JobStatus
from shared.ports import JobStore, Responder, RespondWake, StageClaim
from worker.engine.carried import Carried
from worker.engine.chain import Chain
from worker.engine.spending import Spending


class RespondStage:
    """Carries out RESPOND for one claim."""

    def __init__(self, store: JobStore, responder: Responder) -> None:
        self._store = store
        self._responder = responder
        self._spending = Spending(store)

    async def claim(self, wake: RespondWake) -> StageClaim | None:
        """Take the stage; None when somebody else has it or it is over."""
        return await self._store.claim_stage(wake.job_id, (JobStatus.RESPONDING,))

    async def carry_out(self, claim: StageClaim, chain: Chain) -> Carried:
        """Answer from what was found; `chain` ends here. If the model fails, the job fails but keeps its results."""
        findings = Findings(plan_errors=claim.plan_errors or ())
        if not findings.plan_errors:
            findings = Findings(results=claim.results or ())
        ask = Ask(job_id=str(claim.job_id), input=claim.input, model=claim.model)
        answer: str | None = None
        error: ErrorRecord | None = None
        try:
            async with self._spending.kept(claim.job_id) as cut_off:
                reply = await self._responder.respond(ask, findings, cut_off=cut_off)
            answer, call = storable(reply.text), reply.call
        except ModelFailed as failure:
            call = failure.call
            error = ErrorRecord.of(failure.error)
            told = failure_text(findings.results)
            if told is not None:
                error = ErrorRecord(
                    error.code, f"{told} (and the answer failed: {error.message})", details=error.details
                )
        return await self._spending.end(claim, answer, error, [call])
