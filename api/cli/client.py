"""What commands ask of the API: any request by its path, and methods for those that take more; over `planq.Client`.

Nothing is retried here: a person is told at once that nothing answers, and decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import Any, Self
from urllib.parse import quote
from uuid import uuid4

from httpx import Response

from planq.shared.client.clients import Client
from planq.shared.client.exchanges import Page
from planq.shared.client.following import StreamEvent
from planq.shared.client.requests import UPLOAD_SECONDS, MessageFields, at, job_request, message_request
from planq.shared.client.wire import ApiRequest, ConnectionFailure, Json, object_of, refused, unreached


class CommandClient:
    """A connection to the API at `url`; use as a context manager.

    Every method raises the error that a refusal stands for, or `Unavailable` when nothing answers or what answers is
    no planq.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.api = Client(url, api_key, timeout=30.0, patience=0)
        self.url = self.api.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.api.close()

    def submit(self, body: Json, *, idempotency_key: str | None = None) -> Json:
        """Create a job from `{input, plan?, agent?, action?, with?, model?, …}` and return it."""
        return self.api.submit(idempotency_key=idempotency_key, **body).document

    def job(self, job_id: str, *, wait: float | None = None) -> Json:
        """Return a job; with `wait` seconds, as soon as it has ended or asks a person, or the time is over."""
        return self.api.document(job_request(job_id, wait or 0.0))

    def ask(self, method: str, *path: object, body: Json | None = None, **params: object) -> Json:
        """Send a request to a path of these parts, and return the answer; a parameter that is None is left out."""
        return self.api.document(ApiRequest(method, _path(path), _present(params), body=body))

    def pages(self, *path: object, most: int | None = None, **params: object) -> Page:
        """Return what a path lists, at most so many items, from as many pages as hold them."""
        return self.api.pages(_path(path), most, _present(params))

    def remove(self, *path: object) -> None:
        self.api.send(ApiRequest("DELETE", _path(path)))

    def opened(self, *path: object, **params: object) -> AbstractContextManager[Response]:
        """Lend the response at a path, to be read in pieces; raises `Unavailable` if it breaks off."""
        return self.api.opened(ApiRequest("GET", _path(path), _present(params)))

    def send_batch(
        self, lines: Iterable[bytes], size: int | None, params: Mapping[str, str], *, idempotency_key: str | None
    ) -> Json:
        """Send the pieces of a file of requests, of `size` bytes where that is known, and return the batch."""
        headers = {"Content-Type": "application/jsonl"}
        headers |= {} if size is None else {"Content-Length": str(size)}
        headers |= {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        pieces = iter(lines)
        request = ApiRequest("POST", "/batches", params, headers, pieces=lambda: pieces, seconds=UPLOAD_SECONDS)
        return self.api.document(request)

    def log(self, job_id: str, *, children: bool) -> Iterator[StreamEvent]:
        """Yield the events of a job that there are now, the oldest first, a page at a time."""
        params: dict[str, Any] = {"children": children, "limit": 1_000}
        while True:
            headers = {"Accept": "application/json"}
            page = self.api.document(ApiRequest("GET", f"{at('jobs', job_id)}/events", dict(params), headers))
            for event in page["events"]:
                data = {name: value for name, value in event.items() if name != "id"}
                yield StreamEvent(event["id"], event["kind"], data)
            if page["next"] is None:
                return
            params["after"] = page["next"]

    def say(self, text: str, fields: MessageFields) -> Json:
        """Store a message, and return `{status, job_id, conversation_id, …}` without waiting for its answer."""
        return self.api.document(message_request(text, fields, uuid4().hex))

    def put(self, kind: str, name: str, body: bytes, media_type: str) -> tuple[Json, bool]:
        """Store one of the `agents` or `skills`; return it, and whether that made a new version."""
        reply = self.api.send(ApiRequest("PUT", at(kind, name), headers={"Content-Type": media_type}, content=body))
        return object_of(reply, self.api.url), reply.status == HTTPStatus.CREATED

    def readiness(self) -> Json:
        """Return `{status, checks}` of `/readyz`, whether the API is ready or not."""
        reply = self.api.exchange(ApiRequest("GET", "/readyz"))
        if isinstance(reply, ConnectionFailure):
            raise unreached(reply, self.api.url)
        if isinstance(found := reply.decoded, dict) and "checks" in found:
            return found
        raise refused(reply, self.api.url)


def _path(parts: Iterable[object]) -> str:
    return "".join(f"/{quote(str(part), safe='')}" for part in parts)


def _present(params: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in params.items() if value is not None}
