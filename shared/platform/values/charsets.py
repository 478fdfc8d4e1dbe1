"""Decode the bytes of a web page."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_PRESCANNED = 1_024
"""Bytes in which a page may name its encoding (HTML, Living Standard, section 13.2.3.2)."""

_LATIN = frozenset({"iso8859-1", "ascii"})
"""Read as windows-1252 by every browser (Encoding, Living Standard, section 4.2)."""


def decoded_page(body: bytes, charset: str | None) -> str:
    """Decode a page by its mark, its header or its own word, as UTF-8, else as windows-1252."""
    for name in _encodings(body, charset):
        try:
            return body.decode(name)
        except UnicodeDecodeError as error:
            is_cut = error.reason == "unexpected end of data" and not body[: error.start].isascii()
            if is_cut:  # within a character; those before it show that the encoding is right
                return body.decode(name, "replace")
    return body.decode("cp1252", "replace")


def _encodings(body: bytes, charset: str | None) -> Iterator[str]:
    yield from (name for mark, name in _MARKS if body.startswith(mark))
    for label in (charset, _declared(body[:_PRESCANNED])):
        try:
            info = codecs.lookup(label) if label else None
        except (LookupError, ValueError):
            continue
        if info is not None and info._is_text_encoding:
            yield "cp1252" if info.name in _LATIN else info.name
    yield "utf-8"


def _declared(head: bytes) -> str:
    text = head.decode("latin-1").lower()
    at = text.find("charset")
    while at >= 0:
        rest = text[at + len("charset") :].lstrip()
        if rest.startswith("="):
            value = rest[1:].lstrip().lstrip("\"'")
            end = next((place for place, sign in enumerate(value) if not (sign.isalnum() or sign in "-_.:")), None)
            return value[:end]
        at = text.find("charset", at + 1)
    return ""
