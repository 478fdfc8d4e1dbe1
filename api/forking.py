"""From a request to fork a job to the new job: its plan, and which steps take over what the source has done.

Nothing is stored here, and a refusal leaves no trace. What a fork need not run again is decided by
`shared.domain.fork`, by content.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from uuid import uuid4

from api.recovery import refused_fork, would_repeat
from api.schemas import ForkRequest
from api.submission import TENANT, allowed_tools, check_metadata, checked_input, plan_body, valid_plan
from shared.domain.compile import PlannedStep, compile_plan
from shared.domain.errors import Conflict, InvalidRequest
from shared.domain.fork import SourceStep, in_doubt, reusable
from shared.domain.limits import Limits
from shared.domain.plan import Plan
from shared.domain.states import Effect, JobStatus, StepStatus, Strategy
from shared.domain.tool import ToolDefinition
from shared.settings import Settings
from shared.store.database import Row
from shared.store.ids import new_id
from shared.store.submissions import Submission

_INLINE_STEPS = 100
"""Up to this many steps are compared on the event loop (a few milliseconds); more of them in a thread."""


@dataclass(frozen=True, slots=True)
class Fork:
    """A fork that may be stored: `submission` with `reuse`, and the steps that its plan means.

    `doubts` are those that would do what a step of the source may have done, with that step; see `fork.in_doubt`.
    """

    submission: Submission
    steps: Sequence[PlannedStep]
    doubts: Mapping[int, int]

    @property
    def reuse(self) -> Mapping[int, int]:
        """Return, for the steps that need not run, the step of the source whose outcome each takes over."""
        return self.submission.reuse or {}


async def fork_of(
    request: ForkRequest,
    job: Row,
    steps: Sequence[Row],
    tools: Mapping[str, ToolDefinition],
    settings: Settings,
    **given: str | None,
) -> Fork:
    """Return the fork of a job, whose row and steps are those of `RequestStore.planned`.

    What the request does not name is as in the source. `given` are the fields that came with headers. Raises
    `Conflict` when the source has no valid plan, `InvalidRequest`, `TooLarge`, `PlanInvalid` with every defect of
    the plan, or `OutcomeUnknown` with every doubt unless the request says `repeat_unsafe` or is a dry run.
    """
    _require_plan(job)
    text = job["input"] if request.input is None else checked_input(request.input, settings.max_input_bytes)
    check_metadata(request.metadata)
    limits = _limits(request, Limits.from_json(job["limits"]), settings.limits_of(TENANT))
    budget = None if request.limits is None else request.limits.checked_budget()
    raw = job["plan_body"] if request.plan is None else request.plan
    names = None if job["tools"] is None else [name for name in job["tools"] if name in tools]
    plan = await valid_plan(raw, names, tools, max_steps=limits.max_plan_steps)
    if request.from_step is not None and request.from_step >= len(plan.calls):
        raise InvalidRequest(
            f"from_step: expected the index of a step of the new plan, 0 to {len(plan.calls) - 1}; "
            f"found {request.from_step}"
        )
    work = (plan, steps, allowed_tools(names, tools), tools, limits.step_timeout_seconds, request.from_step)
    is_long = max(len(plan.calls), len(steps)) > _INLINE_STEPS
    compiled, reuse, doubts = await asyncio.to_thread(_compare, *work) if is_long else _compare(*work)
    if doubts and not (request.repeat_unsafe or request.dry_run):
        raise refused_fork(job, steps, doubts)
    submission = replace(
        _like(job, given),
        input=text,
        limits=limits,
        budget=budget or job["budget"],
        plan=plan_body(plan),
        metadata=job["metadata"] if request.metadata is None else request.metadata,
        reuse=reuse,
    )
    return Fork(submission, compiled, doubts)


def _like(job: Row, given: Mapping[str, str | None]) -> Submission:
    """Return a fork of a job in which nothing is different, without its plan."""
    return Submission(
        id=new_id(),
        tenant_id=TENANT,
        input=job["input"],
        strategy=Strategy(job["strategy"]),
        model=job["model"],
        limits=Limits.from_json(job["limits"]),
        tools=job["tools"],
        user_id=job["user_id"],
        trace_id=given.get("trace_id") or uuid4().hex,
        idempotency_key=given.get("idempotency_key"),
        request_hash=given.get("request_hash"),
        forked_from=job["id"],
        agent=job["agent_name"],
        agent_version=job["agent_version"],
        skill_versions=job["skill_versions"],
        action=job["action"],
        with_=job["with_input"],
    )


_OWN_PLANS = {
    "orchestrate": "its plan is that of an orchestration: fork the job that it works for",
    "chained": "its last plan is the call of its chained tool alone: submit it again",
}
"""Plans that planq makes for itself, by their source, and what to do instead of forking one."""


def _require_plan(job: Row) -> None:
    if (why_not := _OWN_PLANS.get(job["plan_source"])) is not None:
        raise Conflict(f"job {job['id']} cannot be forked: {why_not}", job_status=JobStatus(job["status"]))
    if job["plan_body"] is not None and job["plan_errors"] is None:
        return
    status = JobStatus(job["status"])
    if job["plan_errors"] is not None:
        why = "its plan was refused"
    elif status.is_terminal:
        why = f"it is {status} without one"
    else:
        why = f"it is still {status}; wait until it has one"
    raise Conflict(
        f"job {job['id']} has no plan that could be forked: {why}. A new job with a plan of its own is submitted by "
        "POST /jobs",
        job_status=status,
    )


def _limits(request: ForkRequest, source: Limits, server: Limits) -> Limits:
    """Return the source's limits, none above what the server allows today, with those that are wanted put lower."""
    kept = replace(source, **{name: min(value, getattr(server, name)) for name, value in asdict(source).items()})
    wanted = {} if request.limits is None else request.limits.bounds()
    lowered = server.lowered(wanted)
    return replace(kept, **{name: getattr(lowered, name) for name in wanted})


def _compare(
    plan: Plan,
    steps: Sequence[Row],
    allowed: Mapping[str, ToolDefinition],
    tools: Mapping[str, ToolDefinition],
    step_timeout_seconds: float,
    from_step: int | None,
) -> tuple[Sequence[PlannedStep], dict[int, int], dict[int, int]]:
    compiled = compile_plan(plan, allowed, step_timeout_seconds=step_timeout_seconds).steps
    source = [_source_step(row, tools) for row in steps]
    return compiled, reusable(source, compiled, from_step=from_step), in_doubt(source, compiled)


def _source_step(row: Row, tools: Mapping[str, ToolDefinition]) -> SourceStep:
    name: str = row["tool_name"]
    arguments: Mapping[str, Any] = row["arguments"]
    effect = tools[name].effect if name in tools else Effect(row["effect"])
    return SourceStep(name, effect, arguments, row["status"] == StepStatus.SUCCEEDED, would_repeat(row, effect))
