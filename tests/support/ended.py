"""Jobs that ended long ago, written by SQL: with their parts, and with the ids of the time when they were made."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg

_JOBS = """
INSERT INTO jobs (id, tenant_id, strategy, status, model, limits, input, created_at, finished_at, parent_job_id,
                  forked_from, idempotency_key, request_hash, open_steps, open_questions, deadline, wake_at)
SELECT (lpad(to_hex(floor(1000 * extract(epoch FROM now() - %(made)s))::bigint + i), 12, '0') || '7'
        || lpad(to_hex((random() * 1e15)::bigint), 19, '0'))::uuid,
       'default', 'plan', %(status)s::text, 'offline', '{}', 'an old request', now() - %(made)s,
       CASE WHEN %(status)s::text IN ('completed', 'failed', 'cancelled') THEN now() - %(ended)s END,
       %(parent)s, %(forked_from)s, %(key)s, 'digest',
       (%(status)s::text = 'executing')::int, 0, now(), now()
FROM generate_series(1, %(count)s) i
RETURNING id"""

_PARTS = (
    "INSERT INTO plans (job_id, round, tenant_id, source, body)"
    " SELECT id, 0, 'default', 'caller', '{}' FROM unnest(%(ids)s) id",
    "INSERT INTO steps (job_id, round, index, tenant_id, tool_name, pool, effect, status, arguments, retry,"
    " timeout_seconds, finished_at)"
    " SELECT id, 0, i - 1, 'default', 'now', 'io', 'read', 'succeeded', '{}', '{}', 60, now()"
    " FROM unnest(%(ids)s) id, generate_series(1, %(steps)s) i",
    "INSERT INTO events (tenant_id, job_id, kind) SELECT 'default', id, 'job_submitted' FROM unnest(%(ids)s) id",
    "INSERT INTO artifacts (tenant_id, id, job_id, step_index, tool_name, body)"
    " SELECT 'default', 'art-' || id, id, 0, 'now', '{}' FROM unnest(%(ids)s) id",
    "INSERT INTO model_calls (tenant_id, job_id, purpose, model)"
    " SELECT 'default', id, 'plan', 'offline' FROM unnest(%(ids)s) id",
    "INSERT INTO messages (tenant_id, job_id, kind) SELECT 'default', id, 'tool_call' FROM unnest(%(ids)s) id",
    "INSERT INTO questions (id, tenant_id, job_id, root_job_id, round, step_index, attempt, kind, status, message)"
    " SELECT id, 'default', id, id, 0, 0, 1, 'form', 'accepted', 'Why?' FROM unnest(%(ids)s) id",
    "INSERT INTO budget_holds (job_id, root_job_id, attempt, tokens, model_calls, steps)"
    " SELECT id, id, 1, 0, 0, 0 FROM unnest(%(ids)s) id",
    "INSERT INTO suspects (tenant_id, job_id, round, index, attempt, pool, group_id, company, delays)"
    " SELECT 'default', id, 0, 0, 1, 'io', id, 1, false FROM unnest(%(ids)s) id",
    "INSERT INTO deferred_calls (tenant_id, job_id, batch_id, model, scope, status, seconds_left)"
    " SELECT 'default', id, id, 'openai:gpt-5-mini', '', 'succeeded', 1 FROM unnest(%(ids)s) id",
    "INSERT INTO tracebacks (job_id, round, index, attempt, text) SELECT id, 0, 0, 1, 'boom' FROM unnest(%(ids)s) id",
)


def ended(
    connection: psycopg.Connection[Any],
    status: str = "completed",
    *,
    days: float,
    made_days: float | None = None,
    count: int = 1,
    steps: int = 0,
    parent: UUID | None = None,
    forked_from: UUID | None = None,
    key: str | None = None,
) -> list[UUID]:
    """Insert jobs that ended `days` ago and return their ids, oldest first; with `steps` they have other parts too.

    They were made `made_days` ago by the clock of their API, a second before their end if that is None. Pass an
    unfinished status for jobs that were made then and still run.
    """
    made = timedelta(days=days, seconds=1) if made_days is None else timedelta(days=made_days)
    parameters = {
        "made": made,
        "ended": timedelta(days=days),
        "status": status,
        "count": count,
        "parent": parent,
        "forked_from": forked_from,
        "key": key,
    }
    ids = sorted(row[0] for row in connection.execute(_JOBS, parameters).fetchall())
    if steps:
        for statement in _PARTS:
            connection.execute(statement, {"ids": ids, "steps": steps})
    return ids
