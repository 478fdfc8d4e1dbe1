"""When a schedule is due: cron as Debian reads it, in time zones whose clocks change, in UTC on both sides."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.platform.errors import InvalidRequest
from planq.shared.platform.values.schedule import check_cron, next_time, read_moment, read_zone

BERLIN = read_zone("Europe/Berlin")
"""On 2026-03-29 its clocks go from 02:00 to 03:00 (01:00Z), on 2026-10-25 from 03:00 back to 02:00 (01:00Z)."""


def times(expression: str, zone: str, since: str, count: int) -> list[str]:
    """The next times in UTC, each asked for from the one before, as the sweeper does."""
    found = []
    moment: datetime | None = datetime.fromisoformat(since).replace(tzinfo=UTC)
    for _ in range(count):
        assert moment is not None
        moment = next_time(expression, read_zone(zone), moment)
        found.append(moment.strftime("%m-%d %H:%M") if moment else "never")
    return found


@pytest.mark.parametrize(
    ("expression", "zone", "since", "expected"),
    [
        pytest.param("0 9 * * 1-5", "UTC", "2026-11-20T09:00", ["11-23 09:00", "11-24 09:00"], id="weekdays"),
        pytest.param("0 9 * * 1", "Europe/Berlin", "2026-11-21T00:00", ["11-23 08:00"], id="local time"),
        pytest.param("30 5 * * *", "Asia/Kolkata", "2026-11-21T00:00", ["11-22 00:00"], id="half an hour off"),
        pytest.param("0 12 l * *", "UTC", "2026-02-01T00:00", ["02-28 12:00", "03-31 12:00"], id="last of a month"),
        pytest.param(
            "0 0 1,15 * mon", "UTC", "2026-11-10T00:00", ["11-15 00:00", "11-16 00:00"], id="day or weekday"
        ),
        pytest.param(
            "30 2 * * *",
            "Europe/Berlin",
            "2026-03-28T12:00",
            ["03-29 01:00", "03-30 00:30"],
            id="in the gap: right after it, once",
        ),
        pytest.param(
            "0,30 2 * * *",
            "Europe/Berlin",
            "2026-03-28T12:00",
            ["03-29 01:00", "03-30 00:00", "03-30 00:30"],
            id="twice in the gap: once after it",
        ),
        pytest.param(
            "30 2 * * *",
            "Europe/Berlin",
            "2026-10-24T12:00",
            ["10-25 00:30", "10-26 01:30"],
            id="in the overlap: the first time only",
        ),
        pytest.param(
            "0 3 * * *",
            "Europe/Berlin",
            "2026-10-24T12:00",
            ["10-25 02:00", "10-26 02:00"],
            id="right after the overlap",
        ),
        pytest.param(
            "15,45 2 * * *",
            "Europe/Berlin",
            "2026-10-25T01:20",
            ["10-26 01:15", "10-26 01:45"],
            id="asked in the second of the two hours: nothing of the first comes back",
        ),
        pytest.param(
            "30 * * * *",
            "Europe/Berlin",
            "2026-10-24T23:45",
            ["10-25 00:30", "10-25 01:30", "10-25 02:30"],
            id="every hour: both of the two hours",
        ),
        pytest.param(
            "30 * * * *",
            "Europe/Berlin",
            "2026-03-29T00:00",
            ["03-29 00:30", "03-29 01:30"],
            id="every hour: through the gap",
        ),
        pytest.param("0 0 29 2 *", "UTC", "2026-01-01T00:00", ["02-29 00:00"], id="a leap day"),
        pytest.param("* * */20 * 1L", "UTC", "2026-01-01T00:00", ["never"], id="never"),
    ],
)
def test_the_next_times(expression: str, zone: str, since: str, expected: list[str]) -> None:
    assert times(expression, zone, since, len(expected)) == expected


FIELDS = st.tuples(
    st.sampled_from(["*", "0", "30", "*/7", "0,59", "5-9"]),
    st.sampled_from(["*", "0", "2", "3", "*/5", "1-3"]),
    st.sampled_from(["*", "1", "29", "L"]),
    st.sampled_from(["*", "3", "10"]),
    st.sampled_from(["*", "0", "SUN", "1#1"]),
).map(" ".join)
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Havana"])
MOMENTS = st.integers(0, 2 * 366 * 86_400).map(lambda n: datetime(2025, 1, 1, tzinfo=UTC) + timedelta(seconds=n))


@given(FIELDS, ZONES, MOMENTS)
def test_each_time_is_later_than_the_one_before_and_nothing_lies_between(
    expression: str, zone: str, since: datetime
) -> None:
    moments = [since]
    while len(moments) < 5 and (following := next_time(expression, read_zone(zone), moments[-1])) is not None:
        moments.append(following)

    assert all(before < after for before, after in pairwise(moments))
    if len(moments) > 2:
        # From just before a time, that time comes next.
        assert next_time(expression, read_zone(zone), moments[2] - timedelta(microseconds=1)) == moments[2]


@given(st.text(alphabet="0123456789*/,-#LWmonJAN ²\x00é", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidRequest):
        check_cron(text)
        due = next_time(text, BERLIN, datetime(2026, 1, 1, tzinfo=UTC))
        assert due is None or due > datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "* * * *", "* * * * * *", "60 * * * *", "* * * * 8", "@daily", "*  " * 200])
def test_what_is_no_cron_expression_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="crontab"):
        check_cron(text)


@pytest.mark.parametrize(
    "name", ["", "Mars/Olympus", "../etc/passwd", "/etc/passwd", "Europe", "é", "a\x00b", "x" * 5000]
)
def test_what_is_no_time_zone_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="timezone"):
        read_zone(name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-21T09:00:00+02:00", "2026-11-21T07:00:00+00:00"),
        ("2026-11-21T09:00:00Z", "2026-11-21T09:00:00+00:00"),
        ("2026-11-21T09:00", "2026-11-21T08:00:00+00:00"),
        ("2026-11-21", "2026-11-20T23:00:00+00:00"),
        ("2026-03-29T02:30", "2026-03-29T01:30:00+00:00"),  # skipped: 03:30 on the clock
        ("2026-10-25T02:30", "2026-10-25T00:30:00+00:00"),  # shown twice: the first time
    ],
)
def test_a_moment_is_read_in_its_zone(text: str, expected: str) -> None:
    assert read_moment(text, BERLIN).isoformat() == expected


@pytest.mark.parametrize("text", ["", "now", "2026-13-01", "0001-01-01T00:00", "9999-12-31T23:59:59-05:00"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="at: expected a time"):
        read_moment(text, BERLIN)
