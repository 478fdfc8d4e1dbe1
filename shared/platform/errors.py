"""Every error that planq raises on purpose; docs/errors.md lists them all.

    PlanqError
    ├── RequestRefused    the caller must change the request (HTTP 4xx)
    ├── ExecutionFailed   a step or a stage ended without its result
    ├── Unavailable       try again later (HTTP 503)
    └── Misconfigured     the process refuses to start, and says where

`code` is stable and part of the API; `retryable` is for `retry.py`. Who puts others' text into a message caps it.
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


def capped(text: str, limit: int = MAX_MESSAGE_CHARS) -> str:
    """Return `text` as storable Unicode, cut to `limit` characters with a mark that says how much is missing."""
    text = storable(text)
    return text if len(text) <= limit else f"{text[:limit]}… [{len(text) - limit} more characters]"


AGENT_TIMEOUTS = frozenset(
    {"timeout", "first_token_timeout", "queue_timeout", "plan_timeout", "job_timeout", "human_wait_timeout"}
)
"""Codes of jobs and steps that ran out of time; an agent's caller gets `timeout` for all of them."""


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
    """A field is missing, unknown, of the wrong type or out of range.

    To do: correct what `errors` names.
    """


class PlanInvalid(RequestRefused):
    """The plan has defects.

    To do: correct all that `errors` lists, in the shape of `validation.PlanError.to_json`.
    """

    code = "plan_invalid"

    def __init__(self, message: str, errors: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(message, errors=list(errors))
        self.errors = list(errors)


class Unauthorized(RequestRefused):
    """No key, or a wrong one.

    To do: send `Authorization: Bearer <key>`.
    """

    code = "unauthorized"
    status = 401


class TenantRequired(RequestRefused):
    """A message names no tenant.

    To do: send `tenant_id`, the tenant of the key.
    """

    code = "tenant_required"
    status = 400


class ForeignTenant(RequestRefused):
    """A message names another tenant than that of the key it came with.

    To do: correct `tenant_id`, or send it with that tenant's key.
    """

    code = "foreign_tenant"
    status = 403


class NotAsked(RequestRefused):
    """A question is asked of somebody else: of an operator, of other persons, or of the one for whom the job is done.

    To do: have those answer it; an operator needs a key with the scope `approve` or `admin`.
    """

    code = "not_asked"
    status = 403


class NotFound(RequestRefused):
    """There is no such thing, or not for this tenant.

    To do: look at the id.
    """

    code = "not_found"
    status = 404


class Conflict(RequestRefused):
    """The thing exists, and its present state forbids the request.

    To do: look at it again; the message says what is possible.
    """

    code = "conflict"
    status = 409


class SecretInChat(RequestRefused):
    """A question asks for a secret, which a chat would keep.

    To do: answer it in planq's inbox (`/ui/elicitations`) or with `planq answer`; a message may decline or cancel it.
    """

    code = "secret_in_chat"
    status = 409


class Erased(RequestRefused):
    """What is asked for was there, and a person had it erased.

    To do: nothing brings it back.
    """

    code = "erased"
    status = 410


class TooLarge(RequestRefused):
    """A body, an input or a plan exceeds its limit.

    To do: send less, or raise the limit.
    """

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
    """A connection broke, the other side answered 5xx, a passing fault.

    To do: if it stays, look at the other side; of a job, `details` tell how often its model was tried.
    """

    code = "transient"
    retryable = True


class Unreached(Transient):
    """No connection to a tool's other side: nothing was sent, so nothing happened.

    To do: start the other side, or correct its address.
    """

    code = "unreached"


class UnreadableReply(Transient):
    """A model's reply is empty, breaks off in order, or reports an error of the provider in the place of its end.

    To do: read the provider's words in the message; the stage is asked a few times, not for as long as an outage.
    """

    code = "unreadable_reply"


class RateLimited(ExecutionFailed):
    """The other side wants fewer calls, or a longer wait than there is time for.

    To do: wait, run fewer workers, or get a higher quota.
    """

    code = "rate_limited"
    retryable = True

    def __init__(self, message: str, retry_after: timedelta | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.retry_after = retry_after


class HostBusy(RateLimited):
    """A tenant has 16 requests to one host under way in this worker; nothing was sent.

    To do: ask the host for less at once, or find out why it answers slowly.
    """

    code = "host_busy"


class TimedOut(ExecutionFailed):
    """A call of a tool or a model took too long; or an agent that was called, whichever time it ran out of
    (`details.cause`).

    To do: set a longer `timeout_seconds`, or do less at once.
    """

    code = "timeout"
    retryable = True


class FirstTokenTimedOut(TimedOut):
    """The model began no answer in time.

    To do: take another model, or allow a longer time.
    """

    code = "first_token_timeout"


class TooSlow(TimedOut):
    """A host sends a body more slowly than 1 000 bytes a second, and is read no further.

    To do: take another source.
    """

    code = "too_slow"


class QueueTimedOut(TimedOut):
    """No worker began the job in time.

    To do: start `io` workers; submit again, or resume.
    """

    code = "queue_timeout"
    retryable = False


class PlanTimedOut(TimedOut):
    """The steps did not end in time.

    To do: set a longer plan timeout, then resume.
    """

    code = "plan_timeout"
    retryable = False


class JobTimedOut(TimedOut):
    """The job as a whole did not end in time.

    To do: set a longer job timeout, then resume.
    """

    code = "job_timeout"
    retryable = False


class HumanWaitTimedOut(TimedOut):
    """Nobody answered a step's question in time.

    To do: find out, then resume or fork.
    """

    code = "human_wait_timeout"
    retryable = False


class WorkerLost(ExecutionFailed):
    """The worker of the attempt died; for good after `PLANQ_MAX_WORKER_LOSSES` in which the step was alone.

    To do: see why workers die with this step: `details` count losses and attempts.
    """

    code = "worker_lost"
    retryable = True


class JobDeleted(ExecutionFailed):
    """Somebody deleted the job of a batch's line in the database before it had ended.

    To do: `planq batch retry` makes a new job of the line; to stop a job, cancel it.
    """

    code = "job_deleted"
    retryable = True


class OwnershipLost(ExecutionFailed):
    """A tool asked just before its effect (`confirm`), and its attempt was no longer the owner of the step, or that
    could not be told.

    To do: nothing; if it stays, see why workers lose their leases.
    """

    code = "ownership_lost"
    retryable = True


class InvalidArguments(ExecutionFailed):
    """The resolved arguments break the tool's input schema; or an agent cannot be asked so: it has no such
    `action`, or `with` breaks its schema.

    To do: correct the plan, or what `errors` names; the message names the reference.
    """

    code = "invalid_arguments"


class InvalidOutput(ExecutionFailed):
    """The output breaks its schema or is too large.

    To do: correct the tool.
    """

    code = "invalid_output"


class AuthFailed(ExecutionFailed):
    """A credential is missing or was refused.

    To do: correct the credential.
    """

    code = "auth"


class PolicyDenied(ExecutionFailed):
    """A rule forbids the call.

    To do: read the message, which names the rule.
    """

    code = "policy"


class TooManyQuestions(ExecutionFailed):
    """A step asks a person, and as many questions of its tenant are open as may be (`max_open_questions`).

    To do: answer or decline some, or ask an operator for more.
    """

    code = "too_many_questions"


class StorageFull(ExecutionFailed):
    """A tenant would keep more bytes of large outputs and artifacts than it may (`max_stored_bytes`).

    To do: keep jobs for a shorter time, or ask an operator for more.
    """

    code = "storage_full"


class UnknownTool(ExecutionFailed):
    """No live worker of the step's pool has offered the tool for `PLANQ_TOOL_WAIT_SECONDS`, or none ever has.

    To do: start a worker that loads it, then resume the job.
    """

    code = "unknown_tool"


class UnknownAgent(ExecutionFailed):
    """No agent of that name is in use.

    To do: store it (`planq agents apply`), or name another.
    """

    code = "unknown_agent"


class DepthExceeded(ExecutionFailed):
    """Agents call agents more deeply than `orchestrate_max_depth`.

    To do: let the outer ones do more themselves.
    """

    code = "depth_exceeded"


class BudgetExceeded(ExecutionFailed):
    """The tree of jobs has used up its budget, or an agent its own `limits`.

    To do: submit it again with a larger one; for a message, raise the `budget` of its tenant, or ask for less.
    """

    code = "budget_exceeded"


class ToolFailed(ExecutionFailed):
    """The tool says that it could not do it.

    To do: read the message, which is the tool's.
    """

    code = "tool_error"


class ModelRefused(ExecutionFailed):
    """The provider does not take this request.

    To do: read the message: it names model, quota or content.
    """

    code = "model_refused"


class ProviderBatchFailed(ExecutionFailed):
    """The provider's batch brought no reply for this line: it expired, was cancelled, or failed.

    To do: read the message, then `planq batch retry ID`, which sends the line in another provider's batch.
    """

    code = "provider_batch_failed"


class ContextExceeded(ExecutionFailed):
    """What the model would be sent is longer than it can read.

    To do: send less, lower `history_tokens`, or use a model with more room.
    """

    code = "context_exceeded"


class AnswerIncomplete(ExecutionFailed):
    """The answer was cut off: by a limit of tokens, a filter, or a refusal. What there is of it is the job's answer.

    To do: read `reason` in `details`: raise `max_tokens`, send less, or set `on_incomplete`.
    """

    code = "answer_incomplete"


class Aborted(ExecutionFailed):
    """The job's planner ended it: its plan held a step of the kind `abort`.

    To do: read the reason in the message, and what its steps have found.
    """

    code = "aborted"


class Cancelled(ExecutionFailed):
    """The call was cut off because its job had ended, or a person cancelled what the step asked.

    To do: no action; submit again if you want it.
    """

    code = "cancelled"


class AnswerDeclined(ExecutionFailed):
    """A person declined the question or the approval of a step; the message has the reason that they gave.

    To do: resume or fork, which asks anew, or go without.
    """

    code = "declined"


class OutcomeUnknown(ExecutionFailed):
    """An `unsafe` call may or may not have taken effect.

    To do: find out, then resume or fork with `repeat_unsafe`, or fork with a plan that goes without.
    """

    code = "outcome_unknown"


class InternalFault(ExecutionFailed):
    """A defect of planq or of a tool.

    To do: read the cause, by `planq traceback JOB STEP` or in the worker's log.
    """

    code = "internal"


class Unavailable(PlanqError):
    """Something that planq stands on does not answer.

    To do: try again later.
    """

    code = "unavailable"
    retryable = True


class DatabaseUnavailable(Unavailable):
    """PostgreSQL does not answer.

    To do: try again later; work goes on when it is back.
    """

    code = "database_unavailable"


class BrokerUnavailable(Unavailable):
    """The broker does not answer.

    To do: try again later; nothing is lost.
    """

    code = "broker_unavailable"


class StorageUnavailable(Unavailable):
    """What holds a large output does not answer, does not have it, or has it damaged; `place` says where.

    To do: try again later; check `PLANQ_PAYLOADS`; a job with the same output stores it again.
    """

    code = "storage_unavailable"


class Misconfigured(PlanqError):
    """The process cannot start as configured.

    To do: read the message, which names the place.
    """

    code = "misconfigured"


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """An error as it is stored and shown. `message` may quote tools or models; it is never parsed again."""

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
        known = {"code": self.code, "message": self.message, "retryable": self.retryable}
        return {**known, "details": dict(self.details)}
