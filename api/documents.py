"""Rows of the store as the documents that callers get; `api/schemas.py` describes the same shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from planq.api.http.prefix import below_prefix
from planq.api.schemas import JobDocument, JobSummary, QuestionDocument, StepDocument, UsageDocument
from planq.shared.agentic.agents.document import read_agent
from planq.shared.agentic.agents.warnings import DocumentWarning, job_warning
from planq.shared.agentic.models.ending import incomplete_of
from planq.shared.agentic.rounds.guard import CALLER_SOURCE
from planq.shared.kernel.states import TERMINAL_JOB, Effect, JobStatus, Outcome, Respond, StepStatus
from planq.shared.kernel.steps import PlannedStep
from planq.shared.kernel.submission import COLUMNS, Submission
from planq.shared.platform.database import Row
from planq.shared.platform.values.decoding import decode_stored
from planq.shared.platform.values.encoding import JsonText
from planq.shared.platform.values.parts import parts_of
from planq.shared.subjects.agents.store import StoredDocument
from planq.shared.subjects.jobs.job_view import JobView

_Document = dict[str, Any]


def job_document(view: JobView) -> _Document:
    return _document(view.row, [_step(view.row["id"], step) for step in view.steps])


def steps_document(view: JobView, number: int | None) -> _Document:
    wanted = [step for step in view.steps if number is None or step["round"] == number]
    return {"items": [_step(view.row["id"], step) for step in wanted]}


def _document(row: Row, steps: Sequence[_Document]) -> _Document:
    return JobDocument.of(
        row,
        **_made_of(row),
        plan=row["plan_body"],
        rounds=_rounds(row, steps),
        steps=steps,
        output_ref=_last_output(row, steps),
        children=row["children"] or [],
        tree_usage=_tree_usage(row),
        warnings=[job_warning(one["kind"], one["data"]) for one in row["warnings"] or ()],
        retry=_retry(row),
        parts=[part.document() for part in parts_of(decoded(row["parts"]))] if row["parts"] is not None else [],
    )


def decoded(stored: Any) -> Any:
    """Return the value of stored JSON, decoded if it is still a text."""
    return decode_stored(stored.body) if isinstance(stored, JsonText) else stored


def _last_output(row: Row, steps: Sequence[_Document]) -> Any:
    is_answer = row["respond"] == Respond.OUTPUT and row["status"] == JobStatus.COMPLETED
    return steps[-1]["output_ref"] if is_answer and steps else None


def _rounds(row: Row, steps: Sequence[_Document]) -> list[_Document]:
    if row["plan_source"] is None:
        return []
    rounds = [_round(0, row["plan_source"], row["plan_body"], row["plan_errors"])]
    rounds += [_round(one["round"], one["source"], one["body"], one["errors"]) for one in row["later_plans"]]
    indices = {one["round"]: one["steps"] for one in rounds}
    for step in steps:
        indices[step["round"]].append(step["index"])
    return rounds


def _round(number: int, source: str, plan: Any, errors: Any) -> _Document:
    return {"round": number, "source": source, "plan": plan, "plan_errors": errors, "steps": []}


def _tree_usage(row: Row) -> _Document:
    below = row["used_below"] or {}
    costs = [cost for used in (row, below) if (cost := used.get("cost_usd")) is not None]
    return {
        "jobs": 1 + below.get("jobs", 0),
        **{name: row[name] + below.get(name, 0) for name in _COUNTED},
        "cost_usd": sum(costs) if costs else None,
    }


_COUNTED = ("model_calls", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


def _retry(row: Row) -> _Document | None:
    """Return a `RetryDocument` where the stage of a job is tried again because its model failed."""
    if row["stage_retry"] is None:
        return None
    kept = decode_stored(row["stage_retry"])
    return {
        "stage": kept["stage"],
        "attempts": kept["tried"]["tries"],
        "next_attempt_at": row["next_attempt_at"],
        "error": decode_stored(kept["error"]),
    }


def job_summary(row: Row) -> _Document:
    return JobSummary.of(row, **_made_of(row))


def _made_of(row: Row) -> _Document:
    """Return the fields of a `JobSummary` that are no columns."""
    parent = {"job_id": row["parent_job_id"], "step_index": row["parent_step_index"]}
    agent = {"name": row["agent_name"], "version": row["agent_version"]}
    time_runs_out = row["paused_at"] is None and row["status"] not in TERMINAL_JOB
    return {
        "id": str(row["id"]),
        "incomplete": incomplete_of(decoded(row["error"])) if row["outcome"] == Outcome.INCOMPLETE else None,
        "usage": UsageDocument.of(row),
        "expires_at": row["expires_at"] if time_runs_out else None,
        "user": row["user_id"] or None,
        "agent": None if row["agent_name"] is None else agent,
        "parent": None if row["parent_job_id"] is None else parent,
        "open_questions": row["open_questions"] or [],
    }


def new_job_document(submission: Submission, created_at: datetime) -> _Document:
    """Return the `JobDocument` of a job that has just been stored, without reading it back."""
    row: dict[str, Any] = {
        **{column: getattr(submission, name) for name, column in COLUMNS.items()},
        "status": _QUEUED,
        "plan_source": None if submission.plan is None else CALLER_SOURCE,
        "plan_body": submission.plan,
        "created_at": created_at,
        "expires_at": created_at + submission.expires_in,
        "budget": submission.budget and {**submission.budget, "used": _NOTHING_USED},
    }
    return _document({**_NOTHING_YET, **row}, [])


_QUEUED = str(JobStatus.QUEUED)
_NOTHING_USED: Mapping[str, float] = {"tokens": 0, "cost_usd": 0.0, "model_calls": 0, "steps": 0}

_NOTHING_YET: Mapping[str, Any] = {
    **dict.fromkeys(("answer", "preview", "error", "outcome", "cost_usd", "started_at", "finished_at", "paused_at")),
    **dict.fromkeys(("plan_errors", "output", "chained", "children", "used_below", "warnings")),
    **dict.fromkeys(("parent_job_id", "parent_step_index", "stage_retry")),
    **dict.fromkeys(("conversation_id", "open_questions", "batch_id", "batch_line", "custom_id", "stop_reason")),
    **dict.fromkeys(("model_calls", "input_tokens", "output_tokens", "depth", "round"), 0),
    **dict.fromkeys(("cache_read_tokens", "cache_write_tokens"), 0),
    "later_plans": (),
}


def fork_preview(
    source: UUID, steps: Sequence[PlannedStep], reuse: Mapping[int, int], doubts: Mapping[int, int]
) -> _Document:
    """Return a `ForkPreview` of a fork of the job `source` with these steps."""
    shown = [{"index": step.index, "tool_name": step.tool_name, "effect": str(step.effect)} for step in steps]
    taken = [
        {**step, "reused_from": _origin(source, reuse[index])} for index, step in enumerate(shown) if index in reuse
    ]
    in_doubt = [{**shown[index], "same_as": _origin(source, own)} for index, own in doubts.items()]
    run = [step for index, step in enumerate(shown) if index not in reuse]
    return {"reuse": taken, "run": run, "in_doubt": in_doubt}


def _origin(job_id: UUID | str, index: int) -> _Document:
    return {"job_id": job_id, "index": index}


def _step(job_id: UUID, row: Mapping[str, Any]) -> _Document:
    succeeded = row["status"] == StepStatus.SUCCEEDED
    # A call that the guard has blocked has the output of the same call before it. No other failed step holds one.
    has_output = succeeded or row["status"] == StepStatus.FAILED
    return StepDocument.of(
        row,
        arguments=row["called_arguments"],
        # A waiting step already holds what it will succeed with; it is no output before that.
        output=row["output"] if has_output else None,
        output_ref=_output_ref(job_id, row) if has_output else None,
        content=row["content"] if succeeded else None,
        reused_from=None if row["reused_job"] is None else _origin(row["reused_job"], row["reused_index"]),
        recovery=row["recovery"] if row["effect"] == Effect.UNSAFE else None,
    )


def _output_ref(job_id: UUID, row: Mapping[str, Any]) -> _Document | None:
    if row["payload_hash"] is None:
        return None
    href = below_prefix(f"/jobs/{job_id}/steps/{row['index']}/output")
    return {"sha256": row["payload_hash"], "bytes": row["output_bytes"], "href": href}


def question_document(row: Row) -> _Document:
    key = row["answered_key"]
    return QuestionDocument.of(
        row,
        asked_ids=row["asked_ids"] or [],
        answered_key=None if key is None else {"id": row["answered_key_id"], "name": key},
        default=row["default_content"],
    )


def agent_document(stored: StoredDocument) -> _Document:
    return {
        "name": stored.name,
        "version": stored.version,
        "document": JsonText(stored.content.encode()),
        "created_at": stored.created_at,
        "retired_at": stored.retired_at,
    }


def kept_agent_document(stored: StoredDocument, warnings: Sequence[DocumentWarning]) -> _Document:
    return {**agent_document(stored), "warnings": [one.to_json() for one in warnings]}


def agent_summary(stored: StoredDocument) -> _Document:
    document = read_agent(decode_stored(stored.content))
    return {
        "name": stored.name,
        "version": stored.version,
        "description": document.summary,
        "output_mode": document.output_mode(),
        "tools": [tool.name for tool in document.tools],
        "skills": list(document.skills),
        "actions": list(document.actions),
        "created_at": stored.created_at,
    }


def skill_summary(stored: StoredDocument) -> _Document:
    return {
        "name": stored.name,
        "version": stored.version,
        "characters": len(stored.content),
        "created_at": stored.created_at,
    }
