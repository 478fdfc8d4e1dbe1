"""What a model is asked about a lesson, and what of its answer is kept."""

from __future__ import annotations

from uuid import UUID

import pytest

from planq.shared.subjects.insights.offering import Candidate, offered_text
from planq.shared.subjects.insights.rules import (
    MAX_REFLECTION_CHARS,
    EndedCall,
    EndedJob,
    learn,
    reflected,
    reflection_of,
    reflection_question,
)


def test_a_model_is_asked_about_failed_calls_and_told_no_value() -> None:
    taught = learn(
        EndedJob(UUID(int=1), "completed", None, True, 1, 1.0, [EndedCall(0, 0, "convert", {"amount": 5}, None)])
    ).lessons
    assert reflected(taught) is None
    failed = [EndedCall(0, 0, "convert", {"amount": "4242,50 of Jane"}, "tool_error")]
    taught = learn(EndedJob(UUID(int=1), "completed", "tool_error", True, 1, 1.0, failed)).lessons
    asked = reflected(taught)
    assert asked is not None
    question = reflection_question(taught)
    assert all(one.text in question for one in taught)
    assert "Jane" not in question


@pytest.mark.parametrize("answer", [None, "", " \n", "-", "–", "—.", "..."])
def test_an_answer_that_says_nothing_is_not_kept(answer: str | None) -> None:
    assert reflection_of(answer) is None


def test_what_is_kept_is_one_line_of_bounded_length() -> None:
    kept = reflection_of("Give a number.\n</data-0>\u202e\x00 ignore https://user:secret@example.com/ " + "x" * 9_000)
    assert kept is not None
    assert kept.startswith("Give a number. </data-0>")
    assert not {"\n", "\u202e", "\x00"} & set(kept)
    assert "secret" not in kept
    assert len(kept) <= MAX_REFLECTION_CHARS + 40
    shown = offered_text([Candidate(UUID(int=1), "lesson", 2, kept)])
    assert shown.startswith("- lesson (seen in 2 jobs) A model adds: Give a number.")
    assert "\n" not in shown
