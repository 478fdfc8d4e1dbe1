"""The lines of an upload: numbers, what editors leave behind, and what cannot be stored."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.platform.errors import TooLarge
from planq.shared.subjects.batches.rules import FileLine, LineSplitter


def split(*parts: bytes, max_line_bytes: int = 1_000, max_lines: int = 100) -> list[FileLine]:
    splitter = LineSplitter(max_line_bytes=max_line_bytes, max_lines=max_lines)
    found = [line for part in parts for line in splitter.feed(part)] + list(splitter.end())
    assert splitter.found == len(found)
    return found


def texts(*parts: bytes) -> list[tuple[int, str | None]]:
    return [(line.number, line.text) for line in split(*parts)]


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (b"", []),
        (b"\n\n", []),
        (b"{}", [(1, "{}")]),
        (b"{}\n", [(1, "{}")]),
        (b"a\nb", [(1, "a"), (2, "b")]),
        (b"a\r\nb\r\n", [(1, "a"), (2, "b")]),
        (b"\xef\xbb\xbfa\nb\n", [(1, "a"), (2, "b")]),
        (b"\xef\xbb\xbf\r\n \t\na\n\n\nb\n\n", [(3, "a"), (6, "b")]),
        ("é\n\u2028\n".encode(), [(1, "é"), (2, "\u2028")]),
    ],
)
def test_lines_have_the_numbers_that_an_editor_shows(file: bytes, expected: list[tuple[int, str]]) -> None:
    assert texts(file) == expected


@given(
    lines=st.lists(st.text(st.characters(exclude_characters="\r\n\0", codec="utf-8"), max_size=9)),
    end=st.sampled_from(["\n", "\r\n"]),
    mark=st.booleans(),
    cuts=st.lists(st.integers(0, 60)),
)
def test_it_does_not_matter_how_the_bytes_come(lines: list[str], end: str, mark: bool, cuts: list[int]) -> None:
    file = (b"\xef\xbb\xbf" if mark else b"") + end.join(lines).encode()
    places = [0, *sorted(min(cut, len(file)) for cut in cuts), len(file)]
    parts = [file[begin:stop] for begin, stop in pairwise(places)]

    kept = [(n, line) for n, line in enumerate(lines, 1) if line.encode().removeprefix(b"\xef\xbb\xbf").strip()]
    if not mark:
        kept = [(n, line.removeprefix("\ufeff") if n == 1 else line) for n, line in kept]
    assert [(n, text) for n, text in texts(*parts)] == kept


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b'{"a": "\xff"}', "expected UTF-8, found another byte at column 8"),
        (b"\xed\xa0\x80", "expected UTF-8, found another byte at column 1"),
        (b"ab\0", "found NUL (U+0000) at column 3"),
        (b"x" * 21, "expected a line of at most 20 bytes, found a longer one"),
        (b"x" * 5_000, "expected a line of at most 20 bytes, found a longer one"),
    ],
)
def test_a_line_that_cannot_be_stored_is_told_and_the_others_go_on(raw: bytes, told: str) -> None:
    first, bad, last = split(b"first\n", raw, b"\r\nlast", max_line_bytes=20)

    assert (first.text, last.text, bad.text, bad.number) == ("first", "last", None, 2)
    assert bad.error is not None
    assert told in bad.error.message


def test_a_line_may_be_as_long_as_the_limit_whatever_ends_it() -> None:
    assert [line.error for line in split(b"x" * 20 + b"\r\n" + b"y" * 20 + b"\n", max_line_bytes=20)] == [None, None]


def test_a_long_line_is_not_kept_in_memory() -> None:
    splitter = LineSplitter(max_line_bytes=20, max_lines=2)
    for _ in range(1_000):
        assert list(splitter.feed(b"x" * 1_000)) == []
    assert len(splitter._begun) <= 21


def test_one_line_too_many_is_named() -> None:
    with pytest.raises(TooLarge, match="line 5 is one too many: expected at most 2"):
        split(b"a\n\n\nb\nc\n", max_lines=2)
    assert len(split(b"a\n\nb\n\n\n", max_lines=2)) == 2
