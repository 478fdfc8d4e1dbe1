"""Retries: bounds, jitter, and what is never repeated."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.errors import (
    AuthFailed,
    ErrorRecord,
    HumanWaitTimedOut,
    InternalFault,
    InvalidArguments,
    InvalidOutput,
    OutcomeUnknown,
    PlanqError,
    PlanTimedOut,
    PolicyDenied,
    RateLimited,
    TimedOut,
    ToolFailed,
    Transient,
    UnknownTool,
    WorkerLost,
)
from shared.domain.retry import RetryPolicy, is_in_doubt, may_have_taken_effect, retry_delay
from shared.domain.states import Effect, StepStatus


@given(attempt=st.integers(1, 10_000), jitter=st.floats(0, 1, exclude_max=True))
def test_the_delay_stays_between_zero_and_the_cap(attempt: int, jitter: float) -> None:
    policy = RetryPolicy()
    assert timedelta(0) <= policy.delay_before(attempt, jitter) <= policy.cap


def test_the_bound_doubles_from_the_base() -> None:
    policy = RetryPolicy(base=timedelta(seconds=1), cap=timedelta(seconds=5))
    assert [policy.delay_before(n, 1.0).total_seconds() for n in (1, 2, 3, 4, 5)] == [0, 1, 2, 4, 5]


@pytest.mark.parametrize("error", [Transient("x"), RateLimited("x"), TimedOut("x")])
def test_retryable_errors_are_tried_again_until_the_retries_are_used_up(error: Exception) -> None:
    record = ErrorRecord.of(error)
    delays = [
        retry_delay(record, effect=Effect.READ, attempt=n, retries=2, jitter=0.5) is not None for n in (1, 2, 3)
    ]
    assert delays == [True, True, False]


@pytest.mark.parametrize(
    "error", [InvalidArguments("x"), InvalidOutput("x"), AuthFailed("x"), PolicyDenied("x"), ToolFailed("x")]
)
def test_other_errors_are_never_tried_again(error: Exception) -> None:
    assert retry_delay(ErrorRecord.of(error), effect=Effect.PURE, attempt=1, retries=5, jitter=0.5) is None


@pytest.mark.parametrize(
    ("error", "again"),
    [(TimedOut("x"), False), (Transient("x"), False), (WorkerLost("x"), False), (RateLimited("x"), True)],
)
def test_an_unsafe_call_is_repeated_only_where_it_cannot_have_taken_effect(error: Exception, again: bool) -> None:
    delay = retry_delay(ErrorRecord.of(error), effect=Effect.UNSAFE, attempt=1, retries=5, jitter=0.5)
    assert (delay is not None) is again


def test_the_other_sides_wish_is_a_floor() -> None:
    record = ErrorRecord.of(RateLimited("x"))
    wish = timedelta(seconds=7)
    delay = retry_delay(record, effect=Effect.READ, attempt=1, retries=1, jitter=0.0, retry_after=wish)
    assert delay == wish


FAILED, CANCELLED = StepStatus.FAILED, StepStatus.CANCELLED


@pytest.mark.parametrize(
    ("error", "may"),
    [
        (OutcomeUnknown("x"), True),
        (TimedOut("x"), True),
        (Transient("x"), True),
        (InvalidOutput("x"), True),
        (InternalFault("x"), True),
        (PlanTimedOut("x"), True),
        (HumanWaitTimedOut("x"), True),
        (ToolFailed("x"), False),
        (RateLimited("x"), False),
        (InvalidArguments("x"), False),
        (AuthFailed("x"), False),
        (PolicyDenied("x"), False),
        (UnknownTool("x"), False),
    ],
)
def test_only_some_errors_of_an_unsafe_call_say_that_nothing_happened(error: PlanqError, may: bool) -> None:
    assert may_have_taken_effect(FAILED, Effect.UNSAFE, error.code, is_begun=True, is_unsure=False) is may, error.code


def test_what_was_never_begun_or_does_not_matter_twice_may_be_repeated() -> None:
    unsafe = Effect.UNSAFE
    for effect in (Effect.PURE, Effect.READ, Effect.IDEMPOTENT):
        assert not may_have_taken_effect(FAILED, effect, "timeout", is_begun=True, is_unsure=True)
    assert not may_have_taken_effect(FAILED, unsafe, "plan_timeout", is_begun=False, is_unsure=False)
    assert not may_have_taken_effect(CANCELLED, unsafe, None, is_begun=False, is_unsure=False)
    assert not may_have_taken_effect(StepStatus.SKIPPED, unsafe, None, is_begun=True, is_unsure=False)


def test_a_call_that_was_cut_off_with_its_job_may_have_happened() -> None:
    assert may_have_taken_effect(CANCELLED, Effect.UNSAFE, None, is_begun=True, is_unsure=False)


def test_a_step_that_was_skipped_before_its_tool_could_find_out_stays_in_doubt() -> None:
    skipped = StepStatus.SKIPPED
    assert may_have_taken_effect(skipped, Effect.UNSAFE, "outcome_unknown", is_begun=True, is_unsure=True)
    assert not may_have_taken_effect(skipped, Effect.READ, "worker_lost", is_begun=True, is_unsure=True)


def test_an_earlier_doubt_outlives_an_error_that_only_speaks_of_the_last_attempt() -> None:
    for code in ("unknown_tool", "plan_timeout"):
        assert may_have_taken_effect(FAILED, Effect.UNSAFE, code, is_begun=False, is_unsure=True)


@pytest.mark.parametrize("effect", list(Effect))
@pytest.mark.parametrize("status", list(StepStatus))
def test_another_job_must_not_do_what_is_being_done_or_is_still_to_be_found_out(
    status: StepStatus, effect: Effect
) -> None:
    begun = is_in_doubt(status, effect, None, is_begun=True, is_unsure=False)
    unsure = is_in_doubt(status, effect, None, is_begun=True, is_unsure=True)

    is_unsafe = effect is Effect.UNSAFE
    under_way = (StepStatus.RUNNING, StepStatus.WAITING, FAILED, CANCELLED)
    assert begun is (is_unsafe and status in under_way)
    assert unsure is (is_unsafe and status is not StepStatus.SUCCEEDED)
