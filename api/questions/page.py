"""The inbox: what needs a person, the oldest first, each question with its form."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from planq.api.access.scopes import Who
from planq.api.deps import Use
from planq.api.http.ids import MAX_PAGE, CursorQuery
from planq.api.page.fields import with_fields
from planq.api.page.rendering import page
from planq.api.page.route import page_router, values_of
from planq.api.questions.routes import get_questions
from planq.shared.kernel.states import QuestionStatus

inbox_routes = page_router()


@inbox_routes.get("/ui/elicitations")
async def show_inbox(request: Request, services: Use, who: Who, cursor: CursorQuery = None) -> Response:
    listed = values_of(
        await get_questions(services, who, status=QuestionStatus.OPEN, order="oldest", limit=MAX_PAGE, cursor=cursor)
    )
    questions = [with_fields(one) for one in listed["items"]]
    return page(request, "inbox.html", questions=questions, following=listed["next_cursor"], is_first=cursor is None)
