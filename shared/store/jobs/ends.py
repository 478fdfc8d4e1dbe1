"""Ends of jobs in the store: what follows from them, for those who wait."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from planq.shared.domain.jobs.ids import StepRef
from planq.shared.ports.jobs.store import Consequence, ParentTransition
from planq.shared.ports.jobs.wakes import PlanWake, StepWake, Wake
from planq.shared.store.database import Database
from planq.shared.store.jobs.codec import transition_result


async def serve_ends(database: Database, jobs: Sequence[UUID]) -> Consequence:
    """See `SweepStore.serve_ends`."""
    told = await database.call("planq_serve_ends", list(jobs))
    if "index" in told:
        step = StepRef(UUID(told["job_id"]), told["round"], told["index"])
        return Consequence(True, ParentTransition(step, transition_result(told)))
    begun = told.get("next")
    wakes = () if begun is None else (PlanWake(UUID(begun), agent=told["agent"], tenant=told["tenant"]),)
    return Consequence(told["applied"], wakes=wakes)


def wakes_after(followed: Consequence) -> Sequence[Wake]:
    """Return whom to wake after the end of a job that nobody carried out; of its parent nothing else is known."""
    if (parent := followed.parent) is None:
        return followed.wakes
    job_id, round = parent.step.job_id, parent.step.round
    steps = [StepWake(StepRef(job_id, round, one.index), one.lane, one.tool_name) for one in parent.result.ready]
    return [*parent.result.children, *steps]
