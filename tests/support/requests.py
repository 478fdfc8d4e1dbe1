"""The API's side of the store, with every column of a job and of its steps: callers see only some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from psycopg.rows import dict_row

from planq.shared.agentic.references.resolution import as_called
from planq.shared.kernel.claims import StageClaim
from planq.shared.kernel.states import JobStatus, StepStatus
from planq.shared.kernel.steps import StepResult
from planq.shared.kernel.store.codec import CalledArguments, known_output, step_results
from planq.shared.platform.database import Database, Row
from planq.shared.subjects.jobs.store import RequestStore


class OpenRequestStore(RequestStore):
    """A `RequestStore` that hides nothing."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.opened = database

    async def results(self, claim: StageClaim) -> Sequence[StepResult]:
        """Return the outcomes of the round's steps as a RESPOND that is claimed now would bring them."""
        values = await self.opened.call("planq_results", claim.job_id, claim.round, ["succeeded", "failed"], 0)
        return step_results(values, as_called)

    async def job(self, tenant_id: str, job_id: UUID) -> tuple[Row, list[Mapping[str, Any]]]:
        """Return a job's row, with `plan_source`, `plan_body` and `plan_errors`, and the rows of all its steps.

        Each step carries `called_arguments`, as in `JobView`. Raises `NotFound`.
        """
        job, _ = await self.planned(tenant_id, job_id)
        statement = "SELECT * FROM steps WHERE job_id = %s ORDER BY index"
        async with self.opened.connection() as connection, connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(statement, (job_id,))
            rows = await cursor.fetchall()
        known = {r["index"]: known_output(r) for r in rows if r["status"] == StepStatus.SUCCEEDED}
        called = CalledArguments(known, as_called)
        return job, [{**row, "called_arguments": called.of(row)} for row in rows]

    async def status(self, tenant_id: str, job_id: UUID) -> JobStatus:
        """Return where a job stands; raises `NotFound`."""
        return JobStatus((await self.view(tenant_id, job_id, only_ended=True)).row["status"])
