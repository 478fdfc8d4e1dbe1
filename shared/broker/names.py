"""Names on the wire: contracts that messages in flight and monitors know, so they never follow a module path."""

from __future__ import annotations

from shared.domain.states import Lane

PLAN = "planq.job.plan.v1"
STEP = "planq.step.run.v1"
STEPS = "planq.steps.run.v1"
RESPOND = "planq.job.respond.v1"


def queue(lane: Lane) -> str:
    """Return the Celery queue of a lane."""
    return f"planq.{lane}"
