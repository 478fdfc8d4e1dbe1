"""Outputs of steps, and artifacts, as the bytes that are stored.

Nothing is decoded on its way, and large values go in slices. Their entity tag is the SHA-256 of the bytes; a client
that has them already gets 304. An artifact of bytes comes under its media type, and in parts where a client asks for
one (RFC 9110, section 14). A tool or a server elsewhere has made it, so no browser is to run anything of it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Header, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response, StreamingResponse

from planq.api.access.scopes import Who
from planq.api.deps import JobPath, StepPath, Use, check_job_is_open_to, step_index_of, strict_router
from planq.api.http.exchange import HttpRefusal, JsonResponse, error_responses
from planq.api.http.ids import job_id_of
from planq.api.schemas import Answer, Id, Time
from planq.shared.platform.database import Row
from planq.shared.platform.errors import NotFound
from planq.shared.platform.values.media import SHOWN_MEDIA_TYPES, essence, file_name, served_media_type
from planq.shared.subjects.jobs.store import StoredJson
from planq.shared.subjects.payloads.store import PayloadStore

output_routes = strict_router("jobs")
artifact_routes = strict_router("catalogue")


class ArtifactDocument(BaseModel):
    """An artifact as its tool produced it."""

    model_config = ConfigDict(extra="allow")

    artifact_id: str
    artifact: Any


class ArtifactRecordDocument(Answer):
    """What is known of a version of an artifact beside its body."""

    artifact_id: str
    version: int
    job_id: Id
    step_index: int | None = Field(description="The step that made it; null for a file that a model made.")
    tool_name: str | None = Field(
        description="Its tool; null for a file that a model made: `metadata.model` names it."
    )
    skill_id: str | None = Field(description="The skill on whose behalf it was made.")
    skill_name: str | None = Field(description="What its tool calls that skill.")
    type: str | None = Field(description="What it says it is, or looks like: `table`, `chart`, `form`, …")
    media_type: str | None = Field(description="Of one of bytes; `GET /artifacts/{artifact_id}` gives these.")
    bytes: int = Field(description="Its size: of the bytes, or of the JSON.")
    metadata: dict[str, Any] | None = Field(description="Its `_metadata`.")
    created_at: Time


class ArtifactPage(Answer):
    """What a job has made."""

    items: list[ArtifactRecordDocument]


IfNoneMatch = Annotated[str | None, Header(description="Entity tags of what the caller has already.")]


_STORED: dict[int | str, dict[str, Any]] = {
    200: {"headers": {"ETag": {"description": "The SHA-256 of the JSON, in quotes.", "schema": {"type": "string"}}}},
    304: {"description": "The caller has it already."},
}


@output_routes.get("/jobs/{job_id}/artifacts", response_model=ArtifactPage, responses=error_responses(404))
async def list_artifacts(job_id: JobPath, services: Use, who: Who) -> Response:
    """List what a job has made: every version of every artifact, in the order of its steps, without the bodies.

    Files that a model made come last.
    """
    found = job_id_of(job_id)
    await check_job_is_open_to(who, services.requests, found)
    rows = await services.requests.artifacts(who.tenant_id, found)
    return JsonResponse({"items": [_record(row) for row in rows]})


def _record(row: Row) -> dict[str, Any]:
    name = row["metadata"].get("skill_name") if isinstance(row["metadata"], Mapping) else None
    return ArtifactRecordDocument.of(row, artifact_id=row["id"], skill_name=name if isinstance(name, str) else None)


@output_routes.get(
    "/jobs/{job_id}/steps/{index}/output", response_model=Any, responses={**_STORED, **error_responses(404)}
)
async def get_output(
    job_id: JobPath, index: StepPath, services: Use, who: Who, if_none_match: IfNoneMatch = None
) -> Response:
    """Return the output of a step that succeeded, of any size, as it is stored; `ETag` is its SHA-256."""
    found = job_id_of(job_id)
    await check_job_is_open_to(who, services.requests, found)
    stored = await services.requests.output(who.tenant_id, found, step_index_of(found, index))
    return await _stored_json(services.payloads, who.tenant_id, stored, if_none_match)


class TracebackDocument(Answer):
    """Where in the code of a tool the exception of an attempt came from."""

    attempt: int
    text: str
    created_at: Time


class TracebackPage(Answer):
    """The last attempts of a step that an exception of its tool ended, newest first."""

    items: list[TracebackDocument]


@output_routes.get(
    "/jobs/{job_id}/steps/{index}/tracebacks", response_model=TracebackPage, responses=error_responses(404)
)
async def get_tracebacks(job_id: JobPath, index: StepPath, services: Use, who: Who) -> Response:
    """List the tracebacks of those of a step's last five attempts that an exception of its tool ended."""
    found = job_id_of(job_id)
    rows = await services.requests.tracebacks(who.tenant_id, found, step_index_of(found, index))
    return JsonResponse({"items": [TracebackDocument.of(row) for row in rows]})


_HEADERS: dict[str, Any] = {
    "Artifact-Version": {"description": "Which version this is.", "schema": {"type": "integer", "minimum": 1}},
    "Artifact-Skill-Id": {
        "description": "The skill on whose behalf it was made, percent-encoded; absent without one.",
        "schema": {"type": "string"},
    },
}
_BYTES = {"*/*": {"schema": {"type": "string", "format": "binary"}}}
_ARTIFACT: dict[int | str, dict[str, Any]] = {
    **_STORED,
    200: {**_STORED[200], "headers": {**_STORED[200]["headers"], **_HEADERS}, "content": _BYTES},
    206: {
        "description": "A part of the bytes.",
        "headers": {
            **_HEADERS,
            "Content-Range": {"description": "Which part, and of how many bytes.", "schema": {"type": "string"}},
        },
        "content": _BYTES,
    },
}


@artifact_routes.get(
    "/artifacts/{artifact_id:path}",
    response_model=ArtifactDocument,
    responses={**_ARTIFACT, **error_responses(404, 416)},
)
async def get_artifact(
    artifact_id: Annotated[str, Path(description="`artifact_id`, from a step's output or from the job's artifacts.")],
    services: Use,
    who: Who,
    version: Annotated[int | None, Query(ge=1, lt=2**31, description="Which version; the newest by default.")] = None,
    if_none_match: IfNoneMatch = None,
    asked: Annotated[
        str | None, Header(alias="Range", description="A part of bytes, such as `bytes=0-1023`.")
    ] = None,
    if_range: Annotated[str | None, Header(description="The entity tag of what the part is to belong to.")] = None,
) -> Response:
    """Return a version of an artifact as its tool produced it: JSON, or bytes under their media type.

    Every output under one id is a version. The headers `Artifact-Version` and `Artifact-Skill-Id` tell of it. Of
    bytes a `Range` gives a part (one at a time). Browsers keep them as a file; pictures but SVG they show.
    """
    if "\x00" in artifact_id:
        raise NotFound("there is no artifact whose id contains the character NUL")
    found = await services.requests.artifact(who.tenant_id, artifact_id, version, message_flow=not who.sees_all_jobs)
    stored = StoredJson.of(found["body"], found["payload_hash"])
    more = {"Artifact-Version": str(found["version"])}
    if found["skill_id"] is not None:
        more["Artifact-Skill-Id"] = quote(found["skill_id"], safe="")
    if found["media_type"] is None:
        return await _stored_json(services.payloads, who.tenant_id, stored, if_none_match, more)
    size, digest = found["bytes"], found["payload_hash"]
    headers = {"ETag": f'"{digest.hex()}"', "Cache-Control": "private, no-cache", **more, **_file_headers(found)}
    if _is_known(headers["ETag"], if_none_match):
        return Response(status_code=304, headers=headers)
    part = part_of(size, asked, if_range, headers["ETag"])
    if part is None:
        _, pieces = await services.payloads.open(who.tenant_id, digest)
        return await _streamed(pieces, {**headers, "Content-Length": str(size)})
    start, stop = part
    headers |= {"Content-Range": f"bytes {start}-{stop - 1}/{size}", "Content-Length": str(stop - start)}
    return await _streamed(await services.payloads.open_part(who.tenant_id, digest, *part), headers, 206)


def _file_headers(found: Row) -> dict[str, str]:
    """Return the headers that keep a browser from taking bytes for anything but a file, or a picture."""
    media_type = found["media_type"]
    how = "inline" if essence(media_type) in SHOWN_MEDIA_TYPES else "attachment"
    name = quote(file_name(found["id"], media_type), safe="")
    return {
        "Content-Type": served_media_type(media_type),
        "Content-Disposition": f"{how}; filename*=UTF-8''{name}",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Accept-Ranges": "bytes",
    }


async def _stored_json(
    payloads: PayloadStore,
    tenant_id: str,
    stored: StoredJson,
    if_none_match: str | None,
    more: Mapping[str, str] | None = None,
) -> Response:
    """Return the response that carries stored JSON, and `more` headers.

    Raises `StorageUnavailable` when a payload cannot be read. If that happens after its first slice, the connection
    breaks off before the announced length, which every client notices.
    """
    digest = stored.payload or hashlib.sha256(stored.body).digest()
    headers = {"ETag": f'"{digest.hex()}"', "Cache-Control": "private, no-cache", **(more or {})}
    if _is_known(headers["ETag"], if_none_match):
        return Response(status_code=304, headers=headers)
    if stored.payload is None:
        return Response(stored.body, media_type="application/json", headers=headers)
    size, pieces = await payloads.open(tenant_id, stored.payload)
    return await _streamed(pieces, {**headers, "Content-Type": "application/json", "Content-Length": str(size)})


async def _streamed(pieces: AsyncIterator[bytes], headers: Mapping[str, str], status: int = 200) -> Response:
    # What is wrong with the storage shows at the first slice, while a status can still say so.
    first = await anext(pieces)
    return StreamingResponse(_chained(first, pieces), status_code=status, headers=headers)


def _is_known(tag: str, if_none_match: str | None) -> bool:
    """Compare weakly (RFC 9110, section 13.1.2)."""
    if if_none_match is None:
        return False
    given = [one.strip().removeprefix("W/") for one in if_none_match.split(",")]
    return tag in given or "*" in given


async def _chained(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


_RANGE = re.compile(r"bytes=[ \t]*(\d{0,20})-(\d{0,20})[ \t]*", re.ASCII | re.IGNORECASE)


def part_of(size: int, asked: str | None, if_range: str | None, tag: str) -> tuple[int, int] | None:
    """Return the first byte of the part that is asked for and the one behind its last; None for the whole.

    A header that cannot be read, several ranges at once, and `If-Range` with another entity tag ask for the whole.
    Raises `HttpRefusal` (416) for a range that begins behind the end.
    """
    found = None if asked is None else _RANGE.fullmatch(asked.strip())
    if found is None or (if_range is not None and if_range.strip() != tag):
        return None
    first, last = found.groups()
    if not first and not last:
        return None
    if first and last and int(last) < int(first):
        return None
    start = int(first) if first else max(size - int(last), 0)
    if start >= size:
        raise HttpRefusal(
            416,
            "range_not_satisfiable",
            f"expected a range within {size} bytes, found {asked!r:.100}; ask for an earlier part, or the whole",
            headers={"Content-Range": f"bytes */{size}"},
        )
    return start, min(int(last) + 1, size) if first and last else size
