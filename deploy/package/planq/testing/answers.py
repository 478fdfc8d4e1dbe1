"""Answers of people in a test: a content, a refusal, or a function that decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from planq.shared.agentic.tools.contract import Question
from planq.shared.kernel.questions import QuestionAnswer, StepQuestion
from planq.shared.kernel.states import QuestionStatus
from planq.shared.platform.errors import AnswerDeclined, Cancelled
from planq.shared.subjects.questions.answering import content_defects


@dataclass(frozen=True)
class AskedQuestion(Question):
    """A question that was put, and by which step: a `form`, or an `approval` of a call (`details` name it)."""

    kind: str = "form"
    step: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)


Given = Mapping[str, Any] | AnswerDeclined | Cancelled
"""A content accepts; one of the errors that a tool would get declines or cancels, with its reason."""

Answers = Iterable[Given] | Callable[[AskedQuestion], Given]
"""Answers in the order of the questions, or a function that is asked each."""


class People:
    """Answers questions as a test says; `asked` are all that were put."""

    def __init__(self, answers: Answers) -> None:
        self._answer = answers if callable(answers) else None
        self._given = iter(()) if callable(answers) else iter(answers)
        self.asked: list[AskedQuestion] = []

    def answer(self, asked: StepQuestion, step: int = 0) -> QuestionAnswer | None:
        """Return the next answer, None where there is none; raises `AssertionError` for one that the API refuses."""
        question = AskedQuestion(
            asked.message, asked.schema, asked.default, kind=str(asked.kind), step=step, details=asked.details
        )
        self.asked.append(question)
        given = next(self._given, None) if self._answer is None else self._answer(question)
        if given is None:
            return None
        whom = asked.asked_of.kind
        if isinstance(given, AnswerDeclined | Cancelled):
            declined = isinstance(given, AnswerDeclined)
            status = QuestionStatus.DECLINED if declined else QuestionStatus.CANCELLED
            return QuestionAnswer(
                asked.kind, status, None, given.message or None, asked.ordinal, asked.details, asked.state, whom
            )
        if defects := content_defects(asked.schema, given):
            problems = "; ".join(f"{one['pointer']}: {one['message']}" for one in defects)
            raise AssertionError(f"the answer to {asked.message!r} breaks its schema: {problems}")
        accepted = QuestionStatus.ACCEPTED
        return QuestionAnswer(
            asked.kind, accepted, dict(given), None, asked.ordinal, asked.details, asked.state, whom
        )
