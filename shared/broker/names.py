"""Names on the wire: contracts that messages in flight and monitors know, so they never follow a module path."""

from __future__ import annotations

from shared.domain.jobs.states import WakeQueue

PLAN = "planq.job.plan.v1"
STEP = "planq.step.run.v1"
STEPS = "planq.steps.run.v1"
RESPOND = "planq.job.respond.v1"

DEAD_LETTERS = "planq.dead-letters"
"""The list (RabbitMQ: the queue) of messages that are no wake-ups."""

PROBE = "planq.probe"
"""A list that never is: pushing to it if it exists changes nothing, and shows whether the broker takes writes."""


def queue(which: WakeQueue) -> str:
    """Return the name of a queue as Celery knows it."""
    return f"planq.{which}"
