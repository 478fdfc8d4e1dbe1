"""Wake-ups as messages and back: ids only, never results, never secrets.

    {"job": "<uuid>"}                                   planq.job.plan.v1, planq.job.respond.v1
    {"job": "<uuid>", "round": 0, "step": 2, "lane": "io", "tool": "calculate"}   planq.step.run.v1
    {"job": "<uuid>", "round": 0, "steps": [[2, "calculate"], [3, "fetch"]], "lane": "io"}   planq.steps.run.v1

`lane` and the names of tools are there for people who read them in Flower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from shared.broker import names
from shared.domain.ids import StepRef, plan_attempt_id, respond_attempt_id, step_attempt_id, steps_attempt_id
from shared.domain.states import Lane
from shared.ports import AnyWake, PlanWake, RespondWake, StepsWake, StepWake

_SHOWN_CHARS = 500
"""A wake-up for a hundred steps is longer than Flower need show."""


@dataclass(frozen=True, slots=True)
class Message:
    """A wake-up as Celery sends it; `kwargs_repr` is what Flower shows."""

    task: str
    task_id: str
    kwargs: dict[str, Any]
    queue: str

    @property
    def kwargs_repr(self) -> str:
        """Return the arguments for people."""
        text = " ".join(f"{name}={value}" for name, value in self.kwargs.items())
        return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def encode(wake: AnyWake, attempt: int | None = None) -> Message:
    """Return the message of a wake-up; its task id is that of the attempt it asks for (`attempt` overrides)."""
    number = wake.attempt if attempt is None else attempt
    match wake:
        case PlanWake():
            task_id = plan_attempt_id(wake.job_id, number)
            return Message(names.PLAN, task_id, {"job": str(wake.job_id)}, names.queue(Lane.IO))
        case RespondWake():
            task_id = respond_attempt_id(wake.job_id, number)
            return Message(names.RESPOND, task_id, {"job": str(wake.job_id)}, names.queue(Lane.IO))
        case StepWake():
            ref = wake.ref
            kwargs = {
                "job": str(ref.job_id),
                "round": ref.round,
                "step": ref.index,
                "lane": str(wake.lane),
                "tool": wake.tool_name,
            }
            return Message(names.STEP, step_attempt_id(ref, number), kwargs, names.queue(wake.lane))
        case StepsWake():
            steps = [list(step) for step in wake.steps]
            kwargs = {"job": str(wake.job_id), "round": wake.round, "steps": steps, "lane": str(wake.lane)}
            task_id = steps_attempt_id(StepRef(wake.job_id, wake.round, wake.steps[0][0]), len(steps), number)
            return Message(names.STEPS, task_id, kwargs, names.queue(wake.lane))


def decode_step(job: str, round: int, step: int, lane: str, tool: str) -> StepWake:
    """Return the wake-up of a step message; raises ValueError for what is no such message."""
    return StepWake(StepRef(UUID(job), round, step), Lane(lane), tool)


def decode_steps(job: str, round: int, steps: Sequence[tuple[int, str]], lane: str) -> StepsWake:
    """Return the wake-up of a message for several steps; raises ValueError for what is no such message."""
    return StepsWake(UUID(job), round, Lane(lane), tuple((index, tool) for index, tool in steps))
