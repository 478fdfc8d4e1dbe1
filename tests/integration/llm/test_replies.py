"""Replies of servers that write the formats in their own way: what the gateway makes of them, streamed and whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest

from planq.shared.agentic.models.exchange import Ask, ModelFailed, ModelReply, TurnForm
from planq.worker.models.gateway import ModelGateway, TryLimits
from tests.integration.llm.calls import RESULTS, TOOLS, Waits, respond, settings_for
from tests.integration.llm.dialects import ANTHROPIC, GOOGLE, OPENAI_CHAT, Dialect
from tests.integration.llm.events import Event
from tests.integration.llm.wire import Reply, WireServer

Json = dict[str, Any]
HEAD = {"id": "r", "created": 1, "model": "m", "object": "chat.completion.chunk"}
SUM = '{"expression": "2+2"}'
ASK = Ask("job-1", "What is 2+2?", OPENAI_CHAT.model)


def chunk(delta: Mapping[str, Any], finish: str | None = None, **more: Any) -> Event:
    return Event({**HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more})


def says(*pieces: str, finish: str = "stop") -> list[Event]:
    return [*(chunk({"content": piece}) for piece in pieces), chunk({}, finish)]


def whole(message: Mapping[str, Any], finish: str = "stop", **more: Any) -> Reply:
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": None, **message}}
    return Reply({**HEAD, "object": "chat.completion", "choices": [choice], **more}, whole=True)


def asked(
    server: WireServer, form: TurnForm, *, stream: bool = True, waits: Waits | None = None, ask: Ask = ASK
) -> ModelReply:
    dialect = OPENAI_CHAT if stream else OPENAI_CHAT.whole

    async def run() -> ModelReply:
        settings = settings_for(dialect, server)
        gateway = ModelGateway(settings, patience=TryLimits(settings, waits or Waits(), lambda: 0.5))
        try:
            if form is TurnForm.ANSWER:
                return await gateway.respond(ask, RESULTS)
            if form is TurnForm.LOOP:
                return await gateway.plan(ask, TOOLS)
            return await gateway.turn(ask, TOOLS, [], form)
        finally:
            await gateway.aclose()

    return asyncio.run(run())


def thoughts_of(reply: ModelReply) -> Any:
    assert reply.call.exchange is not None
    return reply.call.exchange["reply"].get("thoughts")


CUT = [
    ["<think>", "\n", "Add.", "\n", "</think>", "\n\n", "It is", " 4."],
    ["<think>Add.</think>\n\nIt is 4."],
    ["<th", "ink>Ad", "d.</", "thi", "nk>\n", "\nIt is 4."],
    ["Add.\n", "</think>\n\nIt is 4."],
    ["<|channel|>analysis<|message|>Add.<|end|><|start|>assistant<|channel|>fi", "nal<|message|>It is 4."],
]


@pytest.mark.parametrize("pieces", CUT, ids=["tokens", "at once", "cut marks", "closing alone", "channels"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_thoughts_in_a_text_are_stored_beside_the_answer(
    server: WireServer, pieces: Sequence[str], stream: bool
) -> None:
    server.script(Reply(says(*pieces)) if stream else whole({"content": "".join(pieces)}))

    reply = asked(server, TurnForm.ANSWER, stream=stream)

    assert (reply.text, thoughts_of(reply)) == ("It is 4.", "Add.")


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_thoughts_in_a_field_are_stored_beside_the_answer(server: WireServer, field: str, stream: bool) -> None:
    events = [chunk({field: "Ad"}), chunk({field: "d."}), *says("It is 4.")]
    server.script(Reply(events) if stream else whole({field: "Add.", "content": "It is 4."}))

    reply = asked(server, TurnForm.ANSWER, stream=stream)

    assert (reply.text, thoughts_of(reply)) == ("It is 4.", "Add.")


def call(**fields: Any) -> Json:
    function = {"name": fields.pop("name", "calculate"), "arguments": fields.pop("arguments", SUM)}
    return {"type": "function", "function": function, **fields}


CALLS = {
    "equal indices": [call(index=0, id="a"), call(index=0, id="b")],
    "no index": [call(id="a"), call(id="b")],
    "equal ids": [call(index=0, id="a"), call(index=1, id="a")],
    "no ids": [call(index=0), call(index=1, id="")],
    "neither": [call(), call()],
    "null": [call(index=None, id=None), call(index=None, id=None)],
    "objects": [call(index=0, id="a", arguments={"expression": "2+2"}), call(index=1, id="b")],
    "encoded twice": [call(index=0, id="a", arguments='"{\\"expression\\": \\"2+2\\"}"'), call(index=1, id="b")],
}


@pytest.mark.parametrize("calls", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("form", ["one by one", "at once", "whole"])
def test_parallel_calls_stay_apart_and_have_ids_of_their_own(
    server: WireServer, calls: Sequence[Json], form: str
) -> None:
    if form == "whole":
        server.script(whole({"tool_calls": calls}, "tool_calls"))
    else:
        deltas = [[one] for one in calls] if form == "one by one" else [list(calls)]
        server.script(Reply([*(chunk({"tool_calls": some}) for some in deltas), chunk({}, "tool_calls")]))

    reply = asked(server, TurnForm.REACT, stream=form != "whole")

    assert [(one.name, one.arguments) for one in reply.tool_calls] == [("calculate", {"expression": "2+2"})] * 2
    assert len({one.id for one in reply.tool_calls} - {""}) == 2


@pytest.mark.parametrize("raw", ["", None, "null", "{}", {}])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_missing_arguments_are_none(server: WireServer, raw: Any, stream: bool) -> None:
    calls = [call(index=0, id="a", arguments=raw)]
    server.script(
        Reply([chunk({"tool_calls": calls}), chunk({}, "tool_calls")])
        if stream
        else whole({"tool_calls": calls}, "tool_calls")
    )

    (made,) = asked(server, TurnForm.REACT, stream=stream).tool_calls

    assert made.arguments == {}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_call_of_the_first_format_is_made(server: WireServer, stream: bool) -> None:
    function = {"name": "calculate", "arguments": SUM}
    server.script(
        Reply([chunk({"function_call": function}), chunk({}, "function_call")])
        if stream
        else whole({"function_call": function}, "function_call")
    )

    (made,) = asked(server, TurnForm.REACT, stream=stream).tool_calls

    assert (made.name, made.arguments) == ("calculate", {"expression": "2+2"})


WRITTEN = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "2+2"}}\n</tool_call>'


@pytest.mark.parametrize("form", [TurnForm.REACT, TurnForm.LOOP])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_call_in_the_text_is_made_where_tools_are_offered(server: WireServer, form: TurnForm, stream: bool) -> None:
    text = "<think>Add.</think>I add.\n" + WRITTEN
    server.script(Reply(says(text[:40], text[40:])) if stream else whole({"content": text}))

    reply = asked(server, form, stream=stream)

    assert reply.text == "I add."
    assert [(one.name, one.arguments) for one in reply.tool_calls] == [("calculate", {"expression": "2+2"})]
    assert reply.tool_calls[0].id


def test_a_call_in_the_place_of_an_answer_is_none(server: WireServer) -> None:
    server.script(Reply(says(WRITTEN)))

    with pytest.raises(ModelFailed, match='called "calculate"'):
        asked(server, TurnForm.ANSWER)


def test_a_call_beside_an_answer_is_part_of_its_text(server: WireServer) -> None:
    server.script(Reply(says("It is 4.\n" + WRITTEN)))

    reply = asked(server, TurnForm.ANSWER)

    assert (reply.text, list(reply.tool_calls)) == ("It is 4.\n" + WRITTEN, [])


FAULTS = {
    "by name": [Event({"error": {"message": "upstream is gone"}})],
    "as a text": [Event({"error": "upstream is gone"})],
    "without choices": [Event({**HEAD, "choices": None, "error_message": "upstream is gone", "error_type": "X"})],
    "beside a choice": [chunk({"content": ""}, "error", error={"code": 502, "message": "upstream is gone"})],
    "as a reason": [chunk({}, "error")],
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_in_the_middle_of_a_text_is_tried_again(server: WireServer, fault: list[Event]) -> None:
    server.script(Reply([chunk({"content": "It is"}), *fault]), Reply(says("It is 4.")))

    reply = asked(server, TurnForm.ANSWER)

    assert (reply.text, reply.call.attempts) == ("It is 4.", 2)


@pytest.mark.parametrize("fault", [one for name, one in FAULTS.items() if name != "as a reason"])
def test_the_words_of_the_provider_are_in_the_error(server: WireServer, fault: list[Event]) -> None:
    server.script(Reply([chunk({"content": "It is"}), *fault]))

    with pytest.raises(ModelFailed, match="upstream is gone"):
        asked(server, TurnForm.ANSWER)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_an_error_object_with_the_status_200_is_tried_again(server: WireServer, stream: bool) -> None:
    fault = {"error": {"message": "upstream is gone", "code": 502}}
    server.script(Reply(fault, whole=True), whole({"content": "It is 4."}))

    assert asked(server, TurnForm.ANSWER, stream=stream).call.attempts == 2

    server.script(Reply(fault, whole=True))
    with pytest.raises(ModelFailed, match="upstream is gone"):
        asked(server, TurnForm.ANSWER, stream=stream)


def test_a_question_too_long_is_known_by_the_words_of_a_fault(server: WireServer) -> None:
    message = "This model's maximum context length is 131072 tokens."
    server.script(
        Reply([Event({**HEAD, "choices": None, "error_message": message, "error_type": "BadRequestError"})])
    )

    with pytest.raises(ModelFailed, match="131072") as caught:
        asked(server, TurnForm.ANSWER)

    assert (caught.value.error.code, caught.value.call.attempts) == ("context_exceeded", 1)


def test_an_empty_stream_is_tried_a_few_times(server: WireServer) -> None:
    server.script(Reply([Event("[DONE]")]))

    with pytest.raises(ModelFailed) as caught:
        asked(server, TurnForm.ANSWER)

    assert (caught.value.error.code, caught.value.call.attempts) == ("unreadable_reply", 3)


def test_a_stream_with_a_byte_order_mark_is_read_from_its_first_event(server: WireServer) -> None:
    events = [json.dumps(event.data) for event in says("It is", " 4.")]
    body = "\ufeff" + "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])
    server.script(Reply(body.encode(), headers={"content-type": "text/event-stream"}))

    assert asked(server, TurnForm.ANSWER).text == "It is 4."


def ending(dialect: Dialect, reason: str) -> Any:
    """Return a reply in the format of a dialect that ends for a reason."""
    body = dialect.reply("The answer is forty-", None)
    if dialect.name == "google":
        body["candidates"][0]["finishReason"] = reason
    elif dialect.name == "anthropic":
        body["stop_reason"] = reason
    else:
        body["choices"][0]["finish_reason"] = reason
    return body


ENDINGS = [
    (OPENAI_CHAT, "length", "length"),
    (OPENAI_CHAT, "content_filter", "content_filter"),
    (ANTHROPIC, "max_tokens", "length"),
    (ANTHROPIC, "model_context_window_exceeded", "context_window"),
    (ANTHROPIC, "refusal", "refusal"),
    (ANTHROPIC, "pause_turn", "pause"),
    (GOOGLE, "MAX_TOKENS", "length"),
    (GOOGLE, "SAFETY", "content_filter"),
    (GOOGLE, "RECITATION", "content_filter"),
]


@pytest.mark.parametrize(("dialect", "own", "reason"), ENDINGS)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_reply_that_was_cut_off_says_why(
    server: WireServer, dialect: Dialect, own: str, reason: str, stream: bool
) -> None:
    spoken = dialect if stream else dialect.whole
    server.script(Reply(ending(dialect, own)))

    reply = respond(settings_for(spoken, server), spoken)

    assert reply.text == "The answer is forty-"
    assert reply.incomplete is not None
    assert (reply.incomplete.reason, reply.incomplete.finish_reason) == (reason, own)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_refusal_in_a_field_is_told_in_its_words(server: WireServer, stream: bool) -> None:
    words = {"refusal": "I cannot help with that."}
    server.script(Reply([chunk(words), chunk({}, "stop")]) if stream else whole(words))

    with pytest.raises(ModelFailed, match="I cannot help with that") as caught:
        asked(server, TurnForm.ANSWER, stream=stream)

    assert caught.value.error.code == "model_refused"


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_one_more_call_goes_on_from_a_text_that_was_cut_off(server: WireServer, stream: bool) -> None:
    parts = [("It is forty-", "length"), ("two.", "stop")]
    server.script(
        *(Reply(says(text, finish=end)) if stream else whole({"content": text}, end) for text, end in parts)
    )

    reply = asked(server, TurnForm.ANSWER, stream=stream, ask=replace(ASK, on_incomplete="continue"))

    assert (reply.text, reply.incomplete, reply.call.attempts) == ("It is forty-two.", None, 2)
    sent = server.requests[1].body["messages"][-2:]
    assert [one["role"] for one in sent] == ["assistant", "user"]
    assert sent[0]["content"] == "It is forty-"


def test_a_text_that_is_cut_off_again_is_incomplete(server: WireServer) -> None:
    server.script(Reply(says("It is ", finish="length")), Reply(says("forty-", finish="length")))

    reply = asked(server, TurnForm.ANSWER, ask=replace(ASK, on_incomplete="continue"))

    assert (reply.text, reply.call.attempts) == ("It is forty-", 2)
    assert reply.incomplete is not None
    assert not reply.incomplete.is_failure


@pytest.mark.parametrize("choice", ["accept", "fail"])
def test_a_text_that_was_cut_off_is_not_asked_for_again_unless_that_is_wished(
    server: WireServer, choice: Literal["accept", "fail"]
) -> None:
    server.script(Reply(says("It is forty-", finish="length")))

    reply = asked(server, TurnForm.ANSWER, ask=replace(ASK, on_incomplete=choice))

    assert (reply.text, reply.call.attempts) == ("It is forty-", 1)
    assert reply.incomplete is not None
    assert reply.incomplete.is_failure is (choice == "fail")


def test_what_a_filter_stopped_is_not_continued(server: WireServer) -> None:
    server.script(Reply(says("It is forty-", finish="content_filter")))

    assert asked(server, TurnForm.ANSWER, ask=replace(ASK, on_incomplete="continue")).call.attempts == 1
