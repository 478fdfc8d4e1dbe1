"""Reads a fetched body within its bounds, and decodes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from httpx2 import Response

from planq.shared.agentic.schema.schemas import MAX_DEPTH
from planq.shared.platform.errors import ToolFailed
from planq.shared.platform.values.decoding import decode
from planq.shared.platform.values.describe import is_deeper_than
from planq.worker.egress import BodyRefused, read_cut

_TEXT_TYPES = frozenset(
    {
        "application/javascript",
        "application/xml",
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


@dataclass(frozen=True, slots=True)
class FetchedDocument:
    """A readable body; `json` holds the parsed value when `has_json`."""

    text: str
    json: Any = None
    has_json: bool = False


async def read_body(response: Response, tool_name: str) -> tuple[bytes, bool]:
    """Return a body up to its bound, and whether it was cut; raise `ToolFailed` if it is damaged."""
    try:
        return await read_cut(response)
    except BodyRefused as error:
        raise ToolFailed(f"{tool_name}: {error}") from error


def media_type(content_type: str) -> str:
    """Return the bare type, in lower case: `text/html` of `Text/HTML; charset=utf-8`."""
    return content_type.partition(";")[0].strip().lower()


def is_html(kind: str) -> bool:
    return kind in _HTML_TYPES


def is_text(kind: str, head: bytes) -> bool:
    """True when a body of media type `kind` that begins with `head` is text of some form."""
    if not kind:
        return b"\x00" not in head
    return kind.startswith("text/") or kind in _TEXT_TYPES or _is_json(kind) or kind.endswith("+xml")


def read_document(body: bytes, kind: str, charset: str | None) -> FetchedDocument:
    """Return a text body (HTML: `subprocesses/html_text.py`) without NUL, which PostgreSQL does not store."""
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
    except (LookupError, UnicodeError):  # an unknown charset, or one that is not for text
        text = body.decode("utf-8-sig", errors="replace")
    return text.replace("\x00", "")


def _is_json(kind: str) -> bool:
    return kind in ("application/json", "text/json") or kind.endswith("+json")
