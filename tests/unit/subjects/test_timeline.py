"""When the attempts of a job waited and ran, and what is folded of it."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from planq.shared.subjects.jobs.timeline import (
    AttemptPhase,
    AttemptSpan,
    JobMoment,
    PhaseKind,
    critical_path,
    scale_of,
    stage_phases,
    step_attempts,
    step_phases,
)

QUEUE, RUN, WAIT = PhaseKind.QUEUE, PhaseKind.RUN, PhaseKind.WAIT

RETRIED = [
    JobMoment("step_started", 2.0, 0, 1),
    JobMoment("step_progress", 2.5, 0),
    JobMoment("step_retrying", 3.0, 0, 1, error="connection"),
    JobMoment("step_started", 5.0, 0, 2),
    JobMoment("step_asking", 6.0, 0),
    JobMoment("step_settled", 9.0, 0),
    JobMoment("step_started", 9.5, 0, 3),
    JobMoment("step_succeeded", 10.0, 0, 3),
]


def test_each_attempt_has_its_phases() -> None:
    assert step_phases(1.0, RETRIED, 99.0, is_over=True) == [
        *(
            AttemptPhase(QUEUE, 0, 1.0, 2.0),
            AttemptPhase(RUN, 1, 2.0, 3.0),
            AttemptPhase(QUEUE, 1, 3.0, 5.0),
            AttemptPhase(RUN, 2, 5.0, 6.0),
        ),
        *(AttemptPhase(WAIT, 2, 6.0, 9.0), AttemptPhase(QUEUE, 2, 9.0, 9.5), AttemptPhase(RUN, 3, 9.5, 10.0)),
    ]
    assert step_attempts(RETRIED) == [
        AttemptSpan(1, 2.0, 3.0, "step_retrying", "connection"),
        AttemptSpan(2, 5.0, 6.0, "step_asking", None),
        AttemptSpan(3, 9.5, 10.0, "step_succeeded", None),
    ]


def test_what_is_under_way_ends_now_and_what_was_cancelled_with_its_last_event() -> None:
    assert step_phases(1.0, RETRIED[:1], 7.0, is_over=False)[-1] == AttemptPhase(RUN, 1, 2.0, 7.0)
    assert step_phases(1.0, [], 7.0, is_over=False) == [AttemptPhase(QUEUE, 0, 1.0, 7.0)]
    assert step_phases(1.0, RETRIED[:1], 7.0, is_over=True) == [AttemptPhase(QUEUE, 0, 1.0, 2.0)]
    assert step_phases(None, [], 7.0, is_over=False) == []


def test_stages_run_until_what_follows_them() -> None:
    moments = [
        JobMoment("stage_started", 1.0, attempt=1, stage="planning"),
        JobMoment("plan_accepted", 2.0),
        JobMoment("step_started", 2.5, 0, 1),
        JobMoment("stage_started", 4.0, attempt=1, stage="responding"),
    ]
    assert stage_phases(moments, 9.0, is_over=False) == [
        ("planning", AttemptPhase(RUN, 1, 1.0, 2.0)),
        ("responding", AttemptPhase(RUN, 1, 4.0, 9.0)),
    ]


def test_the_critical_path_follows_what_ended_last() -> None:
    graph = [(), (), (0, 1), (2,), (2,)]
    assert critical_path(graph, [1.0, 2.0, 3.0, 9.0, 4.0]) == [1, 2, 3]
    assert critical_path(graph, [1.0, 2.0, None, None, None]) == [1]
    assert critical_path([], []) == []


def test_time_in_which_nothing_runs_is_folded() -> None:
    scale = scale_of([(0.0, 1.0), (601.0, 602.0)], 0.0, 602.0)
    assert scale.folds == ((1.0, 601.0),)
    assert scale.folded_seconds == 600.0
    assert 0.45 < scale.place(1.0) < 0.5 < scale.place(601.0) < 0.55
    assert scale_of([(0.0, 1.0), (1.5, 3.0)], 0.0, 3.0).folds == ()


MOMENTS = st.floats(0, 10_000, allow_nan=False)


@given(st.lists(st.tuples(MOMENTS, MOMENTS).map(sorted).map(tuple), min_size=1, max_size=30))
def test_a_scale_keeps_the_order_of_moments(spans: list[tuple[float, float]]) -> None:
    first, last = min(begin for begin, _ in spans), max(end for _, end in spans)
    scale = scale_of(spans, first, last)
    places = [scale.place(at) for at in sorted(at for span in spans for at in span)]
    assert all(-1e-9 <= one <= 1 + 1e-9 for one in places)
    assert all(one <= other + 1e-9 for one, other in pairwise(places))
