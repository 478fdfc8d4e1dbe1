"""The Celery tasks: decode, call the engine, conclude. No SQL, no prompts, no decisions."""

from __future__ import annotations

from shared.broker import names
from shared.broker.messages import decode_plan, decode_respond, decode_step, decode_steps
from worker.celery.app import CoroutineTask, app, conclude, engine


@app.task(name=names.PLAN, base=CoroutineTask)
async def plan_job(job: str) -> str:
    """Carry out the PLAN stage of a job, and what follows from it here."""
    return conclude(await engine().run(decode_plan(job)))


@app.task(name=names.STEP, base=CoroutineTask)
async def run_step(job: str, round: int, step: int, lane: str, tool: str) -> str:
    """Run one step, and what follows from it here."""
    return conclude(await engine().run(decode_step(job, round, step, lane, tool)))


@app.task(name=names.STEPS, base=CoroutineTask)
async def run_steps(job: str, round: int, steps: list[tuple[int, str]], lane: str) -> str:
    """Run several steps of one job at once, and what follows from them here."""
    return conclude(await engine().run(decode_steps(job, round, steps, lane)))


@app.task(name=names.RESPOND, base=CoroutineTask)
async def respond_to_job(job: str) -> str:
    """Carry out the RESPOND stage of a job."""
    return conclude(await engine().run(decode_respond(job)))
