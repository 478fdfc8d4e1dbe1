"""Media types of artifacts of bytes: how they are written, which a browser may show, and what a file is called."""

from __future__ import annotations

import re
from mimetypes import MimeTypes

UNKNOWN_MEDIA_TYPE = "application/octet-stream"

SHOWN_MEDIA_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"})
"""What a browser may show in place: pictures that can hold no script. SVG can, and so can PDF in some readers."""

_MEDIA_TYPE = re.compile(r"[\w!#$&^.+-]{1,100}/[\w!#$&^.+-]{1,100}(?:; ?charset=[\w.-]{1,40})?", re.ASCII)

_ACTIVE = frozenset(
    {
        *("text/jscript", "text/livescript"),
        *("text/html", "text/xml", "application/xml", "text/xsl"),
        *("multipart/related", "multipart/x-mixed-replace", "message/rfc822", "application/x-mimearchive"),
    }
)
"""Types that a browser runs or reads pages from, next to all that end in `javascript`, `ecmascript` or `+xml`: the
JavaScript MIME types of the MIME Sniffing standard, HTML, XML (XHTML and SVG are), MHTML."""

_OLD_SCRIPT = re.compile(r"text/javascript1\.[0-5]")

_NAME = re.compile(r"[^\w.() -]")

_MAX_NAME = 100

_KNOWN = MimeTypes()
"""Python's own table, the same on every machine."""


def is_media_type(text: str) -> bool:
    """True for `type/subtype`, with a `charset` or nothing behind it (RFC 9110, section 8.3.1)."""
    return _MEDIA_TYPE.fullmatch(text) is not None


def media_type_of(said: object) -> str:
    """Return what somebody else says of bytes as a media type; parameters that planq does not know are left out."""
    if not isinstance(said, str):
        return UNKNOWN_MEDIA_TYPE
    return next((one for one in (said, essence(said)) if is_media_type(one)), UNKNOWN_MEDIA_TYPE)


def essence(media_type: str) -> str:
    """Return `type/subtype` in small letters."""
    return media_type.partition(";")[0].strip().lower()


def served_media_type(media_type: str) -> str:
    """Return the type under which bytes are given out: none that a browser would run or take for a page."""
    bare = essence(media_type)
    is_active = bare in _ACTIVE or bare.endswith(("javascript", "ecmascript", "+xml")) or _OLD_SCRIPT.fullmatch(bare)
    return UNKNOWN_MEDIA_TYPE if is_active else media_type


def file_name(artifact_id: str, media_type: str) -> str:
    """Return the name of the file that an artifact makes: the end of its id, with an ending that tells its type."""
    name = _NAME.sub("_", artifact_id.rstrip("/").rpartition("/")[2]).strip(" .")[:_MAX_NAME] or "artifact"
    ending = _KNOWN.guess_extension(essence(media_type)) or ""
    known, _ = _KNOWN.guess_type(name)
    return name if known is not None else name + ending
