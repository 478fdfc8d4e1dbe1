"""Images, files and audio of a request to a model: their bytes, and whether the model takes them.

Bytes at a URL are fetched here, by the worker, through the egress guard. They are kept for a few minutes, so that the
rounds of a job and repeated tries fetch them once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from httpx2 import HTTPError, InvalidURL, StreamError, TimeoutException

from planq.shared.agentic.models.exchange import ChatMessage
from planq.shared.platform.errors import (
    DatabaseUnavailable,
    ExecutionFailed,
    InvalidArguments,
    InvalidRequest,
    StorageUnavailable,
    TimedOut,
    Transient,
    capped,
)
from planq.shared.platform.values.parts import MEDIA_TYPES, Part, checked_media_type
from planq.shared.subjects.payloads.contract import Payloads
from planq.worker.egress import AnswerBounds, BodyDamaged, BodyRefused, Egress
from planq.worker.models.prompts import fenced_data
from planq.worker.models.request import ModelRequest

if TYPE_CHECKING:
    from httpx2 import AsyncClient

FETCH_SECONDS = 30.0
"""Maximum time to fetch one part, with its redirects."""

_MOST_REDIRECTS = 3
_KEPT_SECONDS = 600.0
_KEPT_BYTES = 64 * 1024 * 1024
"""Maximum size of all fetched parts that a process keeps."""

_TEXTS = ("text/", "application/json")


class _Fetched(NamedTuple):
    part: Part
    until: float


@dataclass(frozen=True, slots=True)
class PartLimits:
    """`max_bytes` bounds all parts of one request; `allowed` names hosts that may be at private addresses."""

    max_bytes: int = 20 * 1024 * 1024
    allowed: frozenset[str] = frozenset()


class PartLoader:
    """Reads the bytes of parts, from payloads and from URLs. One per process."""

    def __init__(self, payloads: Payloads, egress: Egress, limits: PartLimits) -> None:
        self._payloads = payloads
        self._egress = egress
        self._limits = limits
        self._kept: OrderedDict[tuple[str, str, str], _Fetched] = OrderedDict()

    async def loaded(self, tenant_id: str, request: ModelRequest) -> ModelRequest:
        """Return a request with the bytes of its parts; raise `ExecutionFailed` for an input that cannot be read."""
        left = self._limits.max_bytes
        found: dict[int, Part] = {}
        parts = [part for message in request.messages for part in message.parts]
        for part in sorted(parts, key=lambda part: part.artifact_id is not None):  # an input without room is an error
            one = await (self._one if part.artifact_id is None else self._made)(tenant_id, part, left)
            if one is not None:
                left -= len(one.data)
                found[id(part)] = one
        messages = []
        for message in request.messages:
            loaded = [found[id(part)] for part in message.parts if id(part) in found]
            messages.append(_with_texts(message, loaded) if message.parts else message)
        turn = None if request.as_turn is None else await self.loaded(tenant_id, request.as_turn)
        return replace(request, messages=messages, as_turn=turn)

    async def _made(self, tenant_id: str, part: Part, left: int) -> Part | None:
        """Return an artifact of a tool; None where it is gone, has no room, or is not what the tool says."""
        if (part.size or 0) > left:
            return None
        try:
            one = await self._one(tenant_id, part, left)
            return replace(one, media_type=checked_media_type(part.type, part.media_type, one.data))
        except InvalidRequest:
            return None

    async def _one(self, tenant_id: str, part: Part, left: int) -> Part:
        if part.sha256 is not None:
            try:
                data = await self._payloads.get(tenant_id, bytes.fromhex(part.sha256))
            except (DatabaseUnavailable, StorageUnavailable) as error:
                raise Transient(f"the {part.type} of the input cannot be read: {error.message}") from error
            found = replace(part, data=data)
        else:
            found = await self._fetched(tenant_id, part, left)
        if len(found.data) > left:
            raise _too_large(part, self._limits.max_bytes)
        return found

    async def _fetched(self, tenant_id: str, part: Part, left: int) -> Part:
        clock = asyncio.get_running_loop().time
        key = (tenant_id, part.type, part.url or "")
        kept = self._kept.get(key)
        if kept is not None and kept.until > clock():
            self._kept.move_to_end(key)
            return replace(kept.part, filename=part.filename)
        found = await self._fetch(tenant_id, part, left)
        self._kept[key] = _Fetched(found, clock() + _KEPT_SECONDS)
        self._kept.move_to_end(key)
        size = sum(len(one.part.data) for one in self._kept.values())
        while size > _KEPT_BYTES:
            _, gone = self._kept.popitem(last=False)
            size -= len(gone.part.data)
        return found

    async def _fetch(self, tenant_id: str, part: Part, left: int) -> Part:
        name = f"the {part.type} of the input"
        bounds = AnswerBounds(max(left, 1), FETCH_SECONDS)
        client = self._egress.guarded(
            name,
            bounds,
            self._limits.allowed,
            tenant_id=tenant_id,
            headers={"Accept": ", ".join(MEDIA_TYPES[part.type]), "User-Agent": "planq-parts/1"},
        )
        shown = capped(part.url or "", 200)
        try:
            async with asyncio.timeout(FETCH_SECONDS), client:
                said, data = await _read(client, part.url or "", name)
        except (TimeoutError, TimeoutException) as error:
            raise TimedOut(f"{name}: {shown} did not answer in full within {FETCH_SECONDS:g} s") from error
        except ExecutionFailed:
            raise
        except BodyDamaged as error:
            raise Transient(f"{name}: {shown}: {error}") from error
        except BodyRefused as error:
            raise InvalidArguments(f"{name}: {shown}: {error}; send a smaller one") from error
        except (HTTPError, StreamError) as error:
            raise Transient(f"{name}: {shown} cannot be reached ({type(error).__name__})") from error
        except (InvalidURL, ValueError) as error:
            raise InvalidArguments(f"{name}: {shown} is no valid address ({error})") from error
        try:
            # What the sender says of the bytes is a hint; what the server says counts.
            media_type = checked_media_type(part.type, said or part.media_type, data)
        except InvalidRequest as error:
            raise InvalidArguments(f"{name}: {shown}: {error.message}") from error
        return replace(part, media_type=media_type, size=len(data), data=data)


async def _read(client: AsyncClient, url: str, name: str) -> tuple[str | None, bytes]:
    for _ in range(_MOST_REDIRECTS + 1):
        client.cookies.clear()  # those of one hop are no business of the next one
        async with client.stream("GET", url) as response:
            if response.has_redirect_location:
                url = str(response.url.join(response.headers["location"]))
                continue
            status = response.status_code
            if status == 429 or status >= 500:
                raise Transient(f"{name}: {capped(url, 200)} answered with the HTTP status {status}")
            if not response.is_success:
                raise InvalidArguments(
                    f"{name}: {capped(url, 200)} answered with the HTTP status {status}; check the address"
                )
            body = b"".join([piece async for piece in response.aiter_raw()])
            return response.headers.get("content-type") or None, body
    raise InvalidArguments(f"{name}: more than {_MOST_REDIRECTS} redirects, the last one to {capped(url, 200)}")


def _too_large(part: Part, most: int) -> InvalidArguments:
    return InvalidArguments(
        f"the {part.type} of the input is too large: all parts of a request may have {most} bytes together; send "
        "fewer or smaller ones"
    )


def _with_texts(message: ChatMessage, parts: Sequence[Part]) -> ChatMessage:
    texts = [message.content] if message.content.strip() else []
    others = []
    for part in parts:
        if part.media_type is not None and part.media_type.startswith(_TEXTS):
            texts.append(f"File {part.filename or 'without a name'}:\n{fenced_data(part.data.decode())}")
        else:
            others.append(part)
    return replace(message, content="\n\n".join(texts), parts=others)
