"""Claims of a store, one at a time, as most tests want them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from planq.shared.kernel.claims import StageClaim, StepClaim
from planq.shared.kernel.ids import PLAN, RESPOND, StepRef
from planq.shared.kernel.states import JobStatus


async def claim_stage(store: Any, job_id: UUID, statuses: Sequence[JobStatus]) -> StageClaim | None:
    """Claim the stage of a job that stands in one of `statuses`; None where there is none to claim."""
    indices = [RESPOND] if JobStatus.RESPONDING in statuses else []
    indices += [PLAN] if set(statuses) - {JobStatus.RESPONDING} else []
    for index in indices:
        for claim in await store.claim([StepRef(job_id, 0, index)]):
            assert isinstance(claim, StageClaim)
            return claim
    return None


async def claim_step(store: Any, ref: StepRef) -> StepClaim | None:
    """Claim a step; None where it cannot be claimed."""
    for claim in await store.claim([ref]):
        assert isinstance(claim, StepClaim)
        return claim
    return None


async def claim_steps(store: Any, refs: Sequence[StepRef]) -> Sequence[StepClaim]:
    """Claim steps of one round."""
    return [claim for claim in await store.claim(refs) if isinstance(claim, StepClaim)]
