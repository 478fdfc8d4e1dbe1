"""Questions to people, as steps ask them: what is asked, and what an answer does to the step.

A step asks while it is carried out, and waits without a worker. Its answer ends the step, or makes it ready again:
then the next claim brings the answer, and whoever asked goes on with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planq.shared.kernel.states import AskedOf, QuestionKind, QuestionStatus, Settlement, StepKind
from planq.shared.platform.errors import AnswerDeclined, Cancelled, ErrorRecord, HumanWaitTimedOut, capped

MAX_QUESTION_CHARS = 8_000
"""Longest message of a question; a longer one is cut, and says so."""
MAX_OPEN_QUESTIONS = 10_000
"""Of a tenant whose configuration does not say it."""


@dataclass(frozen=True, slots=True)
class Addressee:
    """Whom a question is asked of; `ids` names the persons of `asker` and `ids`. An operator may answer any."""

    kind: AskedOf = AskedOf.ANYONE
    ids: tuple[str, ...] = ()

    def includes(self, person: str) -> bool:
        """True where it is asked of this person, who is no operator."""
        return self.kind is AskedOf.ANYONE or person in self.ids


def addressee(answers_from: str | Sequence[str], user_id: str) -> Addressee:
    """Return of whom a question is asked in a job that is done for a person, by what its tenant says.

    `asker` is that person, a list that person and those whom it names. A job that is done for nobody asks anyone.
    """
    if answers_from == AskedOf.ANYONE or not user_id:
        return Addressee()
    if isinstance(answers_from, str):
        return Addressee(AskedOf.ASKER, (user_id,))
    return Addressee(AskedOf.IDS, tuple(dict.fromkeys([user_id, *answers_from])))


@dataclass(frozen=True, slots=True)
class StepQuestion:
    """A question to a person, as a step asks it.

    An answer that accepts has a content that satisfies `schema` (None: anything). `details` is what belongs to the
    kind: of an `approval` or an `outcome` the call that it is about. `default` is the content where nobody answers in
    time; None: there is none. `ordinal` counts the questions that one call of a tool asks. `state` comes back with
    the answer to who asked, unchanged, and nobody else sees it. `asked_of` says who may answer. Where the question
    `is_secret`, the secret fields of its answer are stored sealed.
    """

    kind: QuestionKind
    message: str
    schema: Mapping[str, Any] | None = None
    url: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    default: Any = None
    ordinal: int = 0
    state: Any = None
    asked_of: Addressee = Addressee()
    is_secret: bool = False


@dataclass(frozen=True, slots=True)
class QuestionAnswer:
    """The answer to a question; `content` is there where it was accepted, or where its default counts as accepted.

    Its secret fields are stored under the name `sealed_as`, None where it has none.
    """

    kind: QuestionKind
    status: QuestionStatus
    content: Any = None
    reason: str | None = None
    ordinal: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)
    state: Any = None
    asked_of: AskedOf = AskedOf.ANYONE
    sealed_as: str | None = None

    @property
    def is_accepted(self) -> bool:
        """True when a person accepted, or nobody answered and there was a default."""
        has_default = self.status is QuestionStatus.EXPIRED and self.content is not None
        return self.status is QuestionStatus.ACCEPTED or has_default


@dataclass(frozen=True, slots=True)
class ContinueStep:
    """The step is ready again, and its next claim brings the answer."""


@dataclass(frozen=True, slots=True)
class SucceedStep:
    """The step has succeeded with the answer."""

    output: Any


@dataclass(frozen=True, slots=True)
class FailStep:
    """The step has failed for good."""

    error: ErrorRecord


AfterAnswer = ContinueStep | SucceedStep | FailStep

OUTCOME_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "outcome": {"enum": [str(outcome) for outcome in Settlement]},
        "output": {"type": "object", "description": "What the call returned; it belongs to `happened`."},
    },
    "required": ["outcome"],
    "additionalProperties": False,
}
"""What an answer has to be that says whether a call took effect."""

APPROVAL_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "scope": {
            "enum": ["call", "job"],
            "description": "Whether the approval is good for this call, or for all calls of the tool in this job.",
        }
    },
    "additionalProperties": False,
}
"""What an answer has to be that approves a call."""


def after_answer(answer: QuestionAnswer, step_kind: StepKind, *, limit_seconds: float = 0.0) -> AfterAnswer:
    """Return what an answer does to the step that asked. Precondition: the question is of no `outcome`.

    A step that is itself a question has the content as its output. A tool is called again, and judges the answer
    itself, unless its call was not approved. Nobody's answer, after `limit_seconds`, is an error like any other.
    """
    if answer.status is QuestionStatus.EXPIRED and not answer.is_accepted:
        return FailStep(ErrorRecord.of(HumanWaitTimedOut(f"nobody answered within {limit_seconds:g} s")))
    if answer.is_accepted:
        return SucceedStep(answer.content) if step_kind is StepKind.QUESTION else ContinueStep()
    if step_kind is StepKind.QUESTION or answer.kind is QuestionKind.APPROVAL:
        return FailStep(ErrorRecord.of(declined_error(answer)))
    return ContinueStep()


def declined_error(answer: QuestionAnswer) -> AnswerDeclined | Cancelled:
    """Return the error that an answer is which a person declined or cancelled; it names the reason that they gave."""
    what = "the approval" if answer.kind is QuestionKind.APPROVAL else "the question"
    why = f": {answer.reason}" if answer.reason else ""
    if answer.status is QuestionStatus.CANCELLED:
        return Cancelled(capped(f"a person cancelled {what}{why}"))
    return AnswerDeclined(capped(f"a person declined {what}{why}"))
