"""Questions to people: list, answer, and expire them."""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from planq.shared.kernel.follow_ups import after_step
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.job_store import TransitionResult
from planq.shared.kernel.questions import AfterAnswer, ContinueStep, FailStep, QuestionAnswer, after_answer
from planq.shared.kernel.states import QuestionKind, QuestionStatus, StepKind
from planq.shared.kernel.store.codec import after_answer_fields, transition_result
from planq.shared.kernel.store.ends import wakes_of_end
from planq.shared.kernel.sweep import SweepResult
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.database import Database, Row, json_text, record, stored_text
from planq.shared.platform.errors import ErrorRecord, HumanWaitTimedOut
from planq.shared.subjects.jobs.store import AnsweredBy, ControlResult, close_question
from planq.shared.subjects.tenants.envelope import SealedSecret

_log = logging.getLogger("planq.sweep")


class QuestionStore:
    """The questions of all jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self,
        tenant_id: str,
        *,
        status: QuestionStatus | None = None,
        job_id: UUID | None = None,
        beyond: UUID | None = None,
        oldest: bool = False,
        message_flow: bool = False,
        limit: int,
    ) -> Sequence[Row]:
        """Return at most `limit` questions behind `beyond`; with `job_id` its own, and a root's with all below."""
        named = None if status is None else str(status)
        return await self._database.fetch_page(
            "list_questions",
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
        return await self._database.fetch_existing("get_question", f"elicitation {id}", tenant_id=tenant_id, id=id)

    async def answer(
        self,
        tenant_id: str,
        id: UUID,
        answer: QuestionAnswer,
        after: AfterAnswer,
        by: AnsweredBy,
        secret: SealedSecret | None = None,
    ) -> ControlResult:
        """Answer an open question and do `after` to its step; only the first answer applies.

        `secret` has the hidden fields of the content. Raises `NotFound`.
        """
        content = stored_text(answer.content)
        said = {**by.fields(), "status": str(answer.status), "content": content}
        if secret is not None:
            said |= {"sealed": b64encode(secret.body).decode(), "sealed_key": secret.key_id}
        again, item = isinstance(after, ContinueStep), after_answer_fields(after)
        return await close_question(self._database, tenant_id, id, said, again=again, item=item)


@dataclass(frozen=True, slots=True)
class ExpiredQuestion:
    """A question without an answer in time; its `default`, if any, is the answer."""

    id: UUID
    ref: StepRef
    tenant_id: str
    tool_name: str
    kind: QuestionKind
    step_kind: StepKind
    limit_seconds: float
    default: Any = None


class QuestionSweep:
    """A `SweepDuty` that ends the waits of expired questions."""

    part = "questions"

    def __init__(self, database: Database) -> None:
        self._database = database

    async def expired(self, limit: int) -> Sequence[ExpiredQuestion]:
        rows = await self._database.fetch_all("expired_questions", limit=limit)
        return [record(ExpiredQuestion, row, ref=row) for row in rows]

    async def expire(self, question: ExpiredQuestion, after: AfterAnswer) -> TransitionResult:
        """Expire a question and do `after` to its step."""
        answer = {"status": str(QuestionStatus.EXPIRED), "content": stored_text(question.default)}
        again, item = isinstance(after, ContinueStep), json_text(after_answer_fields(after))
        value = await self._database.call(
            "planq_answer_question", question.tenant_id, question.id, json_text(answer), True, again, item
        )
        return transition_result(value)

    async def carry_out(self, limit: int) -> SweepResult:
        wakes: list[Wake] = []
        count = 0
        for question in await self.expired(limit):
            result = await self.expire(question, _after_silence(question))
            if not result.applied:
                continue
            count += 1
            ref = question.ref
            _log.warning("question_expired", extra={"job": str(ref.job_id), "step": ref.index})
            wakes += after_step(ref, result)
            wakes += await wakes_of_end(self._database, ref.job_id, result.job_status)
        return SweepResult(count, wakes=wakes)


def _after_silence(question: ExpiredQuestion) -> AfterAnswer:
    if question.kind is QuestionKind.OUTCOME:
        error = HumanWaitTimedOut(
            f"nobody said within {question.limit_seconds:g} s whether the call took effect, so it is not repeated"
        )
        return FailStep(ErrorRecord.of(error))
    answer = QuestionAnswer(question.kind, QuestionStatus.EXPIRED, question.default)
    return after_answer(answer, question.step_kind, limit_seconds=question.limit_seconds)
