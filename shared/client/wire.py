"""A request as a value, its reply as a value, and which error a refusal stands for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from planq.shared.platform.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    PlanInvalid,
    PlanqError,
    TooLarge,
    Unauthorized,
    Unavailable,
)

Json = dict[str, Any]

_BY_STATUS: Mapping[int, type[PlanqError]] = {
    401: Unauthorized,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    422: InvalidRequest,
}


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """What is sent. `pieces` yields a long body, anew for each try; `seconds` are given beyond the client's own time.

    A request that `is_repeatable` does no more if it is sent twice: it only looks, or names an idempotency key.
    """

    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    content: bytes | None = None
    pieces: Callable[[], Iterator[bytes]] | None = None
    seconds: float = 0.0
    is_repeatable: bool = False


@dataclass(frozen=True)
class ApiReply:
    """What came back, whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300

    @cached_property
    def decoded(self) -> Any:
        """The body as JSON; None where it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


@dataclass(frozen=True, slots=True)
class ConnectionFailure:
    """No reply: the connection failed, `was_sent` where the API may have the request all the same."""

    failure: Exception
    was_sent: bool


def object_of(reply: ApiReply, url: str) -> Json:
    """Return the JSON object of a good reply; raises `Unavailable` for anything else."""
    if isinstance(reply.decoded, dict):
        return reply.decoded
    raise refused(reply, url)


def unreached(broken: ConnectionFailure, url: str) -> Unavailable:
    """Return the error of a request that had no reply."""
    return Unavailable(
        f"no planq API answers at {url} ({broken.failure}). Start one with `planq up`, or name another with "
        "--url or PLANQ_URL."
    )


def refused(reply: ApiReply, url: str) -> PlanqError:
    """Return the error that a problem document (RFC 9457) stands for; its title goes into the details."""
    status, problem = reply.status, reply.decoded
    if not isinstance(problem, dict):
        return Unavailable(f"expected JSON from a planq API at {url}, found something else (status {status})")
    message = str(problem.get("detail") or problem.get("title") or f"status {status}")
    title = {"title": problem["title"]} if problem.get("title") and problem.get("detail") else {}
    errors = problem.get("errors")
    if problem.get("code") == PlanInvalid.code and isinstance(errors, list):
        invalid = PlanInvalid(message, errors)
        invalid.details.update(title)
        return invalid
    if problem.get("code") == OutcomeUnknown.code:
        return OutcomeUnknown(message, **title, errors=errors)
    kind = _BY_STATUS.get(status, Unavailable if status >= 500 else InvalidRequest)
    return kind(message, **title, errors=errors) if isinstance(errors, list) else kind(message, **title)
