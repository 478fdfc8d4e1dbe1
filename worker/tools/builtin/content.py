"""What a fetched body means: decompressed within a limit, and decoded."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from planq.shared.domain.errors import ToolFailed
from planq.shared.domain.schema.schemas import MAX_DEPTH
from planq.shared.domain.values.decoding import decode
from planq.shared.domain.values.describe import is_deeper_than

_TEXT_TYPES = frozenset(
    {
        "application/javascript",
        "application/x-javascript",
        "application/x-ndjson",
        "application/x-yaml",
        "application/yaml",
        "application/toml",
        "application/sql",
        "application/x-www-form-urlencoded",
    }
)
"""Types outside `text/` that are readable as they are."""

_HTML_TYPES = frozenset({"text/html", "application/xhtml+xml"})

_ENCODINGS = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
"""Content codings (RFC 9110 §8.4.1) that are understood, as zlib window sizes."""


@dataclass(frozen=True, slots=True)
class FetchedDocument:
    """A readable body; `json` holds the parsed value when `has_json`."""

    text: str
    json: Any = None
    has_json: bool = False


async def read_limited(
    chunks: AsyncIterator[bytes], encoding: str, limit: int, tool_name: str = "http_fetch"
) -> tuple[bytes, bool]:
    """Return the decompressed body, at most `limit` bytes of it, and whether something was cut off.

    Decompression is bounded too: a small body that unpacks to gigabytes costs `limit` bytes. Raises `ToolFailed` on a
    content coding other than gzip and deflate, or on a damaged body; `tool_name` is for its message.
    """
    coding = encoding.strip().lower()
    if coding not in ("", "identity", *_ENCODINGS):
        raise ToolFailed(
            f"{tool_name}: the body has the content coding {coding[:40]!r}; expected none, gzip or deflate"
        )
    unpacker = zlib.decompressobj(_ENCODINGS[coding]) if coding in _ENCODINGS else None
    body = bytearray()
    is_whole = True
    async for chunk in chunks:
        try:
            body += chunk if unpacker is None else unpacker.decompress(chunk, limit + 1 - len(body))
        except zlib.error as error:
            raise ToolFailed(f"{tool_name}: the body is no valid {coding} ({error})") from error
        if len(body) > limit:
            return bytes(body[:limit]), True
        is_whole = unpacker is None or unpacker.eof
    # A packed body that stops in the middle was cut off on its way.
    return bytes(body), not is_whole


def media_type(content_type: str) -> str:
    """Return the bare type, in lower case: `text/html` of `Text/HTML; charset=utf-8`."""
    return content_type.partition(";")[0].strip().lower()


def is_html(kind: str) -> bool:
    """True for a media type whose text has to be taken out of its markup."""
    return kind in _HTML_TYPES


def is_text(kind: str, head: bytes) -> bool:
    """True when a body of media type `kind` that begins with `head` is text of some form."""
    if not kind:
        return b"\x00" not in head
    return kind.startswith("text/") or kind in _TEXT_TYPES or _is_json(kind) or _is_xml(kind)


def read_document(body: bytes, kind: str, charset: str | None) -> FetchedDocument:
    """Return the readable form of a body that `is_text` and is no HTML.

    It has no NUL characters, which PostgreSQL does not store. HTML is read by `worker/apart/page.py`.
    """
    text = _decode(body, charset)
    if _is_json(kind):
        try:
            value = decode(text)
        except (ValueError, RecursionError):
            return FetchedDocument(text)
        if not is_deeper_than(value, MAX_DEPTH - 5):
            return FetchedDocument(text, value, True)
    return FetchedDocument(text)


def _decode(body: bytes, charset: str | None) -> str:
    try:
        text = body.decode(charset or "utf-8-sig", errors="replace")
    except (LookupError, UnicodeError):  # a charset that nobody knows, or that is none of text
        text = body.decode("utf-8-sig", errors="replace")
    return text.replace("\x00", "")


def _is_json(kind: str) -> bool:
    return kind in ("application/json", "text/json") or kind.endswith("+json")


def _is_xml(kind: str) -> bool:
    return kind == "application/xml" or kind.endswith("+xml")
