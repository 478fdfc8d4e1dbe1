"""`planq.job.plan.v1`."""

from __future__ import annotations

from shared.broker import names
from shared.broker.messages import decode_plan
from worker.celery_app import CoroutineTask, app, conclude, engine


@app.task(name=names.PLAN, base=CoroutineTask)
async def plan_job(job: str) -> str:
    """Carry out the PLAN stage of a job, and what follows from it here."""
    return conclude(await engine().run(decode_plan(job)))
