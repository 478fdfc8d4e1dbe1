"""The rows of a conversation as turns: what was said, what was called for it, and what was answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planq.shared.agentic.turns.messages import Direction, MessageKind, MessageStatus
from planq.shared.subjects.conversations.rules import words_of


def turns_in(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the turns of rows that came newest first, in the order in which they began; what waits comes last."""
    found: dict[str, dict[str, Any]] = {}
    for row in reversed(rows):
        key = row["job_id"] or row["id"]
        turn = found.setdefault(
            key, {"id": key, "job_id": row["job_id"], "at": None, "said": [], "calls": [], "replies": []}
        )
        if row["turn"] is not None:
            turn["at"] = row["turn"]
        _add(turn, row)
    ended = [turn for turn in found.values() if turn["at"] is not None]
    return [*sorted(ended, key=_place), *(turn for turn in found.values() if turn["at"] is None)]


def _place(turn: Mapping[str, Any]) -> int:
    place: int = turn["at"]
    return place


def _add(turn: dict[str, Any], row: Mapping[str, Any]) -> None:
    content = row["content"] if isinstance(row["content"], Mapping) else {}
    is_erased = row["status"] == MessageStatus.ERASED
    if row["kind"] == MessageKind.TOOL_CALL:
        turn["calls"].append({"id": content.get("id"), "name": content.get("name") or "a tool", **_called(content)})
    elif row["kind"] == MessageKind.TOOL_RESPONSE:
        call = next((one for one in turn["calls"] if one["id"] == content.get("id")), None)
        if call is not None:
            call |= {
                "output": content.get("output", content.get("preview")),
                "error": content.get("error"),
                "is_over": True,
            }
    else:
        said = "said" if row["direction"] == Direction.INBOUND else "replies"
        turn[said].append(
            {
                "text": "" if is_erased else words_of(row["text"], content),
                "by": row["user_id"],
                "is_erased": is_erased,
                "created_at": row["created_at"],
                "is_answer": row["answered_question_id"] is not None,
            }
        )


def _called(content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "arguments": content.get("arguments", content.get("preview")),
        "output": None,
        "error": None,
        "is_over": False,
    }
