"""What a job has made, shown where it is safe: pictures that hold no script, texts, Markdown, JSON, tables."""

from __future__ import annotations

import csv
import json
from io import StringIO
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from planq.api.access.callers import Caller, Who
from planq.api.deps import Services, Use
from planq.api.jobs.routes.outputs import get_artifact
from planq.api.page.rendering import page_url
from planq.api.page.route import page_router
from planq.api.page.trees import Table, table_of
from planq.shared.platform.errors import PlanqError
from planq.shared.platform.values.media import SHOWN_MEDIA_TYPES, essence

artifact_page_routes = page_router()

MOST_SHOWN = 6
"""So many artifacts of a job stand on its page as what they are; all others as links."""

_MOST_BYTES = 65_536
_MARKDOWN = frozenset({"text/markdown", "text/x-markdown"})
_TABLES = {"text/csv": ",", "text/tab-separated-values": "\t"}
_JSON = "application/json"


class Preview(NamedTuple):
    """What a page shows of an artifact: a `picture`, a `table`, `markdown`, `json` or a `text`; or nothing of it."""

    kind: str
    value: Any = None


@artifact_page_routes.get("/ui/artifacts/{artifact_id:path}")
async def give_artifact(
    request: Request,
    artifact_id: str,
    services: Use,
    who: Who,
    version: Annotated[int | None, Query(ge=1, lt=2**31)] = None,
) -> Response:
    """Return an artifact as the API does: pictures are shown, all else is kept as a file."""
    known = request.headers.get("if-none-match")
    answer = await get_artifact(artifact_id, services, who, version, known, request.headers.get("range"))
    if answer.status_code == 200:
        answer.headers.setdefault("Content-Disposition", "attachment; filename*=UTF-8''artifact.json")
    return answer


async def shown_artifacts(services: Services, who: Caller, listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the artifacts of a job, each with the address of its whole and what is `shown` of it."""
    found = []
    for place, one in enumerate(listed):
        shown = Preview("file") if place >= MOST_SHOWN else await _shown(services, who, one)
        href = page_url(f"/artifacts/{quote(one['artifact_id'])}") + f"?version={one['version']}"
        found.append({**one, "number": place, "href": href, "shown": shown})
    return found


async def _shown(services: Services, who: Caller, record: dict[str, Any]) -> Preview:
    kind = None if record["media_type"] is None else essence(record["media_type"])
    if kind in SHOWN_MEDIA_TYPES:
        return Preview("picture")
    if record["bytes"] > _MOST_BYTES or not (kind is None or kind == _JSON or kind.startswith("text/")):
        return Preview("file")
    try:
        body = await _body(await get_artifact(record["artifact_id"], services, who, record["version"], None, None))
    except PlanqError:  # removed since, or its storage does not answer: the job's page is shown all the same
        return Preview("file")
    return shown_body(kind, body)


async def _body(answer: Response) -> bytes:
    if not isinstance(answer, StreamingResponse):
        return bytes(answer.body)
    return b"".join([bytes(piece) async for piece in answer.body_iterator if not isinstance(piece, str)])


def shown_body(kind: str | None, body: bytes) -> Preview:
    """Return what is shown of an artifact of the media type `kind`, None for JSON that a tool produced."""
    text = body.decode("utf-8", "replace")
    if kind is None or kind == _JSON:
        try:
            return _shown_value(json.loads(text))
        except (ValueError, RecursionError):
            return Preview("text", text)
    if kind in _MARKDOWN:
        return Preview("markdown", text)
    if kind in _TABLES and (table := _table(text, _TABLES[kind])) is not None:
        return Preview("table", table)
    return Preview("text", text)


def _shown_value(value: Any) -> Preview:
    made = value.get("artifact") if isinstance(value, dict) else None
    if isinstance(made, dict) and made.get("format") == "markdown" and isinstance(made.get("markdown"), str):
        return Preview("markdown", made["markdown"])  # as `write_report` makes it
    if (table := table_of(value)) is not None:
        return Preview("table", table)
    return Preview("text", value) if isinstance(value, str) else Preview("json", value)


def _table(text: str, delimiter: str) -> Table | None:
    try:
        rows = list(csv.reader(StringIO(text), delimiter=delimiter))
    except csv.Error:
        return None
    head, *others = rows or [[]]
    return table_of([dict(zip(head, row, strict=False)) for row in others if row]) if len(set(head)) > 1 else None
