"""What a model is shown of the turns before (docs/decisions.md, D19)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from planq.shared.agentic.models.exchange import ChatMessage
from planq.shared.agentic.turns.messages import Direction, HistoryMessage, MessageKind
from planq.shared.subjects.conversations.rules import history_messages
from tests.unit.agentic.strategies import json_values


def said(sequence: int, text: str, direction: Direction = Direction.INBOUND) -> HistoryMessage:
    return HistoryMessage(sequence, MessageKind.MESSAGE, direction, text)


def call(sequence: int, own_id: Any, **content: Any) -> HistoryMessage:
    kind = MessageKind.TOOL_CALL if "arguments" in content else MessageKind.TOOL_RESPONSE
    return HistoryMessage(sequence, kind, Direction.INTERNAL, "", {"id": own_id, "name": "note", **content})


def words(text: str) -> int:
    return len(text.split())


def shown(rows: Sequence[HistoryMessage], budget: int) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in history_messages(rows, budget, words)]


def is_valid(messages: Sequence[ChatMessage]) -> bool:
    """Say whether a provider would take the messages: each call has its one result right after it."""
    ids = [called.id for message in messages for called in message.tool_calls]
    answered = [message.call_id for message in messages if message.role == "tool"]
    paired = all(
        [called.id for called in message.tool_calls] == [after.call_id for after in messages[at + 1 : at + 2]]
        for at, message in enumerate(messages)
        if message.tool_calls
    )
    begins = not messages[0].tool_calls and messages[0].role != "tool"
    return paired and ids == answered and len(set(ids)) == len(ids) and begins


NEWEST_FIRST = [
    said(6, "six words are in this answer", Direction.OUTBOUND),
    call(5, "1", output={"text": "ok"}),
    call(4, "1", arguments={"text": "x"}),
    said(3, "note it"),
    said(2, "hi there", Direction.OUTBOUND),
    said(1, "hello"),
]


def test_the_newest_fit_and_may_use_the_budget_up() -> None:
    assert shown(NEWEST_FIRST, 5) == []
    assert shown(NEWEST_FIRST, 6) == [("assistant", "six words are in this answer")]
    whole = shown(NEWEST_FIRST, 100)
    assert [role for role, _ in whole] == ["user", "assistant", "user", "assistant", "tool", "assistant"]
    used = sum(words(text) for _, text in whole) + words('note {"text": "x"}')
    assert shown(NEWEST_FIRST, used) == whole
    assert shown(NEWEST_FIRST, used - 1) == whole[1:]


def test_calls_before_the_first_words_are_left_out() -> None:
    assert shown(NEWEST_FIRST, 6 + 3 + 2) == [("assistant", "six words are in this answer")]


def test_a_call_without_a_response_is_told_to_be_unknown() -> None:
    rows = [said(3, "go on"), call(2, "1", arguments={"text": "x"}), said(1, "note it")]

    messages = history_messages(rows, 1_000, words)

    assert [message.role for message in messages] == ["user", "assistant", "tool", "user"]
    assert json.loads(messages[2].content)["error"]["code"] == "outcome_unknown"
    assert messages[2].call_id == messages[1].tool_calls[0].id


def test_what_is_long_is_shortened_and_stays_an_object() -> None:
    rows = [call(3, "1", output="y" * 9_000), call(2, "1", arguments="x" * 9_000), said(1, "note it")]

    _, called, response = history_messages(rows, 1_000, words)

    assert isinstance(called.tool_calls[0].arguments, dict)
    assert len(response.content) < 1_100


def test_a_message_says_which_images_and_files_came_with_it() -> None:
    parts = [
        {"type": "image", "filename": "cat.png", "url": None, "media_type": "image/png"},
        {"type": "file", "filename": None, "url": "https://example.org/" + "a" * 300, "media_type": None},
    ]
    row = HistoryMessage(1, MessageKind.MESSAGE, Direction.INBOUND, "", {"parts": parts})

    (message,) = history_messages([row], 1_000, words)

    assert message.content.startswith("[image: cat.png]\n[file: https://example.org/aaa")
    assert len(message.content) < 300


_IDS = st.sampled_from(["1", "2", 3, None])
_ROWS = st.lists(
    st.one_of(
        st.builds(said, st.just(0), st.text(max_size=9), st.sampled_from(Direction)),
        st.builds(lambda own_id, given: call(0, own_id, arguments=given), _IDS, json_values),
        st.builds(lambda own_id, given: call(0, own_id, output=given), _IDS, json_values),
        st.builds(lambda own_id, given: call(0, own_id, error=given), _IDS, json_values),
        st.builds(lambda given: HistoryMessage(0, MessageKind.TOOL_CALL, Direction.INTERNAL, "", given), json_values),
    ),
    max_size=12,
)


@given(rows=_ROWS, budget=st.integers(0, 60))
def test_whatever_the_rows_are_every_provider_takes_the_messages(rows: list[HistoryMessage], budget: int) -> None:
    numbered = [
        HistoryMessage(len(rows) - n, row.kind, row.direction, row.text, row.content) for n, row in enumerate(rows)
    ]

    messages = history_messages(numbered, budget, words)

    assert not messages or is_valid(messages)
