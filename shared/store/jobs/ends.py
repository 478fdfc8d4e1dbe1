"""Ends of jobs in the store: whoever waits for them is served."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from planq.shared.domain.jobs.ids import StepRef
from planq.shared.domain.jobs.states import Priority
from planq.shared.ports.jobs.store import Consequence, ParentTransition
from planq.shared.ports.jobs.wakes import PlanWake
from planq.shared.store.database import Database
from planq.shared.store.jobs.codec import transition_result


async def serve_ends(database: Database, jobs: Sequence[UUID]) -> Consequence:
    """See `SweepStore.serve_ends`."""
    served = await database.call("planq_serve_ends", list(jobs))
    if "index" in served:
        step = StepRef(UUID(served["job_id"]), served["round"], served["index"])
        of_parent = Priority(served["priority"]), served["tenant"]
        return Consequence(True, ParentTransition(step, transition_result(served), *of_parent))
    begun = served.get("next")
    wakes = () if begun is None else (PlanWake(UUID(begun), agent=served["agent"], tenant=served["tenant"]),)
    return Consequence(served["applied"], wakes=wakes)
