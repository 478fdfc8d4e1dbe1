"""`planq.steps.run.v1`."""

from __future__ import annotations

from shared.broker import names
from shared.broker.messages import decode_steps
from worker.celery_app import CoroutineTask, app, conclude, engine


@app.task(name=names.STEPS, base=CoroutineTask)
async def run_steps(job: str, round: int, steps: list[tuple[int, str]], lane: str) -> str:
    """Run several steps of one job at once, and what follows from them here."""
    return conclude(await engine().run(decode_steps(job, round, steps, lane)))
