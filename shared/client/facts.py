"""What both clients know of a job and a batch from their documents, and where they find the API."""

from __future__ import annotations

import os
from typing import Any, Self

import httpx

from planq.shared.client.outcome import has_ended, outcome_of
from planq.shared.client.wire import Json


class Facts:
    """What a `document` of the API says."""

    def __init__(self, document: Json) -> None:
        self.document = document

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.status}>"

    @property
    def id(self) -> str:
        """The id under which the API knows it."""
        return str(self.document["id"])

    @property
    def status(self) -> str:
        """Where it stands: `queued` or `validating` at first, `completed`, `failed` or `cancelled` at last."""
        return str(self.document["status"])

    def _now(self, document: Json) -> Self:
        self.document = document
        return self


class JobFacts(Facts):
    """What a job's `document` says: that of `GET /jobs/{id}`."""

    @property
    def outcome(self) -> str | None:
        """`succeeded`, `partial`, `incomplete`, `failed` or `cancelled`; None while it has not ended."""
        return outcome_of(self.document)

    @property
    def has_ended(self) -> bool:
        """True when nothing more happens to it by itself."""
        return has_ended(self.document)

    @property
    def incomplete(self) -> Json | None:
        """Why the answer was cut off, `{reason, finish_reason, message}`; None where it is whole."""
        return self.document.get("incomplete")

    @property
    def answer(self) -> str | None:
        """What was written in answer, once it has ended; None where the output is large."""
        return self.document.get("answer")

    @property
    def preview(self) -> str | None:
        """A shortened text of a large output, for people; `result` returns the whole."""
        return self.document.get("preview")

    @property
    def error(self) -> Json | None:
        """Why it failed: `{code, message, retryable, details}`."""
        return self.document.get("error")

    @property
    def steps(self) -> list[Json]:
        """Its steps, each with its `status`, its `output` and its `error`."""
        return list(self.document.get("steps") or ())


class BatchFacts(Facts):
    """What a batch's `document` says: that of `GET /batches/{id}`."""

    @property
    def counts(self) -> dict[str, Any]:
        """How many lines stand where."""
        return dict(self.document["counts"])


def api_url() -> str:
    """Return where the API is: PLANQ_URL, else port 8000 of this machine."""
    return os.environ.get("PLANQ_URL") or "http://127.0.0.1:8000"


def is_unsent(failure: httpx.HTTPError) -> bool:
    """True when a request that failed so never came to the API."""
    return isinstance(failure, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
