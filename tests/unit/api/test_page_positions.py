"""Where a JSON pointer stands in a text that somebody edits."""

from __future__ import annotations

import pytest

from planq.api.jobs.page.forking import lines_at

TEXT = """{
  "a,b": {}, "calls": [
    {"tool_name": "x:{", "arguments": {
      "q\\"/": [[], [1,
        2]]}},
    [],
    "last"
  ], "end": 1
}"""


@pytest.mark.parametrize(
    ("pointer", "line"),
    [
        ("", 1),
        ("/a,b", 2),
        ("/calls", 2),
        ("/calls/0/tool_name", 3),
        ('/calls/0/arguments/q"~1/1/0', 4),
        ('/calls/0/arguments/q"~1/1/1', 5),
        ("/calls/1", 6),
        ("/calls/2", 7),
        ("/end", 8),
        ("/calls/0/arguments/missing", 3),
        ("/calls/7/tool_name", 2),
        ("/nothing/at/all", 1),
    ],
)
def test_a_value_stands_on_a_line_or_with_what_would_hold_it(pointer: str, line: int) -> None:
    assert lines_at(TEXT, [pointer, "/end"]) == {pointer: line, "/end": 8}


def test_a_plain_value_is_a_document_too() -> None:
    assert lines_at("\n\n7", ["", "/x"]) == {"": 3, "/x": 3}
