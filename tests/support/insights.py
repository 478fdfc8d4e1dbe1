"""Insights as rules write them, and what was chosen for jobs, for tests that only look at them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from planq.shared.kernel.new_ids import new_id

Execute = Callable[..., Any]
"""Runs a statement with its parameters."""

_INSIGHT = """
INSERT INTO insights (id, tenant_id, kind, digest, tool_name, lesson, body, search, seen, expires_at)
VALUES (%s, 'default', 'failure', %s, 'convert', %s, '{"tool": "convert"}', '', 3, now() + interval '1 day')"""
_OFFER = """
INSERT INTO insight_offers (tenant_id, job_id, origin_id, side, insight_ids, tokens, ended_at, is_success,
                            failed_calls, rounds, seconds, cost_usd, used_tokens)
VALUES ('default', %s, %s, %s, %s, 20, now(), %s, %s, 1, 2, 0.01, 100)"""
_SOURCE = """
INSERT INTO insight_sources (insight_id, job_id, tenant_id, round, step_index, words)
VALUES (%s, %s, 'default', 0, 1, '')"""


def learned(execute: Execute, *lessons: str) -> list[UUID]:
    """Store insights on the tool `convert`; returns their ids, which grow."""
    ids = sorted(new_id() for _ in lessons)
    for id, lesson in zip(ids, lessons, strict=True):
        execute(_INSIGHT, id, str(id), lesson)
    return ids


def taught(execute: Execute, insight: UUID) -> UUID:
    """Let the second step of a job, which retention has removed, have taught an insight; returns the job's id."""
    job = new_id()
    execute(_SOURCE, insight, job)
    return job


def chosen(execute: Execute, job: UUID, side: str, insights: Sequence[UUID], *, is_success: bool) -> None:
    """Store that insights were chosen for a job, and what that came to."""
    execute(_OFFER, job, job, side, list(insights), is_success, int(not is_success))


def ended(execute: Execute, side: str, insights: Sequence[UUID], succeeded: Sequence[bool]) -> None:
    """Store what was chosen for jobs, and what these came to."""
    for is_success in succeeded:
        chosen(execute, new_id(), side, insights, is_success=is_success)
