"""What a fetched body means: decompressed within a limit, decoded, and turned into readable text."""

from __future__ import annotations

import re
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from bs4 import BeautifulSoup
from bs4.dammit import UnicodeDammit
from bs4.exceptions import ParserRejectedMarkup

from shared.domain.errors import ToolFailed
from shared.domain.schema.schemas import MAX_DEPTH
from shared.domain.values import strict_json
from shared.domain.values.describe import is_deeper_than

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
_INVISIBLE = ("script", "style", "noscript", "template", "svg", "iframe")

_TAG_BEGINS = re.compile(r"<[!?/a-zA-Z]")
_XML_DECLARATION = re.compile(r"<\?xml[^>]*>", re.IGNORECASE)

_ENCODINGS = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
"""Content codings (RFC 9110 §8.4.1) that are understood, as zlib window sizes."""


@dataclass(frozen=True, slots=True)
class FetchedDocument:
    """A readable body; `json` holds the parsed value when `has_json`."""

    title: str
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


def is_text(kind: str, head: bytes) -> bool:
    """True when a body of media type `kind` that begins with `head` is text of some form."""
    if not kind:
        return b"\x00" not in head
    return kind.startswith("text/") or kind in _TEXT_TYPES or _is_json(kind) or _is_xml(kind)


def read_document(body: bytes, kind: str, charset: str | None) -> FetchedDocument:
    """Return the readable form of a body that `is_text`, without NUL characters (PostgreSQL stores none)."""
    if kind in _HTML_TYPES:
        return _read_html(body, charset)
    text = _decode(body, charset)
    if _is_json(kind):
        try:
            value = strict_json.loads(text)
        except (ValueError, RecursionError):
            return FetchedDocument("", text)
        if not is_deeper_than(value, MAX_DEPTH - 5):
            return FetchedDocument("", text, value, True)
    return FetchedDocument("", text)


def _read_html(body: bytes, charset: str | None) -> FetchedDocument:
    decoded = UnicodeDammit(body, known_definite_encodings=[charset] if charset else [], is_html=True)
    markup = decoded.unicode_markup or body.decode("utf-8", errors="replace")
    # Without XML declarations, and ending in a newline: else the library warns about markup that it takes for XML,
    # or for a file name.
    try:
        page = BeautifulSoup(_finished(_XML_DECLARATION.sub("", markup)) + "\n", "html.parser")
    except ParserRejectedMarkup:
        return FetchedDocument("", _decode(body, charset))
    title = " ".join(page.title.get_text().split()) if page.title is not None else ""
    for invisible in page.find_all([*_INVISIBLE, "title"]):
        invisible.decompose()
    text = page.get_text("\n").replace("\x00", "")
    _dismantle(page)
    lines = (" ".join(line.split()) for line in text.splitlines())
    return FetchedDocument(title.replace("\x00", ""), "\n".join(line for line in lines if line))


def _dismantle(page: BeautifulSoup) -> None:
    """Free a page at once: its parts refer to each other, and the garbage collector comes seldom.

    What `decompose` does for a part, and for a whole page does not (beautifulsoup4 4.15).
    """
    for part in [*page.descendants, page]:
        part.__dict__.clear()


def _finished(markup: str) -> str:
    """Return `markup` without a comment or tag at its end that is never closed; nothing in there is visible anyway.

    The parser looks for the end of every one that begins in there: a megabyte of `<a ` would take it hours.
    """
    comment = markup.find("<!--", markup.rfind("-->") + 1)
    if comment >= 0:
        markup = markup[:comment]
    tag = _TAG_BEGINS.search(markup, markup.rfind(">") + 1)
    return markup if tag is None else markup[: tag.start()]


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
