"""What a person in a conversation is told of an error: a plain sentence, never the words of a tool or a provider.

Those words may name tenants, hosts or keys. Whoever runs planq finds them with the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planq.shared.platform import errors

NO_DATA = "Unable to retrieve data"
UNAVAILABLE = "The assistant is not available at the moment. Please try again later."
BEYOND_CONTEXT = "This is more than I can read at once. Please send less, or begin a new conversation."
TOO_LONG = "This took too long. Please try again."
BEYOND_BUDGET = "This needs more than is allowed here. Please ask for less at once."
STOPPED = "This request was stopped."
NOT_POSSIBLE = "Something went wrong. Please try again later."

_SENTENCES: tuple[tuple[str, tuple[type[errors.PlanqError], ...]], ...] = (
    (
        NO_DATA,
        (
            errors.ToolFailed,
            errors.UnknownTool,
            errors.InvalidArguments,
            errors.InvalidOutput,
            errors.PolicyDenied,
            errors.OutcomeUnknown,
        ),
    ),
    (
        UNAVAILABLE,
        (
            errors.Transient,
            errors.Unreached,
            errors.UnreadableReply,
            errors.RateLimited,
            errors.HostBusy,
            errors.AuthFailed,
            errors.ModelRefused,
            errors.WorkerLost,
        ),
    ),
    (BEYOND_BUDGET, (errors.BudgetExceeded,)),
    (BEYOND_CONTEXT, (errors.ContextExceeded,)),
    (STOPPED, (errors.Aborted, errors.Cancelled, errors.AnswerDeclined)),
)
_BY_CODE = {kind.code: sentence for sentence, kinds in _SENTENCES for kind in kinds}


def user_message(code: str) -> str:
    return TOO_LONG if code in errors.AGENT_TIMEOUTS else _BY_CODE.get(code, NOT_POSSIBLE)


def outbound_text(text: str, metadata: Any) -> str:
    """Return what an outbound message says: its text, or the sentence for the `error_code` that stands beside it."""
    code = metadata.get("error_code") if isinstance(metadata, Mapping) else None
    return text if text or code is None else user_message(code)


def user_message_for_step(code: str) -> str:
    """Return the sentence for the error of a step: whatever went wrong with a tool, its data is missing."""
    return STOPPED if code == errors.Cancelled.code else NO_DATA
