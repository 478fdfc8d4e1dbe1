"""`planq.step.run.v1`."""

from __future__ import annotations

from shared.broker import names
from shared.broker.messages import decode_step
from worker.celery_app import CoroutineTask, app, conclude, engine


@app.task(name=names.STEP, base=CoroutineTask)
async def run_step(job: str, round: int, step: int, lane: str, tool: str) -> str:
    """Run one step, and what follows from it here."""
    return conclude(await engine().run(decode_step(job, round, step, lane, tool)))
