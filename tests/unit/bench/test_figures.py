"""What a figure is compared with, and when it is good enough."""

from __future__ import annotations

import json

import pytest

from tests.bench.figures import BEST, Bound, Figure

PEERS = {"Celery": 8.0, "DBOS": 12.0}


@pytest.mark.parametrize(
    ("bound", "value", "good"),
    [
        (Bound(5.0), 5.0, True),
        (Bound(5.0), 5.1, False),
        (Bound(5.0, at_most=False), 5.0, True),
        (Bound(5.0, at_most=False), 4.9, False),
        (Bound(0.5, "DBOS"), 6.0, True),
        (Bound(0.5, "DBOS"), 6.1, False),
        (Bound(0.5, BEST), 4.0, True),
        (Bound(0.5, BEST), 4.1, False),
        (Bound(2.0, "ideal"), 100.0, True),
        (Bound(2.0, "ideal"), 100.1, False),
    ],
)
def test_a_bound_is_a_number_or_a_multiple_of_what_was_measured(bound: Bound, value: float, good: bool) -> None:
    figure = Figure("work", value, "ms", peers=PEERS, limits={"ideal": 50.0}, bounds=[bound])

    assert figure.keeps(bound) is good
    assert figure.is_good is good


def test_every_bound_counts_and_so_does_the_plain_limit() -> None:
    kept, missed = Bound(2.0, "Celery"), Bound(1.0, "Celery")

    assert Figure("work", 9.0, "ms", peers=PEERS, bounds=[kept]).is_good
    assert not Figure("work", 9.0, "ms", peers=PEERS, bounds=[kept, missed]).is_good
    assert not Figure("work", 9.0, "ms", 8.9, peers=PEERS, bounds=[kept]).is_good
    assert Figure("work", 9.0, "ms").is_good
    assert Figure("work", 9.0, "ms", peers=PEERS, bounds=[kept], hopes=[missed]).is_good


def test_the_best_peer_is_the_largest_where_more_is_better() -> None:
    assert Figure("time", 6.0, "ms", peers=PEERS).ratio(BEST) == 0.75
    assert Figure("rate", 6.0, "/s", peers=PEERS, more_is_better=True).ratio(BEST) == 0.5
    assert Figure("alone", 6.0, "ms").ratio(BEST) is None


def test_a_bound_on_what_was_not_measured_is_no_bound_that_is_kept() -> None:
    with pytest.raises(KeyError):
        Figure("work", 1.0, "ms", bounds=[Bound(1.0, "Celery")]).is_good  # noqa: B018 - asking is the point


def test_programs_get_everything_that_people_see() -> None:
    figure = Figure(
        "work",
        6.0,
        "ms",
        peers=PEERS,
        limits={"ideal": 3.0},
        bounds=[Bound(0.5, "Celery")],
        samples=[5.0, 6.0, 7.0],
        hopes=[Bound(2.0, "ideal")],
    )

    found = json.loads(json.dumps(figure.to_json()))

    assert found["ok"] is False
    assert found["bounds"] == [{"text": "≤ 0.5 × Celery", "reference": 4.0, "ok": False}]
    assert found["hopes"] == [{"text": "≤ 2 × ideal", "reference": 6.0, "ok": True}]
    assert found["ratios"] == {"Celery": 0.75, "DBOS": 0.5, "ideal": 2.0, BEST: 0.75}
    assert found["samples"] == [5.0, 6.0, 7.0]
