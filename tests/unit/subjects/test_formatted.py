"""Markdown as text with formats, and long texts in parts that a chat takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis.strategies import characters, integers, lists, sampled_from, text

from planq.shared.subjects.channels.formatted import FormattedText, formatted, parts_of, utf16_units


def shown(markdown: str) -> tuple[str, list[tuple[str, str]]]:
    found = formatted(markdown)
    return found.text, [(one.kind, found.text[one.start : one.end]) for one in found.entities]


@pytest.mark.parametrize(
    ("markdown", "text", "entities"),
    [
        ("plain", "plain", []),
        ("**b** _i_ ~~s~~ `c`", "b i s c", [("bold", "b"), ("italic", "i"), ("strikethrough", "s"), ("code", "c")]),
        ("**b _i_**", "b i", [("bold", "b i"), ("italic", "i")]),
        ("# Title\n\ntext", "Title\n\ntext", [("bold", "Title")]),
        ("```py\nx = 1\n```\nafter", "x = 1\n\nafter", [("pre", "x = 1")]),
        ("> q\n> r\n>> s\n\nt", "q\nr\n\ns\n\nt", [("blockquote", "q\nr\n\ns")]),
        ("[l](https://a.example) [m](/b) [n](javascript:x)", "l m [n](javascript:x)", [("text_link", "l")]),
        ("a\n\n- b\n  1. c\n  2. d\n- e\n\nf", "a\n\n• b\n  1. c\n  2. d\n• e\n\nf", []),
        ("3. x\n4. y", "3. x\n4. y", []),
        ("a *b", "a *b", []),
        ("<b>x</b> & &amp;", "<b>x</b> & &", []),
        ("a\n\n---\n\nb", "a\n\n———\n\nb", []),
        ("![p](https://a.example/p.png)", "p", [("text_link", "p")]),
        ("snake_case_name 2 * 3 * 4", "snake_case_name 2 * 3 * 4", []),
    ],
)
def test_markdown_becomes_text_and_formats(markdown: str, text: str, entities: list[tuple[str, str]]) -> None:
    assert shown(markdown) == (text, entities)


def test_formats_are_counted_in_units_of_utf_16() -> None:
    found = formatted("😀 **b😀**, [l](https://a.example) ```x```")
    assert found.to_json()[:2] == [
        {"type": "bold", "offset": 3, "length": 3},
        {"type": "text_link", "offset": 8, "length": 1, "url": "https://a.example"},
    ]
    assert formatted("```py\nx\n```").to_json() == [{"type": "pre", "offset": 0, "length": 1, "language": "py"}]


def test_nine_thousand_emoji_are_cut_between_them() -> None:
    parts = parts_of(formatted("😀" * 9_000), 4_096)
    assert [one.units for one in parts] == [4_096] * 4 + [1_616]
    assert {one for part in parts for one in part.text} == {"😀"}


def test_parts_end_where_a_paragraph_does_or_a_line_or_a_word() -> None:
    def cut(text: str) -> list[str]:
        return [one.text for one in parts_of(FormattedText(text), 20)]

    assert cut("first one.\n\nsecond\nthird") == ["first one.", "second\nthird"]
    assert cut("first one is\nsecond one is") == ["first one is", "second one is"]
    assert cut("one two three four five six") == ["one two three four", "five six"]
    assert cut("x" * 45) == ["x" * 20, "x" * 20, "x" * 5]
    assert cut("   \n ") == []
    assert cut("é" * 25)[0] == "é" * 20
    assert cut("e\u0301" * 25)[0] == "e\u0301" * 10, "a letter keeps its accent"
    family = "👨‍👩‍👧"
    assert set(cut(family * 8)) == {family * 2}, "people who belong together are not parted"


def test_a_format_is_not_cut_unless_it_is_longer_than_a_part() -> None:
    whole = formatted("some words **and bold ones** here")
    first, second = parts_of(whole, 24)
    assert (first.text, first.entities) == ("some words", [])
    assert second.text == "and bold ones here"
    assert second.to_json() == [{"type": "bold", "offset": 0, "length": 13}]
    code = formatted("```\n" + "\n".join(f"line {number}" for number in range(10)) + "\n```")
    parts = parts_of(code, 24)
    assert all(part.to_json() == [{"type": "pre", "offset": 0, "length": part.units}] for part in parts)
    assert "\n".join(part.text for part in parts) == code.text


@given(
    lists(
        sampled_from(["**", "_", "`", "```\n", "\n", "\n\n", "> ", "- ", "# ", "[a](https://b.example)", " ", "😀"])
    ).map("".join),
    text(characters(exclude_categories=["Cs"]), max_size=60),
    integers(4, 40),
)
def test_whatever_is_said_is_cut_into_parts_that_a_chat_takes(marks: str, words: str, most: int) -> None:
    whole = formatted(marks + words + marks + words)
    parts = parts_of(whole, most)
    assert all(0 < part.units <= most for part in parts)
    kept = "".join("".join(part.text.split()) for part in parts)
    assert kept == "".join(whole.text.split())
    for part in parts:
        for one in part.to_json():
            assert 0 <= one["offset"] < one["offset"] + one["length"] <= utf16_units(part.text)
