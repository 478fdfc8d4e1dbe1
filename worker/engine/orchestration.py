"""The RESPOND stage of orchestration jobs: their output is rendered from their steps, without a model."""

from __future__ import annotations

from shared.domain.encoding import encode
from shared.domain.errors import ErrorRecord, InternalFault
from shared.ports import StageClaim
from shared.ports.orchestrations import PLAN_SOURCE, Conclusions
from worker.engine.carried import Carried
from worker.engine.persist import persist
from worker.engine.spending import Spending


class OrchestrationStage:
    """Ends orchestration jobs; one per engine. `conclusions` None is a process that has no tools for agents."""

    def __init__(self, spending: Spending, conclusions: Conclusions | None) -> None:
        self._spending = spending
        self._conclusions = conclusions

    @staticmethod
    def is_for(claim: StageClaim) -> bool:
        """True when the claimed job is an orchestration's own."""
        return claim.plan_source == PLAN_SOURCE

    async def carry_out(self, claim: StageClaim) -> Carried:
        """End the job with its rendered output, as JSON and as text; completed, also where the plan failed."""
        conclusions = self._conclusions
        if conclusions is None:
            fault = InternalFault("this worker cannot conclude orchestrations; start its workers with the same tools")
            return await self._spending.end(claim, None, ErrorRecord.of(fault), [])
        output = await persist(lambda: conclusions.conclude(claim.job_id, claim.plan_errors or ()))
        return await self._spending.end(claim, encode(output).decode(), None, [], output=output)
