"""What a client says and hears, without I/O: generators that yield a request or a pause, and are sent what came."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from random import SystemRandom
from time import monotonic
from typing import Any, TypeVar

from planq.shared.client import requests
from planq.shared.client.facts import has_ended
from planq.shared.client.wire import ApiReply, ApiRequest, ConnectionFailure, Json, object_of, refused, unreached
from planq.shared.kernel.states import JobStatus, QuestionStatus
from planq.shared.platform.errors import Unavailable

_LONG_POLL_SECONDS = 20.0
_LARGEST_PAGE = 100
_BATCH_POLL_SECONDS = 0.5
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PauseRequest:
    """A wish to wait before the next request."""

    seconds: float


Exchange = Generator[ApiRequest | PauseRequest, Any, T]
"""Yields what is to be sent, and is sent an `ApiReply` or `ConnectionFailure`; yields a `PauseRequest`, and is sent
anything."""


@dataclass(frozen=True, slots=True)
class Page:
    """What was found, and where there is more: the cursor of the next page."""

    items: list[Json]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Exchanges:
    """The exchanges with the API at `url`. A request is tried again for `patience` seconds after its first failure.

    That holds for requests that never came there, for those that the API wants later (`Retry-After`), and for lost or
    doubtful ones (502 to 504) where a repeat is harmless. All raise the error that a refusal stands for, and
    `Unavailable` where nothing answers.
    """

    url: str
    patience: float
    clock: Callable[[], float] = monotonic
    draw: Callable[[], float] = SystemRandom().random

    def send(self, request: ApiRequest) -> Exchange[ApiReply]:
        """Return a good reply."""
        since: float | None = None
        pause = _SHORTEST_PAUSE
        while True:
            came: ApiReply | ConnectionFailure = yield request
            if isinstance(came, ApiReply) and came.is_good:
                return came
            now = self.clock()
            since = now if since is None else since
            wanted = _wanted_pause(request, came, pause * (0.5 + self.draw() / 2))
            if wanted is None or now - since + wanted > self.patience:
                raise unreached(came, self.url) if isinstance(came, ConnectionFailure) else refused(came, self.url)
            yield PauseRequest(wanted)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def document(self, request: ApiRequest) -> Exchange[Json]:
        reply = yield from self.send(request)
        return object_of(reply, self.url)

    def pages(self, path: str, most: int | None, params: Mapping[str, Any]) -> Exchange[Page]:
        """Return the items of all pages, or of as many as hold so many items."""
        found: list[Json] = []
        asked = dict(params)
        while True:
            asked["limit"] = _LARGEST_PAGE if most is None else min(_LARGEST_PAGE, most - len(found))
            page = yield from self.document(ApiRequest("GET", path, params=dict(asked), is_repeatable=True))
            found += page["items"]
            cursor = page.get("next_cursor")
            if cursor is None or not page["items"] or len(found) == most:
                return Page(found, cursor)
            asked["cursor"] = cursor

    def ended(self, job_id: str, timeout: float | None, *, or_asks: bool = False) -> Exchange[Json]:
        """Return a job once it has ended, with `or_asks` also while it asks a person; raises `TimeoutError`."""
        until = None if timeout is None else self.clock() + timeout
        wait = 0.0  # a question that is open already would end no wait
        while True:
            job = yield from self.document(requests.job_request(job_id, wait))
            if has_ended(job) or (or_asks and job["status"] == JobStatus.INPUT_REQUIRED):
                return job
            left = _LONG_POLL_SECONDS if until is None else until - self.clock()
            if left <= 0:
                raise TimeoutError(f"job {job_id} is {job['status']} after {timeout:g} seconds")
            wait = min(left, _LONG_POLL_SECONDS)

    def ended_batch(self, batch_id: str, timeout: float | None) -> Exchange[Json]:
        """Return a batch once it has ended, or is paused with nothing of it running; raises `TimeoutError`."""
        until = None if timeout is None else self.clock() + timeout
        while True:
            batch = yield from self.document(ApiRequest("GET", f"/batches/{batch_id}", is_repeatable=True))
            rests = batch["paused_at"] and batch["status"] == "in_progress" and not batch["counts"]["running"]
            if batch["status"] in ("completed", "failed", "cancelled") or rests:
                return batch
            if until is not None and self.clock() >= until:
                raise TimeoutError(f"batch {batch_id} is {batch['status']} after {timeout:g} seconds")
            yield PauseRequest(_BATCH_POLL_SECONDS)

    def answered(self, question_id: str, body: Json) -> Exchange[Json]:
        """Answer a question and return it. An answer of which nobody knows whether it came is given again if not."""
        while True:
            try:
                return (yield from self.document(requests.answer_request(question_id, body)))
            except Unavailable:
                if not self.patience:
                    raise
                look = ApiRequest("GET", f"/elicitations/{question_id}", is_repeatable=True)
                question = yield from self.document(look)
                if question["status"] != QuestionStatus.OPEN:
                    return question

    def replied(self, job_id: str, timeout: float | None) -> Exchange[Json]:
        """Return what became of a message, once it has a reply or asks a person; raises `TimeoutError`."""
        until = None if timeout is None else self.clock() + timeout
        wait = 0.0
        while True:
            request = ApiRequest(
                "GET", f"/messages/status/{job_id}", params={"wait": wait}, seconds=wait, is_repeatable=True
            )
            answer = yield from self.document(request)
            if answer["status"] in ("success", "input_required"):
                return answer
            left = _LONG_POLL_SECONDS if until is None else until - self.clock()
            if left <= 0:
                raise TimeoutError(f"message of job {job_id} is {answer['status']} after {timeout:g} seconds")
            wait = min(left, _LONG_POLL_SECONDS)


def _wanted_pause(request: ApiRequest, came: ApiReply | ConnectionFailure, pause: float) -> float | None:
    """Return how long to wait before a request is sent again, None where it is not."""
    if isinstance(came, ConnectionFailure):
        return pause if request.is_repeatable or not came.was_sent else None
    after = came.headers.get("retry-after", "")
    named = max(pause, float(after)) if after.isdecimal() else None
    if came.status == 429:  # refused before anything was done
        return named
    if came.status in (502, 503, 504) and request.is_repeatable:
        return named or pause
    return None
