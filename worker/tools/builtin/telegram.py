"""`telegram_file`: fetch what somebody has sent to the tenant's Telegram bot, by the reference that its message has.

The bot's token is a secret of the tenant and is in both addresses. So no address leaves this
module: every failure has its own message, without the exception's text.
"""

from __future__ import annotations

import asyncio
import mimetypes
import re
from typing import TYPE_CHECKING, Annotated, Any, NotRequired
from urllib.parse import quote, urlsplit

from httpx2 import HTTPError, Response, TimeoutException, codes
from pydantic import Field
from typing_extensions import TypedDict

from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.kernel.states import Effect
from planq.shared.platform.errors import (
    AuthFailed,
    ExecutionFailed,
    InvalidArguments,
    TimedOut,
    ToolFailed,
    Transient,
    capped,
)
from planq.shared.platform.values.decoding import decode
from planq.shared.subjects.channels.telegram import BOT_API, BOT_SECRET
from planq.worker.egress import AnswerBounds, retry_after
from planq.worker.tools.builtin.content import is_text, read_body, read_document
from planq.worker.tools.declare import tool
from planq.worker.tools.errors import from_status
from planq.worker.tools.response import Artifact, ToolResponse
from planq.worker.tools.services import ToolServices

if TYPE_CHECKING:
    from httpx2 import AsyncClient

_NAME = "telegram_file"
_TIMEOUT_SECONDS = 45.0
_MOST_ANSWER_BYTES = 100_000

_TOKEN = re.compile(r"[0-9]{1,20}:[A-Za-z0-9_-]{1,200}")
_PATH = re.compile(r"[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*")


class TelegramFile(TypedDict):
    """A file; `text` is there where it is one, `artifact_id` where it is none and was kept."""

    name: Annotated[str, Field(description="The name that Telegram keeps it under.")]
    media_type: Annotated[str, Field(description="By the name, such as image/jpeg; empty where that says nothing.")]
    size: Annotated[int, Field(description="The number of bytes read.")]
    text: NotRequired[str]
    artifact_id: NotRequired[Annotated[str, Field(description="The artifact that has its bytes.")]]
    truncated: Annotated[bool, Field(description="True when it was larger than the limit: cut, or not read at all.")]


@tool(effect=Effect.READ, timeout_seconds=60)
async def telegram_file(
    file_id: Annotated[
        str, Field(description="`file_id` of a photo, document or voice message.", min_length=1, max_length=200)
    ],
    context: ToolContext,
    services: ToolServices,
    max_bytes: Annotated[
        int | None, Field(description="Read no more than this; an operator's limit applies too.", ge=1)
    ] = None,
) -> ToolResponse[TelegramFile]:
    """Fetch a file that somebody has sent to the bot, by the `file_id` of its message: a text, or an artifact."""
    token = await context.secret(BOT_SECRET)
    if not _TOKEN.fullmatch(token):
        raise AuthFailed(f"{_NAME}: the secret {BOT_SECRET} is no token of a bot; it looks like 123456:AbC…")
    limit = min(max_bytes or services.http_max_bytes, services.http_max_bytes)
    own = (urlsplit(services.telegram_url).hostname or "").lower()
    allowed = services.allow_private_hosts | ({own} if services.telegram_url != BOT_API else set())

    def client(most_bytes: int) -> AsyncClient:
        bounds = AnswerBounds(most_bytes, _TIMEOUT_SECONDS, services.http_least_rate)
        tenant_id, places = context.tenant_id, services.http_places
        return services.egress.guarded(_NAME, bounds, allowed, tenant_id=tenant_id, places=places)

    url = services.telegram_url.rstrip("/")
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            async with client(_MOST_ANSWER_BYTES) as asking:
                path, size = await _place_of(asking, f"{url}/bot{token}/getFile", file_id)
            async with client(limit) as reading:
                found, body = await _read(reading, f"{url}/file/bot{token}/{quote(path)}", path, size, limit)
    except (TimeoutError, TimeoutException):
        raise TimedOut(f"{_NAME}: Telegram did not answer in full within {_TIMEOUT_SECONDS:g} s") from None
    except HTTPError as error:
        raise Transient(f"{_NAME}: Telegram could not be reached ({type(error).__name__})") from None
    if body is None:
        return ToolResponse(structured=found)
    # One id for every attempt of the step: a repeat makes no second artifact.
    kept = Artifact(f"{context.idempotency_key}/file", body, media_type=found["media_type"] or None)
    return ToolResponse(structured={**found, "artifact_id": kept.id}, artifacts=[kept])


async def _place_of(client: AsyncClient, url: str, file_id: str) -> tuple[str, int | None]:
    async with client.stream("POST", url, json={"file_id": file_id}) as response:
        body, _ = await read_body(response, _NAME)
    document = _object(body)
    if document.get("ok") is not True:
        raise _refusal(response, document)
    found = document.get("result")
    path, size = (found.get("file_path"), found.get("file_size")) if isinstance(found, dict) else (None, None)
    # A server of one's own in local mode names places on its disk.
    if not isinstance(path, str) or len(path) > 300 or not _PATH.fullmatch(path) or ".." in path.split("/"):
        raise ToolFailed(f"{_NAME}: expected a file that can be fetched, found none; Telegram gives up to 20 MB")
    return path, size if isinstance(size, int) and not isinstance(size, bool) else None


async def _read(
    client: AsyncClient, url: str, path: str, size: int | None, limit: int
) -> tuple[TelegramFile, bytes | None]:
    name = path.rpartition("/")[2]
    kind = mimetypes.guess_type(name)[0] or ""
    if name.endswith(".oga"):
        kind = "audio/ogg"  # voice messages, which not every machine's table knows
    described = TelegramFile(name=name, media_type=kind, size=size or 0, truncated=True)
    if size is not None and size > limit and not is_text(kind or "application/octet-stream", b""):
        return described, None
    async with client.stream("GET", url) as response:
        if not response.is_success:
            raise _refusal(response, {})
        body, is_cut = await read_body(response, _NAME)
    described = {**described, "size": len(body), "truncated": is_cut}
    if is_text(kind, body):
        document = await asyncio.to_thread(read_document, body, kind, None)
        return {**described, "text": document.text}, None
    return described, None if is_cut else body


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = decode(body.decode())
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _refusal(response: Response, document: dict[str, Any]) -> ExecutionFailed:
    status, said = response.status_code, document.get("description")
    message = f"{_NAME}: Telegram answered {status}" + (f": {capped(said, 200)}" if isinstance(said, str) else "")
    if status == codes.UNAUTHORIZED or (status == codes.NOT_FOUND and document):
        return AuthFailed(f"{_NAME}: Telegram refuses the token: store the present one as the secret {BOT_SECRET}")
    if status == codes.BAD_REQUEST:
        return InvalidArguments(f"{message}; expected the file_id of a file that was sent to this bot")
    return from_status(status, message, retry_after(response))
