"""Reading server-sent events in pieces of any size, and the text that their pieces make up."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from planq.shared.platform.values.event_stream import Frame, FrameReader, SpokenText

FRAMES = [
    Frame("7-1", "job_submitted", '{"a":"é\u2028\x85 x: y"}'),
    Frame(None, "text", "{}"),
    Frame("7-2", "job_failed", "null"),
]
BODY = b": hello\n\nretry: 5\n\n" + b"".join(
    (f"id: {one.id}\n" if one.id else "").encode() + f"event: {one.event}\ndata: {one.data}\n\n".encode()
    for one in FRAMES
)


@given(st.lists(st.integers(0, len(BODY))))
def test_frames_are_whole_however_the_stream_is_cut_into_pieces(cuts: list[int]) -> None:
    bounds = [0, *sorted(cuts), len(BODY)]
    pieces = [BODY[start:end] for start, end in pairwise(bounds)]

    reader = FrameReader()
    assert [frame for piece in pieces for frame in reader.feed(piece)] == FRAMES


@given(st.integers(0, len(BODY)))
def test_a_frame_that_breaks_off_is_dropped(end: int) -> None:
    found = list(FrameReader().feed(BODY[:end]))

    assert found == FRAMES[: len(found)]


def piece(attempt: int, number: int, offset: int, text: str) -> dict[str, Any]:
    return {"attempt": attempt, "try": number, "offset": offset, "text": text}


def shown(*pieces: Sequence[Any]) -> str:
    spoken = SpokenText()
    for one in pieces:
        spoken.add(piece(*one))
    return spoken.text


@given(st.text(min_size=1), st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100))))
def test_a_text_stands_there_once_whatever_comes_twice(text: str, repeats: list[tuple[int, int]]) -> None:
    spoken = SpokenText()
    for offset in range(len(text)):
        assert spoken.add(piece(1, 1, offset, text[offset]))
    for start, length in repeats:
        if start < len(text):
            spoken.add(piece(1, 1, start, text[start : start + length]))
            spoken.add(piece(1, 1, start, text[start:]))

    assert spoken.text == text


def test_a_newer_text_takes_the_place_of_the_older_one() -> None:
    assert shown((1, 1, 0, "Rom"), (1, 2, 0, "Par"), (1, 2, 3, "is")) == "Paris"
    assert shown((1, 2, 0, "Paris"), (1, 1, 0, "Rom")) == "Paris", "older"
    assert shown((1, 9, 0, "Paris"), (2, 1, 0, "Rome")) == "Rome"
    assert shown((1, 1, 0, "Par"), (1, 1, 7, "late")) == "Par", "what lies between is missing"
