"""Plans and tasks as callers of the message flow know them: other words for jobs, and no second truth.

A task is a job, under the same id. Its plan is the one that was made at its beginning: numbered steps that advise a
model (`guided`), or that planq carries out (`plan`, `loop`). All is worked out from the job as it stands
(docs/decisions.md, D43).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field

from planq.api.documents import decoded
from planq.api.http.prefix import below_prefix
from planq.api.schemas import SAYS_SOMETHING, Answer, Id, Metadata, PageDocument, RequestBody, Time
from planq.shared.agentic.plan.document import WHOLE
from planq.shared.agentic.rounds.guide import GUIDE_SOURCE
from planq.shared.kernel.states import TERMINAL_STEP, JobStatus, StepKind, StepStatus, StopReason, Strategy
from planq.shared.platform.errors import NotFound, capped
from planq.shared.subjects.conversations.rules import user_message_for_step
from planq.shared.subjects.jobs.job_view import JobView

_VERSION_BITS = 0xF << 76
_JOB_VERSION, _PLAN_VERSION = 7 << 76, 8 << 76


class PlanStatus(StrEnum):
    """Where a plan stands."""

    DRAFT = "draft"
    EXECUTING = "executing"
    COMPLETED = "completed"
    FAILED = "failed"


class TaskStatus(StrEnum):
    """Where a task stands."""

    PLANNING = "planning"
    EXECUTING = "executing"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class TaskRequest(RequestBody):
    """Something to do, as the tenant's configuration says that messages are worked on."""

    goal: str = Field(description="What is to be done.", json_schema_extra={"pattern": SAYS_SOMETHING})
    plan_id: None = Field(None, description="A task makes its own plan: null, or left out.")
    conversation_id: None = Field(None, description="What belongs to a conversation comes in as a message: null.")
    agent: str | None = Field(
        None,
        description="The agent that does it, `name` or `name@version`; else that of the channel `api` or the tenant. "
        "`metadata.agent` means the same.",
    )
    metadata: Metadata = None


class RefineRequest(RequestBody):
    """How far somebody has come with a plan."""

    current_step: Annotated[int, Field(ge=0, lt=2**31), WHOLE] = Field(
        description="The `step_number` that is worked on."
    )
    execution_results: Annotated[list[Any], Field(max_length=1_000)] = Field(
        default_factory=list, description="Taken and not used: planq knows what its steps came to."
    )


class FlowStep(Answer):
    """A numbered step of a plan."""

    step_number: int
    description: str
    tool_name: str | None
    tool_arguments: dict[str, Any]
    depends_on: list[int]
    success_criteria: str
    status: str = Field(description="`pending`, `executing`, `completed`, `failed` or `skipped`.")


class FlowPlan(Answer):
    """The plan of a task. A task of the strategy `react` has none, and neither has one that was answered at once."""

    plan_id: Id = Field(description="The task's id as a UUID of version 8.")
    task_id: Id
    conversation_id: Id | None
    goal: str
    steps: list[FlowStep]
    estimated_steps: int
    complexity: str
    success_criteria: str
    status: PlanStatus
    created_at: Time


class FlowTask(Answer):
    """A job in the words of the message flow."""

    task_id: Id = Field(description="The id of the job.")
    goal: str
    plan_id: Id | None
    conversation_id: Id | None
    status: TaskStatus
    current_step: int = Field(description="How many steps have ended.")
    state: dict[str, Any] = Field(description="Empty until a step has ended, then `step_results`.")
    created_at: Time
    updated_at: Time
    completed_at: Time | None


class FlowPlanPage(PageDocument[FlowPlan]):
    """Plans, newest first. A page may hold fewer than it could: what has no plan is passed over."""


class FlowTaskPage(PageDocument[FlowTask]):
    """Tasks, newest first. With a `status` a page may hold fewer than it could."""


def plan_id_of(job_id: UUID) -> UUID:
    """Return the id of a job's plan: the same bits with version 8 (RFC 9562 §5.8) instead of 7."""
    return UUID(int=job_id.int & ~_VERSION_BITS | _PLAN_VERSION)


def job_id_of_plan(text: str) -> UUID:
    """Return the job of a plan's id in a path; raises `NotFound` for any other text."""
    try:
        found = UUID(text)
    except ValueError:
        raise no_plan(text) from None
    if found.int & _VERSION_BITS != _PLAN_VERSION:
        raise no_plan(text)
    return UUID(int=found.int & ~_VERSION_BITS | _JOB_VERSION)


def no_plan(text: object) -> NotFound:
    return NotFound(f"there is no plan {capped(str(text), 80)!r}; a task names its own as plan_id, once it has one")


def task_status(row: Mapping[str, Any]) -> TaskStatus:
    """Return the status of a job as a task; a job that `max_tool_steps` ended has failed (docs/decisions.md, D31)."""
    status = JobStatus(row["status"])
    if status.is_terminal:
        has_failed = row["stop_reason"] == StopReason.MAX_TOOL_STEPS
        return TaskStatus.FAILED if has_failed else TaskStatus(status.value)
    if row["paused_at"] is not None or status is JobStatus.INPUT_REQUIRED:
        return TaskStatus.PAUSED
    makes_a_plan = status is JobStatus.PLANNING and row["round"] == 0 and Strategy(row["strategy"]).begins_with_plan
    return TaskStatus.PLANNING if makes_a_plan else TaskStatus.EXECUTING


def plan_status(row: Mapping[str, Any]) -> PlanStatus:
    """Return the status of the plan of a job: a draft until a worker begins the job."""
    if row["status"] == JobStatus.QUEUED:
        return PlanStatus.DRAFT
    task = task_status(row)
    if task is TaskStatus.COMPLETED:
        return PlanStatus.COMPLETED
    return PlanStatus.FAILED if task in (TaskStatus.FAILED, TaskStatus.CANCELLED) else PlanStatus.EXECUTING


def task_document(view: JobView) -> dict[str, Any]:
    row = view.row
    results = [_result(view, step) for step in view.steps if _has_ended(step)]
    return FlowTask.of(
        row,
        task_id=row["id"],
        goal=row["input"],
        plan_id=None if _plan_body(view) is None else plan_id_of(row["id"]),
        status=task_status(row),
        current_step=len(results),
        state={"step_results": results} if results else {},
        updated_at=max(_times(view)),
        completed_at=row["finished_at"],
    )


def plan_document(view: JobView, current_step: int | None = None) -> dict[str, Any] | None:
    """Return a `FlowPlan`, None for a job without one.

    With `current_step`, the statuses are relative to that step.
    """
    row, body = view.row, _plan_body(view)
    if body is None:
        return None
    steps = _advised(view, body) if row["plan_source"] == GUIDE_SOURCE else _planned(view, body)
    if current_step is not None:
        statuses = step_statuses([step["step_number"] for step in steps], current_step)
        steps = [{**step, "status": status} for step, status in zip(steps, statuses, strict=True)]
    return {
        "plan_id": plan_id_of(row["id"]),
        "task_id": row["id"],
        "conversation_id": row["conversation_id"],
        "goal": row["input"],
        "steps": steps,
        "estimated_steps": body.get("estimated_steps", len(steps)),
        "complexity": body.get("complexity", "medium"),
        "success_criteria": body.get("success_criteria", ""),
        "status": plan_status(row),
        "created_at": row["created_at"],
    }


def step_statuses(numbers: Iterable[int], current: int) -> list[str]:
    """Return the statuses of numbered steps while one is worked on; 0 means that none has begun."""
    return [
        "pending" if not current or number > current else "executing" if number == current else "completed"
        for number in numbers
    ]


def _plan_body(view: JobView) -> Mapping[str, Any] | None:
    """Return the plan that a job began with; the turns of `react` have none."""
    row = view.row
    if row["plan_body"] is None or not Strategy(row["strategy"]).begins_with_plan:
        return None
    found = decoded(row["plan_body"])
    return found if isinstance(found, Mapping) else None


def _advised(view: JobView, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of a guide, as many done as calls have ended: no call belongs to one step."""
    made = sum(map(_has_ended, view.steps))
    is_done = plan_status(view.row) is PlanStatus.COMPLETED
    shown = []
    for place, step in enumerate(body["steps"]):
        is_before = is_done or place < made
        shown.append(
            {
                **{name: step[name] for name in ("step_number", "description", "depends_on", "success_criteria")},
                "tool_name": step["tool"],
                "tool_arguments": step["tool_arguments"],
                "status": "completed" if is_before else "executing" if made and place == made else "pending",
            }
        )
    return shown


_STATUS_OF_STEP: Mapping[StepStatus, str] = {
    StepStatus.PENDING: "pending",
    StepStatus.READY: "pending",
    **dict.fromkeys(TERMINAL_STEP, "failed"),
    StepStatus.SUCCEEDED: "completed",
    StepStatus.SKIPPED: "skipped",
}
"""All other steps are `executing`."""


def _planned(view: JobView, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of a plan that planq carries out, numbered from 1."""
    stored = {step["index"]: step for step in view.steps if step["round"] == 0}
    calls: Sequence[Mapping[str, Any]] = body.get("calls") or ()
    return [
        {
            "step_number": index + 1,
            "description": call.get("reason") or call.get("message") or call["tool_name"],
            "tool_name": call["tool_name"] if call.get("kind") in (None, StepKind.TOOL) else None,
            "tool_arguments": call.get("arguments") or {},
            "depends_on": [after + 1 for after in stored[index]["depends_on"]] if index in stored else [],
            "success_criteria": "",
            "status": _STATUS_OF_STEP.get(stored[index]["status"], "executing") if index in stored else "pending",
        }
        for index, call in enumerate(calls)
    ]


def _has_ended(step: Mapping[str, Any]) -> bool:
    return step["status"] in (StepStatus.SUCCEEDED, StepStatus.FAILED)


def _result(view: JobView, step: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a step. All steps of a turn have its number; the round of a guide is no turn."""
    turn = step["round"] + (0 if view.row["plan_source"] == GUIDE_SOURCE else 1)
    is_turn = view.row["plan_source"] == GUIDE_SOURCE or not Strategy(view.row["strategy"]).begins_with_plan
    shown = {"step_number": turn if is_turn else step["index"] + 1, "tool_name": step["tool_name"]}
    if step["status"] == StepStatus.SUCCEEDED:
        large = below_prefix(f"/jobs/{view.row['id']}/steps/{step['index']}/output")
        reference = {} if step["payload_hash"] is None else {"result_ref": large}
        return {**shown, "status": "success", "result": step["output"], **reference}
    return {**shown, "status": "failure", "error": user_message_for_step(step["error"]["code"])}


def _times(view: JobView) -> Iterable[datetime]:
    named = ("created_at", "started_at", "finished_at", "paused_at")
    known = [view.row[name] for name in named] + [step[name] for step in view.steps for name in named[1:3]]
    return (time for time in known if time is not None)
