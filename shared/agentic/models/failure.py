"""The kind of failure of a model call, for counters and filters."""

from __future__ import annotations

from enum import StrEnum

from planq.shared.platform import errors


class ErrorClass(StrEnum):
    """The kinds of failures of the message flow."""

    NETWORK = "network"  # nobody there, or not in time: also a provider that fails by itself
    RATE_LIMIT = "rate_limit"
    AUTH_ERROR = "auth_error"
    API_ERROR = "api_error"  # the provider refused the request, or its answer cannot be read
    UNKNOWN = "unknown"


_CLASSES: dict[ErrorClass, tuple[type[errors.PlanqError], ...]] = {
    ErrorClass.NETWORK: (errors.Transient, errors.Unreached, errors.TimedOut, errors.FirstTokenTimedOut),
    ErrorClass.RATE_LIMIT: (errors.RateLimited,),
    ErrorClass.AUTH_ERROR: (errors.AuthFailed,),
    ErrorClass.API_ERROR: (
        errors.ModelRefused,
        errors.ContextExceeded,
        errors.InvalidOutput,
        errors.UnreadableReply,
    ),
}
_BY_CODE = {kind.code: name for name, kinds in _CLASSES.items() for kind in kinds}


def error_class(code: str) -> ErrorClass:
    return _BY_CODE.get(code, ErrorClass.UNKNOWN)
