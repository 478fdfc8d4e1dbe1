"""`planq.job.respond.v1`."""

from __future__ import annotations

from shared.broker import names
from shared.broker.messages import decode_respond
from worker.celery_app import CoroutineTask, app, conclude, engine


@app.task(name=names.RESPOND, base=CoroutineTask)
async def respond_to_job(job: str) -> str:
    """Carry out the RESPOND stage of a job."""
    return conclude(await engine().run(decode_respond(job)))
