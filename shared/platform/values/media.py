"""Media types of artifacts: their form, what browsers may show, and names of files."""

from __future__ import annotations

import re
from mimetypes import MimeTypes

UNKNOWN_MEDIA_TYPE = "application/octet-stream"

SHOWN_MEDIA_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"})
"""Pictures without scripts, unlike SVG, and PDF in some readers."""

_MEDIA_TYPE = re.compile(r"[\w!#$&^.+-]{1,100}/[\w!#$&^.+-]{1,100}(?:; ?charset=[\w.-]{1,40})?", re.ASCII)

_ACTIVE = frozenset(
    {
        *("text/jscript", "text/livescript"),
        *("text/html", "text/xml", "application/xml", "text/xsl"),
        *("multipart/related", "multipart/x-mixed-replace", "message/rfc822", "application/x-mimearchive"),
    }
)
"""Types that a browser runs or reads as pages, besides `…javascript`, `…ecmascript` and `…+xml`."""

_OLD_SCRIPT = re.compile(r"text/javascript1\.[0-5]")

_NAME = re.compile(r"[^\w.() -]")

_MAX_NAME = 100

_KNOWN = MimeTypes()
"""Python's own table, the same on every machine."""


def is_media_type(text: str) -> bool:
    """True for `type/subtype`, maybe with a `charset` (RFC 9110, section 8.3.1)."""
    return _MEDIA_TYPE.fullmatch(text) is not None


def media_type_of(said: object) -> str:
    """Return a foreign media type without unknown parameters."""
    if not isinstance(said, str):
        return UNKNOWN_MEDIA_TYPE
    return next((one for one in (said, essence(said)) if is_media_type(one)), UNKNOWN_MEDIA_TYPE)


def essence(media_type: str) -> str:
    """Return `type/subtype` in lower case."""
    return media_type.partition(";")[0].strip().lower()


def served_media_type(media_type: str) -> str:
    """Return the served type, none that a browser runs or reads as a page."""
    bare = essence(media_type)
    is_active = bare in _ACTIVE or bare.endswith(("javascript", "ecmascript", "+xml")) or _OLD_SCRIPT.fullmatch(bare)
    return UNKNOWN_MEDIA_TYPE if is_active else media_type


def file_name(artifact_id: str, media_type: str) -> str:
    """Return an artifact's file name: the end of its id, with its type's suffix."""
    name = _NAME.sub("_", artifact_id.rstrip("/").rpartition("/")[2]).strip(" .")[:_MAX_NAME] or "artifact"
    ending = _KNOWN.guess_extension(essence(media_type)) or ""
    known, _ = _KNOWN.guess_type(name)
    return name if known is not None else name + ending
