"""When a failed step is tried again, and how long it waits (readings row 10).

Exponential backoff with full jitter (Brooker, "Exponential Backoff and Jitter", AWS 2015): the delay is drawn from
zero to the exponential bound, so that steps which failed together do not return together. The draw is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from shared.domain.errors import (
    AuthFailed,
    ErrorRecord,
    InvalidArguments,
    PolicyDenied,
    RateLimited,
    ToolFailed,
    UnknownTool,
)
from shared.domain.states import Effect, StepStatus

_WITHOUT_EFFECT = frozenset({RateLimited.code, ToolFailed.code})
"""Retryable errors after which an unsafe call is known not to have taken effect."""

_NEVER_MADE = frozenset({AuthFailed.code, InvalidArguments.code, PolicyDenied.code, UnknownTool.code})
"""Errors of calls that were refused before they could take effect."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounds of the wait between two attempts."""

    base: timedelta = timedelta(seconds=0.5)
    cap: timedelta = timedelta(seconds=60)

    def delay_before(self, attempt: int, jitter: float) -> timedelta:
        """Return the wait before `attempt` (2 is the first retry); `jitter` is a uniform draw from [0, 1)."""
        if attempt < 2:
            return timedelta(0)
        exponent = min(attempt - 2, 30)
        return min(self.cap, self.base * float(2**exponent)) * jitter


def retry_delay(
    error: ErrorRecord,
    *,
    effect: Effect,
    attempt: int,
    retries: int,
    jitter: float,
    policy: RetryPolicy | None = None,
    retry_after: timedelta | None = None,
) -> timedelta | None:
    """Return how long to wait before the next attempt, or None when the step has failed for good.

    None when the error is not retryable, when `attempt` was the last of `1 + retries`, or when an `unsafe` call broke
    off and its effect may have happened: such a call is repeated only where the other side refused it (a rate limit)
    or the tool itself says that it may be. `retry_after`, the other side's wish, is a floor. Attempts cut off by
    a lost worker are judged by `runs_again_after_loss` and do not count in `attempt`.
    """
    if not error.retryable or attempt > retries:
        return None
    if effect is Effect.UNSAFE and error.code not in _WITHOUT_EFFECT:
        return None
    delay = (policy or RetryPolicy()).delay_before(attempt + 1, jitter)
    return max(delay, retry_after) if retry_after is not None else delay


def runs_again_after_loss(effect: Effect, losses: int, max_losses: int) -> bool:
    """True when a step runs again after its worker was lost for the `losses`-th time.

    Never an `unsafe` one: its effect may have happened. Nothing runs again after `max_losses`: it may be what kills
    them.
    """
    return effect is not Effect.UNSAFE and losses < max_losses


def may_have_taken_effect(
    status: StepStatus, effect: Effect, error_code: str | None, *, is_begun: bool, is_unsure: bool
) -> bool:
    """True when a step without success may have done for good what must not be done twice.

    So it is with an `unsafe` call that was cut off with its job, or that ended by an error which does not say that
    nothing happened. `is_begun` says that an attempt has begun which was not given back; `is_unsure` that an earlier
    one may have taken effect.
    """
    if effect is not Effect.UNSAFE or status not in (StepStatus.FAILED, StepStatus.CANCELLED):
        return False
    return is_unsure or (is_begun and error_code not in _WITHOUT_EFFECT | _NEVER_MADE)
