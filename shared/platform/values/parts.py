"""Images, files and audio for models: kinds, number, and stored form.

A job stores small JSON per part. Bytes are a payload under their SHA-256; workers fetch a `url` when they ask the
model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, TypeAlias

from planq.shared.platform.errors import InvalidRequest
from planq.shared.platform.values.media import essence

PartType: TypeAlias = Literal["image", "file", "audio"]

MAX_PARTS = 16
"""Maximum images, files and audio parts of one input."""

MEDIA_TYPES: Mapping[str, tuple[str, ...]] = {
    "image": ("image/png", "image/jpeg", "image/gif", "image/webp"),
    "audio": ("audio/wav", "audio/mpeg", "audio/ogg", "audio/flac", "audio/aiff", "audio/aac"),
    "file": (
        *("application/pdf", "text/plain", "text/markdown", "text/csv", "text/html", "application/json"),
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ),
}
"""Media types by type of part, as pydantic-ai 2.68 sends them."""

_SAME = {
    "image/jpg": "image/jpeg",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/vnd.wave": "audio/wav",
    "audio/mp3": "audio/mpeg",
    "audio/x-flac": "audio/flac",
    "audio/x-aiff": "audio/aiff",
    "text/x-markdown": "text/markdown",
}

_TEXTS = ("text/", "application/json")

_ZIP = b"PK\x03\x04"


def found_media_type(data: bytes) -> str | None:
    """Return the media type by the first bytes, or None."""
    for magic, media_type in _MAGIC:
        if data.startswith(magic):
            return media_type
    if data[:4] == b"RIFF":
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(data[8:12])
    if data[:4] == b"FORM" and data[8:12] in (b"AIFF", b"AIFC"):
        return "audio/aiff"
    return None


_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
)


def checked_media_type(kind: str, said: str | None, data: bytes) -> str:
    """Return the media type of a part's bytes; raises `InvalidRequest` if unknown or unfit."""
    shown = found_media_type(data)
    named = None if said is None else _SAME.get(essence(said), essence(said))
    allowed = MEDIA_TYPES[kind]
    if named in (None, "application/octet-stream"):
        named = shown
    if named is None:
        raise InvalidRequest(f"expected a media_type, for the bytes do not show it; send one of {', '.join(allowed)}")
    if named not in allowed:
        raise InvalidRequest(f"expected {kind} data of {' or '.join(allowed)}; found {named[:100]}")
    if not data:
        raise InvalidRequest("expected at least one byte, found none")
    if named.startswith(_TEXTS):
        if shown is not None or data.startswith(_ZIP):
            raise InvalidRequest(f"expected {named}, found the bytes of {shown or 'a ZIP archive'}")
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"expected {named} in UTF-8, found another byte at {error.start}") from error
    elif named.startswith("application/vnd.openxmlformats"):
        if not data.startswith(_ZIP):
            raise InvalidRequest(f"expected {named}, found bytes that are no ZIP archive")
    elif shown != named and (kind != "audio" or shown is not None):  # MPEG and AAC frames show no sure sign
        raise InvalidRequest(f"expected {named}, found bytes of {shown or 'no known kind'}")
    return named


@dataclass(frozen=True, slots=True)
class Part:
    """An image, file or audio: bytes of the payload `sha256`, or at `url`.

    `size` is in bytes, None for a URL. `artifact_id` is set for tools' artifacts, sent by name to models that cannot
    take them. `data` is only set in a request to a model.
    """

    type: str
    media_type: str | None = None
    filename: str | None = None
    sha256: str | None = None
    size: int | None = None
    url: str | None = None
    artifact_id: str | None = None
    data: bytes = field(default=b"", repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return the stored form, without unset fields."""
        shown = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "data"}
        return {name: value for name, value in shown.items() if value is not None}

    def document(self) -> dict[str, Any]:
        """Return the form for answers."""
        return {
            "type": self.type,
            "media_type": self.media_type,
            "filename": self.filename,
            "sha256": self.sha256,
            "bytes": self.size,
            "url": self.url,
        }

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        known: dict[str, Any] = {one.name: stored.get(one.name) for one in fields(cls) if one.name != "data"}
        return cls(**known)


def part_type(media_type: str) -> PartType:
    """Return the type of part for a media type: `file` unless models take it as image or audio."""
    named = _SAME.get(essence(media_type), essence(media_type))
    kinds: tuple[PartType, ...] = ("image", "audio")
    return next((kind for kind in kinds if named in MEDIA_TYPES[kind]), "file")


def part_of_artifact(artifact_id: str, media_type: str, sha256: str, size: int) -> Part:
    """Return an artifact of bytes as a part."""
    named = _SAME.get(essence(media_type), essence(media_type))
    return Part(part_type(named), named, artifact_id[-200:], sha256, size, artifact_id=artifact_id)


def is_for_models(part: Part) -> bool:
    """Return whether models can take an artifact; tools describe text files themselves."""
    return part.type != "file" or part.media_type == "application/pdf"


def parts_of(stored: Sequence[Mapping[str, Any]] | None) -> tuple[Part, ...]:
    return tuple(map(Part.of, stored or ()))


def part_tokens(part: Part) -> int:
    """Estimate a part's tokens."""
    if part.type == "image":
        return 1_600
    return 2_000 if part.size is None else max(1, part.size // 16)
