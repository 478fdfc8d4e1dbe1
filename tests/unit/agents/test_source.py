"""Documents read from text: what is a value, on which line it stands, and what an untrusted text cannot do."""

from __future__ import annotations

import json

import pytest
import yaml

from planq.shared.agentic.source import MAX_CHARS, MAX_DEPTH, MAX_PARTS, BoundedLoader, read_source
from tests.support.tiers import rare


def test_yaml_is_read_by_the_core_schema_of_its_present_version() -> None:
    text = "a: no\nb: 2026-11-21\nc: [1, 1.5, 1e3, 0x1, 1:30]\nd: {x: null, y: ~, z: }\ne: 'true'\nf: true\n"

    assert read_source(text).value == {
        "a": "no",
        "b": "2026-11-21",
        "c": [1, 1.5, 1000.0, "0x1", "1:30"],
        "d": {"x": None, "y": None, "z": None},
        "e": "true",
        "f": True,
    }


def test_the_librarys_own_loader_is_left_as_it_is() -> None:
    assert yaml.safe_load("a: no") == {"a": False}


def test_every_part_knows_its_line() -> None:
    marked = read_source("a:\n  - b: 1\n    c: 2\nd:\n  3\n")

    assert marked.lines[("a", 0, "c")] == 3
    assert marked.lines[("d",)] == 4
    assert marked.defect(("a", 0, "c", "deeper"), "bad").render() == "line 3, /a/0/c/deeper: bad"


def test_json_keeps_its_values_and_gets_lines_as_well() -> None:
    marked = read_source('{\n\t"a": "\\ud83d\\ude00 no",\n\t"b": [1e3, "x\\/y"]\n}')

    assert marked.value == {"a": "\U0001f600 no", "b": [1000.0, "x/y"]}
    assert marked.lines[("b", 0)] == 3
    assert marked.defects == []


def test_json_may_be_no_deeper_than_yaml() -> None:
    text = '{"a": ' + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1) + "}"

    assert [defect.render() for defect in read_source(text).defects] == [f"nested more than {MAX_DEPTH} levels deep"]


def test_braces_that_are_no_json_are_read_as_yaml() -> None:
    assert read_source("{a: 1,}").value == {"a": 1}


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("a: 1\na: 2", 2, "already used"),
        ('{"a": 1,\n"a": 2}', 2, "already used"),
        ("x:\n  a: [1,\nb: 2", 3, "not valid YAML"),
        ("a: 1\n---\nb: 2", 2, "single document"),
        ("a: !!python/object:os.system {}", 1, "python/object"),
        ("a: !!binary aGk=", 1, "binary"),
        ("b: 1\n1: 2", 2, 'expected a text as key, found "1"'),
        ("[1]: 2", 1, "expected a text as key"),
        ("a: &x {k: 1}\nb:\n  <<: *x", 3, "expected a text as key"),
        ("a: 1e999", 1, "expected a number"),
        ("a: " + "9" * 5_000, 1, "expected a number"),
        ('a: "\\0"', 1, "cannot be stored"),
        ('a: "\\ud800"', 1, "cannot be stored"),
    ],
)
def test_what_is_no_plain_json_is_told_with_its_line(text: str, line: int, told: str) -> None:
    defects = read_source(text).defects

    assert [defect.line for defect in defects] == [line]
    assert told in defects[0].message


def test_several_defects_are_all_told() -> None:
    defects = read_source("a: !!set {}\n2: 3\nb: 1\nb: 2\n").defects

    assert [defect.line for defect in defects] == [1, 2, 4]


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]",
        "a: " + "[" * 200 + "]" * 200,
        "a: " + "[" * 100_000,
        "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 10)}]\n" for n in range(9)),
        "a: " + "x" * MAX_CHARS,
    ],
    ids=["a circle", "deep", "deep and broken", "aliases of aliases", "long"],
)
def test_a_text_cannot_make_more_of_itself_than_is_bounded(text: str) -> None:
    (defect,) = read_source(text).defects

    assert "most" in defect.message or "more than" in defect.message


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[" * 5_000, "levels deep"),
        ("a: " + "[{" * 100_000, "levels deep"),
        ("- " * 100_000, "levels deep"),
        ("".join(f"{' ' * level}a:\n" for level in range(600)), "levels deep"),
        rare("[" + "a," * 120_000 + "]", "parts"),
        ("- a\n" * 60_000, "parts"),
        ('{"a": [' + "0," * 120_000 + "0]}", "parts"),
    ],
    ids=["brackets", "both brackets", "dashes", "indented", "items", "lines", "JSON"],
)
def test_a_text_is_given_up_as_soon_as_it_is_too_much(text: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = 0
    fetch = BoundedLoader.fetch_more_tokens

    def counting(loader: BoundedLoader) -> None:
        nonlocal tokens
        tokens += 1
        fetch(loader)

    monkeypatch.setattr(BoundedLoader, "fetch_more_tokens", counting)

    (defect,) = read_source(text).defects

    assert told in defect.message
    assert tokens < (1_000 if "deep" in told else 3 * MAX_PARTS)


def test_a_json_text_may_have_as_many_parts_as_a_yaml_text() -> None:
    most = [0] * (MAX_PARTS - 2)

    assert read_source(json.dumps({"a": most})).value == {"a": most}
    assert [one.message for one in read_source(json.dumps({"a": [*most, 0]})).defects] == [
        f"more than {MAX_PARTS} parts, each use of an alias counted"
    ]


def test_bytes_must_be_utf8() -> None:
    assert read_source("\ufeffa: ä".encode()).value == {"a": "ä"}
    (defect,) = read_source(b"a: 1\nb: \xff").defects
    assert (defect.line, defect.message) == (2, "the text is not UTF-8")


@pytest.mark.parametrize("bad", [float("nan"), "\0", "\ud800", object(), {"\0": 1}])
def test_a_decoded_document_must_be_json_that_can_be_stored(bad: object) -> None:
    (defect,) = read_source({"a": bad}).defects

    assert defect.line is None
