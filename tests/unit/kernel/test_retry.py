"""Retries: bounds, jitter, and what is never repeated."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.retry import (
    WAITED,
    GiveUp,
    Phase,
    RetryPolicy,
    RetryTerms,
    RunAgain,
    StageTries,
    after_error,
    after_model_error,
    is_in_doubt,
    may_have_taken_effect,
    retry_delay,
)
from planq.shared.kernel.states import Effect, Recovery, StepStatus
from planq.shared.platform.errors import (
    AuthFailed,
    ErrorRecord,
    HostBusy,
    HumanWaitTimedOut,
    InternalFault,
    InvalidArguments,
    InvalidOutput,
    ModelRefused,
    OutcomeUnknown,
    PlanqError,
    PlanTimedOut,
    PolicyDenied,
    RateLimited,
    TimedOut,
    ToolFailed,
    Transient,
    UnknownTool,
    UnreadableReply,
    WorkerLost,
)


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
    assert may_have_taken_effect(FAILED, Effect.UNSAFE, error.code, is_begun=True, is_in_doubt=False) is may, (
        error.code
    )


def test_what_was_never_begun_or_does_not_matter_twice_may_be_repeated() -> None:
    unsafe = Effect.UNSAFE
    for effect in (Effect.PURE, Effect.READ, Effect.IDEMPOTENT):
        assert not may_have_taken_effect(FAILED, effect, "timeout", is_begun=True, is_in_doubt=True)
    assert not may_have_taken_effect(FAILED, unsafe, "plan_timeout", is_begun=False, is_in_doubt=False)
    assert not may_have_taken_effect(CANCELLED, unsafe, None, is_begun=False, is_in_doubt=False)
    assert not may_have_taken_effect(StepStatus.SKIPPED, unsafe, None, is_begun=True, is_in_doubt=False)


def test_a_call_that_was_cut_off_with_its_job_may_have_happened() -> None:
    assert may_have_taken_effect(CANCELLED, Effect.UNSAFE, None, is_begun=True, is_in_doubt=False)


def test_a_step_that_was_skipped_before_its_tool_could_find_out_stays_in_doubt() -> None:
    skipped = StepStatus.SKIPPED
    assert may_have_taken_effect(skipped, Effect.UNSAFE, "outcome_unknown", is_begun=True, is_in_doubt=True)
    assert not may_have_taken_effect(skipped, Effect.READ, "worker_lost", is_begun=True, is_in_doubt=True)


def test_an_earlier_doubt_outlives_an_error_that_only_speaks_of_the_last_attempt() -> None:
    for code in ("unknown_tool", "plan_timeout"):
        assert may_have_taken_effect(FAILED, Effect.UNSAFE, code, is_begun=False, is_in_doubt=True)


@pytest.mark.parametrize("effect", list(Effect))
@pytest.mark.parametrize("status", list(StepStatus))
def test_another_job_must_not_do_what_is_being_done_or_is_still_to_be_found_out(
    status: StepStatus, effect: Effect
) -> None:
    begun = is_in_doubt(status, effect, None, is_begun=True, is_in_doubt=False)
    in_doubt = is_in_doubt(status, effect, None, is_begun=True, is_in_doubt=True)

    is_unsafe = effect is Effect.UNSAFE
    under_way = (StepStatus.RUNNING, StepStatus.WAITING, FAILED, CANCELLED)
    assert begun is (is_unsafe and status in under_way)
    assert in_doubt is (is_unsafe and status is not StepStatus.SUCCEEDED)


PATIENCE = timedelta(minutes=15)


def after(error: PlanqError, tried: StageTries, jitter: float = 0.5, **bounds: timedelta | None) -> RunAgain | GiveUp:
    return after_model_error(tried, ErrorRecord.of(error), jitter=jitter, **{"patience": PATIENCE, **bounds})


@given(jitter=st.floats(0, 1, exclude_max=True), tries=st.integers(1, 100), seconds=st.floats(0, 899))
def test_a_stage_waits_ten_seconds_at_most_and_never_beyond_its_patience(
    jitter: float, tries: int, seconds: float
) -> None:
    decided = after(Transient("away"), StageTries(tries, 3 * tries, seconds), jitter)
    assert isinstance(decided, RunAgain)
    assert timedelta(0) <= decided.delay <= timedelta(seconds=min(10.0, 900.0 - seconds))


def test_the_waits_of_a_stage_grow() -> None:
    waits = [after(Transient("away"), StageTries(tries), 0.999) for tries in range(1, 8)]
    assert [round(w.delay.total_seconds()) for w in waits if isinstance(w, RunAgain)] == [1, 2, 4, 8, 10, 10, 10]


def test_a_stage_is_given_up_with_all_its_tries_when_its_patience_is_over() -> None:
    decided = after(Transient("status 503: busy"), StageTries(20, 80, 900.0))
    assert isinstance(decided, GiveUp)
    assert decided.error.code == "transient"
    assert "failed 20 times in 900 s, the last time: status 503: busy" in decided.error.message
    assert decided.error.details == {
        "attempts": 20,
        "requests": 80,
        "seconds": 900.0,
        "last_answer": "status 503: busy",
    }


@pytest.mark.parametrize("error", [AuthFailed("x"), ModelRefused("x"), InvalidOutput("x"), PolicyDenied("x")])
def test_what_would_only_come_again_ends_a_stage_at_once_and_unchanged(error: PlanqError) -> None:
    assert after(error, StageTries(1, 1, 0.1)) == GiveUp(ErrorRecord.of(error))
    later = after(error, StageTries(3, 9, 4.0))
    assert isinstance(later, GiveUp)
    assert later.error.details["attempts"] == 3


def test_without_patience_a_stage_ends_as_its_call_does() -> None:
    error = Transient("away")
    assert after(error, StageTries(1, 4, 3.0), patience=timedelta(0)) == GiveUp(ErrorRecord.of(error))


def test_a_models_wish_is_a_floor_and_one_that_cannot_be_granted_ends_the_stage() -> None:
    wish = timedelta(minutes=10)
    granted = after(RateLimited("x"), StageTries(1), retry_after=wish)
    assert isinstance(granted, RunAgain)
    assert granted.delay == wish
    refused = after(RateLimited("x"), StageTries(2, 2, 301.0), retry_after=wish)
    assert isinstance(refused, GiveUp)
    assert "asks for a wait of 600 s" in refused.error.message


def test_a_wait_beyond_the_end_of_the_job_is_not_begun() -> None:
    near = timedelta(seconds=5)
    again = after(Transient("x"), StageTries(6), 0.999, time_left=near)
    assert isinstance(again, RunAgain)
    assert again.delay == near / 2, "time must be left for the try itself"
    for refused, told in (
        (after(RateLimited("x"), StageTries(1), retry_after=near, time_left=near), "the job ends in 5 s"),
        (after(Transient("x"), StageTries(6), time_left=timedelta(seconds=1)), "the job ends in 1 s"),
    ):
        assert isinstance(refused, GiveUp)
        assert told in refused.error.message


@dataclass(frozen=True)
class Tried:
    """A step of which so many tries count."""

    tries: int
    retries: int = 2
    attempt: int = 1
    effect: Effect = Effect.READ
    ref: StepRef = field(default_factory=lambda: StepRef(UUID(int=1), 0, 0))
    tool_name: str = "t"
    recovery: Recovery = Recovery.FAIL
    worker_losses: int = 0
    in_doubt: bool = False

    @property
    def retry(self) -> RetryTerms:
        return RetryTerms(retries=self.retries)


ASKED = timedelta(seconds=30)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("error", "wish", "waited", "step", "is_wait", "comes_again"),
    [
        (RateLimited("x"), ASKED, timedelta(0), Tried(3), True, True),
        (HostBusy("x"), ASKED, timedelta(0), Tried(3), True, True),
        (Transient("x"), ASKED, timedelta(0), Tried(3), True, True),
        (RateLimited("x"), ASKED, timedelta(0), Tried(1, retries=0), True, True),
        (RateLimited("x"), ASKED, timedelta(0), Tried(1, retries=0, effect=Effect.UNSAFE), True, True),
        (RateLimited("x"), ASKED, HOUR - ASKED, Tried(3), True, True),
        (RateLimited("x"), ASKED, HOUR, Tried(3), False, False),
        (RateLimited("x"), ASKED, HOUR, Tried(2), False, True),
        (RateLimited("x"), 2 * HOUR, timedelta(0), Tried(3), False, False),
        (RateLimited("x"), None, timedelta(0), Tried(3), False, False),
        (RateLimited("x"), None, timedelta(0), Tried(2), False, True),
        (Transient("x"), ASKED, timedelta(0), Tried(1, effect=Effect.UNSAFE), False, False),
        (ToolFailed("x"), ASKED, timedelta(0), Tried(1), False, False),
    ],
)
def test_a_wait_that_the_other_side_asks_for_uses_up_no_retry(
    error: PlanqError, wish: timedelta | None, waited: timedelta, step: Tried, is_wait: bool, comes_again: bool
) -> None:
    decided = after_error(
        step, ErrorRecord.of(error), phase=Phase.CALLING, jitter=0.0, retry_after=wish, waited=waited
    )

    assert isinstance(decided, RunAgain) is comes_again
    if isinstance(decided, RunAgain):
        assert decided.is_wait is is_wait
        assert decided.delay == (wish or timedelta(0))
        total = waited + decided.delay if is_wait else waited
        assert decided.error.details.get(WAITED, 0.0) == total.total_seconds()


def test_a_server_that_asks_for_no_time_is_waited_for_longer_each_time() -> None:
    error = ErrorRecord.of(RateLimited("x"))
    delays = [
        after_error(Tried(1, attempt=n), error, phase=Phase.CALLING, jitter=1.0, retry_after=timedelta(0))
        for n in (1, 4, 400)
    ]
    assert [one.delay.total_seconds() for one in delays if isinstance(one, RunAgain)] == [0.5, 4.0, 60.0]


def test_a_stage_whose_replies_cannot_be_read_is_tried_three_times_and_tells_why() -> None:
    error = UnreadableReply("the provider said: upstream is gone")
    assert isinstance(after(error, StageTries(2, 8, 3.0)), RunAgain)
    refused = after(error, StageTries(3, 12, 7.0))
    assert isinstance(refused, GiveUp)
    assert (refused.error.code, refused.error.details["requests"]) == ("unreadable_reply", 12)
    assert "upstream is gone" in refused.error.message
