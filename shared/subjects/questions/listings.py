"""Selects of questions."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import Select, and_, any_, case, func, or_, select
from sqlalchemy.orm import aliased

from planq.shared.kernel.tables import Job, Step
from planq.shared.platform.selects import named, where_given
from planq.shared.subjects.questions.tables import QuestionRow

j: Any = Job
q: Any = QuestionRow
r: Any = aliased(Job)
s: Any = Step

_DUE_AT = case((and_(s.question_id == q.id, j.paused_at.is_(None)), s.wake_at)).label("due_at")
"""Until when the step waits; None while its job is paused."""


def _questions(tenant_id: str, *more: Any) -> Select[Any]:
    rows = select(q, s.kind.label("step_kind"), _DUE_AT, *more).join(j, j.id == q.job_id)
    return rows.join(s, and_(s.job_id == q.job_id, s.index == q.step_index)).where(q.tenant_id == tenant_id)


@named
def list_questions(
    tenant_id: str,
    status: str | None,
    job_id: UUID | None,
    beyond: UUID | None,
    oldest: bool,
    message_flow: bool,
    limit: int,
) -> Select[Any]:
    """Select a tenant's questions, newest or oldest first, maybe below a job or of the message flow."""
    rows = where_given(_questions(tenant_id), {q.status: status})
    if job_id is not None:
        root = select(r.root_job_id).where(r.id == job_id, r.tenant_id == tenant_id).scalar_subquery()
        is_below = and_(q.root_job_id == root, any_(func.planq_lineage(q.job_id)) == job_id)
        rows = rows.where(or_(q.root_job_id == job_id, q.job_id == job_id, is_below))
    if message_flow:
        rows = rows.where(q.in_message_flow)
    if beyond is not None:
        rows = rows.where(q.id > beyond if oldest else q.id < beyond)
    return rows.order_by(q.id if oldest else q.id.desc()).limit(limit)


@named
def get_question(tenant_id: str, id: UUID) -> Select[Any]:
    return _questions(tenant_id, s.tool_name).where(q.id == id)
