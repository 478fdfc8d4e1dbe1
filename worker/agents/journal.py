"""Telling the transitions of an orchestration: as events of its job, in the log, and as counts for metrics.

Told when a step is begun and when the job answers. What an orchestration has done is read from its steps each time,
so whatever was not told by a process that died, or could not be stored, is told at the next occasion.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import UUID

from shared.domain.errors import AGENT_TIMEOUTS, Unavailable
from shared.domain.states import StepStatus
from shared.ports.orchestrations import OrchestratedStep, Orchestration
from worker.agents.desk import ORCHESTRATE, AgentBackends, AgentServices
from worker.agents.orchestration.machine import follow
from worker.agents.orchestration.progress import Outcome, Progress, Transition
from worker.agents.orchestration.words import StepType
from worker.agents.outcomes import FAULTS

_log = logging.getLogger("planq.agents")


async def tell_progress(desk: AgentServices, job_id: UUID) -> None:
    """Tell what an orchestration has done so far; best effort, for it is told again."""
    reach = desk.opened()
    try:
        found = await reach.orchestrations.look(job_id, with_agents=False)
        if found is not None:
            await tell(desk, reach, job_id, found, is_over=False)
    except Unavailable as error:
        _log.debug("orchestration_told_later", extra={"job": str(job_id), "cause": error.code})


async def tell(
    desk: AgentServices, reach: AgentBackends, job_id: UUID, found: Orchestration, *, is_over: bool
) -> None:
    """Tell those transitions that nobody has told; raises `DatabaseUnavailable`."""
    steps = [
        Progress(step["id"], StepType(step["type"]), outcome_of(row))
        for step, row in zip(found.frame["steps"], found.steps, strict=True)
    ]
    made = follow(steps, is_over=is_over)
    say(desk, job_id, await reach.orchestrations.journal(job_id, made))


def say(desk: AgentServices, job_id: UUID, transitions: Sequence[Transition]) -> None:
    """Log and count transitions."""
    for one in transitions:
        desk.counts["transition", one.event.value, one.target.value] += 1
        extra = {"tool": ORCHESTRATE, "job": str(job_id), "step_id": one.step_id or None}
        _log.info(
            "orchestration_transition",
            extra={**extra, "cause": one.event.value, "from": one.source.value, "to": one.target.value},
        )


def outcome_of(step: OrchestratedStep) -> Outcome:
    """Return how far a step has come."""
    match step.status:
        case StepStatus.SUCCEEDED:
            return Outcome.SUCCEEDED
        case StepStatus.FAILED:
            code = "" if step.error is None else step.error.code
            return (
                Outcome.TIMED_OUT
                if code in AGENT_TIMEOUTS
                else Outcome.PANICKED
                if code in FAULTS
                else Outcome.FAILED
            )
        case StepStatus.PENDING | StepStatus.SKIPPED | StepStatus.CANCELLED:
            return Outcome.UNREACHED
        case _:
            return Outcome.DISPATCHED if step.was_called else Outcome.UNREACHED
