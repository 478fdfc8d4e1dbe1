"""Which part of stored bytes a request gets (RFC 9110, section 14)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.api.http.exchange import HttpRefusal
from planq.api.jobs.routes.outputs import part_of

TAG = '"abc"'


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (None, None),
        ("bytes=0-0", (0, 1)),
        ("bytes=2-4", (2, 5)),
        ("bytes=8-", (8, 10)),
        ("bytes=8-99", (8, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-99", (0, 10)),
        ("BYTES=1-1 ", (1, 2)),
        ("bytes=4-2", None),
        ("bytes=-", None),
        ("bytes=0-1,4-5", None),
        ("lines=0-1", None),
        ("bytes=a-b", None),
        ("bytes=٣-٤", None),
        ("bytes=" + "1" * 21 + "-", None),
    ],
)
def test_a_range_is_cut_to_what_there_is_and_one_that_cannot_be_read_is_the_whole(
    asked: str | None, expected: tuple[int, int] | None
) -> None:
    assert part_of(10, asked, None, TAG) == expected


@pytest.mark.parametrize(
    ("size", "asked"), [(10, "bytes=10-"), (10, "bytes=99-100"), (10, "bytes=-0"), (0, "bytes=0-")]
)
def test_a_range_behind_the_end_is_refused_with_the_size(size: int, asked: str) -> None:
    with pytest.raises(HttpRefusal) as refused:
        part_of(size, asked, None, TAG)

    assert (refused.value.status_code, refused.value.headers) == (416, {"Content-Range": f"bytes */{size}"})


@pytest.mark.parametrize(("if_range", "expected"), [(TAG, (1, 3)), ('"other"', None), (f"W/{TAG}", None)])
def test_a_part_of_other_bytes_is_not_given(if_range: str, expected: tuple[int, int] | None) -> None:
    assert part_of(10, "bytes=1-2", if_range, TAG) == expected


@given(
    st.integers(min_value=0, max_value=2**40), st.text(max_size=30) | st.from_regex(r"bytes=\d*-\d*", fullmatch=True)
)
def test_whatever_is_asked_the_part_lies_within(size: int, asked: str) -> None:
    try:
        part = part_of(size, asked, None, TAG)
    except HttpRefusal:
        return
    assert part is None or 0 <= part[0] < part[1] <= size
