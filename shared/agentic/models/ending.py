"""Why a model's reply is not whole, by the provider's finish reason; unknown reasons are normal ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal

from planq.shared.platform.errors import AnswerIncomplete, ErrorRecord, capped


class CutOffBy(StrEnum):
    """What cut a reply off."""

    LENGTH = "length"
    CONTEXT_WINDOW = "context_window"
    CONTENT_FILTER = "content_filter"
    REFUSAL = "refusal"
    PAUSE = "pause"
    INTERRUPTED = "interrupted"


_WORDS: Final[Mapping[CutOffBy, str]] = {
    CutOffBy.LENGTH: "it reached the limit of output tokens; raise `max_tokens` or PLANQ_MODEL_MAX_OUTPUT_TOKENS",
    CutOffBy.CONTEXT_WINDOW: "the context window of the model is full; send less, or use a model with more room",
    CutOffBy.CONTENT_FILTER: "a content filter of the provider stopped it",
    CutOffBy.REFUSAL: "the model refused to go on",
    CutOffBy.PAUSE: "the provider paused it",
    CutOffBy.INTERRUPTED: "the provider interrupted it",
}

_REASONS: Final[Mapping[CutOffBy, tuple[str, ...]]] = {
    CutOffBy.LENGTH: ("length", "max_tokens", "max_output_tokens", "model_length", "limit", "continuation"),
    CutOffBy.CONTEXT_WINDOW: ("model_context_window_exceeded", "context_window", "context_length_exceeded"),
    CutOffBy.CONTENT_FILTER: (
        *(
            "content_filter",
            "content_filtered",
            "guardrail_intervened",
            "sensitive",
            "safety",
            "recitation",
            "blocklist",
        ),
        *("prohibited_content", "spii", "image_safety", "image_prohibited_content", "model_armor", "error_toxic"),
        *("language", "moderation"),
    ),
    CutOffBy.REFUSAL: ("refusal",),
    CutOffBy.PAUSE: ("pause_turn",),
    CutOffBy.INTERRUPTED: (
        *("abort", "aborted", "cancelled", "interrupted", "insufficient_system_resource", "network_error"),
        *("time_limit", "other", "incomplete"),
    ),
}
_BY_REASON: Final = {reason: cut for cut, reasons in _REASONS.items() for reason in reasons}
_MOST_CHARS = 100


OnIncomplete = Literal["accept", "continue", "fail"]
"""A cut-off answer completes its job, is continued by one more call, or fails its job."""

_GOES_ON = (CutOffBy.LENGTH, CutOffBy.PAUSE)


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A cut-off reply; `said` is the text of a refusal. With `is_failure` its job fails, and keeps the text."""

    reason: CutOffBy
    finish_reason: str
    said: str = ""
    is_failure: bool = False

    @property
    def may_go_on(self) -> bool:
        return self.reason in _GOES_ON

    @property
    def sentence(self) -> str:
        words = f" ({capped(self.said, 500)})" if self.said else ""
        return f"{_WORDS[self.reason]} (finish reason: {self.finish_reason}){words}"

    def error(self) -> ErrorRecord:
        details = {"reason": str(self.reason), "finish_reason": self.finish_reason}
        return ErrorRecord.of(AnswerIncomplete(f"the model's answer is incomplete: {self.sentence}", **details))


def cut_off_by(own: str | None, general: str | None, said: str = "") -> Incomplete | None:
    """Return why a reply is not whole, by the provider's `own` reason, pydantic-ai's, or the refusal `said`."""
    if said:
        return Incomplete(CutOffBy.REFUSAL, capped(own or "refusal", _MOST_CHARS), said)
    for word in (own, general):
        cut = _BY_REASON.get((word or "").lower())
        if cut is not None:
            return Incomplete(cut, capped(own or word or "", _MOST_CHARS))
    return None


def incomplete_of(error: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return `{reason, finish_reason, message}` from a job's error; None for a whole answer."""
    if error is None or error.get("code") != AnswerIncomplete.code:
        return None
    details = error.get("details") or {}
    known = {name: details.get(name) for name in ("reason", "finish_reason")}
    return {**known, "message": error.get("message")}
