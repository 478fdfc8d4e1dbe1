"""What is printed: text from elsewhere steers no terminal, and JSON stays JSON."""

from __future__ import annotations

import io
import json

import pytest

from planq.api.cli.console import PlainConsole, as_line, columns, out, plain, print_json

HOSTILE = "\x1b]0;title\x07\x1b[31m\x9b2J\u202eabc\u2066\ud800 [red]x[/red] :smile:\r\x7f"


def test_plain_text_keeps_its_words_and_lines_only() -> None:
    assert plain(HOSTILE) == "]0;title[31m2Jabc [red]x[/red] :smile:"
    assert plain("a\n\tb ü 漢 👍") == "a\n\tb ü 漢 👍"


def test_a_console_prints_hostile_text_as_text() -> None:
    written = io.StringIO()
    console = PlainConsole(file=written, markup=False, emoji=False, highlight=False, soft_wrap=True, width=200)

    console.print(HOSTILE, style="red")

    assert written.getvalue() == plain(HOSTILE) + "\n"


def test_json_means_the_same_and_steers_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"text": HOSTILE, "kept": "ü 漢 👍"}

    print_json(value)

    printed = capsys.readouterr().out
    assert json.loads(printed) == value
    assert plain(printed) == printed
    assert "ü 漢 👍" in printed


def test_columns_are_aligned_by_what_is_seen_and_never_cut() -> None:
    lines = columns([["a", "漢字", "x" * 300], ["bbb", "c", ""]])

    assert lines == [f"a    漢字  {'x' * 300}", "bbb  c"]


def test_one_line_is_one_line() -> None:
    assert as_line("a\n b\t\x1bc") == "a b c"
    assert as_line("x" * 11, 10) == "x" * 10 + "…"


def test_the_standard_console_reads_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    out.print("[bold]x[/bold] :smile: " + "w" * 200)

    assert capsys.readouterr().out == "[bold]x[/bold] :smile: " + "w" * 200 + "\n"
