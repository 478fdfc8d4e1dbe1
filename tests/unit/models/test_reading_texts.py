"""Texts of models, one row each: what is the answer, what are thoughts, what is a call; whole, and in pieces."""

from __future__ import annotations

import pytest

from planq.worker.models.reading.texts import Kind, ReadText, TextReader, joined, read_text

CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
THOUGHTS = [
    ("marks", "<think>Add.</think>\n\nIt is 4.", "It is 4.", "Add."),
    ("marks after blanks", "\n <think>\nAdd.\n</think>It is 4.", "It is 4.", "Add."),
    ("no thoughts between marks", "<think>\n\n</think>\n\nIt is 4.", "It is 4.", ""),
    ("two thoughts", "<think>a</think><think>b</think>It is 4.", "It is 4.", "a\n\nb"),
    ("thoughts between sentences", "Let me see.\n<think>Add.</think>\nIt is 4.", "Let me see.\n\nIt is 4.", "Add."),
    ("marks never closed", "<think>Add, and", "", "Add, and"),
    ("a plan among thoughts", '<think>{"type": "x"} no</think>{"type": "y"}', '{"type": "y"}', '{"type": "x"} no'),
    ("a closing mark alone", "Add.\n</think>\n\nIt is 4.", "It is 4.", "Add."),
    ("a closing mark alone in its line", "Add the two</think>It is 4.", "It is 4.", "Add the two"),
    ("a closing mark after a quotation", 'They say "two"</think>\n4.', "4.", 'They say "two"'),
    ("a closing mark at the end", "Add.</think>", "", "Add."),
    ("other words", "<thinking>a</thinking>b", "b", "a"),
    ("brackets", "[THINK]a[/THINK]b", "b", "a"),
    ("triangles", "◁think▷a◁/think▷b", "b", "a"),
    ("long marks", "<|START_THINKING|>a<|END_THINKING|>b", "b", "a"),
    (
        "channels",
        "<|channel|>analysis<|message|>Add.<|end|><|start|>assistant<|channel|>final<|message|>It is 4.<|return|>",
        "It is 4.",
        "Add.",
    ),
    ("channels without their beginning", "Add.<|end|><|channel|>final<|message|>It is 4.", "It is 4.", "Add.<|end|>"),
    ("channels without marks", "analysisWe add.assistantfinalIt is 4.", "It is 4.", "We add."),
]
NAMES = [row[0] for row in THOUGHTS]
ANSWERS = [
    "It is 4.",
    "  It is 4.\n",
    "",
    "a < b and <b>c</b> <",
    "Use `<think>` and `</think>`.",
    'Write "<think>" first.',
    "The mark </think> closes them, <think> opens them.",
    "It is closed by </think>, always.",
    "So:\n```xml\n<think>\na\n</think>\n```\nThat is all.",
    "I see.\n<think>is how it begins",
    "analysis of the text",
    "analysisOf is a name",
    "A <|channel|> is a mark.",
    "Three marks: <|start|> and",
    "```\n" + CALL + "\n```",
]
CALLS = [
    (CALL, "", (CALL,)),
    ("Let me see.\n" + CALL, "Let me see.", (CALL,)),
    (CALL + "\n" + CALL, "", (CALL, CALL)),
    ("<think>a</think>" + CALL, "", (CALL,)),
    ("See:[TOOL_CALLS]now{}", "See:", ("[TOOL_CALLS]now{}",)),
    (CALL[:20], "", (CALL[:20],)),
]


@pytest.mark.parametrize(("text", "answer", "thoughts"), [row[1:] for row in THOUGHTS], ids=NAMES)
def test_thoughts_are_kept_apart_from_the_answer(text: str, answer: str, thoughts: str) -> None:
    read = read_text(text)

    assert (read.answer, read.thoughts, read.calls) == (answer, thoughts, ())


@pytest.mark.parametrize("text", ANSWERS)
def test_an_answer_that_speaks_of_marks_stays_as_it_is(text: str) -> None:
    assert read_text(text).with_calls == text


@pytest.mark.parametrize(("text", "answer", "calls"), CALLS)
def test_calls_are_kept_apart_from_the_answer(text: str, answer: str, calls: tuple[str, ...]) -> None:
    read = read_text(text)

    assert (read.answer, read.calls) == (answer, calls)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("text", [row[1] for row in THOUGHTS] + ANSWERS + [row[0] for row in CALLS])
def test_pieces_read_as_the_whole_does(text: str, size: int) -> None:
    reader = TextReader()
    parts = [part for start in range(0, len(text), size) for part in reader.feed(text[start : start + size])]

    assert joined([*parts, *reader.end()]) == read_text(text)


OPENED = [row for row in THOUGHTS if row[3] and row[1].lstrip().startswith(("<think", "[", "◁", "<|"))]


@pytest.mark.parametrize(("text", "answer"), [row[1:3] for row in OPENED], ids=[row[0] for row in OPENED])
def test_no_piece_of_thoughts_that_were_opened_is_shown_as_the_answer(text: str, answer: str) -> None:
    reader = TextReader()
    shown = [part for char in text for part in reader.feed(char)]

    assert all(part.kind is not Kind.RECALL for part in shown)
    assert answer.startswith("".join(part.text for part in shown if part.kind is Kind.ANSWER).strip())


def test_a_long_text_is_read_in_a_time_that_grows_with_it() -> None:
    reader = TextReader()
    count = sum(len(part.text) for _ in range(50_000) for part in reader.feed("<think "))
    count += sum(len(part.text) for part in reader.end())

    assert count == 350_000
    assert joined([]) == ReadText("", "")
