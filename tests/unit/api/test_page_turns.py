"""How the rows of a conversation stand on a page as turns."""

from __future__ import annotations

from typing import Any

from planq.api.conversations.page import turns_in


def row(job: str | None, turn: int | None, kind: str = "message", direction: str = "inbound", **more: Any) -> Any:
    named = {"id": f"{job}-{turn}-{kind}-{direction}", "job_id": job, "turn": turn, "kind": kind}
    said = {"direction": direction, "status": "done", "user_id": "ann", "text": f"{direction} of {job}"}
    empty = {"content": None, "answered_question_id": None, "created_at": "2026-01-01T00:00:00Z"}
    return {**named, **said, **empty, **more}


def call(job: str, turn: int, kind: str, number: str, **content: Any) -> Any:
    return row(job, turn, kind, "internal", content={"id": number, "name": "look", **content})


def test_turns_stand_in_the_order_in_which_they_were_answered_and_what_waits_comes_last() -> None:
    newest_first = [
        row("c", None),
        row("a", 1, direction="outbound"),
        call("a", 1, "tool_response", "1", output={"n": 1}),
        call("a", 1, "tool_call", "1", arguments={"n": 1}),
        row("b", 2, direction="outbound"),
        row("b", 2),
        row("a", 1),
    ]
    turns = turns_in(newest_first)
    assert [turn["id"] for turn in turns] == ["a", "b", "c"]
    assert [one["text"] for one in turns[0]["said"] + turns[0]["replies"]] == ["inbound of a", "outbound of a"]
    (made,) = turns[0]["calls"]
    assert (made["name"], made["arguments"], made["output"], made["is_over"]) == ("look", {"n": 1}, {"n": 1}, True)
    assert (turns[2]["at"], turns[2]["replies"]) == (None, [])


def test_a_call_without_a_response_and_what_was_erased_are_told_as_such() -> None:
    (turn,) = turns_in([call("a", 1, "tool_call", "1"), row("a", 1, status="erased", text="gone")])
    assert not turn["calls"][0]["is_over"]
    assert turn["said"][0] | {"text": "", "is_erased": True} == turn["said"][0]


def test_a_page_that_begins_within_a_turn_shows_what_there_is_of_it() -> None:
    (turn,) = turns_in([row("a", 1, direction="outbound"), call("a", 1, "tool_response", "1", output=1)])
    assert (turn["calls"], len(turn["replies"])) == ([], 1)
