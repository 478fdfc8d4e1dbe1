from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.recovery import (
    Happened,
    Interruption,
    Spread,
    gaps,
    recovery_seconds,
    started_after_success,
    started_while_paused,
    successes,
    unrecorded_calls,
)


def history(*events: tuple[float, str, dict[str, Any]]) -> list[Happened]:
    return [Happened(n, "job", kind, data, at) for n, (at, kind, data) in enumerate(events)]


def started(at: float, attempt: int, index: int = 0) -> tuple[float, str, dict[str, Any]]:
    return at, "step_started", {"index": index, "attempt": attempt}


CUT_OFF = Interruption("job", 0, 1, at=10.0, fault="kill_worker")


def test_an_attempt_recovers_when_a_later_one_starts() -> None:
    events = history(
        started(8.0, 1), started(11.0, 5, index=1), (14.0, "step_retrying", {"index": 0}), started(14.5, 2)
    )

    assert recovery_seconds(CUT_OFF, events) == 4.5


def test_the_time_for_which_the_database_was_down_does_not_count() -> None:
    events = history(started(8.0, 1), started(14.5, 2))

    assert recovery_seconds(CUT_OFF, events, [(1.0, 2.0), (9.5, 10.5), (12.0, 14.0), (14.25, 20.0)]) == 4.5 - 2.75


@pytest.mark.parametrize(
    "end",
    [
        ("step_failed", {"index": 0, "attempt": 1}),
        ("step_succeeded", {"index": 0, "attempt": 1}),
        ("job_cancelled", {}),
        ("plan_expired", {}),
    ],
)
def test_an_attempt_recovers_when_its_step_or_job_ends(end: tuple[str, dict[str, Any]]) -> None:
    events = history(started(8.0, 1), (9.0, "step_succeeded", {"index": 3}), (13.0, *end))

    assert recovery_seconds(CUT_OFF, events) == 3.0


def test_what_was_before_the_attempt_does_not_count_and_what_never_went_on_has_no_time() -> None:
    second = Interruption("job", 0, 2, at=10.0, fault="kill_worker")

    assert recovery_seconds(second, history(started(1.0, 1), (2.0, "step_retrying", {"index": 0}))) is None
    assert recovery_seconds(second, history(started(1.0, 1), started(9.0, 2))) is None
    assert recovery_seconds(second, history(started(1.0, 1), started(9.0, 2), started(12.0, 3))) == 2.0


def test_a_stage_recovers_when_it_starts_again_or_is_over() -> None:
    cut_off = Interruption("job", None, 1, at=10.0, fault="freeze_worker")
    begun = (9.0, "stage_started", {"stage": "planning", "attempt": 1})

    assert recovery_seconds(cut_off, history(begun, (12.0, "plan_accepted", {}))) == 2.0
    assert recovery_seconds(cut_off, history(begun, (13.0, "stage_started", {"attempt": 2}))) == 3.0


def test_a_gap_lasts_from_the_release_to_the_next_start() -> None:
    events = history(started(1.0, 1), (2.0, "step_released", {"index": 0}), started(2.5, 2), started(3.0, 1, index=1))

    assert gaps([events]) == [0.5]


def test_a_step_that_starts_after_its_success_is_told() -> None:
    done = (2.0, "step_succeeded", {"index": 0, "attempt": 1})

    assert started_after_success([history(started(1.0, 1), done)]) == []
    assert started_after_success([history(started(1.0, 1), done, started(3.0, 2))]) == ["job/0"]
    assert successes([history(started(1.0, 1), done)]) == {"job/0": (1, 2.0)}


def test_a_step_that_starts_while_its_job_is_paused_is_told() -> None:
    pause, resume = (2.0, "job_paused", {}), (9.0, "job_resumed", {})

    assert (
        started_while_paused([history(started(1.0, 1), pause, started(2.1, 1, index=1), resume, started(9.5, 2))])
        == []
    )
    assert started_while_paused([history(pause, started(5.0, 1), resume)]) == ["job/0"]


def test_percentiles_are_by_nearest_rank() -> None:
    assert Spread.of([]) == Spread(0, None, None, None)
    assert Spread.of([3.0]) == Spread(1, 3.0, 3.0, 3.0)
    assert Spread.of(float(n) for n in range(1, 101)) == Spread(100, 50.0, 95.0, 100.0)


def test_a_model_call_is_recorded_or_was_lost_with_its_stage() -> None:
    asked, lost = (1.0, "stage_started", {"attempt": 1}), (2.0, "stage_released", {"attempt": 1, "lost": True})

    assert unrecorded_calls(history(asked, asked), 2) == 0
    assert unrecorded_calls(history(asked, lost, asked), 1) == 0
    assert unrecorded_calls(history(asked, lost, asked), 2) == 0
    assert unrecorded_calls(history(asked, asked, asked), 2) == 1
