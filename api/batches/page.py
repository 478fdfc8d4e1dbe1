"""The pages of batches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from planq.api.access.scopes import Who
from planq.api.batches.documents import BatchResumeRequest
from planq.api.batches.routes import (
    MOST_NAME_CHARS,
    AfterLine,
    BatchDiscount,
    BatchName,
    BudgetTokens,
    BudgetUsd,
    CanaryLines,
    EndWebhook,
    batch_id_of,
    cancel_batch,
    get_batch,
    get_batch_errors,
    get_batch_results,
    list_batches,
    pause_batch,
    resume_batch,
    retry_batch,
    submit_batch,
)
from planq.api.deps import Use
from planq.api.http import bounds
from planq.api.http.exchange import HttpRefusal
from planq.api.http.ids import CursorQuery
from planq.api.page.fields import json_in
from planq.api.page.rendering import page
from planq.api.page.route import add_acts, body_of, fields_of, lines_of, page_router, seen, sent_form, values_of
from planq.api.page.words import bars_of, line
from planq.shared.kernel.states import Priority
from planq.shared.platform.computing import off_loop
from planq.shared.platform.errors import InvalidRequest

batch_page_routes = page_router()
add_acts(batch_page_routes, "/batches/{batch_id}", cancel=cancel_batch, pause=pause_batch, retry=retry_batch)

_MOST = 50
_READ_AT_ONCE = 256 * 1024
_BARS = (("completed", "ok"), ("failed", "bad"), ("invalid", "bad"), ("cancelled", "idle"), ("running", "run"))


class _SentBatch(BaseModel):
    """What a form says of a batch, as the query of `POST /batches` takes it."""

    name: BatchName = ""
    defaults: str | None = None
    priority: Priority = Priority.BULK
    strict: bool = False
    start: bool = False
    canary: CanaryLines = None
    discount: BatchDiscount = None
    max_cost_usd: BudgetUsd = None
    max_tokens: BudgetTokens = None
    callback_url: EndWebhook = None


@batch_page_routes.get("/ui/batches")
async def batches_page(request: Request, services: Use, who: Who, cursor: CursorQuery = None) -> Response:
    listed = values_of(await list_batches(services, who, limit=_MOST, cursor=cursor))
    return page(
        request,
        "batches.html",
        batches=[{**one, "bars": _bars(one)} for one in listed["items"]],
        following=listed["next_cursor"],
        is_first=cursor is None,
        priorities=list(Priority),
        most_lines=bounds.MAX_BATCH_LINES,
        most_bytes=bounds.MAX_BATCH_BYTES,
    )


@batch_page_routes.post("/ui/batches")
async def post_file(request: Request, services: Use, who: Who) -> Response:
    """Send a file of requests: it lies on disk by now, and is read piece by piece."""
    file = sent_form(request).get("file")
    if not isinstance(file, UploadFile) or not file.filename:
        raise InvalidRequest("file: expected a file with a request a line, as JSON; found none")
    given = {name: value for name, value in fields_of(request).items() if value.strip()}
    sent = await body_of(_SentBatch, {"name": line(file.filename, MOST_NAME_CHARS)[:MOST_NAME_CHARS], **given})
    answer = await submit_batch(_as_sent(request, file), services, who, **sent.model_dump())
    return seen(f"/batches/{values_of(answer)['id']}")


def _as_sent(request: Request, file: UploadFile) -> Request:
    pieces = _pieces(file)

    async def receive() -> Message:
        piece = await anext(pieces, b"")
        return {"type": "http.request", "body": piece, "more_body": bool(piece)}

    return Request({**request.scope, "headers": [], "query_string": b""}, receive)


async def _pieces(file: UploadFile) -> AsyncIterator[bytes]:
    while piece := await file.read(_READ_AT_ONCE):
        yield piece


@batch_page_routes.get("/ui/batches/{batch_id}")
async def batch_page(request: Request, batch_id: str, services: Use, who: Who, after: AfterLine = 0) -> Response:
    batch = values_of(await get_batch(batch_id, services, who))
    found = await lines_of(await get_batch_errors(batch_id, services, who, after=after, limit=_MOST + 1))
    return page(
        request,
        "batch.html",
        batch=batch,
        bars=_bars(batch),
        errors=found[:_MOST],
        following=found[_MOST - 1]["line"] if len(found) > _MOST else None,
        after=after,
        is_over=batch["finished_at"] is not None,
        is_new=batch["started_at"] is None,
    )


@batch_page_routes.get("/ui/batches/{batch_id}/results")
async def save_results(batch_id: str, services: Use, who: Who) -> Response:
    return _as_file(await get_batch_results(batch_id, services, who), f"results-{batch_id_of(batch_id)}")


@batch_page_routes.get("/ui/batches/{batch_id}/errors")
async def save_errors(batch_id: str, services: Use, who: Who) -> Response:
    return _as_file(await get_batch_errors(batch_id, services, who), f"errors-{batch_id_of(batch_id)}")


def _as_file(answer: Response, name: str) -> Response:
    answer.headers["Content-Disposition"] = f'attachment; filename="{name}.jsonl"'
    return answer


@batch_page_routes.post("/ui/batches/{batch_id}/resume")
async def post_resume_of_batch(request: Request, batch_id: str, services: Use, who: Who) -> Response:
    """Let a paused batch go on; a limit that was filled in replaces that of its budget, also while it runs."""
    given = {
        name: await off_loop(_number, name, value) for name, value in fields_of(request).items() if value.strip()
    }
    await resume_batch(batch_id, services, who, await body_of(BatchResumeRequest, given))
    return seen(f"/batches/{batch_id}")


def _number(name: str, text: str) -> Any:
    try:
        return json_in(text, name)
    except HttpRefusal:
        return text


def _bars(batch: dict[str, Any]) -> list[dict[str, Any]]:
    counts = batch["counts"]
    return bars_of([(kind, counts[name]) for name, kind in _BARS], counts["total"])
