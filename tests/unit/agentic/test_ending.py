"""Why replies end, in the words of their providers: which of them cut a reply off, and what a job says of it."""

from __future__ import annotations

import pytest

from planq.shared.agentic.models.ending import CutOffBy, cut_off_by, incomplete_of

CUT = [
    ("length", "length", CutOffBy.LENGTH),
    ("max_tokens", "length", CutOffBy.LENGTH),
    ("MAX_TOKENS", "length", CutOffBy.LENGTH),
    ("max_output_tokens", "length", CutOffBy.LENGTH),
    ("model_length", "length", CutOffBy.LENGTH),
    ("a new word", "length", CutOffBy.LENGTH),
    ("model_context_window_exceeded", "length", CutOffBy.CONTEXT_WINDOW),
    ("content_filter", "content_filter", CutOffBy.CONTENT_FILTER),
    ("SAFETY", "content_filter", CutOffBy.CONTENT_FILTER),
    ("RECITATION", "content_filter", CutOffBy.CONTENT_FILTER),
    ("guardrail_intervened", "content_filter", CutOffBy.CONTENT_FILTER),
    ("refusal", "content_filter", CutOffBy.REFUSAL),
    ("pause_turn", None, CutOffBy.PAUSE),
    ("abort", None, CutOffBy.INTERRUPTED),
    ("OTHER", None, CutOffBy.INTERRUPTED),
]


@pytest.mark.parametrize(("own", "general", "reason"), CUT)
def test_a_reason_that_cuts_a_reply_off_is_known(own: str, general: str | None, reason: CutOffBy) -> None:
    found = cut_off_by(own, general)

    assert found is not None
    assert (found.reason, found.finish_reason) == (reason, own)


@pytest.mark.parametrize(
    ("own", "general"),
    [
        ("stop", "stop"),
        ("end_turn", "stop"),
        ("tool_calls", "tool_call"),
        ("STOP", "stop"),
        ("eos", None),
        (None, None),
    ],
)
def test_an_end_in_order_cuts_nothing_off(own: str | None, general: str | None) -> None:
    assert cut_off_by(own, general) is None


def test_the_error_of_a_job_says_why_its_answer_is_incomplete() -> None:
    cut = cut_off_by("stop", "content_filter", said="I cannot help with that.")
    assert cut is not None
    error = cut.error().to_json()

    assert error["code"] == "answer_incomplete"
    assert "I cannot help with that." in error["message"]
    shown = incomplete_of(error)
    assert shown is not None
    assert (shown["reason"], shown["finish_reason"], shown["message"]) == ("refusal", "stop", error["message"])
    assert incomplete_of({"code": "tool_error"}) is None
    assert incomplete_of(None) is None
