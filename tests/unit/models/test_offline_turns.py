"""The turns of `loop` and `react` by the offline rules, played over real transcripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.agentic.models.exchange import (
    Ask,
    ChatMessage,
    ModelReply,
    ToolCallRequest,
    TurnForm,
    reply_to_json,
)
from planq.shared.agentic.plan.errors import invalid_plan
from planq.shared.agentic.plan.interpret import Direct
from planq.shared.agentic.references.resolution import resolve
from planq.shared.agentic.rounds.reading import TurnCalls, interpret_turn, number_errors
from planq.shared.agentic.rounds.transcript import transcript, with_refusal
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.steps import RoundRecord, StepResult
from planq.shared.kernel.usage import ModelCall, Purpose
from planq.worker.models.completion import Completion
from planq.worker.models.offline import turn_offline
from planq.worker.models.offline.structured import SIGNATURE

NAMES = ["calculate", "now", "wait", "write_report"]
TOOLS = [ToolDefinition(name=name) for name in NAMES]
Run = Callable[[str, Mapping[str, Any]], StepResult]


def run(tool: str, arguments: Mapping[str, Any]) -> StepResult:
    """Do what the tools do."""
    if tool == "calculate":
        if set(arguments["expression"]) - set("0123456789+*() "):
            return StepResult(tool, arguments, error="no arithmetic", code="tool_error")
        return StepResult(tool, arguments, {"result": eval(arguments["expression"])})
    if tool == "write_report":
        return StepResult(tool, arguments, {"artifact": {"markdown": str(arguments["sections"])}})
    return StepResult(tool, arguments, {"ok": True})


def reply(completion: Completion) -> ModelReply:
    return ModelReply(completion.text, completion.tool_calls, ModelCall(Purpose.PLAN, "offline", 0))


def play(text: str, form: TurnForm, most: int = 10, limit: int = 10_000) -> tuple[list[list[StepResult]], str]:
    """Play a job to its end; return the results by round, and the answer. A turn may hold `most` calls."""
    rounds: list[RoundRecord] = []
    while len(rounds) < 20:
        told = transcript(rounds, max_tokens=limit, form=form)
        said = turn_offline(Ask("job-1", text, "offline"), TOOLS, told, form)
        assert said == turn_offline(Ask("job-1", text, "offline"), TOOLS, told, form)
        turn = interpret_turn(said.text, said.tool_calls, form)
        if isinstance(turn, Direct):
            return [list(record.results) for record in rounds], turn.content
        assert isinstance(turn, TurnCalls)
        base = sum(len(record.results) for record in rounds)
        assert number_errors(turn, base) == []
        outputs: dict[int, Any] = {}
        results = []
        for index, call in enumerate(turn.plan.calls[:most], start=base):
            arguments = resolve(call.arguments, outputs).arguments if form is TurnForm.LOOP else call.arguments
            results.append(run(call.tool_name, arguments))
            outputs[index] = results[-1].output
        body = turn.plan.model_dump(mode="json", exclude_defaults=True)
        rounds.append(RoundRecord(len(rounds), "model", body, reply_to_json(reply(said)), base, results))
    raise AssertionError("the rules never answered")


CHAIN = "calculate 2 + 3, then calculate it * 4, then write a report titled Sums from them"


def test_react_writes_what_a_call_needs_of_another_into_its_arguments() -> None:
    rounds, answer = play(CHAIN, TurnForm.REACT)

    assert [[one.tool_name for one in results] for results in rounds] == [
        ["calculate"],
        ["calculate"],
        ["write_report"],
    ]
    assert rounds[1][0].arguments == {"expression": "(5) * 4"}
    assert "20" in str(rounds[2][0].arguments["sections"])
    assert "20" in answer
    assert SIGNATURE in answer


def test_react_makes_calls_that_need_nothing_in_one_turn() -> None:
    rounds, answer = play("calculate 2 + 3 and wait 1 second and what time is it", TurnForm.REACT)

    assert [len(results) for results in rounds] == [3]
    assert "2 + 3 = 5" in answer


def test_react_makes_the_calls_that_did_not_fit_into_a_turn_in_the_next() -> None:
    rounds, _ = play("calculate 1 + 1 and calculate 2 + 2 and calculate 3 + 3", TurnForm.REACT, most=2)

    assert [[one.arguments["expression"] for one in results] for results in rounds] == [["1 + 1", "2 + 2"], ["3 + 3"]]


@pytest.mark.parametrize("form", [TurnForm.REACT, TurnForm.LOOP])
def test_what_needs_a_call_that_failed_is_left_out_and_the_answer_says_so(form: TurnForm) -> None:
    rounds, answer = play("calculate 2 + x and wait 1 second", form)

    assert len(rounds) == 1
    assert "no arithmetic" in answer
    assert "I waited 1 seconds" in answer


def test_loop_plans_all_calls_with_their_numbers_and_then_answers() -> None:
    rounds, answer = play(CHAIN, TurnForm.LOOP)

    assert [[one.tool_name for one in results] for results in rounds] == [["calculate", "calculate", "write_report"]]
    assert "20" in answer


@pytest.mark.parametrize("form", [TurnForm.REACT, TurnForm.LOOP])
def test_without_a_command_the_first_turn_is_the_answer(form: TurnForm) -> None:
    rounds, answer = play("good morning", form)

    assert rounds == []
    assert "found no command" in answer


def test_the_last_answer_is_made_from_the_transcript() -> None:
    done = [StepResult("calculate", {"expression": "2 + 3"}, {"result": 5})]
    told = transcript([RoundRecord(0, "caller", None, None, 0, done)], max_tokens=1_000, form=TurnForm.ANSWER)

    answer = turn_offline(Ask("job-1", CHAIN, "offline"), TOOLS, told, TurnForm.ANSWER)

    assert "2 + 3 = 5" in answer.text
    assert answer.tool_calls == ()


@pytest.mark.parametrize("form", [TurnForm.REACT, TurnForm.LOOP])
def test_rounds_that_are_only_summed_up_are_not_called_again(form: TurnForm) -> None:
    rounds, _ = play("calculate 1 + 1 and calculate 2 + 2", form, most=1, limit=1)

    assert sum(map(len, rounds)) <= 2


@pytest.mark.parametrize("form", [TurnForm.REACT, TurnForm.LOOP])
def test_a_plan_that_was_refused_is_not_made_again(form: TurnForm) -> None:
    said = turn_offline(Ask("job-1", CHAIN, "offline"), TOOLS, (), form)
    told = with_refusal((), reply(said), [invalid_plan("no such thing").to_json()])

    again = turn_offline(Ask("job-1", CHAIN, "offline"), TOOLS, told, form)

    turn = interpret_turn(again.text, again.tool_calls, form)
    assert isinstance(turn, Direct)
    assert "no such thing" in turn.content


@given(
    st.lists(st.tuples(st.sampled_from(["tool", "assistant", "user"]), st.text())), st.sampled_from(list(TurnForm))
)
def test_no_transcript_makes_the_rules_raise(said: list[tuple[str, str]], form: TurnForm) -> None:
    told = [
        ChatMessage(role, text, [ToolCallRequest("__planning__" if "a" in text else "now", {}, "x")], "x")
        for role, text in said
    ]

    completion = turn_offline(Ask("job-1", CHAIN, "offline"), TOOLS, told, form)

    assert completion.text or completion.tool_calls
