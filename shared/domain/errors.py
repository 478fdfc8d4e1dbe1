"""Every error that planq raises on purpose.

    PlanqError
    ├── RequestRefused            the caller must change the request (HTTP 4xx)
    │   ├── InvalidRequest        invalid_request       422
    │   ├── PlanInvalid           plan_invalid          422, carries every defect found
    │   ├── Unauthorized          unauthorized          401
    │   ├── NotFound              not_found             404
    │   ├── Conflict              conflict              409
    │   └── TooLarge              too_large             413
    ├── ExecutionFailed           a step or a stage ended without its result
    │   ├── Transient             transient             retryable: connection, 5xx, a passing fault
    │   │   └── Unreached         unreached             nothing was sent to the other side
    │   ├── RateLimited           rate_limited          retryable, may carry `retry_after`
    │   ├── TimedOut              timeout               retryable: one call of a tool or a model
    │   │   ├── FirstTokenTimedOut first_token_timeout  retryable
    │   │   ├── QueueTimedOut     queue_timeout         no worker began the job in time
    │   │   ├── PlanTimedOut      plan_timeout          the steps of the plan did not end in time
    │   │   ├── JobTimedOut       job_timeout           the job as a whole did not end in time
    │   │   └── HumanWaitTimedOut human_wait_timeout    nobody answered the question of a step
    │   ├── WorkerLost            worker_lost           retryable
    │   ├── OwnershipLost         ownership_lost        retryable: the attempt may not act any more
    │   ├── InvalidArguments      invalid_arguments     the arguments break the input schema (422 of a request)
    │   ├── InvalidOutput         invalid_output        the result breaks the output schema or a size limit
    │   ├── AuthFailed            auth                  a credential was refused
    │   ├── PolicyDenied          policy                a rule of ours forbids it (SSRF guard, limits)
    │   ├── UnknownTool           unknown_tool          no worker offers the tool
    │   ├── UnknownAgent          unknown_agent         there is no such agent (any more)
    │   ├── DepthExceeded         depth_exceeded        a child job would be nested too deeply
    │   ├── BudgetExceeded        budget_exceeded       the tree of jobs has used up what it may
    │   ├── ToolFailed            tool_error            the tool itself says that it failed
    │   ├── ModelRefused          model_refused         the model or its provider refuses this very request
    │   ├── Cancelled             cancelled             cut off because its job had ended
    │   ├── OutcomeUnknown        outcome_unknown       an unsafe call may or may not have happened
    │   └── InternalFault         internal              a defect of planq or of a tool's code
    ├── Unavailable               try again later (HTTP 503)
    │   ├── DatabaseUnavailable   database_unavailable
    │   ├── BrokerUnavailable     broker_unavailable
    │   └── StorageUnavailable    storage_unavailable   where large outputs lie
    └── Misconfigured             misconfigured         the process refuses to start, and says where

`code` is stable and part of the API; `retryable` is data (the Temporal vocabulary), read by `retry.py` and by nobody
else. Text that came from a tool, a model or a user is quoted and capped by whoever puts it into a message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

MAX_MESSAGE_CHARS = 2_000
"""Longest error message kept; what is longer is cut, and says so."""


def storable(text: str) -> str:
    """Return `text` with what neither UTF-8 nor PostgreSQL can hold (lone surrogates, NUL) replaced by U+FFFD."""
    if "\x00" not in text and text.isascii():
        return text
    return text.replace("\x00", "\ufffd").encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def as_agent_error(code: str) -> str:
    """Return the code by which whoever called an agent is told of its error: `timeout`, whichever time it ran out of.

    All others stay as they are.
    """
    return TimedOut.code if code in AGENT_TIMEOUTS else code


def capped(text: str, limit: int = MAX_MESSAGE_CHARS) -> str:
    """Return `text` as storable Unicode, cut to `limit` characters with a mark that says how much is missing."""
    text = storable(text)
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… [{len(text) - limit} more characters]"


AGENT_TIMEOUTS = frozenset(
    {"timeout", "first_token_timeout", "queue_timeout", "plan_timeout", "job_timeout", "human_wait_timeout"}
)
"""Codes of jobs and steps that ran out of time."""


class PlanqError(Exception):
    """Base of every deliberate error; `message` is for people, `code` and `details` are for programs."""

    code: ClassVar[str] = "internal"
    retryable: bool = False  # a constant of each class; only `ToolError` sets it per instance

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = capped(message)
        self.details: dict[str, Any] = details

    def __str__(self) -> str:
        return self.message


class RequestRefused(PlanqError):
    """The request cannot be carried out as it stands; nothing was changed."""

    code = "invalid_request"
    status: ClassVar[int] = 422


class InvalidRequest(RequestRefused):
    """A field is missing, unknown, of the wrong type or out of range."""


class PlanInvalid(RequestRefused):
    """The plan has defects; `errors` lists all of them in the shape of `validation.PlanError.to_json`."""

    code = "plan_invalid"

    def __init__(self, message: str, errors: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(message, errors=list(errors))
        self.errors = list(errors)


class Unauthorized(RequestRefused):
    """No key, or a wrong one."""

    code = "unauthorized"
    status = 401


class NotFound(RequestRefused):
    """There is no such thing, or not for this tenant."""

    code = "not_found"
    status = 404


class Conflict(RequestRefused):
    """The thing exists, and its present state forbids the request."""

    code = "conflict"
    status = 409


class TooLarge(RequestRefused):
    """A body, an input or a plan is larger than its limit."""

    code = "too_large"
    status = 413


class ExecutionFailed(PlanqError):
    """A step or a stage ended without its result."""

    code = "internal"


class Transient(ExecutionFailed):
    """A passing fault: the same call may succeed later."""

    code = "transient"
    retryable = True


class Unreached(Transient):
    """The other side of a tool could not be reached before anything was sent to it: the call has no effect."""

    code = "unreached"


class RateLimited(ExecutionFailed):
    """The other side asked for fewer calls; `retry_after` is its own wish, None when it named none."""

    code = "rate_limited"
    retryable = True

    def __init__(self, message: str, retry_after: timedelta | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.retry_after = retry_after


class TimedOut(ExecutionFailed):
    """The time allowed for the call ran out."""

    code = "timeout"
    retryable = True


class FirstTokenTimedOut(TimedOut):
    """The model began no answer within the time allowed for its first token."""

    code = "first_token_timeout"


class QueueTimedOut(TimedOut):
    """The job was queued for longer than it may be: no worker took it."""

    code = "queue_timeout"
    retryable = False


class PlanTimedOut(TimedOut):
    """The plan of the job was not carried out within its time."""

    code = "plan_timeout"
    retryable = False


class JobTimedOut(TimedOut):
    """The job did not end within its time."""

    code = "job_timeout"
    retryable = False


class HumanWaitTimedOut(TimedOut):
    """Nobody answered what a step asked within its time."""

    code = "human_wait_timeout"
    retryable = False


class WorkerLost(ExecutionFailed):
    """The worker that ran the attempt died or lost its lease."""

    code = "worker_lost"
    retryable = True


class OwnershipLost(ExecutionFailed):
    """A tool asked, just before its effect, and its attempt was no longer the owner of the step, or nobody knew."""

    code = "ownership_lost"
    retryable = True


class InvalidArguments(ExecutionFailed):
    """The resolved arguments do not satisfy the tool's input schema, or what an agent is asked not its action."""

    code = "invalid_arguments"


class InvalidOutput(ExecutionFailed):
    """The result does not satisfy the declared output schema, is no JSON, or is too large."""

    code = "invalid_output"


class AuthFailed(ExecutionFailed):
    """A credential was missing or refused by the other side."""

    code = "auth"


class PolicyDenied(ExecutionFailed):
    """A rule forbids the call: a private address, a limit, an operator's choice."""

    code = "policy"


class UnknownTool(ExecutionFailed):
    """No running worker offers the tool."""

    code = "unknown_tool"


class UnknownAgent(ExecutionFailed):
    """There is no agent of this name, or it is retired."""

    code = "unknown_agent"


class DepthExceeded(ExecutionFailed):
    """A child job would be nested more deeply than the limits allow."""

    code = "depth_exceeded"


class BudgetExceeded(ExecutionFailed):
    """The tree of jobs has used up the tokens, money, model calls or steps that it may."""

    code = "budget_exceeded"


class ToolFailed(ExecutionFailed):
    """The tool reports that it could not do what was asked (MCP `isError`, or `ToolError` in Python)."""

    code = "tool_error"


class ModelRefused(ExecutionFailed):
    """The provider will not answer this request: unknown model, context too long, filtered content, quota used up."""

    code = "model_refused"


class Cancelled(ExecutionFailed):
    """The call was cut off because the job that it was made for had ended."""

    code = "cancelled"


class OutcomeUnknown(ExecutionFailed):
    """An `unsafe` call was interrupted: whether its effect happened is not known, so it is not repeated."""

    code = "outcome_unknown"


class InternalFault(ExecutionFailed):
    """A defect: an exception that nothing foresaw."""

    code = "internal"


class Unavailable(PlanqError):
    """Something that planq stands on does not answer now; the same request may succeed later."""

    code = "unavailable"
    retryable = True


class DatabaseUnavailable(Unavailable):
    """PostgreSQL refuses or drops connections."""

    code = "database_unavailable"


class BrokerUnavailable(Unavailable):
    """The broker refuses or drops connections."""

    code = "broker_unavailable"


class StorageUnavailable(Unavailable):
    """What holds the bytes of a large output refuses, does not answer, or does not have them."""

    code = "storage_unavailable"


class Misconfigured(PlanqError):
    """The process cannot start as configured; the message names the place and what to do."""

    code = "misconfigured"


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """An error as it is stored and shown: `{code, message, retryable, details}`.

    `message` may quote text of tools or models; it is data and is never parsed again.
    """

    code: str
    message: str
    retryable: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, error: BaseException) -> ErrorRecord:
        """Describe any exception; one that is not ours becomes `internal` with its type named."""
        if isinstance(error, PlanqError):
            return cls(error.code, error.message, error.retryable, dict(error.details))
        return cls(InternalFault.code, capped(f"{type(error).__name__}: {error}"))

    def to_json(self) -> dict[str, Any]:
        """Return the stored form."""
        return {
            "code": self.code,
            "message": self.message,
            "retryable": self.retryable,
            "details": dict(self.details),
        }
