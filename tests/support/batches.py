"""Batches in the database as they stand once they have been validated, and how their jobs end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
from psycopg.types.json import Json

from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import Priority, Strategy
from planq.shared.kernel.submission import Submission
from planq.shared.platform.database import query
from planq.shared.subjects.jobs.store import submission_values
from tests.support.servers import FUNCTIONS

Connection = psycopg.Connection[Any]

_PATH = f"SET search_path = planq, {FUNCTIONS}"


def item(text: str, tenant_id: str = "default", plan: Mapping[str, Any] | None = None) -> dict[str, object]:
    """Return what a valid line keeps: the item of `planq_submit_jobs` that it becomes."""
    job = Submission(new_id(), tenant_id, text, Strategy.PLAN, "offline", Limits(), plan=plan, priority=Priority.BULK)
    return submission_values(job)


def stored_batch(
    connection: Connection,
    items: Sequence[Mapping[str, object]],
    *,
    tenant_id: str = "default",
    line_usd: Decimal = Decimal(0),
    **columns: Any,
) -> UUID:
    """Store a batch with a valid line for each item, and return its id; `line_usd` is what each may use up."""
    batch_id = new_id()
    counts = dict.fromkeys(("total", "validated_lines", "valid"), len(items))
    values = {"status": "in_progress", **counts, **columns}
    names = ", ".join(values)
    marks = ", ".join(["%s"] * len(values))
    connection.execute(
        f"INSERT INTO batches (id, tenant_id, {names}) VALUES (%s, %s, {marks})",  # type: ignore[arg-type]
        (batch_id, tenant_id, *values.values()),
    )
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO batch_lines (batch_id, line, tenant_id, custom_id, status, body, reserved_usd) "
            "VALUES (%s, %s, %s, %s, 'valid', %s, %s)",
            [
                (batch_id, number, tenant_id, f"line-{number}", Json(body), line_usd)
                for number, body in enumerate(items, 1)
            ],
        )
    return batch_id


def end_jobs(
    connection: Connection,
    jobs: Sequence[UUID],
    status: str = "completed",
    usd: Decimal | None = None,
    *,
    tokens: int = 0,
) -> None:
    """End jobs as a worker would, one after the other; `partial` and `incomplete` ones have an error."""
    code = "answer_incomplete" if status == "incomplete" else "tool_error"
    error = Json({"code": code, "message": "boom"}) if status in ("failed", "partial", "incomplete") else None
    status = "completed" if status in ("partial", "incomplete") else status
    for job_id in jobs:
        connection.execute(
            "UPDATE jobs SET status = %s, error = %s, finished_at = clock_timestamp(), wake_at = NULL, "
            "answer = 'done', cost_usd = %s, input_tokens = %s WHERE id = %s",
            (status, error, usd, tokens, job_id),
        )
        connection.execute(
            "INSERT INTO events (tenant_id, job_id, kind) "
            "SELECT tenant_id, id, 'job_' || status FROM jobs WHERE id = %s",
            (job_id,),
        )


def admitted(connection: Connection, most: int = 100) -> list[UUID]:
    """Let lines become jobs as the sweeper does, as if workers kept up with any number; return these in order."""
    connection.execute(_PATH)
    ids = sorted(new_id() for _ in range(most))
    with connection.transaction():
        worker = new_id()
        connection.execute(
            "INSERT INTO workers (id, name, pools, capacity, bulk_capacity, lease_seconds) "
            "VALUES (%s, 'any', '{io}', 1000, 1000, 15)",
            (worker,),
        )
        rows = connection.execute("SELECT job_id FROM planq_admit_lines(%s)", (ids,)).fetchall()
        connection.execute("DELETE FROM workers WHERE id = %s", (worker,))
    return sorted(row[0] for row in rows)


def settled(connection: Connection, most: int = 1000) -> int:
    """Let the lines end whose jobs have ended, as the sweeper does; return how many these are."""
    connection.execute(_PATH)
    sets = connection.execute(query("unserved_ends"), {"limit": most, "besides": []}).fetchall()
    for (jobs,) in sets:
        connection.execute("SELECT planq_serve_ends(%s)", (jobs,))
    return sum(len(jobs) for (jobs,) in sets)
