"""An orchestration's job, read from the store: its transitions are published, and its output is its answer.

Transitions go to the job's events, the log and the metrics when a step begins and when the job answers. They are
derived from the steps each time, so a transition that a lost process did not publish is published at the next
occasion. The output is rendered from the steps and their agents, without a model call.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from planq.shared.agentic.orchestration.plan import ORCHESTRATE, StepType
from planq.shared.agentic.plan.errors import format_plan_errors
from planq.shared.kernel.children import ChildOutcome
from planq.shared.kernel.states import StepStatus
from planq.shared.platform.errors import AGENT_TIMEOUTS, PlanTimedOut, Unavailable
from planq.shared.subjects.orchestrations.contract import OrchestratedStep, Orchestration
from planq.worker.agents.orchestration.results import (
    AgentResult,
    Status,
    StepOutcome,
    agent_counts,
    as_written,
    render_orchestration,
    unbegun_output,
)
from planq.worker.agents.orchestration.state_machine import StateTransition, StepPhase, StepProgress, transitions_of
from planq.worker.agents.outcomes import FAULTS, agent_result, error_of, shown_error
from planq.worker.agents.services import AgentBackends, AgentServices
from planq.worker.engine.persist import persist

_log = logging.getLogger("planq.agents")

_UNREACHED = frozenset({StepStatus.PENDING, StepStatus.SKIPPED, StepStatus.CANCELLED})


async def conclude_orchestration(
    services: AgentServices, job_id: UUID, plan_errors: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any]:
    """See `planq.shared.subjects.orchestrations.contract.Conclude`."""
    backends = services.opened()
    found = await _look(backends, job_id)
    if found is None:
        message = format_plan_errors(plan_errors) if plan_errors else "the orchestration has no steps"
        error = {"code": "plan_invalid" if plan_errors else "internal", "message": message}
        frame = await backends.orchestrations.frame(job_id)
        return unbegun_output(error, () if frame is None else frame["steps"])
    await _journal(services, backends, job_id, found, is_over=True)
    document = render_orchestration(found.frame, _outcomes(found))
    usage = await backends.orchestrations.usage(job_id)
    used = {
        "jobs": usage.jobs,
        "model_calls": usage.model_calls,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cost_usd": None if usage.cost_usd is None else float(usage.cost_usd),
        "elapsed_ms": sum(step.elapsed_ms or 0 for step in found.steps),
    }
    return {**document, "totals": {**agent_counts(document), **used}}


async def unfinished_output(
    services: AgentServices, job: ChildOutcome, steps: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the output of an orchestration whose job ended without one: the results of its ended steps."""
    error = error_of(job) or {"code": "internal", "message": "the orchestration ended without an output"}
    backends = services.opened()
    found = await _look(backends, job.job_id)
    if found is None:
        return unbegun_output(error, steps)
    is_late = job.error is not None and job.error.code in AGENT_TIMEOUTS
    if is_late:
        await persist(_journal, services, backends, job.job_id, found, is_over=False, is_late=True)
    return render_orchestration(found.frame, _outcomes(found, error if is_late else None), error)


async def _look(backends: AgentBackends, job_id: UUID) -> Orchestration | None:
    found = await persist(backends.orchestrations.look, job_id)
    if found is None:
        return None
    steps = [replace(step, children=await backends.whole(step.children)) for step in found.steps]
    return replace(found, steps=steps)


async def journal_progress(services: AgentServices, job_id: UUID) -> None:
    """Publish the transitions of an orchestration so far; best effort, since they are derived again later."""
    backends = services.opened()
    try:
        found = await backends.orchestrations.look(job_id, with_agents=False)
        if found is not None:
            await _journal(services, backends, job_id, found, is_over=False)
    except Unavailable as error:
        _log.debug("orchestration_told_later", extra={"job": str(job_id), "cause": error.code})


def log_transitions(services: AgentServices, job_id: UUID, transitions: Sequence[StateTransition]) -> None:
    for one in transitions:
        services.counts["transition", one.event.value, one.target.value] += 1
        extra = {"tool": ORCHESTRATE, "job": str(job_id), "step_id": one.step_id or None}
        _log.info(
            "orchestration_transition",
            extra={**extra, "cause": one.event.value, "from": one.source.value, "to": one.target.value},
        )


async def _journal(
    services: AgentServices,
    backends: AgentBackends,
    job_id: UUID,
    found: Orchestration,
    *,
    is_over: bool,
    is_late: bool = False,
) -> None:
    steps = [
        StepProgress(step["id"], StepType(step["type"]), _phase(row, is_late=is_late))
        for step, row in zip(found.frame["steps"], found.steps, strict=True)
    ]
    made = transitions_of(steps, is_over=is_over)
    added = await backends.orchestrations.journal(job_id, [one.to_json() for one in made])
    log_transitions(services, job_id, [one for one in made if one.number in added])


def _phase(step: OrchestratedStep, *, is_late: bool) -> StepPhase:
    if step.status is StepStatus.SUCCEEDED:
        return StepPhase.SUCCEEDED
    if step.status is StepStatus.FAILED:
        code = "" if step.error is None else step.error.code
        failed = StepPhase.PANICKED if code in FAULTS else StepPhase.FAILED
        return StepPhase.TIMED_OUT if code in AGENT_TIMEOUTS else failed
    if is_late:
        return StepPhase.TIMED_OUT  # the first one, that is; what comes after it was never begun
    return StepPhase.DISPATCHED if step.was_called and step.status not in _UNREACHED else StepPhase.UNREACHED


def _outcomes(found: Orchestration, late: Mapping[str, Any] | None = None) -> list[StepOutcome]:
    """Return how the steps ended; `late` is the error of steps that were cut off while they ran."""
    return [
        _outcome(
            step,
            found.frame["steps"],
            late if step.was_called and step.status is StepStatus.CANCELLED else None,
        )
        for step in found.steps
    ]


def _outcome(
    step: OrchestratedStep, frame: Sequence[Mapping[str, Any]], late: Mapping[str, Any] | None
) -> StepOutcome:
    error = None if step.error is None else as_written(shown_error(step.error), frame)
    if step.error is not None and step.error.code == PlanTimedOut.code:
        late = error
    return StepOutcome(
        was_begun=late is not None or step.status not in _UNREACHED,
        succeeded=step.status is StepStatus.SUCCEEDED,
        agents=[_agent(child, late) for child in step.children],
        error=error or late,
        elapsed_ms=step.elapsed_ms,
    )


def _agent(child: ChildOutcome, late: Mapping[str, Any] | None) -> AgentResult:
    result = agent_result(child)
    if late is None or result.status is not Status.SKIPPED or not child.has_begun:
        return result
    return replace(result, status=Status.FAILED, error=late, timed_out=True)
