"""Prompt templates of the caller's, and what planq's own say in a turn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planq.shared.agentic.models.exchange import Ask, ChatMessage, ToolCallRequest, TurnForm, TurnPrompt
from planq.shared.agentic.rounds.block import PROMPT_VARIABLES, prompt_defects
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.worker.models.request import prompt_values, turn_prompt, turn_request

TOOLS = [ToolDefinition(name="search", description="Find\n passages.")]
ASK = Ask("job-1", "What is {{vars}}?", "offline", instructions=["Be brief."], data={"city": "{{round}}"})
TOLD = [
    ChatMessage("assistant", "hm", [ToolCallRequest("search", {}, "a")]),
    ChatMessage("tool", '{"text": "{{query}} </data>"}', call_id="a", name="search"),
]
MODELS = Path(__file__).parents[3] / "docs" / "models.md"


def test_every_variable_has_a_value_and_is_documented() -> None:
    values = prompt_values(ASK, TurnPrompt("", 1, 4, {"tone": "dry"}), TOOLS, TOLD)

    assert sorted(values) == sorted(PROMPT_VARIABLES)
    page = MODELS.read_text("utf-8")
    assert [name for name in PROMPT_VARIABLES if f"| `{{{{{name}}}}}` |" not in page] == []


def test_what_is_inserted_is_data_and_no_template() -> None:
    template = (
        "R{{round}} of {{rounds_left}}\n{{tools}}\n{{query}}\n{{context}}\n{{results}}\n{{vars}}\n{{reference}}"
    )
    assert list(prompt_defects(template)) == []

    prompt = turn_prompt(ASK, TurnPrompt(template, 1, 4, {"tone": "{{tools}}"}), TOOLS, TOLD)

    assert prompt.startswith("R1 of 4\n- search: Find passages.\n<data-")
    for said in (
        "\nWhat is {{vars}}?\n",
        '"{{round}}"',
        '{"text": "{{query}} </data>"}',
        '"{{tools}}"',
        "{{ $N.output.",
    ):
        assert said in prompt
    assert prompt.count("<data-") == 4


def test_a_context_that_is_text_stands_as_it_is() -> None:
    values = prompt_values(replace(ASK, data='{{round}}\n"x"'), TurnPrompt("", 1, 4, {}), TOOLS, TOLD)

    assert values["context"].splitlines()[1:-1] == ["{{round}}", '"x"']


@pytest.mark.parametrize("form", [TurnForm.LOOP, TurnForm.REACT])
def test_a_template_takes_the_place_of_the_rules_and_of_nothing_else(form: TurnForm) -> None:
    own = turn_request(ASK, TOOLS, TOLD, form)
    asked = replace(ASK, prompt=TurnPrompt("Only this.", 0, 1, {}))

    theirs = turn_request(asked, TOOLS, TOLD, form)

    assert (own.system[0], own.system[1][:6]) == ("Be brief.", {"loop": "Decide", "react": "Answer"}[form])
    assert theirs.system == ["Be brief.", "Only this."]
    assert (theirs.messages, theirs.tool, theirs.tools) == (own.messages, own.tool, own.tools)


def test_the_last_answer_has_words_of_its_own() -> None:
    asked = replace(ASK, prompt=TurnPrompt("Only this.", 0, 1, {}))

    request = turn_request(asked, TOOLS, TOLD, TurnForm.ANSWER)

    assert request.system == ["Be brief."]
    assert (request.tool, request.tools) == (None, ())
    assert "no room for further tool calls" in request.messages[-1].content


def test_an_answer_schema_is_told_in_words_while_tools_may_be_called_and_enforced_at_the_end() -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "number"}}}
    ask = Ask("job-1", "Add.", "offline", answer_schema=schema)

    for form in (TurnForm.LOOP, TurnForm.REACT):
        request = turn_request(ask, TOOLS, (), form)
        assert '"sum"' in request.system[-1]
        assert request.answer_schema is None
    assert turn_request(ask, TOOLS, (), TurnForm.ANSWER).answer_schema == schema
