"""Questions and answers by rule: the action under its names, and what an answer does to the step that asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planq.shared.kernel.questions import (
    APPROVAL_SCHEMA,
    ContinueStep,
    FailStep,
    QuestionAnswer,
    SucceedStep,
    after_answer,
)
from planq.shared.kernel.states import QuestionKind, QuestionStatus, StepKind
from planq.shared.subjects.questions.answering import (
    ASSENT,
    REFUSAL,
    action_of,
    answer_of_message,
    content_defects,
    known_action,
)

CASES = json.loads((Path(__file__).parents[2] / "data/cases/agently_plan.json").read_text("utf-8"))["cases"]
STATUS = {"accept": "accepted", "decline": "declined", "cancel": "cancelled"}
FORM, APPROVAL = QuestionKind.FORM, QuestionKind.APPROVAL


@pytest.mark.parametrize(
    ("action", "expected"),
    [(c["input"]["action"], c["expected"]["action"]) for c in CASES if c["op"] == "normalize_action"],
)
def test_an_action_has_many_names(action: str, expected: str) -> None:
    assert action_of(action) == STATUS[expected]


@pytest.mark.parametrize("step_kind", [StepKind.TOOL, StepKind.QUESTION])
@pytest.mark.parametrize("kind", [FORM, APPROVAL, QuestionKind.URL])
@pytest.mark.parametrize("status", [s for s in QuestionStatus if s is not QuestionStatus.OPEN])
def test_an_answer_ends_the_step_or_lets_its_tool_go_on(
    kind: QuestionKind, status: QuestionStatus, step_kind: StepKind
) -> None:
    after = after_answer(QuestionAnswer(kind, status, reason="because"), step_kind, limit_seconds=7)

    is_question = step_kind is StepKind.QUESTION
    if status is QuestionStatus.EXPIRED:
        assert isinstance(after, FailStep)
        assert (after.error.code, "7 s" in after.error.message) == ("human_wait_timeout", True)
    elif status is QuestionStatus.ACCEPTED:
        assert after == (SucceedStep(None) if is_question else ContinueStep())
    elif is_question or kind is APPROVAL:
        assert isinstance(after, FailStep)
        assert (after.error.code, after.error.retryable) == (str(status), False)
        assert "because" in after.error.message
    else:
        assert after == ContinueStep()


def test_a_default_counts_as_accepted_when_nobody_answers() -> None:
    expired = QuestionAnswer(FORM, QuestionStatus.EXPIRED, {"city": "Pisa"})

    assert after_answer(expired, StepKind.QUESTION) == SucceedStep({"city": "Pisa"})
    assert after_answer(expired, StepKind.TOOL) == ContinueStep()


@pytest.mark.parametrize(
    ("schema", "content", "pointers"),
    [
        (None, {"anything": 1}, []),
        (None, 3, ["/content"]),
        ({"required": ["a"]}, {}, ["/content"]),
        ({"properties": {"a/b": {"type": "string"}}}, {"a/b": 1}, ["/content/a~1b"]),
    ],
)
def test_defects_of_a_content_have_their_place_in_the_body(schema: Any, content: Any, pointers: list[str]) -> None:
    assert [defect["pointer"] for defect in content_defects(schema, content)] == pointers


def one_value(**schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"v": schema}, "required": ["v"], "additionalProperties": False}


MESSAGES: list[tuple[QuestionKind, Any, str, tuple[str, Any] | None]] = [
    (APPROVAL, APPROVAL_SCHEMA, " Yes! ", ("accepted", {})),
    (APPROVAL, APPROVAL_SCHEMA, "no", ("declined", None)),
    (APPROVAL, APPROVAL_SCHEMA, "cancel", ("cancelled", None)),
    (APPROVAL, APPROVAL_SCHEMA, "yes, but what is it?", None),
    (APPROVAL, APPROVAL_SCHEMA, "Yes,  please!", ("accepted", {})),
    (APPROVAL, APPROVAL_SCHEMA, "OK", ("accepted", {})),
    (APPROVAL, APPROVAL_SCHEMA, "ДА", ("accepted", {})),
    (APPROVAL, APPROVAL_SCHEMA, "はい、お願いします。", ("accepted", {})),
    (APPROVAL, APPROVAL_SCHEMA, "D’accord", ("accepted", {})),
    (APPROVAL, APPROVAL_SCHEMA, "Si\u0301, por favor", ("accepted", {})),  # as some keyboards compose it
    (APPROVAL, APPROVAL_SCHEMA, "Nein.", ("declined", None)),
    (APPROVAL, APPROVAL_SCHEMA, "No, thanks", ("declined", None)),
    (APPROVAL, APPROVAL_SCHEMA, "HAYIR", ("declined", None)),
    (APPROVAL, APPROVAL_SCHEMA, "ok?", None),
    (APPROVAL, APPROVAL_SCHEMA, "ok then book the other one", None),
    (APPROVAL, APPROVAL_SCHEMA, "not sure", None),
    (APPROVAL, APPROVAL_SCHEMA, "{}", None),
    (APPROVAL, APPROVAL_SCHEMA, "", None),
    (FORM, one_value(type="string"), " Anna ", ("accepted", {"v": "Anna"})),
    (FORM, one_value(type="string"), "no", ("accepted", {"v": "no"})),
    (FORM, one_value(type="string"), "", None),
    (FORM, one_value(type="string", enum=["a", "b"]), "b", ("accepted", {"v": "b"})),
    (FORM, one_value(type="string", enum=["a", "b"]), "c", None),
    (FORM, one_value(type="string", enum=["a", "b"]), "Decline", ("declined", None)),
    (FORM, one_value(type="string", enum=["daily", "Never"]), "never", None),
    (FORM, one_value(type="string"), '{"citty": 5}', None),
    (FORM, one_value(type="string"), '["Pisa"]', None),
    (FORM, one_value(type="string"), '{"v": "Pisa"}', ("accepted", {"v": "Pisa"})),
    (FORM, one_value(type="string"), "{Pisa", ("accepted", {"v": "{Pisa"})),
    (FORM, one_value(type="object"), '{"a": 1}', ("accepted", {"v": {"a": 1}})),
    (FORM, one_value(type="array"), "[1]", ("accepted", {"v": [1]})),
    (FORM, one_value(type="boolean"), "yes", ("accepted", {"v": True})),
    (FORM, one_value(type="boolean"), "да", ("accepted", {"v": True})),
    (FORM, one_value(type="boolean"), "no", ("accepted", {"v": False})),
    (FORM, one_value(type="integer"), "42", ("accepted", {"v": 42})),
    (FORM, one_value(type="number"), "NaN", None),
    (FORM, one_value(type="integer"), "yes", None),
    (FORM, one_value(type="integer"), '{"v": 1}', ("accepted", {"v": 1})),
    (FORM, {"type": "object"}, '{"a": [1]}', ("accepted", {"a": [1]})),
    (FORM, {"type": "object"}, "[" * 5_000, None),
    (QuestionKind.OUTCOME, {"type": "object"}, "{}", None),
    (QuestionKind.URL, None, "yes", None),
]


@pytest.mark.parametrize(("kind", "schema", "text", "expected"), MESSAGES)
def test_a_message_answers_a_question_that_it_fits(
    kind: QuestionKind, schema: Any, text: str, expected: tuple[str, Any] | None
) -> None:
    answer = answer_of_message(kind, schema, text)
    assert (None if answer is None else (str(answer.status), answer.content)) == expected


def test_every_word_of_assent_and_refusal_means_one_thing() -> None:
    for table, status in ((ASSENT, "accepted"), (REFUSAL, "declined")):
        for words in (words for line in table.values() for words in line.split("|")):
            answer = answer_of_message(APPROVAL, APPROVAL_SCHEMA, words)
            assert (words, None if answer is None else str(answer.status)) == (words, status)


def test_only_words_for_an_action_are_known_ones() -> None:
    assert [known_action(word) for word in ("accpet", "", "whatever", "да")] == [None] * 4
    assert known_action(" Reject ") is QuestionStatus.DECLINED
