"""`planq.job.plan.v1`."""

from __future__ import annotations

from uuid import UUID

from shared.broker import names
from shared.ports import PlanWake
from worker.celery_app import CoroutineTask, app, conclude, engine


@app.task(name=names.PLAN, base=CoroutineTask)
async def plan_job(job: str) -> str:
    """Carry out the PLAN stage of a job, and what follows from it here."""
    return conclude(await engine().run(PlanWake(UUID(job))))
