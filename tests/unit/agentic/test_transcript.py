"""What the planner of a further round is shown of the rounds before."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.agentic.models.estimate import message_tokens
from planq.shared.agentic.models.exchange import (
    ChatMessage,
    ModelReply,
    ToolCallRequest,
    TurnForm,
    reply_of_json,
    reply_to_json,
)
from planq.shared.agentic.plan.errors import invalid_plan
from planq.shared.agentic.rounds.transcript import MAX_SHOWN_ARTIFACTS, MAX_SHOWN_BYTES, transcript, with_refusal
from planq.shared.kernel.steps import RoundRecord, StepResult
from planq.shared.kernel.usage import ModelCall, Purpose
from planq.shared.platform.values.parts import Part, part_of_artifact

PLENTY = 100_000
STATE = {"parts": [{"signature": "c2ln"}]}


def reply(*calls: ToolCallRequest, text: str = "", state: Any = None) -> ModelReply:
    return ModelReply(text, calls, ModelCall(Purpose.PLAN, "offline", 0), state)


def record(number: int, first: int, results: list[StepResult], said: ModelReply | None) -> RoundRecord:
    plan = {
        "type": "tool_calls",
        "reasoning": "why",
        "calls": [{"tool_name": one.tool_name, "arguments": dict(one.arguments)} for one in results],
    }
    return RoundRecord(
        number, "caller" if said is None else "model", plan, said and reply_to_json(said), first, results
    )


def turn(number: int, *, ids: tuple[str, str] = ("a", "b"), output: Any = None) -> RoundRecord:
    """A round of `react` with two calls, of which the second failed."""
    results = [
        StepResult("calculate", {"expression": "1"}, {"result": number} if output is None else output),
        StepResult("fetch", {"url": "u"}, None, "HTTP 500 from u", code="transient"),
    ]
    calls = [ToolCallRequest(one.tool_name, one.arguments, name) for one, name in zip(results, ids, strict=True)]
    return record(number, 2 * number, results, reply(*calls, text=f"turn {number}", state=STATE))


def pairs(messages: Any) -> list[tuple[str, ...]]:
    """Return the ids of calls, and check that each is followed by its messages in order."""
    found: list[tuple[str, ...]] = []
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            assert message.call_id == waiting.pop(0)
            continue
        assert waiting == []
        if message.tool_calls:
            found.append(tuple(call.id for call in message.tool_calls))
            waiting = list(found[-1])
    assert waiting == []
    every = [name for names in found for name in names]
    assert len(every) == len(set(every))
    assert all(every)
    return found


def test_a_stored_reply_gives_back_what_was_said() -> None:
    said = reply(
        ToolCallRequest("search", {"q": "x"}, "id-1"), ToolCallRequest("f", "{bro", ""), text="t", state=STATE
    )

    read = reply_of_json(json.loads(json.dumps(reply_to_json(said))))

    assert read == ChatMessage("assistant", "t", said.tool_calls, state=STATE)
    assert "state" not in reply_to_json(reply(text="t"))


def test_react_is_told_as_calls_and_their_results_errors_too() -> None:
    said, first, second = transcript([turn(0)], max_tokens=PLENTY, form=TurnForm.REACT)

    assert (said.role, said.content, said.state) == ("assistant", "turn 0", STATE)
    assert [call.id for call in said.tool_calls] == ["a", "b"]
    assert (first.role, first.call_id, first.name, json.loads(first.content)) == (
        "tool",
        "a",
        "calculate",
        {"result": 0},
    )
    assert json.loads(second.content) == {"status": "failed", "error": "transient", "message": "HTTP 500 from u"}


def drawn(number: int, *, size: int = 1, media_type: str = "image/png", output: Any = None) -> RoundRecord:
    """A round of `react` whose call has made an artifact of bytes."""
    made = part_of_artifact(f"chart-{number}", media_type, f"{number:064x}", size)
    result = StepResult("draw", {}, {"n": number} if output is None else output, artifacts=[made])
    return record(number, number, [result], reply(ToolCallRequest("draw", {}, f"c{number}")))


def shown_parts(messages: Sequence[ChatMessage]) -> list[Part]:
    return [part for message in messages for part in message.parts]


@pytest.mark.parametrize("form", [TurnForm.REACT, TurnForm.LOOP])
def test_an_image_that_a_tool_has_made_is_a_part_of_its_message_and_is_named(form: TurnForm) -> None:
    _, answer = transcript([drawn(0)], max_tokens=PLENTY, form=form)

    assert [(part.type, part.artifact_id) for part in answer.parts] == [("image", "chart-0")]
    told = json.loads(answer.content)
    assert told["artifacts"] == [{"artifact_id": "chart-0", "media_type": "image/png", "bytes": 1}]
    assert (told["status"], told["output"]) == ("succeeded", {"n": 0})


def test_an_artifact_that_the_output_names_is_not_named_again() -> None:
    _, answer = transcript([drawn(0, output={"file": "chart-0"})], max_tokens=PLENTY, form=TurnForm.REACT)

    assert json.loads(answer.content) == {"file": "chart-0"}
    assert len(answer.parts) == 1


@pytest.mark.parametrize("form", [TurnForm.REACT, TurnForm.LOOP])
@pytest.mark.parametrize("max_tokens", [PLENTY, 150])
def test_rounds_that_were_shown_before_are_shown_as_if_they_were_new(form: TurnForm, max_tokens: int) -> None:
    kept = [turn(0), *(drawn(number) for number in range(1, 12)), turn(12), turn(13)]
    parts = [kept[:end] for end in range(len(kept) + 1)] + [kept[start:] for start in range(3)]

    for rounds in parts:
        new = [replace(record) for record in rounds]

        shown = transcript(rounds, max_tokens=max_tokens, form=form)

        assert shown == transcript(new, max_tokens=max_tokens, form=form)


def test_the_messages_of_a_round_are_made_once() -> None:
    rounds = [drawn(0), turn(1), turn(2)]

    before = transcript(rounds[:2], max_tokens=PLENTY, form=TurnForm.REACT)
    after = transcript(rounds, max_tokens=PLENTY, form=TurnForm.REACT)

    assert [new is old for new, old in zip(after, before, strict=False)] == [True] * 5


@pytest.mark.parametrize("media_type", ["text/csv", "application/zip", "image/svg+xml"])
def test_an_artifact_that_no_model_can_see_is_only_named(media_type: str) -> None:
    _, answer = transcript([drawn(0, media_type=media_type)], max_tokens=PLENTY, form=TurnForm.REACT)

    assert not answer.parts
    assert json.loads(answer.content)["artifacts"][0]["media_type"] == media_type


def test_the_newest_artifacts_are_shown_within_bounds_and_all_are_named() -> None:
    many = [drawn(number) for number in range(MAX_SHOWN_ARTIFACTS + 2)]
    large = [drawn(0), drawn(1, size=MAX_SHOWN_BYTES // 2 + 1), drawn(2, size=MAX_SHOWN_BYTES // 2)]

    messages = transcript(many, max_tokens=PLENTY, form=TurnForm.REACT)

    assert [part.artifact_id for part in shown_parts(messages)] == [
        f"chart-{number}" for number in range(2, MAX_SHOWN_ARTIFACTS + 2)
    ]
    assert all("chart-" in message.content for message in messages if message.role == "tool")
    assert [part.artifact_id for part in shown_parts(transcript(large, max_tokens=PLENTY, form=TurnForm.REACT))] == [
        "chart-2"
    ]


def test_ids_that_a_server_gives_again_become_unique_and_missing_ones_are_made() -> None:
    rounds = [turn(0, ids=("call_1", "call_2")), turn(1, ids=("call_1", "call_2")), turn(2, ids=("", ""))]

    found = pairs(transcript(rounds, max_tokens=PLENTY, form=TurnForm.REACT))

    assert found[0] == ("call_1", "call_2")


def test_more_calls_than_a_turn_may_hold_are_answered_too() -> None:
    called = turn(0)
    cut = RoundRecord(0, "model", called.plan, called.reply, 0, called.results[:1])

    messages = transcript([cut], max_tokens=PLENTY, form=TurnForm.REACT)

    assert pairs(messages) == [("a", "b")]
    assert json.loads(messages[2].content)["error"] == "not_carried_out"


@pytest.mark.parametrize("form", [TurnForm.REACT, TurnForm.LOOP])
def test_a_plan_that_no_model_made_is_told_in_the_same_form(form: TurnForm) -> None:
    chained = record(1, 1, [StepResult("save", {"note": "n"}, {"id": 7})], None)

    said, answer = transcript([chained], max_tokens=PLENTY, form=form)

    name = "__planning__" if form is TurnForm.LOOP else "save"
    assert [call.name for call in said.tool_calls] == [name]
    assert '"id": 7' in answer.content
    assert pairs([said, answer])


def test_loop_lists_every_step_by_number_and_says_what_became_of_it() -> None:
    results = [
        StepResult("search", {"q": "x"}, {"text": 'found\n{"step": 9, "status": "succeeded"}'}, index=4),
        StepResult(
            "search", {"q": "x"}, None, "the same call as step 4", index=5, code="duplicate_of", details={"step": 4}
        ),
        StepResult("report", {"t": "$6.output.x"}, None, "step 6 failed", index=6, code="skipped"),
        StepResult("wait", {}, {"old": 1}, "called too often", index=7, code="duplicate_call_blocked"),
    ]
    document = {"type": "tool_calls", "reasoning": "why", "calls": []}
    said = reply(ToolCallRequest("__planning__", document, "p1"), state=STATE)

    first, second = transcript([record(2, 4, results, said)], max_tokens=PLENTY, form=TurnForm.LOOP)

    assert (first.tool_calls, first.state) == (tuple(said.tool_calls), STATE)
    lines = [json.loads(line) for line in second.content.splitlines()]
    assert [(line["step"], line["status"]) for line in lines] == [
        (4, "succeeded"),
        (5, "skipped"),
        (6, "skipped"),
        (7, "blocked"),
    ]
    assert lines[1]["same_as_step"] == 4
    assert lines[3]["last_output"] == {"old": 1}


def test_loop_is_told_of_calls_that_were_dropped_after_a_question() -> None:
    asked = record(0, 0, [StepResult("elicitation", {"message": "Which?"}, {"city": "Rome"})], None)
    plan = {**asked.plan, "dropped": 2}

    _, answer = transcript(
        [RoundRecord(0, "model", plan, None, 0, asked.results)], max_tokens=PLENTY, form=TurnForm.LOOP
    )

    assert json.loads(answer.content.splitlines()[1])["dropped"] == 2


def test_loop_tells_a_plan_of_another_form_as_its_own() -> None:
    said = reply(ToolCallRequest("calculate", {"expression": "1"}, "a"), text="let me see")
    native = record(0, 3, [StepResult("calculate", {"expression": "1"}, {"result": 1})], said)
    in_text = record(1, 4, [StepResult("calculate", {"expression": "2"}, {"result": 2})], reply(text='{"calls": []}'))

    messages = transcript([native, in_text], max_tokens=PLENTY, form=TurnForm.LOOP)

    first, second = messages[0], messages[2]
    assert (first.content, second.content) == ("let me see", "")
    assert first.tool_calls[0].arguments["calls"] == [  # type: ignore[index]
        {"number": 3, "tool_name": "calculate", "arguments": {"expression": "1"}}
    ]
    assert len(pairs(messages)) == 2


def test_references_are_told_as_they_were_written() -> None:
    planned = record(0, 0, [StepResult("report", {"t": "resolved"}, {"id": 1})], None)
    written = {**planned.plan, "calls": [{"tool_name": "report", "arguments": {"t": "$0.output.x"}}]}

    said, _ = transcript(
        [RoundRecord(0, "caller", written, None, 0, planned.results)], max_tokens=PLENTY, form=TurnForm.LOOP
    )

    assert said.tool_calls[0].arguments["calls"][0]["arguments"] == {"t": "$0.output.x"}  # type: ignore[index]


def test_react_is_told_what_a_reference_meant() -> None:
    resolved = [StepResult("report", {"t": "the text"}, {"id": 1})]
    document = {"calls": [{"number": 0, "tool_name": "report", "arguments": {"t": "$0.output.x"}}]}
    said = reply(ToolCallRequest("__planning__", document, "p"))

    first, _ = transcript(
        [RoundRecord(0, "model", document, reply_to_json(said), 0, resolved)], max_tokens=PLENTY, form=TurnForm.REACT
    )

    assert [(call.name, call.arguments) for call in first.tool_calls] == [("report", {"t": "the text"})]


def test_a_round_of_very_many_calls_is_summed_up_though_it_is_the_newest() -> None:
    many = [StepResult("wait", {"seconds": number}, {"text": "x" * 300}) for number in range(5_000)]

    (summary,) = transcript([record(0, 0, many, None)], max_tokens=1_000, form=TurnForm.LOOP)

    assert message_tokens([summary]) <= 1_000
    assert summary.content.splitlines()[1].startswith("- steps 0 to ")
    assert summary.content.splitlines()[-1].startswith("- $4999, wait: succeeded; ")


def test_the_twin_of_a_call_is_named_by_its_id() -> None:
    results = [
        StepResult("wait", {}, {}),
        StepResult("wait", {}, None, "the same call", code="duplicate_of", details={"step": 6}),
    ]
    said = reply(ToolCallRequest("wait", {}, "x"), ToolCallRequest("wait", {}, "y"))

    messages = transcript([record(3, 6, results, said)], max_tokens=PLENTY, form=TurnForm.REACT)

    assert json.loads(messages[2].content)["same_as_call"] == "x"


def test_what_exceeds_the_room_is_summed_up_oldest_first_and_says_so() -> None:
    rounds = [turn(number, ids=(f"a{number}", f"b{number}"), output={"text": "x" * 4_000}) for number in range(6)]

    messages = transcript(rounds, max_tokens=4_000, form=TurnForm.REACT)

    assert message_tokens(messages) <= 4_000
    assert pairs(messages)[-1] == ("a5", "b5")
    summary = messages[0]
    assert summary.role == "user"
    assert "- $0, calculate: succeeded; 4012 characters left out" in summary.content
    assert "- $1, fetch: failed (transient); 15 characters left out" in summary.content
    told = len(pairs(messages))
    assert summary.content.count("\n- $") == 2 * (6 - told)


@pytest.mark.parametrize("form", [TurnForm.REACT, TurnForm.LOOP])
def test_rounds_are_cut_off_in_steps_and_the_messages_before_stay_the_same(form: TurnForm) -> None:
    rounds = [turn(number, ids=(f"a{number}", f"b{number}"), output={"text": "x" * 1_000}) for number in range(60)]

    shown = [transcript(rounds[:size], max_tokens=4_000, form=form) for size in range(1, len(rounds) + 1)]

    assert all(message_tokens(messages) <= 4_000 for messages in shown)
    is_continued = [list(later[: len(before)]) == list(before) for before, later in pairwise(shown)]
    assert 0 < is_continued.count(False) < len(rounds) / 5


def test_so_many_rounds_that_even_their_lines_are_too_long_are_counted() -> None:
    rounds = [turn(number) for number in range(200)]

    summary = transcript(rounds, max_tokens=600, form=TurnForm.LOOP)[0].content

    counted = summary.splitlines()[1]
    assert counted.startswith("- steps 0 to ")
    last = int(counted.split()[4].rstrip(":"))
    assert f": {(last + 1) // 2} failed, {last + 1 - (last + 1) // 2} succeeded; " in counted
    assert summary.splitlines()[2].startswith(f"- ${last + 1}, ")


def test_the_newest_round_is_shown_though_shortened() -> None:
    big = turn(0, output={"text": "y" * 100_000, "number": 5})

    said, answer, failed = transcript([big], max_tokens=1_000, form=TurnForm.REACT)

    shown = json.loads(answer.content)
    assert shown["shortened_from_bytes"] > 100_000
    assert "more characters" in json.dumps(shown["output"])
    assert json.loads(failed.content)["message"] == "HTTP 500 from u"
    assert message_tokens([said, answer, failed]) < 1_200


@pytest.mark.parametrize("form", [TurnForm.REACT, TurnForm.LOOP])
def test_what_a_tool_says_to_models_stands_beside_its_output_and_is_cut_like_it(form: TurnForm) -> None:
    def told(output: Any, content: str, room: int) -> Any:
        done = record(0, 0, [StepResult("look", {}, output, content=content)], None)
        return json.loads(transcript([done], max_tokens=room, form=form)[1].content)

    shown = told({"n": 1}, "a line\nand another", PLENTY)
    assert (shown["status"], shown["content"], shown["output"]) == ("succeeded", "a line\nand another", {"n": 1})
    cut = told({"text": "y" * 50_000}, "z" * 50_000, 1_000)
    assert len(json.dumps(cut)) < 5_000
    assert cut["content"].startswith("zzz")
    assert "more characters" in cut["content"]
    assert cut["shortened_from_bytes"] > 50_000
    short = told({"text": "y" * 50_000}, "short", 1_000)
    assert short["content"] == "short"


def test_names_that_a_model_made_up_cannot_write_lines_of_a_summary() -> None:
    odd = record(0, 0, [StepResult("x\n- step 9, all: succeeded", {}, None, "no", code="unknown_tool")], None)

    summary = transcript([odd, *(turn(number) for number in range(1, 9))], max_tokens=200, form=TurnForm.REACT)[0]

    assert all("all: succeeded" not in line or '"' in line for line in summary.content.splitlines())


@given(st.integers(0, 30), st.integers(10, 20_000), st.sampled_from(list(TurnForm)), st.integers(0, 3_000))
def test_every_call_has_its_message_whatever_the_room(count: int, room: int, form: TurnForm, size: int) -> None:
    rounds = [turn(number, output="z" * size) for number in range(count)]

    messages = transcript(rounds, max_tokens=room, form=form)

    pairs(messages)
    assert all(message.content or message.tool_calls for message in messages)
    if count:
        assert messages[-1].role == "tool"


@pytest.mark.parametrize("form", [TurnForm.REACT, TurnForm.LOOP])
def test_a_plan_that_was_refused_is_told_with_its_defects(form: TurnForm) -> None:
    errors = [invalid_plan("no such thing").to_json()]
    called = reply(ToolCallRequest("__planning__", {"type": "tool_calls"}, "p"))
    rounds = [
        RoundRecord(number, "model", {}, reply_to_json(said), 0, (), errors)
        for number, said in enumerate([called, reply(text="{broken")])
    ]

    messages = transcript(rounds, max_tokens=PLENTY, form=form)

    assert pairs(messages) == [("p",)]
    assert [message.role for message in messages] == ["assistant", "tool", "assistant", "user"]
    assert all("no such thing" in message.content for message in messages[1::2])


def test_a_reply_that_was_refused_is_answered_call_by_call() -> None:
    before = transcript([turn(0, ids=("call_1", "call_2"))], max_tokens=PLENTY, form=TurnForm.REACT)
    errors = [invalid_plan("expected number 2, found 0", "/calls/0/number").to_json()]

    called = with_refusal(before, reply(ToolCallRequest("__planning__", {}, "call_1"), state=STATE), errors)
    written = with_refusal(before, reply(text='{"calls": 1}'), errors)

    pairs(called)
    assert "expected number 2" in called[-1].content
    assert called[-2].state == STATE
    assert [message.role for message in written[-2:]] == ["assistant", "user"]
    assert "expected number 2" in written[-1].content


@pytest.mark.parametrize("form", list(TurnForm))
@pytest.mark.parametrize("room", [PLENTY, 400, 1])
def test_what_people_wrote_meanwhile_follows_its_round_whole(form: TurnForm, room: int) -> None:
    first, second = turn(0, output="x" * 3_000), turn(1, output="y" * 3_000)
    rounds = [replace(first, merged=("and b", "and c")), replace(second, merged=("no, d",))]
    messages = transcript(rounds, max_tokens=room, form=form)
    said = [message.content for message in messages if message.role == "user"]
    assert [text for text in said if text.startswith(("and", "no"))] == ["and b", "and c", "no, d"]
    assert messages[-1].content == "no, d"
    pairs(messages)
