"""The grammar of references (docs/decisions.md, D2)."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from planq.shared.agentic.references.grammar import (
    Insertion,
    Literal,
    Reference,
    escaped,
    find_references,
    is_malformed,
    odd_segments,
    parse,
    pieces,
)
from planq.shared.platform.values.excerpts import path_of, path_text
from planq.shared.platform.values.pointers import from_pointer, to_pointer


@pytest.mark.parametrize(
    ("text", "step", "path"),
    [
        ("$0.output.user.name", 0, ("user", "name")),
        ("$00.output.v", 0, ("v",)),
        ("$step[3].output.a.b", 3, ("a", "b")),
        ("$0.output.items[0].id", 0, ("items", "0", "id")),
        ("$0.output.a[0][12]", 0, ("a", "0", "12")),
        ("$0.output.[4].x", 0, ("4", "x")),
        ("$0.output.a[x]", 0, ("a[x]",)),
        ("$0.output.a[0]b", 0, ("a[0]b",)),
        ("$0.output.a..b", 0, ("a", "", "b")),
        ("$18446744073709551615.output.a", 2**64 - 1, ("a",)),
        ("$0.output.über.日本", 0, ("über", "日本")),
        ("$0.output", 0, ()),
        ("$step[2].output", 2, ()),
        ("$0.output[1][0].id", 0, ("1", "0", "id")),
        ('$0.output["unit.price"]', 0, ("unit.price",)),
        ('$step[1].output.rows[0]["a.b"].c["d]"]', 1, ("rows", "0", "a.b", "c", "d]")),
        ('$0.output["say \\"x\\""]["é"]', 0, ('say "x"', "é")),
        ('$0.output["\\u007d\\u007d"]', 0, ("}}",)),
    ],
)
def test_a_reference_is_read(text: str, step: int, path: tuple[str, ...]) -> None:
    assert parse(text) == Reference(step, path)
    assert not is_malformed(text)


@pytest.mark.parametrize(
    "text",
    [
        "$x.output.value",
        "$$0.output.v",
        "$-1.output.v",
        "$0.output.",
        "$0.output.a\nb",
        "$18446744073709551616.output.a",
        "$" + "9" * 10_000 + ".output.a",
        "$٣.output.a",
        "$step[x].output.a",
        "$ 0.output.a",
        " $0.output.a",
        "\n$0.output",
        "$0.OUTPUT.x",
        "$0.Output",
        "$0.outputs.x",
        "$0['output'].x",
        "$0.output['value']",
        "$0.output['value'].x",
        "$0.output|upper",
        "$0.output of the first",
        "$0.output, please",
        "$0.output.x {{ $1.output.y }}",
        "$0.output.x{{ $1.output.y }} and more",
        "$0.value",
        "$step[0].result",
        "$step0.output.x",
        "$steps[0].output",
    ],
)
def test_what_claims_to_be_a_reference_and_is_none_is_malformed(text: str) -> None:
    assert parse(text) is None
    assert is_malformed(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "plain", "$literal", "see $0.output.v", "$5", "$5.00", "$1.5M a year", "$20.Then we left it", "$HOME"),
        *("$PATH.x", " $x.y", "\\", "\\$HOME", "\\$5", "\\d+ $0.output.x"),
    ],
)
def test_other_text_is_plain(text: str) -> None:
    assert parse(text) is None
    assert not is_malformed(text)
    assert find_references(text) == []


def test_occurrences_come_in_document_order_with_pointers() -> None:
    value = {"a/b": ["x", "$0.output.v"], "$0.output.key": {"~": "{{ $1.output.w }} and {{$x.output.y}}"}}

    found = [(item.pointer, item.template, item.reference, item.embedded) for item in find_references(value)]

    assert found == [
        ("/a~1b/1", "$0.output.v", Reference(0, ("v",)), False),
        ("/$0.output.key/~0", "{{ $1.output.w }}", Reference(1, ("w",)), True),
        ("/$0.output.key/~0", "{{$x.output.y}}", None, True),
    ]


def test_braces_without_a_reference_stay_as_they_are() -> None:
    assert pieces("{{ name }} {{ $HOME }} {{{{ }}") is None
    assert pieces("{{ name | upper }} {{ $.a }} {{ 1 }} {{") is None
    assert pieces("no braces") is None


@pytest.mark.parametrize(
    "template",
    [
        "{{ $0.output.x",
        "{{ $0.output.x }",
        "{{ $0.value }}",
        "{{ $0 }}",
        "{{ $0.OUTPUT.x }}",
        "{{ $0.output['x'] }}",
        "{{ $x.output.y }}",
        "{{\n$0.output.x\n}}",
        "{{ 0.output.x }}",
        "{{ step[0].output.x }}",
    ],
)
def test_what_is_nearly_a_reference_between_braces_is_malformed(template: str) -> None:
    text = f"Read {template}"

    assert pieces(text) == (Literal("Read "), Insertion(template, None))
    assert [(found.template, found.reference) for found in find_references({"q": text})] == [(template, None)]


def test_a_price_before_an_insertion_is_a_text() -> None:
    assert pieces("$5 for {{ $0.output.x }}") == (
        Literal("$5 for "),
        Insertion("{{ $0.output.x }}", Reference(0, ("x",))),
    )
    assert not is_malformed("${{ $0.output.price }}")


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        ("\\$0.output.x", "$0.output.x"),
        ("\\$0.output", "$0.output"),
        ("\\$0.OUTPUT.x", "$0.OUTPUT.x"),
        ("\\\\$0.output.x", "\\$0.output.x"),
        (" \\$0.output.x", " $0.output.x"),
    ],
)
def test_a_backslash_makes_a_reference_the_text_that_it_is(text: str, literal: str) -> None:
    assert pieces(text) == (Literal(literal),)
    assert find_references([text]) == []


def test_a_backslash_at_the_beginning_hides_no_insertion_behind_it() -> None:
    assert pieces("\\$0.output.x is {{ $0.output.x }}") == (
        Literal("$0.output.x is "),
        Insertion("{{ $0.output.x }}", Reference(0, ("x",))),
    )


@given(st.text(alphabet="$012.output[]step{}\\' |\n", max_size=40) | st.text(max_size=20))
@example("$0.output.x")
@example("\\$0.output.x {{ $0.value")
def test_any_text_can_be_written_so_that_it_stands_for_itself(text: str) -> None:
    written = escaped(text)

    assert find_references([written]) == []
    assert (
        "".join(piece.text for piece in pieces(written) or [Literal(written)] if isinstance(piece, Literal)) == text
    )


@pytest.mark.parametrize(
    ("text", "odd"),
    [
        ("$0.output.a.b-c.d_e", []),
        ("$0.output.first name", ["first name"]),
        ("$0.output.x | upper", ["x | upper"]),
        ("$0.output.a[x].b", ["a[x]"]),
        ("$0.output.a,$1", ["a,$1"]),
        ("$0.output.@id.#text.$ref.dc:title.text/html", []),
    ],
)
def test_segments_that_may_be_more_than_a_name_are_told(text: str, odd: list[str]) -> None:
    reference = parse(text)

    assert reference is not None
    assert odd_segments(reference) == odd


def test_an_escape_gives_braces_and_hides_the_reference_behind_it() -> None:
    assert pieces(r"\{{ $0.output.v }} {{ $0.output.v }}") == (
        Literal("{{ $0.output.v }} "),
        Insertion("{{ $0.output.v }}", Reference(0, ("v",))),
    )


def test_a_hundred_thousand_levels_and_unclosed_braces_are_walked() -> None:
    deep: object = "$0.output.v"
    for _ in range(100_000):
        deep = [deep]
    assert len(find_references(deep)) == 1
    assert len(pieces("{{ $0.output." * 20_000) or ()) == 20_000
    assert pieces("{{ $" + " " * 200_000) is None


@given(st.text(alphabet="$0123456789.output[]step{}a\\ \n", max_size=60))
def test_the_canonical_form_of_what_parses_parses_to_the_same(text: str) -> None:
    reference = parse(text)
    if reference is not None:
        assert parse(str(reference)) == reference


_keys = st.text(alphabet=st.characters(codec="utf-8", exclude_characters=".\n[]{}"), min_size=1, max_size=8)


@given(st.integers(0, 2**64 - 1), st.lists(_keys, max_size=5).map(tuple))
def test_format_and_parse_undo_each_other(step: int, path: tuple[str, ...]) -> None:
    assert parse(str(Reference(step, path))) == Reference(step, path)


@given(st.lists(st.text(max_size=6), max_size=5))
def test_pointers_and_tokens_undo_each_other(tokens: list[str]) -> None:
    place = None
    for token in tokens:
        place = (place, token)
    assert list(from_pointer(to_pointer(place))) == tokens


@given(
    st.integers(0, 9),
    st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1),
)
def test_any_names_can_be_referred_to_in_quotation_marks(step: int, path: list[str]) -> None:
    quoted = "".join(f"[{json.dumps(name)}]".replace("{", "\\u007b").replace("}", "\\u007d") for name in path)
    reference = parse(f"${step}.output{quoted}")
    assert reference is not None
    assert (reference.step, list(reference.path)) == (step, path)
    assert parse(str(reference)) == reference
    assert odd_segments(reference) == []
    assert path_of(path_text(reference.path)) == reference.path


@pytest.mark.parametrize(
    "text",
    [
        '$0.output["a.b"',
        '$0.output["a"]b',
        "$0.output['a.b']",
        '$0.output["a\\u0000"]',
        '$0.output["\\ud83d"]',
        '$0.output["a"].',
    ],
)
def test_a_name_in_quotation_marks_that_cannot_be_read_is_malformed(text: str) -> None:
    assert parse(text) is None
    assert is_malformed(text)
