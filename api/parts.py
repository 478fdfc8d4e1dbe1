"""Images, files and audio in the input of a request: checked, and their bytes stored, before anything refers to them.

    read_input      the text of an input and its parts, with every defect of their form
    PartIntake      the parts as a job stores them: their bytes become payloads

A URL is stored as it is: a worker fetches it. No job refers to the bytes of a request that is refused afterwards:
they are collected.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from planq.api.schemas import MAX_INPUT_PARTS, InputPart
from planq.shared.computing import off_loop
from planq.shared.domain.errors import InvalidRequest, TooLarge
from planq.shared.domain.models.names import OFFLINE
from planq.shared.domain.models.parts import MAX_PARTS, Part, checked_media_type
from planq.shared.domain.results.artifacts import is_artifact_id
from planq.shared.domain.results.media import is_media_type
from planq.shared.domain.values.defects import Defect, body_refused, defects_of_fields
from planq.shared.domain.values.encoding import encode
from planq.shared.domain.webhooks.endpoints import checked_url
from planq.shared.store.payloads.store import PayloadStore
from planq.shared.store.requests import RequestStore

_PARAGRAPH = "\n\n"
_SOURCES = ("url", "artifact_id", "data")
_PARTS = TypeAdapter(list[InputPart])
_INLINE_CHARS = 64 * 1024
"""Longer base64 is decoded in a thread."""


class ReadInput(NamedTuple):
    """The `text` of an input, None where it has none, and its other `parts`, each with its place in the body."""

    text: str | None
    parts: Sequence[tuple[str, InputPart]] = ()


def read_input(given: str | list[Any] | None) -> ReadInput:
    """Return an input taken apart: texts of a list are joined by blank lines, and its other parts follow them.

    Raises `InvalidRequest` with every defect of the parts.
    """
    if not isinstance(given, list):
        return ReadInput(given)
    if not given or len(given) > MAX_INPUT_PARTS:
        raise body_refused([Defect("input", "", f"expected 1 to {MAX_INPUT_PARTS} parts, found {len(given)}")])
    try:
        parts = _PARTS.validate_python(given)
    except ValidationError as error:
        raise body_refused(defects_of_fields(error, "input")) from error
    placed = [(f"input.{number}", part) for number, part in enumerate(parts)]
    defects = [defect for place, part in placed for defect in _defects(place, part)]
    others = [(place, part) for place, part in placed if part.type != "text"]
    if len(others) > MAX_PARTS:
        message = f"expected at most {MAX_PARTS} images, files and audio parts, found {len(others)}"
        defects.append(Defect("input", "", message))
    if defects:
        raise body_refused(defects)
    texts = [part.text for part in parts if part.type == "text" and part.text]
    return ReadInput(_PARAGRAPH.join(texts) if texts or not others else None, others)


def _defects(place: str, part: InputPart) -> list[Defect]:
    given = [name for name in _SOURCES if getattr(part, name) is not None]
    if part.type == "text":
        others = [*given, *(name for name in ("media_type", "filename") if getattr(part, name) is not None)]
        if part.text is None:
            return [Defect(f"{place}.text", "", "expected a text, found none")]
        return [Defect(f"{place}.{name}", "", "a part of the type text has a text alone") for name in others]
    found = []
    if part.text is not None:
        found.append(Defect(f"{place}.text", "", "only a part of the type text has a text"))
    if len(given) != 1:
        listed = " and ".join(given) or "none of them"
        found.append(Defect(place, "", f"expected one of url, artifact_id and data, found {listed}"))
    if part.media_type is not None and not is_media_type(part.media_type):
        found.append(Defect(f"{place}.media_type", "", "expected a media type such as image/png"))
    return found


@dataclass(frozen=True, slots=True)
class PartIntake:
    """Checks the parts of inputs, and stores their bytes."""

    payloads: PayloadStore
    requests: RequestStore
    max_bytes: int
    url_hosts: Collection[str]

    async def stored(
        self, tenant_id: str, model: str, parts: Sequence[tuple[str, InputPart]], *, message_flow: bool = False
    ) -> list[dict[str, Any]] | None:
        """Return the parts as a job stores them, None for none; nothing is stored unless all of them are right.

        With `message_flow` artifacts of the message flow's jobs alone can be named. Raises `InvalidRequest` with the
        place of the first wrong part, `NotFound` for an artifact that the tenant does not have, `TooLarge`, and
        `StorageFull`.
        """
        if not parts:
            return None
        if model == OFFLINE:
            kinds = " and ".join(sorted({part.type for _, part in parts}))
            message = f"the model {OFFLINE!r} reads text only, found {kinds}; name another model, or send text"
            raise body_refused([Defect("input", "", message)])
        checked, total = [], 0
        for place, part in parts:
            one = await self._checked(tenant_id, place, part, message_flow=message_flow)
            total += one.size or 0
            if total > self.max_bytes:
                raise TooLarge(
                    f"{place}: expected parts of at most {self.max_bytes} bytes together, found {total} up to here",
                    limit=self.max_bytes,
                    actual=total,
                )
            checked.append(one)
        return [await self._put(tenant_id, one) for one in checked]

    async def _checked(self, tenant_id: str, place: str, part: InputPart, *, message_flow: bool) -> Part:
        if part.url is not None:
            url = checked_url(part.url, f"{place}.url", self.url_hosts, "PLANQ_HTTP_FETCH_ALLOW_HOSTS")
            return Part(part.type, part.media_type, part.filename, url=url)
        if part.artifact_id is not None:
            return await self._of_artifact(tenant_id, place, part, part.artifact_id, message_flow=message_flow)
        text = part.data or ""
        if len(text) * 3 // 4 > self.max_bytes + 3:
            raise TooLarge(
                f"{place}.data: expected parts of at most {self.max_bytes} bytes together, found more",
                limit=self.max_bytes,
            )
        if len(text) > _INLINE_CHARS:
            return await off_loop(_of_base64, place, part, text)
        return _of_base64(place, part, text)

    async def _of_artifact(
        self, tenant_id: str, place: str, part: InputPart, artifact_id: str, *, message_flow: bool
    ) -> Part:
        if not is_artifact_id(artifact_id):
            raise body_refused([Defect(f"{place}.artifact_id", "", "expected the id of an artifact")])
        row = await self.requests.artifact(tenant_id, artifact_id, message_flow=message_flow)
        if row["media_type"] is None:
            message = "expected an artifact of bytes with a media type, found one of JSON; send it as text"
            raise body_refused([Defect(f"{place}.artifact_id", "", message)])
        if row["bytes"] > self.max_bytes:
            raise TooLarge(
                f"{place}.artifact_id: expected at most {self.max_bytes} bytes, found {row['bytes']}",
                limit=self.max_bytes,
                actual=row["bytes"],
            )
        data = await self.payloads.get(tenant_id, row["payload_hash"])
        said = part.media_type or row["media_type"]
        media_type = _media_type(f"{place}.artifact_id", part, said, data)
        name = part.filename or artifact_id.rpartition("/")[2][:200]
        return Part(part.type, media_type, name, size=len(data), data=data)

    async def _put(self, tenant_id: str, part: Part) -> dict[str, Any]:
        if part.url is not None:
            return part.to_json()
        shown = encode({"value": {"media_type": part.media_type, "bytes": part.size}, "is_whole": False})
        digest = await self.payloads.put(tenant_id, part.data, shown)
        return replace(part, sha256=digest.hex()).to_json()


def _of_base64(place: str, part: InputPart, text: str) -> Part:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        defect = Defect(f"{place}.data", "", f"expected base64 (RFC 4648), found other text ({error})")
        raise body_refused([defect]) from error
    media_type = _media_type(f"{place}.data", part, part.media_type, data)
    return Part(part.type, media_type, part.filename, size=len(data), data=data)


def _media_type(place: str, part: InputPart, said: str | None, data: bytes) -> str:
    try:
        return checked_media_type(part.type, said, data)
    except InvalidRequest as error:
        raise body_refused([Defect(place, "", error.message)]) from error
