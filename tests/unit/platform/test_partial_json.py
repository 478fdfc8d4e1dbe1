"""A JSON object that is being written is read as `json` reads it at its end, at every point on the way."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.platform.values.partial_json import PartialObject
from tests.unit.agentic.strategies import finite_json_values

texts = st.text(
    st.characters(exclude_categories=[]) | st.sampled_from('"\\/\b\f\n\r\t\x00 😀{}[],:\ud83d\ude00'), max_size=30
)
documents = st.dictionaries(
    st.sampled_from(["type", "content", "calls", "other"]) | texts, texts | finite_json_values
)


def pieces(text: str, cuts: list[int]) -> list[str]:
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    return [text[start:end] for start, end in zip(places, [*places[1:], len(text)], strict=True)]


@given(documents, st.booleans(), st.sampled_from([None, 2]), st.lists(st.integers(0, 400), max_size=40))
def test_every_prefix_gives_a_prefix_of_the_text(
    document: Mapping[str, Any], ascii_only: bool, indent: int | None, cuts: list[int]
) -> None:
    written = json.dumps(document, ensure_ascii=ascii_only, indent=indent)
    expected = json.loads(written).get("content")
    reader, read = PartialObject(["content"]), ""
    for piece in pieces(written, cuts):
        reader.feed(piece)
        read += reader.taken("content")
        assert isinstance(expected, str) or read == ""
        assert not isinstance(expected, str) or expected.startswith(read)
    assert read == (expected if isinstance(expected, str) else "")


@given(documents, st.booleans())
def test_character_by_character_is_as_good_as_at_once(document: Mapping[str, Any], ascii_only: bool) -> None:
    written = json.dumps(document, ensure_ascii=ascii_only)
    at_once, one_by_one = PartialObject(["content", "type"]), PartialObject(["content", "type"])
    at_once.feed(written)
    for character in written:
        one_by_one.feed(character)
    for name in ("content", "type"):
        expected = document.get(name)
        assert at_once.whole(name) == one_by_one.whole(name)
        assert at_once.whole(name) == (json.loads(json.dumps(expected)) if isinstance(expected, str) else None)


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda raw: raw.decode("latin-1")), st.integers(0, 60))
def test_what_is_no_json_is_harmless(text: str, cut: int) -> None:
    reader = PartialObject(["content"])
    for piece in (text[:cut], text[cut:], '{"content": "x"}'):
        reader.feed(piece)
    reader.taken("content")


@pytest.mark.parametrize(
    ("written", "content"),
    [
        ('{"content": "Rome', "Rome"),
        ('{"content": "Rome\\', "Rome"),
        ('{"content": "\\u00', ""),
        ('{"content": "\\ud83d', ""),
        ('{"content": "\\ud83d\\ude', ""),
        ('{"content": "\\ud83d\\ude00', "😀"),
        ('{"content": "\\ud83dx', "\ud83dx"),
        ('{"content": "\\ud83d\\n', "\ud83d\n"),
        ('{"content": "\\u12x4 more', ""),
        ('{"inner": {"content": "no"}, "list": [{"content": "no"}], "n": -1.5e3 , "content"  :  "yes"}', "yes"),
        ('{"content": {"content": "no"}}', ""),
        ('{"content": "first", "content": "second"}', "first"),
        ('["content", "no"]', ""),
        ('"content"', ""),
        ('{content: "no"}', ""),
        ('{"content" "no"}', ""),
        ('{"content": "yes"} {"content": "no"}', "yes"),
    ],
)
def test_as_far_as_it_has_come(written: str, content: str) -> None:
    for step in (1, 2, 3, len(written)):
        reader = PartialObject(["content"])
        for start in range(0, len(written), step):
            reader.feed(written[start : start + step])
        assert reader.taken("content") == content
