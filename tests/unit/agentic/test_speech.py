"""Whoever watches a reply is shown the answer that it is read as at its end, and nothing of a plan."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.agentic.models.exchange import ToolCallRequest
from planq.shared.agentic.plan.interpret import Direct, interpret
from planq.shared.agentic.plan.speech import Speech, SpeechForm
from planq.shared.platform.errors import storable

WORDS, DECISION = SpeechForm.WORDS, SpeechForm.DECISION
PLANNING = "__planning__"
CALLS = {"type": "tool_calls", "reasoning": "because", "calls": [{"tool_name": "add", "arguments": {"a": 1}}]}


def shown(form: SpeechForm, *parts: tuple[str | None, str], step: int = 1) -> str:
    """Return what is shown of a reply of texts (None) and calls of tools, having come in pieces."""
    speech, version, before = Speech(form), 0, ""
    for number, (tool_name, written) in enumerate(parts):
        speech.begin(number, tool_name)
        for start in range(0, len(written), step):
            speech.add(number, written[start : start + step])
            if speech.version == version:
                assert speech.text.startswith(before), "what was shown stays, or the version changes"
            version, before = speech.version, speech.text
    return speech.text


@given(st.text(max_size=40), st.permutations(["type", "content", "reasoning"]), st.booleans(), st.integers(1, 9))
def test_a_direct_answer_is_shown_as_it_is_read(
    content: str, order: Sequence[str], ascii_only: bool, step: int
) -> None:
    values = {"type": "direct_response", "content": content, "reasoning": "it is known"}
    written = json.dumps({name: values[name] for name in order}, ensure_ascii=ascii_only)

    text = shown(DECISION, (PLANNING, written), step=step)

    read = interpret("", [ToolCallRequest(PLANNING, written)])
    assert text == storable(content)
    assert not isinstance(read, Direct) or text == storable(read.content)


@given(st.lists(st.text(max_size=20), min_size=1, max_size=3), st.integers(1, 9))
def test_texts_are_shown_as_they_are_stored(texts: Sequence[str], step: int) -> None:
    assert shown(WORDS, *((None, text) for text in texts), step=step) == storable("\n\n".join(texts))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([(PLANNING, json.dumps(CALLS))], ""),
        ([(PLANNING, json.dumps({"content": "not yet", **CALLS}))], ""),
        ([("add", json.dumps({"type": "direct_response", "content": "no"}))], ""),
        ([(None, "  It is four.")], "  It is four."),
        ([(None, ' {"type": "direct_response", "content": "in words"}')], ""),
        ([(None, "```json\n{}\n```")], ""),
        ([(None, "``four`` it is")], "``four`` it is"),
        ([(None, "I will add."), ("add", '{"a": 1}')], "I will add."),
        ([(PLANNING, '{"type": "direct_response", "content": "four"}'), (None, "and more")], "four"),
        ([(PLANNING, '{"type": "direct_response", "content": "a"}'), (PLANNING, '{"content": "b"}')], "a"),
    ],
)
def test_of_a_planner_only_the_answer_is_shown(parts: Sequence[tuple[str | None, str]], expected: str) -> None:
    for step in (1, 3, 1_000):
        assert shown(DECISION, *parts, step=step) == expected


def test_a_decision_after_words_takes_their_place() -> None:
    speech = Speech(DECISION)
    speech.begin(0)
    speech.add(0, "Let me see.")
    assert (speech.version, speech.text) == (0, "Let me see.")

    speech.begin(1, PLANNING)
    speech.add(1, '{"type": "direct_response", "content": "four"}')
    assert (speech.version, speech.text) == (1, "four")


@pytest.mark.parametrize("form", [WORDS, DECISION])
def test_a_part_that_takes_the_place_of_another_begins_anew(form: SpeechForm) -> None:
    speech = Speech(form)
    for text in ("It is fi", "It is four"):
        speech.begin(0)
        speech.add(0, text)
    assert (speech.version, speech.text) == (1, "It is four")
