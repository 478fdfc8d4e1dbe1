"""The HTTP clients of model providers: replies are bounded, closed in time, and streams from any server."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from httpx2 import AsyncByteStream, Response, Timeout
from pydantic_ai.models import get_user_agent

from planq.shared.platform.redact import redacted
from planq.worker.egress import AnswerBounds, BodyRefused, Egress

if TYPE_CHECKING:
    from httpx2 import AsyncClient

MAX_REPLY_BYTES = 16 * 1024 * 1024
"""Some hundred times the longest answer that `max_output_tokens` allows."""

CONNECT_SECONDS = 5.0
"""Maximum time in seconds to connect to a model's server."""

_MAX_WORDS = 300
"""Maximum number of characters that an error shows of a web page."""

_TAG = re.compile(r"<[^<>]*>")

_replies: ContextVar[list[Response] | None] = ContextVar("planq_replies", default=None)


_BACKSTOP_SECONDS = 5.0
"""Added to the time that pydantic-ai gives an attempt, so that its own error comes first."""


_BEGINNINGS = (b"{", b"[", b":", b"data", b"event", b"id", b"retry", b"\xef\xbb\xbf")
"""Beginnings of a reply: JSON, a field of an event stream, or a byte order mark."""


class NoReply(BodyRefused):
    """A server answered with something else than a reply; the message says with what, and what to do."""


def model_client(
    egress: Egress, seconds: float, *, as_streams: bool, max_bytes: int = MAX_REPLY_BYTES
) -> AsyncClient:
    """Return a client whose bodies end with `BodyRefused` beyond `max_bytes`.

    Raises `NoReply` for HTML, text or a redirect instead of a reply, which the SDKs could only call unreadable. With
    `as_streams` a JSON body is read as an event stream, in memory. SDKs wrap these exceptions: look among the causes
    of theirs.
    """

    async def received(response: Response) -> None:
        replies = _replies.get()
        if replies is not None:
            replies.append(response)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.has_redirect_location:
            to = _words(redacted(response.headers["location"]))
            raise NoReply(f"a redirect to {to}, which is not followed; set the base URL to where the API is")
        if response.is_success and kind in {"text/html", "application/xhtml+xml"}:
            await response.aread()
            raise NoReply(f"a web page in place of a reply; check its base URL: {_words(response.text)}")
        stream = response.stream
        assert isinstance(stream, AsyncByteStream)
        if as_streams and response.is_success and kind == "application/json":
            response.stream = _Body(_as_stream(stream), stream)
            response.headers["content-type"] = "text/event-stream"
        elif kind == "text/event-stream":
            response.stream = _Body(_without_mark(stream), stream)
        elif response.is_success and "json" not in kind and "eventstream" not in kind:
            response.stream = _Body(_checked(stream, kind), stream)

    return egress.trusted(
        AnswerBounds(max_bytes, seconds + _BACKSTOP_SECONDS),
        Timeout(seconds, connect=CONNECT_SECONDS),
        headers={"User-Agent": get_user_agent()},
        event_hooks={"response": [received]},
    )


@asynccontextmanager
async def closing_replies() -> AsyncIterator[None]:
    """Close what model clients receive within the block, in this asyncio task, when the block ends."""
    replies: list[Response] = []
    token = _replies.set(replies)
    try:
        yield
    finally:
        _replies.reset(token)
        for response in replies:
            if not response.is_closed:
                await asyncio.shield(response.aclose())


class _Body(AsyncByteStream):
    """Pieces made from an inner stream; read a second time (some SDKs look for more), it is empty."""

    def __init__(self, pieces: AsyncIterator[bytes], inner: AsyncByteStream) -> None:
        self._pieces = pieces
        self._inner = inner

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces

    async def aclose(self) -> None:
        await self._inner.aclose()


def _words(text: str) -> str:
    shown = (char if char.isprintable() else " " for char in _TAG.sub(" ", text[: 10 * _MAX_WORDS]))
    return " ".join("".join(shown).split())[:_MAX_WORDS]


async def _checked(body: AsyncByteStream, kind: str) -> AsyncIterator[bytes]:
    """Yield a body under a content type that no reply should have; raise `NoReply` where it does not begin as one."""
    is_begun = False
    async for piece in body:
        begins = piece.lstrip()
        if begins and not is_begun:
            is_begun = True
            # The first piece may be a part of a beginning.
            if not any(begins.startswith(one) or one.startswith(begins) for one in _BEGINNINGS):
                said = _words(piece.decode("utf-8", "replace"))
                raise NoReply(f"{_words(kind) or 'no content type'} in place of a reply; check its base URL: {said}")
        yield piece


async def _without_mark(body: AsyncByteStream) -> AsyncIterator[bytes]:
    """Yield an event stream without a byte order mark, behind which the SDK would not see the first event."""
    is_first = True
    async for piece in body:
        yield piece.removeprefix(b"\xef\xbb\xbf") if is_first else piece
        is_first = is_first and not piece


async def _as_stream(body: AsyncByteStream) -> AsyncIterator[bytes]:
    """Yield a chat completion as one-chunk event stream; any other body as one event, for the SDK to judge."""
    whole = b"".join([piece async for piece in body])
    try:
        chunk = _chunk(json.loads(whole))
    except (ValueError, RecursionError, TypeError, KeyError):
        yield b"data: " + b" ".join(whole.split()) + b"\n\n"
    else:
        yield f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode("ascii")


def _chunk(completion: Mapping[str, Any]) -> dict[str, Any]:
    choices = [{**choice, "delta": _delta(choice["message"])} for choice in completion["choices"]]
    for choice in choices:
        del choice["message"]
    return {**completion, "object": "chat.completion.chunk", "choices": choices}


def _delta(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls") or []
    return {**message, "tool_calls": [{**call, "index": index} for index, call in enumerate(calls)]}
