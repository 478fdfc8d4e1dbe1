"""Images, files and audio in the input of a request: checked, and their bytes stored, before anything refers to them.

A URL is stored as it is: a worker fetches it. No job refers to the bytes of a request that is refused afterwards:
they are collected.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planq.shared.agentic.models.input_parts import InputPart
from planq.shared.agentic.results.artifacts import is_artifact_id
from planq.shared.platform.computing import off_loop
from planq.shared.platform.errors import InvalidRequest, TooLarge
from planq.shared.platform.values.defects import Defect, body_refused
from planq.shared.platform.values.encoding import encode
from planq.shared.platform.values.parts import Part, checked_media_type
from planq.shared.subjects.jobs.store import RequestStore
from planq.shared.subjects.payloads.store import PayloadStore
from planq.shared.subjects.webhooks.rules import checked_url

_INLINE_CHARS = 64 * 1024
"""Longer base64 is decoded in a thread."""


@dataclass(frozen=True, slots=True)
class PartIntake:
    """Checks the parts of inputs, and stores their bytes."""

    payloads: PayloadStore
    requests: RequestStore
    max_bytes: int
    url_hosts: Collection[str]

    async def stored(
        self, tenant_id: str, parts: Sequence[tuple[str, InputPart]], *, message_flow: bool = False
    ) -> list[dict[str, Any]] | None:
        """Return the parts as a job stores them, None for none. Nothing is stored unless all of them are valid.

        With `message_flow`, only artifacts of the message flow can be named. Raises `InvalidRequest` with the place
        of the first wrong part, `NotFound` for an unknown artifact, `TooLarge`, and `StorageFull`.
        """
        if not parts:
            return None
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
