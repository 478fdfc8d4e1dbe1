"""When a delivery is tried again, and what each answer of a receiver means for it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.platform.errors import ErrorRecord
from planq.shared.subjects.webhooks.rules import (
    LADDER,
    LONGEST_PAUSE,
    LONGEST_WAITED,
    after_failure,
    after_response,
    delivery_pause,
)


@given(st.integers(1, 20), st.floats(0, 1, exclude_max=True))
def test_each_pause_is_its_rung_or_a_tenth_longer_and_there_are_eleven(attempt: int, jitter: float) -> None:
    pause = delivery_pause(attempt, None, jitter)
    if attempt > len(LADDER):
        assert pause is None
    else:
        assert pause is not None
        assert LADDER[attempt - 1] <= pause <= LADDER[attempt - 1] * 1.1


def test_all_attempts_take_a_little_more_than_three_days() -> None:
    assert LADDER[0] == timedelta(seconds=5)
    assert sum(LADDER, timedelta()) == timedelta(hours=75, minutes=36, seconds=20)


@given(st.integers(1, 9), st.integers(0, 10**7))
def test_a_receivers_wish_only_lengthens_a_pause_and_by_a_day_at_most(attempt: int, seconds: int) -> None:
    pause = delivery_pause(attempt, timedelta(seconds=seconds), 0.0)
    assert pause == max(LADDER[attempt - 1], min(timedelta(seconds=seconds), LONGEST_PAUSE))


@pytest.mark.parametrize("status", [200, 202, 204, 299])
def test_a_success_ends_it(status: int) -> None:
    outcome = after_response(status, 1, None, 0.0)
    assert (outcome.is_sent, outcome.again, outcome.response_status) == (True, None, status)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (301, "receiver_refused"),
        (404, "receiver_refused"),
        (429, "rate_limited"),
        (500, "receiver_failed"),
        (503, "receiver_failed"),
    ],
)
def test_a_failure_comes_again_until_the_ladder_ends(status: int, code: str) -> None:
    first, last = after_response(status, 1, None, 0.0), after_response(status, len(LADDER) + 1, None, 0.0)
    assert first.error is not None
    assert (first.error.code, first.again, first.is_gone) == (code, LADDER[0], False)
    assert (last.is_sent, last.again) == (False, None)


def test_a_receiver_that_is_gone_hears_no_more() -> None:
    outcome = after_response(410, 1, timedelta(seconds=1), 0.0)
    assert (outcome.is_sent, outcome.again, outcome.is_gone) == (False, None, True)


def test_what_cannot_change_is_not_tried_again() -> None:
    assert after_failure(ErrorRecord("policy", "no"), 1, None, 0.0).again is None
    assert after_failure(ErrorRecord("timeout", "late", retryable=True), 2, None, 0.0).again == LADDER[1]


LAST = len(LADDER) + 1
A_MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("status", "wish", "age", "is_wait", "again"),
    [
        (429, A_MINUTE, timedelta(0), True, A_MINUTE),
        (503, A_MINUTE, timedelta(0), True, A_MINUTE),
        (429, timedelta(0), timedelta(0), True, LADDER[0]),
        (429, timedelta(days=9), timedelta(0), True, LONGEST_PAUSE),
        (429, A_MINUTE, LONGEST_WAITED - timedelta(seconds=1), True, A_MINUTE),
        (429, A_MINUTE, LONGEST_WAITED, False, None),
        (429, None, timedelta(0), False, None),
        (503, None, timedelta(0), False, None),
        (500, A_MINUTE, timedelta(0), False, None),
        (404, A_MINUTE, timedelta(0), False, None),
    ],
)
def test_a_wait_that_the_receiver_asks_for_is_no_attempt(
    status: int, wish: timedelta | None, age: timedelta, is_wait: bool, again: timedelta | None
) -> None:
    outcome = after_response(status, LAST, wish, 0.0, age=age)

    assert (outcome.is_wait, outcome.again) == (is_wait, again)


@pytest.mark.parametrize(("waits", "again"), [(0, LADDER[0]), (1, LADDER[1]), (3, LADDER[3]), (500, LADDER[3])])
def test_a_receiver_that_asks_for_no_time_gets_more_from_wait_to_wait(waits: int, again: timedelta) -> None:
    assert after_response(429, 1, timedelta(0), 0.0, waits=waits).again == again
