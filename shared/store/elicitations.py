"""Questions to people as callers see them: list, look, answer."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from planq.shared.domain.errors import NotFound
from planq.shared.domain.jobs.elicitations import AfterAnswer, ContinueStep, ElicitationAnswer
from planq.shared.domain.jobs.states import ElicitationStatus
from planq.shared.store.database import Database, Row, stored_text
from planq.shared.store.jobs.codec import after_answer_fields
from planq.shared.store.requests import AnsweredBy, ControlResult, close_question


class ElicitationStore:
    """The questions of all jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self,
        tenant_id: str,
        *,
        status: ElicitationStatus | None = None,
        job_id: UUID | None = None,
        beyond: UUID | None = None,
        oldest: bool = False,
        message_flow: bool = False,
        limit: int,
    ) -> Sequence[Row]:
        """Return at most `limit` questions, newest or `oldest` first, those behind the question `beyond` if given.

        With `job_id` those of a job; of an outermost one also those of all jobs below it.
        """
        named = None if status is None else str(status)
        return await self._database.fetch_page(
            "list_elicitations",
            tenant_id=tenant_id,
            status=named,
            job_id=job_id,
            beyond=beyond,
            oldest=oldest,
            message_flow=message_flow,
            limit=limit,
        )

    async def get(self, tenant_id: str, id: UUID) -> Row:
        """Return a question; raises `NotFound`."""
        row = await self._database.fetch_one("get_elicitation", tenant_id=tenant_id, id=id)
        if row is None:
            raise NotFound(f"there is no elicitation {id}")
        return row

    async def answer(
        self, tenant_id: str, id: UUID, answer: ElicitationAnswer, after: AfterAnswer, by: AnsweredBy
    ) -> ControlResult:
        """Answer an open question, and do to its step what `after` says; only the first answer applies.

        Raises `NotFound`.
        """
        content = stored_text(answer.content)
        said = {**by.fields(), "status": str(answer.status), "content": content}
        again, item = isinstance(after, ContinueStep), after_answer_fields(after)
        return await close_question(self._database, tenant_id, id, said, again=again, item=item)
