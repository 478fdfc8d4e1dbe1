"""The requests of a client, as values; every POST that creates something has an idempotency key."""

from __future__ import annotations

import base64
import json
import mimetypes
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict
from urllib.parse import quote, urlsplit
from uuid import uuid4

from planq.shared.client.wire import ApiRequest, Json
from planq.shared.kernel.states import StrategyName
from planq.shared.platform.errors import InvalidRequest, Misconfigured, TooLarge, capped
from planq.shared.platform.values.parts import found_media_type, part_type

Attachment: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
"""The path of a file, an http or https URL, or a part such as `{"type": "image", "artifact_id": "charts/1"}`."""

MAX_ATTACHED_BYTES = 64 * 1024 * 1024
"""Maximum size of a file that a client reads; what the API takes is less, unless its settings say otherwise."""


def with_attachments(text: str | None, attachments: Iterable[Attachment] | None) -> str | list[Json] | None:
    """Return the input of a job, or the content of a message: the text, or with attachments a list of parts.

    Raises `Misconfigured` for a file that cannot be read, `TooLarge`, and `InvalidRequest` for a URL that does not
    show what is there.
    """
    parts = [_part(one) for one in attachments or ()]
    if not parts:
        return text
    return [*([] if text is None else [{"type": "text", "text": text}]), *parts]


def _part(given: Attachment) -> Json:
    if isinstance(given, Mapping):
        return dict(given)
    name = os.fspath(given)
    if name.startswith(("http://", "https://")):
        return _at_url(name)
    try:
        size = os.stat(name).st_size
        if size > MAX_ATTACHED_BYTES:
            message = f"expected a file of at most {MAX_ATTACHED_BYTES} bytes, found {size} in {capped(name, 200)!r}"
            raise TooLarge(message, limit=MAX_ATTACHED_BYTES, actual=size)
        data = Path(name).read_bytes()
    except OSError as error:
        raise Misconfigured(f"the attachment {capped(name, 200)!r} cannot be read ({error.strerror})") from error
    media_type = found_media_type(data) or mimetypes.guess_type(name)[0]
    part = {"type": part_type(media_type or ""), "data": base64.b64encode(data).decode(), "filename": Path(name).name}
    return part if media_type is None else {**part, "media_type": media_type}


def _at_url(url: str) -> Json:
    media_type = mimetypes.guess_type(urlsplit(url).path)[0]
    if media_type is None:
        raise InvalidRequest(
            f"the end of the URL {capped(url, 200)} does not show what is there; expected a suffix such as .png, "
            'or in Python a part: {"type": "image", "url": …}'
        )
    return {"type": part_type(media_type), "url": url, "media_type": media_type}


UPLOAD_SECONDS = 300.0
"""How long the API may take for one read of a file of 200 MB and its storing."""

MAX_RESULT_BYTES = 64 * 1024 * 1024
"""Maximum size of an output that a client reads into memory by default, as large as a step's by default."""

_PIECE_BYTES = 256 * 1024


class JobFields(TypedDict, total=False):
    """What `POST /jobs` takes beside `input`; what is None is left out. docs/http-jobs.md says what each means.

    `attachments` are images, files and audio: paths, URLs, or parts (docs/parts.md).
    """

    attachments: Iterable[Attachment] | None
    plan: Mapping[str, Any] | None
    agent: str | None
    action: str | None
    with_: Mapping[str, Any] | None
    context: str | None
    model: str | None
    on_incomplete: Literal["accept", "continue", "fail"] | None
    model_settings: Mapping[str, Any] | None
    tools: Iterable[str] | None
    strategy: StrategyName | None
    loop: Mapping[str, Any] | None
    priority: Literal["interactive", "bulk"] | None
    user: str | None
    metadata: Mapping[str, Any] | None
    limits: Mapping[str, Any] | None
    callback_url: str | None
    respond: Literal["model", "output", "none"] | None
    conversation_id: str | None
    conversation: Literal["turn", "read"] | None


class BatchFields(TypedDict, total=False):
    """What `POST /batches` takes beside the file; what is None is left out."""

    name: str | None
    metadata: Mapping[str, Any] | None
    defaults: Mapping[str, Any] | None
    priority: Literal["interactive", "bulk"] | None
    strict: bool | None
    start: bool | None
    canary: int | None
    discount: Literal["provider"] | None
    max_cost_usd: float | None
    max_tokens: int | None
    callback_url: str | None


class MessageFields(TypedDict, total=False):
    """What `POST /messages/inbound` takes beside the text; `sender` is the person's id in the channel.

    `attachments` are images, files and audio: paths, URLs, or parts (docs/parts.md).
    """

    attachments: Iterable[Attachment] | None
    tenant_id: str
    channel: str
    sender: str
    thread: str | None
    conversation_id: str | None
    source_message_id: str | None
    agent: str | None
    metadata: Mapping[str, Any] | None


def at(kind: str, name: str) -> str:
    return f"/{kind}/{quote(name, safe='')}"


def submission(input: str | None, fields: Mapping[str, Any], idempotency_key: str | None) -> ApiRequest:
    """Return the request that makes a job; without a key of the caller's with one of its own, kept over all tries."""
    given = {"with" if name == "with_" else name: value for name, value in {"input": input, **fields}.items()}
    given["input"] = with_attachments(given["input"], given.pop("attachments", None))
    if not isinstance(given.get("tools"), list | None):
        given["tools"] = list(given["tools"])
    return ApiRequest("POST", "/jobs", body=_present(given), headers=_key(idempotency_key), is_repeatable=True)


def job_request(job_id: str, wait: float = 0.0) -> ApiRequest:
    """Return the request for a job, as soon as it has ended or asks a person, or `wait` seconds are over."""
    params = {"wait": round(wait, 3)} if wait else {}
    return ApiRequest("GET", at("jobs", job_id), params=params, seconds=wait, is_repeatable=True)


def output_path(job_id: str, step: int) -> str:
    return f"{at('jobs', job_id)}/steps/{step}/output"


def action(kind: str, id: str, name: str, body: Json | None = None) -> ApiRequest:
    """Return the request to `cancel`, `pause`, `resume` or `retry` one of the `jobs` or `batches`."""
    # Cancelled twice is cancelled, paused twice is paused; resumed twice may begin twice.
    is_repeatable = name in ("cancel", "pause")
    return ApiRequest("POST", f"{at(kind, id)}/{name}", body=body, is_repeatable=is_repeatable)


def answer_request(question_id: str, body: Json) -> ApiRequest:
    """Return the request that answers a question with `{action, content?, reason?, by?, channel?}`."""
    return ApiRequest("POST", at("elicitations", question_id), body=body)


def answer_body(action: str, content: Any, reason: str | None, by: str | None) -> Json:
    return _present({"action": action, "content": content, "reason": reason, "by": by})


def message_request(text: str, fields: MessageFields, idempotency_key: str | None) -> ApiRequest:
    """Return the request that stores a message and does not wait for its reply."""
    given: Json = {"tenant_id": "default", "channel": "api", **fields}
    sender = {"external_id": given.pop("sender", "client")}
    said = with_attachments(text or None, given.pop("attachments", None))
    content = said if isinstance(said, list) else {"type": "text", "text": text}
    body = _present({**given, "from": sender, "content": content, "async_processing": True})
    return ApiRequest("POST", "/messages/inbound", body=body, headers=_key(idempotency_key), is_repeatable=True)


def upload_request(
    lines: str | os.PathLike[str] | Iterable[Mapping[str, Any]],
    fields: Mapping[str, Any],
    idempotency_key: str | None,
) -> ApiRequest:
    """Return the request that sends a file of requests: a path, or its lines, each `{custom_id, body}`.

    A file is read anew for each try, so it may be as long as the API takes it; lines are held in memory. The body of
    a line may have `attachments`.
    """
    given = _present(fields).items()
    params = {name: value if isinstance(value, str) else json.dumps(value) for name, value in given}
    request = ApiRequest("POST", "/batches", params, seconds=UPLOAD_SECONDS, is_repeatable=True)
    headers = {**_key(idempotency_key), "Content-Type": "application/jsonl"}
    if not isinstance(lines, str | os.PathLike):
        content = b"".join(json.dumps(_line(line), ensure_ascii=False).encode() + b"\n" for line in lines)
        return replace(request, headers=headers, content=content)
    path = lines

    def pieces() -> Iterator[bytes]:
        with open(path, "rb") as file:
            while piece := file.read(_PIECE_BYTES):
                yield piece

    return replace(request, headers={**headers, "Content-Length": str(os.stat(path).st_size)}, pieces=pieces)


def _line(line: Mapping[str, Any]) -> Mapping[str, Any]:
    body = line.get("body")
    if not isinstance(body, Mapping) or "attachments" not in body:
        return line
    rest = {name: value for name, value in body.items() if name != "attachments"}
    return {**line, "body": {**rest, "input": with_attachments(body.get("input"), body["attachments"])}}


def _key(given: str | None) -> dict[str, str]:
    return {"Idempotency-Key": uuid4().hex if given is None else given}


def _present(fields: Mapping[str, Any]) -> Json:
    return {name: value for name, value in fields.items() if value is not None}
