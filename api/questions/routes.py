"""Questions to people: the inbox, the questions of a job, and the answers."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

from fastapi import Path, Query
from starlette.responses import Response

from planq.api.access.scopes import Caller, Who
from planq.api.deps import JobPath, Use, check_job_is_open_to, strict_router
from planq.api.documents import question_document
from planq.api.http.exchange import JsonResponse, error_responses
from planq.api.http.ids import CursorQuery, Limit, id_of_cursor, job_id_of, page_of, uuid_of
from planq.api.questions.answering import QuestionAnswers, is_closed
from planq.api.schemas import AnswerRequest, QuestionDocument, QuestionPage
from planq.shared.kernel.states import QuestionStatus
from planq.shared.platform.database import Row
from planq.shared.platform.errors import NotFound
from planq.shared.subjects.questions.store import QuestionStore

question_routes = strict_router("jobs")

QuestionOrder = Literal["newest", "oldest"]

QuestionPath = Annotated[
    str, Path(alias="elicitation_id", json_schema_extra={"format": "uuid"}, description="The question's id.")
]


@question_routes.get("/elicitations", response_model=QuestionPage)
async def get_questions(
    services: Use,
    who: Who,
    status: Annotated[QuestionStatus | None, Query(description="Only questions that stand here.")] = None,
    job: Annotated[UUID | None, Query(description="Only those of this job, and of the jobs below it.")] = None,
    order: Annotated[QuestionOrder, Query(description="Which come first.")] = "newest",
    limit: Limit = 20,
    cursor: CursorQuery = None,
) -> Response:
    """List questions to people, newest first unless `order` says otherwise; with `status=open` it is the inbox."""
    rows = await services.questions.page(
        who.tenant_id,
        status=status,
        job_id=job,
        beyond=id_of_cursor(cursor),
        oldest=order == "oldest",
        message_flow=not who.sees_all_questions,
        limit=limit + 1,
    )
    return page_of(rows, limit, question_document)


@question_routes.get("/jobs/{job_id}/elicitations", response_model=QuestionPage, responses=error_responses(404))
async def get_questions_of_job(
    job_id: JobPath, services: Use, who: Who, limit: Limit = 20, cursor: CursorQuery = None
) -> Response:
    """List what the steps of a job asked, newest first; of an outermost job also what the jobs below it asked."""
    found, beyond = job_id_of(job_id), id_of_cursor(cursor)
    await check_job_is_open_to(who, services.requests, found)
    await services.requests.view(who.tenant_id, found, only_ended=True)
    rows = await services.questions.page(who.tenant_id, job_id=found, beyond=beyond, limit=limit + 1)
    return page_of(rows, limit, question_document)


@question_routes.get(
    "/elicitations/{elicitation_id}", response_model=QuestionDocument, responses=error_responses(404)
)
async def get_question(question_id: QuestionPath, services: Use, who: Who) -> Response:
    """Return a question, with its answer once there is one."""
    return JsonResponse(question_document(await _question(services.questions, who, question_id)))


@question_routes.post(
    "/elicitations/{elicitation_id}",
    response_model=QuestionDocument,
    responses=error_responses(400, 403, 404, 409, 413, 415),
)
async def answer_question(question_id: QuestionPath, body: AnswerRequest, services: Use, who: Who) -> Response:
    """Answer a question, and return it; its job goes on.

    The first answer counts, all others are refused: 409. A content that breaks the question's schema is refused with
    every defect and its place, 422, and the question stays open. So does one that is asked of others (`asked_of`):
    403 with the code `not_asked`; a key with the scope `approve` or `admin` may answer any.
    """
    row = await _question(services.questions, who, question_id)
    asked = await services.subject(QuestionAnswers).answer(row, body, who)
    now = await services.questions.get(who.tenant_id, row["id"])
    if not asked.applied:
        raise is_closed(now)
    services.publisher.publish_soon(asked.wakes)
    return JsonResponse(question_document(now))


async def _question(questions: QuestionStore, who: Caller, text: str) -> Row:
    row = await questions.get(who.tenant_id, uuid_of("elicitation", text))
    if not (row["in_message_flow"] or who.sees_all_questions):
        raise NotFound(f"there is no elicitation {row['id']}")
    return row
