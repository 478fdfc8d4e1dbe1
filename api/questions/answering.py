"""What an answer to a question becomes: it is checked, and what it does to the step is decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planq.api.access.scopes import Caller, answered_by
from planq.api.intake.recovery import verdict_of
from planq.api.schemas import AnswerRequest, SettleRequest
from planq.shared.kernel.questions import OUTCOME_SCHEMA, QuestionAnswer, after_answer
from planq.shared.kernel.states import QuestionKind, QuestionStatus, Settlement, StepKind
from planq.shared.platform.computing import off_loop
from planq.shared.platform.database import Row
from planq.shared.platform.errors import Conflict, ErrorRecord, InvalidRequest, OutcomeUnknown, TooLarge
from planq.shared.platform.values.encoding import encode
from planq.shared.settings.settings import Settings
from planq.shared.subjects.jobs.store import AnsweredBy, ControlResult, RequestStore, Verdict
from planq.shared.subjects.payloads.store import PayloadStore
from planq.shared.subjects.questions.answering import checked_action, content_defects
from planq.shared.subjects.questions.store import QuestionStore
from planq.shared.subjects.tenants.secrecy import parted
from planq.shared.subjects.tenants.secrets import sealed_answer
from planq.shared.subjects.tools.catalogue import Catalogue

MAX_CONTENT_BYTES = 64 * 1024
"""Largest content of an answer: it goes along with every later claim of the step."""


@dataclass(frozen=True, slots=True)
class QuestionAnswers:
    """Takes the answers of people to questions."""

    settings: Settings
    questions: QuestionStore
    requests: RequestStore
    catalogue: Catalogue
    payloads: PayloadStore

    async def answer(self, row: Row, request: AnswerRequest, who: Caller) -> ControlResult:
        """Answer the question of a row; an answer that is refused changes nothing, and the question stays open.

        Raises `Conflict` where it is closed, `NotAsked` where it is asked of others, `InvalidRequest` for an action
        that is none, or with every defect of the content, and `TooLarge`.
        """
        if row["status"] != QuestionStatus.OPEN:
            raise is_closed(row)
        status = checked_action(request.action)
        by = answered_by(who, request.by, request.channel, request.reason)
        if row["kind"] == QuestionKind.OUTCOME:
            return await self._settle(row, status, request, by)
        content = None
        if status is QuestionStatus.ACCEPTED:
            content = await off_loop(_content, row["schema"], request.content, row["is_secret"])
        secret = None
        if row["is_secret"] and content is not None:
            content, fields = parted(row["schema"], content)
            secret = sealed_answer(row["tenant_id"], row["id"], fields, self.settings.master_keys)
        answer = QuestionAnswer(QuestionKind(row["kind"]), status, content, request.reason)
        after = after_answer(answer, StepKind(row["step_kind"]))
        return await self.questions.answer(row["tenant_id"], row["id"], answer, after, by, secret)

    async def _settle(
        self, row: Row, status: QuestionStatus, request: AnswerRequest, by: AnsweredBy
    ) -> ControlResult:
        """Answer what became of a call; whoever does not accept the question does not know."""
        tenant_id = row["tenant_id"]
        verdict = Verdict(
            Settlement.UNKNOWN, error=ErrorRecord.of(OutcomeUnknown("nobody knows whether it took effect"))
        )
        if status is QuestionStatus.ACCEPTED:
            given = {} if request.content is None else request.content
            if defects := content_defects(OUTCOME_SCHEMA, given):
                message = "; ".join(f"{defect['pointer']}: {defect['message']}" for defect in defects)
                raise InvalidRequest(f"the content breaks the question's schema: {message}", errors=defects)
            job, steps = await self.requests.planned(tenant_id, row["job_id"], row["step_index"])
            settle = SettleRequest.model_validate(given)
            tools = await self.catalogue.renewed(tenant_id)
            verdict = await verdict_of(settle, job, steps[0], tools, self.settings, self.payloads)
        return await self.requests.settle(tenant_id, row["job_id"], row["step_index"], verdict, by, status)


def is_closed(row: Row) -> Conflict:
    """Return the refusal of an answer to a question that is not open any more."""
    status = row["status"]
    return Conflict(
        f"elicitation {row['id']} is {status}; a question is answered once. Its answer stands there", status=status
    )


def _content(schema: Any, given: Any, is_secret: bool) -> Any:
    """Return the content of an answer; accepting without one is accepting with an empty one.

    What is wrong with an answer that `is_secret` is said without its values.
    """
    content = {} if given is None else given
    size = len(encode(content))
    if size > MAX_CONTENT_BYTES:
        raise TooLarge(
            f"content: expected at most {MAX_CONTENT_BYTES} bytes of JSON, found {size}",
            limit=MAX_CONTENT_BYTES,
            actual=size,
        )
    if defects := content_defects(schema, content):
        if is_secret:
            defects = [{**defect, "message": "expected what the schema says"} for defect in defects]
        message = "; ".join(f"{defect['pointer']}: {defect['message']}" for defect in defects)
        raise InvalidRequest(f"the content breaks the question's schema: {message}", errors=defects)
    return content
