"""How an orchestration's job answers: its output rendered from its steps and their agents, without a model call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from shared.domain.plan_errors import format_plan_errors
from shared.domain.states import StepStatus
from shared.ports import ChildOutcome
from shared.ports.orchestrations import OrchestratedStep
from worker.agents.desk import AgentServices
from worker.agents.journal import tell
from worker.agents.orchestration.rendering import (
    AgentOutcome,
    StepOutcome,
    refused,
    render_orchestration,
    totals,
)
from worker.agents.outcomes import error_of, output_of, result_of, shown_error, status_of

_ENDED_UNREACHED = frozenset({StepStatus.PENDING, StepStatus.SKIPPED, StepStatus.CANCELLED})


async def unfinished(desk: AgentServices, job: ChildOutcome, steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the output of an orchestration whose job was cancelled, or failed, before it had one.

    What had been done is told all the same; `steps` are those of its frame, for a job that had not begun.
    """
    error = error_of(job) or _NO_OUTPUT
    reach = desk.opened()
    found = await reach.persist(lambda: reach.orchestrations.look(job.job_id))
    if found is None:
        return refused(error, steps)
    return render_orchestration(found.frame, [outcome_of_step(step) for step in found.steps], error)


_NO_OUTPUT = {"code": "internal", "message": "the orchestration ended without an output"}


class Concluding:
    """The port `Conclusions`."""

    def __init__(self, desk: AgentServices) -> None:
        self._desk = desk

    async def conclude(self, job_id: UUID, plan_errors: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        reach = self._desk.opened()
        found = await reach.orchestrations.look(job_id)
        if found is None:
            message = format_plan_errors(plan_errors) if plan_errors else "the orchestration has no steps"
            return refused({"code": "plan_invalid" if plan_errors else "internal", "message": message})
        await tell(self._desk, reach, job_id, found, is_over=True)
        document = render_orchestration(found.frame, [outcome_of_step(step) for step in found.steps])
        usage = await reach.orchestrations.usage(job_id)
        used = {
            "jobs": usage.jobs,
            "model_calls": usage.model_calls,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cost_usd": None if usage.cost_usd is None else float(usage.cost_usd),
            "elapsed_ms": sum(step.elapsed_ms or 0 for step in found.steps),
        }
        return {**document, "totals": {**totals(document), **used}}


def outcome_of_step(step: OrchestratedStep) -> StepOutcome:
    """Return how a step came out, as it is rendered."""
    return StepOutcome(
        was_begun=step.status not in _ENDED_UNREACHED,
        succeeded=step.status is StepStatus.SUCCEEDED,
        agents=[_agent(child) for child in step.children],
        error=None if step.error is None else shown_error(step.error),
        elapsed_ms=step.elapsed_ms,
    )


def _agent(child: ChildOutcome) -> AgentOutcome:
    return AgentOutcome(
        status=status_of(child),
        exec_id=str(child.job_id),
        output=output_of(child),
        error=error_of(child),
        elapsed_ms=child.elapsed_ms,
        order=result_of(child).order,
    )
