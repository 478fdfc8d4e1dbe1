"""Calls of models, one row each: as pieces of a stream, by their arguments, and written as text."""

from __future__ import annotations

from typing import Any

import pytest

from planq.shared.agentic.models.exchange import ToolCallRequest
from planq.worker.models.reading.calls import (
    CallOrder,
    CallPiece,
    read_arguments,
    unmarked_calls,
    with_own_ids,
    written_calls,
)
from planq.worker.models.reading.faults import fault_in
from planq.worker.models.reading.texts import read_text

KNOWN = ("add", "now")
ONE, TWO = '{"of": 1}', '{"of": 2}'
Piece = tuple[int | None, str, str, str]
STREAMS: list[tuple[str, list[Piece], list[tuple[str, str, str]]]] = [
    ("pieces in order", [(0, "a", "add", ""), (0, "", "", '{"of"'), (0, "", "", ": 1}")], [("a", "add", ONE)]),
    ("one index for all", [(0, "a", "add", ONE), (0, "b", "add", TWO)], [("a", "add", ONE), ("b", "add", TWO)]),
    (
        "one index, pieces",
        [(0, "a", "add", ""), (0, "", "", ONE), (0, "b", "now", ""), (0, "", "", "{}")],
        [("a", "add", ONE), ("b", "now", "{}")],
    ),
    ("one index, no id", [(0, "", "add", ONE), (0, "", "add", TWO)], [("", "add", ONE), ("", "add", TWO)]),
    (
        "one index, no id, no arguments",
        [(0, "", "now", ""), (0, "", "add", ONE)],
        [("", "now", ""), ("", "add", ONE)],
    ),
    ("one id for all", [(0, "a", "add", ONE), (1, "a", "add", TWO)], [("a", "add", ONE), ("a", "add", TWO)]),
    ("no index", [(None, "a", "add", ONE), (None, "b", "add", TWO)], [("a", "add", ONE), ("b", "add", TWO)]),
    ("no index, no id", [(None, "", "add", ONE), (None, "", "add", ONE)], [("", "add", ONE), ("", "add", ONE)]),
    (
        "no index, mixed by id",
        [(None, "a", "add", ""), (None, "b", "now", ""), (None, "a", "", ONE), (None, "b", "", "{}")],
        [("a", "add", ONE), ("b", "now", "{}")],
    ),
    (
        "mixed by index",
        [(0, "a", "add", ""), (1, "b", "add", ""), (0, "", "", ONE), (1, "", "", TWO)],
        [("a", "add", ONE), ("b", "add", TWO)],
    ),
    ("the name in each piece", [(0, "a", "add", '{"of"'), (0, "a", "add", ": 1}")], [("a", "add", ONE)]),
    ("another id in each piece", [(0, "a", "add", '{"of"'), (0, "b", "", ": 1}")], [("a", "add", ONE)]),
    ("another index in each piece", [(0, "a", "add", '{"of"'), (1, "", "", ": 1}")], [("a", "add", ONE)]),
    ("the name in pieces", [(0, "a", "ad", ""), (0, "", "d", ""), (0, "", "", ONE)], [("a", "add", ONE)]),
    ("the name after the id", [(0, "a", "", ""), (0, "", "add", ""), (0, "", "", ONE)], [("a", "add", ONE)]),
    (
        "indices that begin at 7",
        [(7, "a", "add", ONE), (9, "b", "now", "{}")],
        [("a", "add", ONE), ("b", "now", "{}")],
    ),
]


@pytest.mark.parametrize(("pieces", "calls"), [row[1:] for row in STREAMS], ids=[row[0] for row in STREAMS])
def test_pieces_of_a_stream_become_the_calls_that_were_meant(
    pieces: list[Piece], calls: list[tuple[str, str, str]]
) -> None:
    order = CallOrder(KNOWN)
    joined: dict[int | None, tuple[str, str, str]] = {}
    for piece in pieces:
        placed = order.place(CallPiece(*piece))
        before = joined.get(placed.index, ("", "", ""))
        joined[placed.index] = before[0] + placed.id, before[1] + placed.name, before[2] + placed.arguments

    assert [joined[place] for place in range(len(calls))] == calls


@pytest.mark.parametrize(
    ("raw", "read"),
    [
        ({"of": 1}, {"of": 1}),
        (ONE, {"of": 1}),
        ('"{\\"of\\": 1}"', {"of": 1}),
        ("", {}),
        ("  ", {}),
        (None, {}),
        ("null", {}),
        ('""', {}),
        ("{}" + ONE, {"of": 1}),
        (ONE + ONE, {"of": 1}),
        (ONE + TWO, ONE + TWO),
        ("[1]", "[1]"),
        ('{"of": ', '{"of": '),
        ('{"of": NaN}', '{"of": NaN}'),
        ("7", "7"),
    ],
)
def test_arguments_are_an_object_or_the_text_of_what_is_none(raw: Any, read: Any) -> None:
    assert read_arguments(raw) == read


def test_each_call_gets_an_id_of_its_own_and_keeps_one_that_is() -> None:
    calls = with_own_ids([ToolCallRequest("add", {}, given) for given in ("a", "", "a", "b", "")])

    assert (calls[0].id, calls[3].id) == ("a", "b")
    assert len({call.id for call in calls}) == 5
    assert all(call.id.isalnum() for call in calls)


WRITTEN = [
    '<tool_call>\n{"name": "add", "arguments": {"of": 1}}\n</tool_call>',
    '<tool_call>{"name": "add", "arguments": "{\\"of\\": 1}"}</tool_call>',
    '<tool_call>{"name": "add", "arguments": {"of": 1}}',
    "<tool_call>\n<function=add>\n<parameter=of>\n1\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>add\n<arg_key>of</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    '[TOOL_CALLS][{"name": "add", "arguments": {"of": 1}}]',
    '[TOOL_CALLS]add{"of": 1}',
    '[TOOL_CALLS]add[CALL_ID]x1[ARGS]{"of": 1}',
    '<|python_tag|>{"name": "add", "parameters": {"of": 1}}',
    '<function=add>{"of": 1}</function>',
    '<function_call>{"function": {"name": "add", "arguments": "{\\"of\\": 1}"}}</function_call>',
    '<function_calls><invoke name="add"><parameter name="of">1</parameter></invoke></function_calls>',
    '<minimax:tool_call><invoke name="add"><parameter name="of">1</parameter></invoke></minimax:tool_call>',
    '<|tool_call|>[{"name": "add", "arguments": {"of": 1}}]',
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n"
    '{"of": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"of": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>"
    '{"of": 1}<|tool_call_end|><|tool_calls_section_end|>',
    '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"of": 1}<|call|>',
]


@pytest.mark.parametrize("text", WRITTEN)
def test_a_call_written_as_text_is_made(text: str) -> None:
    (call,) = written_calls(read_text(text).calls)

    assert (call.name, call.arguments) == ("add", {"of": 1})


def test_several_written_calls_are_made_in_order() -> None:
    listed = '[TOOL_CALLS][{"name": "add", "arguments": {"of": 1}}, {"name": "now", "arguments": {}}]'
    apart = WRITTEN[0] + "\n" + WRITTEN[0].replace("1", "2")

    assert [call.name for call in written_calls(read_text(listed).calls)] == ["add", "now"]
    assert [call.arguments for call in written_calls(read_text(apart).calls)] == [{"of": 1}, {"of": 2}]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "add", "arguments": {"of": 1',
        '<tool_call>\n{"name": "add", "arguments": {"of": }}\n</tool_call>',
        "<tool_call>\n<function=add>\n<parameter=of>\n1",
        '[TOOL_CALLS]add{"of": ',
    ],
)
def test_a_written_call_that_is_cut_off_or_damaged_is_no_call_that_a_tool_takes(text: str) -> None:
    (call,) = written_calls(read_text(text).calls)

    assert call.name == "add"
    assert isinstance(call.arguments, str)


def test_damaged_calls_hold_the_text_once() -> None:
    text = "<function=add>{" * 1_000

    calls = written_calls([text])

    assert len(calls) == 1_000
    assert sum(len(call.arguments) for call in calls) <= len(text)


def test_marks_around_words_are_no_call() -> None:
    assert written_calls(read_text("Use <tool_call> to call a tool.").calls) == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('{"name": "add", "arguments": {"of": 1}}', ["add"]),
        ('{"name": "add", "parameters": {"of": 1}}', ["add"]),
        ('I add:\n```json\n{"name": "add", "arguments": {"of": 1}}\n```\n', ["add"]),
        ('```tool_call\n{"name": "now", "arguments": {}}\n```', ["now"]),
        ('[{"name": "add", "arguments": {}}, {"name": "now", "arguments": {}}]', ["add", "now"]),
        ('{"name": "add", "arguments": {}}, {"name": "now", "arguments": {}}', ["add", "now"]),
        ('```json\n{"name": "add", "arguments": {"of":\n"```py\\n1```"}}\n```', ["add"]),
        ('```json\n{"name": "add", "arguments": {}}\n```\nis how, in Python:\n```py\nadd(1)\n```', []),
        ('I called\n```json\n{"name": "add", "arguments": {"of": 1}}\n```\nand it is 2.', []),
        ('{"name": "add", "arguments": {"of": 1}} is how you call it.', []),
        ('{"name": "add", "arguments": {"of": 1}}\n\nIt gives 2. {', []),
        ('{"name": "add", "arguments": {"of": 1}} {"name": ', []),
        ('{"name": "Ada", "arguments": "for and against"}', []),
        ('{"name": "add", "age": 3}', []),
        ("It is 4.", []),
        ("{", []),
    ],
)
def test_json_is_a_call_where_it_names_a_tool_and_ends_the_text(text: str, names: list[str]) -> None:
    assert [call.name for call in unmarked_calls(text, KNOWN.__contains__)] == names


@pytest.mark.parametrize(
    ("fields", "has_choice", "message", "code"),
    [
        ({"error": {"message": "too long", "code": 400}}, False, "too long", "400"),
        ({"error": {"message": "gone", "code": 502}}, True, "gone", "502"),
        ({"error": "gone"}, False, "gone", None),
        ({"error_type": "BadRequestError", "error_message": "too long"}, False, "too long", None),
        ({"object": "error", "message": "too long", "code": 40001}, False, "too long", "40001"),
        ({"detail": "no such model"}, False, "no such model", None),
        ({"error": {"metadata": {"raw": "gone"}}}, False, '{"metadata": {"raw": "gone"}}', None),
        ({"error": None}, True, None, None),
        ({"message": "hello"}, True, None, None),
        ({}, False, None, None),
    ],
)
def test_a_fault_is_reported_in_the_words_of_the_server(
    fields: dict[str, Any], has_choice: bool, message: str | None, code: str | None
) -> None:
    fault = fault_in(fields, has_choice=has_choice)

    assert (None if fault is None else fault.message) == message
    assert (None if fault is None else fault.body.get("code")) == code
