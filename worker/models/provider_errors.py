"""The one table from the providers' exceptions to ours (`shared/platform/errors.py`).

pydantic-ai (2.68, `exceptions.py`) already sorts every provider's errors into categories; the table names ours for
each. The first row that fits wins, so specific classes are above general ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta

from httpx2 import HTTPError, TimeoutException
from pydantic import ValidationError
from pydantic_ai import exceptions as foreign

from planq.shared.platform.errors import (
    AuthFailed,
    ContextExceeded,
    ExecutionFailed,
    FirstTokenTimedOut,
    InvalidOutput,
    ModelRefused,
    RateLimited,
    TimedOut,
    Transient,
    UnreadableReply,
)
from planq.shared.platform.redact import pattern_of, redacted, without_key
from planq.worker.egress import BodyDamaged, BodyRefused
from planq.worker.models.http_client import NoReply
from planq.worker.models.reading.faults import fault_in

FOREIGN: tuple[type[Exception], ...] = (
    foreign.AgentRunError,
    foreign.UserError,
    BodyRefused,
    HTTPError,
    ValidationError,
    # What the SDKs raise on a well-formed JSON body that is not of their provider's form.
    AttributeError,
    KeyError,
    IndexError,
    TypeError,
    ValueError,
    ArithmeticError,
    RuntimeError,  # a reply that is nested too deeply (RecursionError), a kind of tool call that was never offered
)
"""Everything that a call through pydantic-ai is known to raise; anything else is a defect and passes through."""

_LONGEST_WAIT_SECONDS = 86_400.0
"""A server may ask for any number; beyond a day they all mean the same."""

_Translation = Callable[[str, Exception], ExecutionFailed]


def _always(kind: Callable[[str], ExecutionFailed]) -> _Translation:
    return lambda message, _: kind(message)


def _limited(message: str, error: Exception) -> ExecutionFailed:
    seconds = getattr(error, "retry_after", None)
    wait = None if seconds is None else timedelta(seconds=min(max(0.0, float(seconds)), _LONGEST_WAIT_SECONDS))
    return RateLimited(message, wait)


def _unavailable(message: str, error: Exception) -> ExecutionFailed:
    return _limited(message, error) if getattr(error, "retry_after", None) is not None else Transient(message)


def _by_status(message: str, error: Exception) -> ExecutionFailed:
    status = getattr(error, "status_code", 0)
    return _unavailable(message, error) if status >= 500 or status in {408, 409, 425} else ModelRefused(message)


def _timed_out(message: str, error: Exception) -> ExecutionFailed:
    if getattr(error, "setting", "") == "first_event_timeout":
        return FirstTokenTimedOut(
            f"{message}. Raise `first_token_seconds` of this model in PLANQ_MODEL_SETTINGS or in the agent's"
            " `model_settings` if it thinks in silence for longer"
        )
    return TimedOut(message)


_refused, _transient, _unreadable = _always(ModelRefused), _always(Transient), _always(UnreadableReply)

_OTHER = "the model's reply is not of the provider's form"
_NO_ROOM = "the request is too long for the model"

_TOO_LONG = (
    "contextwindowexceeded",
    "context_length_exceeded",
    "maximum context length",
    "context window",
    "prompt is too long",
    "input is too long",
)
"""Words of a refusal for length: gateways (LiteLLM) repeat a provider's text with their own code."""

_TABLE: tuple[tuple[type[Exception], str, _Translation], ...] = (
    (foreign.ModelRateLimitError, "the model provider limits the rate of calls", _limited),
    (foreign.ModelQuotaExceededError, "the quota or credit with the model provider is used up", _refused),
    (foreign.ModelTimeoutError, "the model did not answer in time", _timed_out),
    (foreign.ModelRequestTimeout, "the model did not answer in time", _timed_out),
    (foreign.ModelConnectionError, "the model provider cannot be reached", _transient),
    (foreign.ModelUnavailableError, "the model provider is overloaded or down", _unavailable),
    (foreign.ModelServerError, "the model provider failed", _unavailable),
    (foreign.ModelAuthenticationError, "the model provider refused the API key; check it", _always(AuthFailed)),
    (foreign.ModelNotFoundError, "the provider knows no such model, or its address is wrong", _refused),
    (foreign.ModelContextWindowExceededError, _NO_ROOM, _always(ContextExceeded)),
    (foreign.ModelRequestRejectedError, "the model provider rejected the request", _refused),
    (foreign.ModelHTTPError, "the model provider answered with an error", _by_status),
    (foreign.ContentFilterError, "the provider's content filter stopped the model", _refused),
    (foreign.ModelAPIError, "the model provider's answer cannot be read", _unreadable),
    (foreign.AgentRunError, _OTHER, _unreadable),
    (foreign.UserError, "the request does not suit the model", _refused),
    (TimeoutException, "the model did not answer in time", _timed_out),
    (HTTPError, "the model provider cannot be reached", _transient),
)


def _words(error: Exception) -> str:
    detail = str(error) or type(error).__name__
    body = getattr(error, "body", None)
    fault = fault_in({"error": body}, has_choice=True) if isinstance(body, (str, Mapping)) else None
    return detail if fault is None or fault.message in detail else f"{detail}: {fault.message}"


def translated(error: Exception, *, secret: str) -> ExecutionFailed:
    """Return our error for one of `FOREIGN`, without `secret` (the API key) and credentials of addresses."""
    detail = _words(error)
    cause: BaseException | None = error
    while cause is not None:  # the SDKs wrap it into a connection error
        if isinstance(cause, NoReply):
            return UnreadableReply(f"the server answered with {without_key(str(cause), secret)}")
        if isinstance(cause, BodyDamaged):
            return Transient(f"the model's reply is damaged: {cause}")
        if isinstance(cause, BodyRefused):
            return InvalidOutput(f"the model's reply cannot be taken: {cause}")
        if isinstance(cause, HTTPError) and str(cause) and cause is not error:
            detail = f"{detail} ({type(cause).__name__}: {cause})"
        cause = cause.__cause__
    if secret:
        detail = pattern_of([secret]).sub("[API key]", detail)
    detail = redacted("".join(char if char.isprintable() else " " for char in detail))
    is_vague = isinstance(error, foreign.ModelRequestRejectedError) or type(error) is foreign.ModelAPIError
    if is_vague and any(words in detail.lower() for words in _TOO_LONG):
        return ContextExceeded(f"{_NO_ROOM}: {detail}")
    for category, meaning, ours in _TABLE:
        if isinstance(error, category):
            return ours(f"{meaning}: {detail}", error)
    return UnreadableReply(f"{_OTHER}: {type(error).__name__}: {detail}")
