"""Every error that planq raises on purpose; docs/errors.md lists them all.

    PlanqError
    ├── RequestRefused    the caller must change the request (HTTP 4xx)
    ├── ExecutionFailed   a step or a stage ended without its result
    ├── Unavailable       try again later (HTTP 503)
    └── Misconfigured     the process refuses to start, and says where

`code` is stable and part of the API; `retry.py` reads `retryable`. Callers cap foreign text in messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

MAX_MESSAGE_CHARS = 2_000
"""Maximum length of an error message; the cut is marked."""


def storable(text: str) -> str:
    """Replace what neither UTF-8 nor PostgreSQL can store (lone surrogates, NUL) by U+FFFD."""
    if "\x00" not in text and text.isascii():
        return text
    return text.replace("\x00", "\ufffd").encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def capped(text: str, limit: int = MAX_MESSAGE_CHARS) -> str:
    """Return `text` as storable Unicode, cut to `limit` characters with a mark."""
    text = storable(text)
    return text if len(text) <= limit else f"{text[:limit]}… [{len(text) - limit} more characters]"


AGENT_TIMEOUTS = frozenset(
    {"timeout", "first_token_timeout", "queue_timeout", "plan_timeout", "job_timeout", "human_wait_timeout"}
)
"""Codes that an agent's caller sees as `timeout`."""


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
    """The request is refused, and nothing was changed."""

    code = "invalid_request"
    status: ClassVar[int] = 422


class InvalidRequest(RequestRefused):
    """A field is missing, unknown, of the wrong type or out of range. To do: correct what `errors` names."""


class PlanInvalid(RequestRefused):
    """The plan has defects. To do: correct all that `errors` lists (`PlanError.to_json`)."""

    code = "plan_invalid"

    def __init__(self, message: str, errors: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(message, errors=list(errors))
        self.errors = list(errors)


class Unauthorized(RequestRefused):
    """No key, or a wrong one. To do: send `Authorization: Bearer <key>`."""

    code = "unauthorized"
    status = 401


class TenantRequired(RequestRefused):
    """A message names no tenant. To do: send `tenant_id`, the tenant of the key."""

    code = "tenant_required"
    status = 400


class ForeignTenant(RequestRefused):
    """The key belongs to another tenant. To do: correct `tenant_id`, or use that tenant's key."""

    code = "foreign_tenant"
    status = 403


class NotAsked(RequestRefused):
    """The question is addressed to another person, or to an operator.

    To do: let the addressee answer; an operator needs a key with the scope `approve` or `admin`.
    """

    code = "not_asked"
    status = 403


class NotFound(RequestRefused):
    """It does not exist, or not for this tenant. To do: check the id."""

    code = "not_found"
    status = 404


class Conflict(RequestRefused):
    """The present state forbids the request. To do: read the state again; the message says what is possible."""

    code = "conflict"
    status = 409


class SecretInChat(RequestRefused):
    """A question asks for a secret, and a chat would keep the answer.

    To do: answer in the inbox (`/ui/elicitations`) or with `planq answer`; a message may decline or cancel it.
    """

    code = "secret_in_chat"
    status = 409


class Erased(RequestRefused):
    """A person had this erased. To do: nothing, it cannot be restored."""

    code = "erased"
    status = 410


class TooLarge(RequestRefused):
    """A body, an input or a plan exceeds its limit. To do: send less, or raise the limit."""

    code = "too_large"
    status = 413


class ExecutionFailed(PlanqError):
    """A step or a stage ended without its result."""

    code = "internal"
    retry_after: timedelta | None = None
    """The wait that the other side asks for, None when it asks for none."""
    traceback: str = ""
    """Where in the code of a tool its exception came from; empty for what no exception of a tool led to."""


class Transient(ExecutionFailed):
    """The connection broke, or the other side answered 5xx.

    To do: if it repeats, check the other side; for a model, `details` count the tries.
    """

    code = "transient"
    retryable = True


class Unreached(Transient):
    """No connection to the other side; nothing was sent. To do: start it, or correct its address."""

    code = "unreached"


class UnreadableReply(Transient):
    """A model's reply is empty, ends too early, or reports an error of the provider.

    To do: read the provider's words in the message; the stage is retried a few times only.
    """

    code = "unreadable_reply"


class RateLimited(ExecutionFailed):
    """The other side wants fewer calls or a longer wait. To do: wait, run fewer workers, or raise the quota."""

    code = "rate_limited"
    retryable = True

    def __init__(self, message: str, retry_after: timedelta | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.retry_after = retry_after


class HostBusy(RateLimited):
    """A tenant has 16 requests to one host in flight in this worker; nothing was sent.

    To do: send fewer requests at once, or find out why the host is slow.
    """

    code = "host_busy"


class TimedOut(ExecutionFailed):
    """A call of a tool, a model or an agent took too long (`details.cause` says which limit of an agent).

    To do: set a longer `timeout_seconds`, or do less at once.
    """

    code = "timeout"
    retryable = True


class FirstTokenTimedOut(TimedOut):
    """The model began no answer in time. To do: take another model, or allow a longer time."""

    code = "first_token_timeout"


class TooSlow(TimedOut):
    """A host sends a body at less than 1 000 bytes a second. To do: use another source."""

    code = "too_slow"


class QueueTimedOut(TimedOut):
    """No worker began the job in time. To do: start `io` workers; submit again, or resume."""

    code = "queue_timeout"
    retryable = False


class PlanTimedOut(TimedOut):
    """The steps did not end in time. To do: set a longer plan timeout, then resume."""

    code = "plan_timeout"
    retryable = False


class JobTimedOut(TimedOut):
    """The job as a whole did not end in time. To do: set a longer job timeout, then resume."""

    code = "job_timeout"
    retryable = False


class HumanWaitTimedOut(TimedOut):
    """Nobody answered a step's question in time. To do: find out, then resume or fork."""

    code = "human_wait_timeout"
    retryable = False


class WorkerLost(ExecutionFailed):
    """The attempt's worker died; final after `PLANQ_MAX_WORKER_LOSSES` losses with no other step.

    To do: find out why workers die with this step; `details` count losses and attempts.
    """

    code = "worker_lost"
    retryable = True


class JobDeleted(ExecutionFailed):
    """The job of a batch's line was deleted in the database before it ended.

    To do: `planq batch retry` makes a new job of the line; to stop a job, cancel it.
    """

    code = "job_deleted"
    retryable = True


class OwnershipLost(ExecutionFailed):
    """At `confirm`, the attempt no longer owned its step, or ownership could not be checked.

    To do: nothing; if it repeats, find out why workers lose their leases.
    """

    code = "ownership_lost"
    retryable = True


class InvalidArguments(ExecutionFailed):
    """The arguments break the tool's schema, or an agent lacks the `action` or refuses `with`.

    To do: correct the plan, or what `errors` names; the message names the reference.
    """

    code = "invalid_arguments"


class InvalidOutput(ExecutionFailed):
    """The output breaks its schema or is too large. To do: correct the tool."""

    code = "invalid_output"


class AuthFailed(ExecutionFailed):
    """A credential is missing or was refused. To do: correct the credential."""

    code = "auth"


class PolicyDenied(ExecutionFailed):
    """A rule forbids the call. To do: read the message, which names the rule."""

    code = "policy"


class TooManyQuestions(ExecutionFailed):
    """The tenant has reached its `max_open_questions`. To do: answer or decline some, or raise the limit."""

    code = "too_many_questions"


class StorageFull(ExecutionFailed):
    """The tenant has reached its `max_stored_bytes`. To do: keep jobs for a shorter time, or raise the limit."""

    code = "storage_full"


class UnknownTool(ExecutionFailed):
    """No live worker of the step's pool has offered the tool for `PLANQ_TOOL_WAIT_SECONDS`.

    To do: start a worker that loads it, then resume the job.
    """

    code = "unknown_tool"


class UnknownAgent(ExecutionFailed):
    """No agent of that name is in use. To do: store it (`planq agents apply`), or name another."""

    code = "unknown_agent"


class DepthExceeded(ExecutionFailed):
    """Agents call agents more deeply than `orchestrate_max_depth`. To do: let the outer ones do more themselves."""

    code = "depth_exceeded"


class BudgetExceeded(ExecutionFailed):
    """The tree of jobs has used up its budget, or an agent its own `limits`.

    To do: submit again with a larger budget; for a message, raise the tenant's `budget`, or ask for less.
    """

    code = "budget_exceeded"


class ToolFailed(ExecutionFailed):
    """The tool says that it could not do it. To do: read the message, which is the tool's."""

    code = "tool_error"


class ModelRefused(ExecutionFailed):
    """The provider does not take this request. To do: read the message: it names model, quota or content."""

    code = "model_refused"


class ProviderBatchFailed(ExecutionFailed):
    """The provider's batch returned no reply for this line: expired, cancelled or failed.

    To do: read the message, then `planq batch retry ID`, which sends the line again.
    """

    code = "provider_batch_failed"


class ContextExceeded(ExecutionFailed):
    """The request exceeds the model's context window.

    To do: send less, lower `history_tokens`, or use a model with a larger window.
    """

    code = "context_exceeded"


class AnswerIncomplete(ExecutionFailed):
    """The answer was cut off by a token limit, a filter or a refusal; the job keeps the part.

    To do: read `reason` in `details`: raise `max_tokens`, send less, or set `on_incomplete`.
    """

    code = "answer_incomplete"


class Aborted(ExecutionFailed):
    """The planner ended the job with a step of the kind `abort`. To do: read the reason and the results."""

    code = "aborted"


class Cancelled(ExecutionFailed):
    """The job ended, or a person cancelled the step's question. To do: nothing, or submit again."""

    code = "cancelled"


class AnswerDeclined(ExecutionFailed):
    """A person declined the step's question or approval; the message contains the reason.

    To do: resume or fork, which asks again, or go without.
    """

    code = "declined"


class OutcomeUnknown(ExecutionFailed):
    """An `unsafe` call may or may not have taken effect.

    To do: find out, then resume or fork with `repeat_unsafe`, or fork with a plan that goes without.
    """

    code = "outcome_unknown"


class InternalFault(ExecutionFailed):
    """A defect of planq or of a tool. To do: read the cause, by `planq traceback JOB STEP` or in the worker's log."""

    code = "internal"


class Unavailable(PlanqError):
    """A service that planq needs does not answer. To do: try again later."""

    code = "unavailable"
    retryable = True


class DatabaseUnavailable(Unavailable):
    """PostgreSQL does not answer. To do: try again later; work goes on when it is back."""

    code = "database_unavailable"


class BrokerUnavailable(Unavailable):
    """The broker does not answer. To do: try again later; nothing is lost."""

    code = "broker_unavailable"


class StorageUnavailable(Unavailable):
    """A large output's store does not answer, lacks it, or has it damaged (`place`).

    To do: try again later; check `PLANQ_PAYLOADS`; a job with the same output stores it again.
    """

    code = "storage_unavailable"


class Misconfigured(PlanqError):
    """The process cannot start as configured. To do: read the message, which names the place."""

    code = "misconfigured"


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """A stored error. `message` may quote tools or models and is never parsed."""

    code: str
    message: str
    retryable: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, error: BaseException) -> ErrorRecord:
        """Describe any exception; a foreign one becomes `internal` with its type."""
        if isinstance(error, PlanqError):
            return cls(error.code, error.message, error.retryable, dict(error.details))
        return cls(InternalFault.code, capped(f"{type(error).__name__}: {error}"))

    def to_json(self) -> dict[str, Any]:
        known = {"code": self.code, "message": self.message, "retryable": self.retryable}
        return {**known, "details": dict(self.details)}
