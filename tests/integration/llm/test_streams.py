"""The gateway's streams: when they stall, break, complain in the middle, or are cut off because nobody waits."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from time import monotonic
from typing import Any

import pytest
from pydantic_ai import direct

from planq.shared.kernel.usage import ModelCall
from planq.worker.models import providers
from planq.worker.models.gateway import ModelGateway
from planq.worker.models.settings import ModelSettings
from tests.integration.llm.calls import (
    PLAN,
    TOOLS,
    ask_for,
    every_stream,
    failure,
    one_stream,
    plan,
    settings_for,
)
from tests.integration.llm.dialects import ANTHROPIC, GOOGLE, OPENAI_CHAT, Dialect
from tests.integration.llm.events import Event, events_of
from tests.integration.llm.wire import Reply, WireServer
from tests.support.waiting import eventually

LONG = "It is four, and here is why: " + "two and two make four. " * 40
ERRORS = {
    "openai-chat": Event({"error": {"message": "we are overloaded", "type": "server_error", "code": "server_error"}}),
    "openai-responses": Event(
        {
            "type": "error",
            "code": "server_error",
            "message": "we are overloaded",
            "param": None,
            "sequence_number": 9,
        },
        "error",
    ),
    "anthropic": Event(
        {"type": "error", "error": {"type": "overloaded_error", "message": "we are overloaded"}}, "error"
    ),
    "google": Event({"error": {"code": 503, "message": "we are overloaded", "status": "UNAVAILABLE"}}),
}


def streamed(dialect: Dialect, text: str = LONG) -> list[Event]:
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    events = events_of(dialect.path, asked, dialect.reply(text, None))
    assert events is not None
    return events


def said_by(dialect: Dialect, server: WireServer, **changes: Any) -> str:
    return plan(settings_for(dialect, server, **changes), dialect).text


@every_stream
def test_a_stream_is_asked_for(server: WireServer, dialect: Dialect) -> None:
    server.script(Reply(dialect.reply("", PLAN)))

    plan(settings_for(dialect, server), dialect)

    sent = server.requests[0]
    assert sent.body.get("stream") is True or "alt=sse" in sent.path
    if dialect is OPENAI_CHAT:
        assert sent.body["stream_options"] == {"include_usage": True}


@one_stream
def test_a_server_that_sends_headers_and_nothing_more_times_out_by_its_first_token(
    server: WireServer, dialect: Dialect
) -> None:
    server.script(Reply(dialect.reply(LONG, None), count=0, then="hang"))

    code, message, call = failure(settings_for(dialect, server, first_token_timeout=0.2, max_attempts=2), dialect)

    assert (code, call.attempts) == ("first_token_timeout", 2)
    assert call.error is not None
    assert call.error.retryable
    assert "`first_token_seconds`" in message
    eventually(lambda: len(server.left_at) == 2, what="both connections are closed")


@one_stream
def test_a_stream_that_stalls_later_times_out_as_a_whole(server: WireServer, dialect: Dialect) -> None:
    server.script(Reply(dialect.reply(LONG, None), count=5, then="hang"))

    # Long enough for the first events on a machine that does other work.
    changes = {"first_token_timeout": 1.5, "request_timeout": 2.0, "max_attempts": 1}

    assert failure(settings_for(dialect, server, **changes), dialect)[0] == "timeout"


@one_stream
def test_a_stream_that_drips_may_take_longer_than_its_first_token(server: WireServer, dialect: Dialect) -> None:
    server.script(Reply(dialect.reply(LONG, None), pause=0.1))
    started = monotonic()

    said = said_by(dialect, server, first_token_timeout=0.6)

    assert said == LONG
    assert monotonic() - started > 0.6


@one_stream
def test_a_stream_that_drips_for_ever_ends_with_its_time(server: WireServer, dialect: Dialect) -> None:
    server.script(Reply(dialect.reply(LONG, None), pause=0.15))

    code, _, _ = failure(settings_for(dialect, server, request_timeout=0.7, max_attempts=1), dialect)

    assert code == "timeout"
    eventually(lambda: server.left_at, what="the connection is closed")


@pytest.mark.parametrize("then", ["break", "end"])
@every_stream
def test_a_reply_that_breaks_off_is_asked_for_again(server: WireServer, dialect: Dialect, then: Any) -> None:
    server.script(Reply(dialect.reply(LONG, None), count=5, then=then), Reply(dialect.reply(LONG, None)))

    reply = plan(settings_for(dialect, server), dialect)

    assert (reply.text, reply.call.attempts, reply.call.error) == (LONG, 2, None)
    # What a provider tells of the broken reply is spent too; our own estimates are no part of a call that succeeded.
    assert reply.call.input_tokens == (200 if dialect in (ANTHROPIC, GOOGLE) else 100)


@pytest.mark.parametrize("then", ["break", "end"])
@one_stream
def test_replies_that_always_break_off_may_pass_and_were_spent(
    server: WireServer, dialect: Dialect, then: Any
) -> None:
    server.script(Reply(dialect.reply(LONG, None), count=6, then=then))

    code, _, call = failure(settings_for(dialect, server, max_attempts=2), dialect)

    assert (code, call.attempts) == ("transient" if then == "break" else "unreadable_reply", 2)
    assert call.input_tokens >= 200
    assert call.output_tokens > 0
    assert call.cost_usd
    assert call.exchange is not None
    assert LONG.startswith(call.exchange["reply"]["text"])


@every_stream
def test_an_error_in_the_middle_of_a_stream_is_tried_again(server: WireServer, dialect: Dialect) -> None:
    begun = streamed(dialect)[:5]
    server.script(Reply([*begun, ERRORS[dialect.name]]), Reply(dialect.reply(LONG, None)))

    reply = plan(settings_for(dialect, server), dialect)

    assert (reply.text, reply.call.attempts) == (LONG, 2)


@every_stream
def test_an_error_instead_of_a_stream_is_understood(server: WireServer, dialect: Dialect) -> None:
    server.script(Reply([ERRORS[dialect.name]]))

    code, message, call = failure(settings_for(dialect, server, max_attempts=2), dialect)

    assert (code, call.attempts) == ("transient", 2)
    assert "we are overloaded" in message


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when the gateway has read the first event of a reply."""
    event = threading.Event()
    original = direct.model_request_stream

    @contextlib.asynccontextmanager
    async def watched(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        async with original(*args, **kwargs) as stream:
            yield _Watched(stream, event)

    monkeypatch.setattr(providers, "model_request_stream", watched)
    return event


class _Watched:
    def __init__(self, stream: Any, begun: threading.Event) -> None:
        self._stream = stream
        self._begun = begun

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for event in self._stream:
            yield event
            self._begun.set()

    def get(self) -> Any:
        return self._stream.get()


def cut_off(
    settings: ModelSettings, dialect: Dialect, server: WireServer, begun: threading.Event
) -> tuple[list[ModelCall], float]:
    """Cancel a call once it has `begun`; return what was handed out, and when it was cancelled."""
    calls: list[ModelCall] = []

    async def call(gateway: ModelGateway) -> None:
        async with asyncio.timeout(60) as limit:
            task = asyncio.create_task(gateway.plan(ask_for(dialect), TOOLS, cut_off=calls.append))
            assert await asyncio.to_thread(begun.wait, 60)
            limit.reschedule(asyncio.get_running_loop().time())
            await task

    async def run() -> float:
        gateway = ModelGateway(settings)
        with pytest.raises(TimeoutError):
            await call(gateway)
        cancelled_at = monotonic()
        # The pool stays open: the connection is closed because the call was cut off, not because the process ends.
        await asyncio.to_thread(eventually, lambda: server.left_at, 25, what="the connection is closed")
        await gateway.aclose()
        return cancelled_at

    cancelled_at = asyncio.run(run())
    return calls, cancelled_at


@every_stream
def test_a_call_that_is_cut_off_closes_its_connection_and_tells_what_was_spent(
    server: WireServer, dialect: Dialect, begun: threading.Event
) -> None:
    server.script(Reply(dialect.reply(LONG, None), count=7, then="hang"))

    (call,), cancelled_at = cut_off(settings_for(dialect, server), dialect, server, begun)

    assert server.left_at[0] - cancelled_at < 20
    assert call.error is not None
    assert (call.error.code, call.error.retryable, call.attempts) == ("cancelled", False, 1)
    assert call.input_tokens >= 100
    assert call.output_tokens > 0
    assert call.cost_usd


def test_a_call_that_is_cut_off_while_its_provider_is_writing_closes_its_connection(
    server: WireServer, begun: threading.Event
) -> None:
    first, piece = streamed(OPENAI_CHAT)[:2]
    # More than the buffers of a socket take: the provider learns from a failed write that it is left.
    server.script(Reply([first, *[piece] * 20_000], then="hang"))

    (call,), cancelled_at = cut_off(settings_for(OPENAI_CHAT, server), OPENAI_CHAT, server, begun)

    assert len(server.left_at) == 1
    assert server.left_at[0] - cancelled_at < 20
    assert call.error is not None
    assert call.error.code == "cancelled"


def test_tokens_that_the_stream_had_not_told_are_marked_as_an_estimate(
    server: WireServer, begun: threading.Event
) -> None:
    server.script(Reply(OPENAI_CHAT.reply(LONG, None), count=7, then="hang"))

    (call,), _ = cut_off(settings_for(OPENAI_CHAT, server), OPENAI_CHAT, server, begun)

    assert call.error is not None
    assert call.error.details == {"estimated": True}
    assert call.exchange is not None
    come = call.exchange["reply"]["text"]
    assert LONG.startswith(come)
    assert call.output_tokens == -(-len(come) // 4)


def test_tokens_that_the_provider_told_are_no_estimate(server: WireServer, begun: threading.Event) -> None:
    server.script(Reply(streamed(GOOGLE, "four")[:1], then="hang"))

    (call,), _ = cut_off(settings_for(GOOGLE, server), GOOGLE, server, begun)

    assert call.error is not None
    assert call.error.details == {}
    assert (call.input_tokens, call.output_tokens) == (100, 1)


@one_stream
def test_a_call_that_is_cut_off_before_the_model_began_cost_nothing_that_is_known(
    server: WireServer, dialect: Dialect
) -> None:
    server.script(Reply(dialect.reply(LONG, None), count=0, then="hang"))

    (call,), cancelled_at = cut_off(settings_for(dialect, server), dialect, server, server.streaming)

    assert server.left_at[0] - cancelled_at < 20
    assert (call.input_tokens, call.output_tokens, call.cost_usd) == (0, 0, None)


def test_a_whole_reply_to_a_server_asked_for_a_stream_is_read_with_its_usage(server: WireServer) -> None:
    server.script(Reply(OPENAI_CHAT.reply("", PLAN), whole=True))

    reply = plan(settings_for(OPENAI_CHAT, server), OPENAI_CHAT)

    assert [call.arguments for call in reply.tool_calls] == [PLAN]
    assert (reply.call.input_tokens, reply.call.output_tokens, len(server.requests)) == (100, 20, 1)


@pytest.mark.parametrize(
    ("status", "complaint"),
    [
        (400, "Streaming is not supported by this server"),
        (422, "extra inputs are not permitted: stream"),
        (501, "stream: not implemented"),
    ],
)
def test_a_server_that_refuses_to_stream_is_asked_for_whole_replies(
    server: WireServer, status: int, complaint: str
) -> None:
    refusal = Reply({"error": {"message": complaint, "type": "invalid_request_error"}}, status)
    server.script(refusal, Reply(OPENAI_CHAT.reply("", PLAN), whole=True))

    async def run() -> list[int]:
        gateway = ModelGateway(settings_for(OPENAI_CHAT, server))
        replies = [await gateway.plan(ask_for(OPENAI_CHAT), TOOLS) for _ in range(2)]
        await gateway.aclose()
        return [reply.call.input_tokens for reply in replies]

    assert asyncio.run(run()) == [100, 100]
    assert [request.body.get("stream", False) for request in server.requests] == [True, False, False]


def test_usage_in_every_chunk_is_the_sum_so_far(server: WireServer) -> None:
    events = streamed(OPENAI_CHAT)
    told = [
        replace(event, data={**event.data, "usage": {"prompt_tokens": 100, "completion_tokens": 20}})
        for event in events
        if isinstance(event.data, dict)
    ]
    server.script(Reply(told))

    call = plan(settings_for(OPENAI_CHAT, server), OPENAI_CHAT).call

    assert (call.input_tokens, call.output_tokens) == (100, 20)


def test_a_stream_without_usage_costs_unknown(server: WireServer, caplog: pytest.LogCaptureFixture) -> None:
    reply = OPENAI_CHAT.reply("hello", None)
    del reply["usage"]
    server.script(Reply(reply))

    call = plan(settings_for(OPENAI_CHAT, server), OPENAI_CHAT).call

    assert (call.input_tokens, call.output_tokens, call.cost_usd, call.error) == (0, 0, None, None)
    assert "model_told_no_usage" in caplog.messages


def test_an_unknown_reason_to_finish_is_a_reason(server: WireServer) -> None:
    reply = OPENAI_CHAT.reply("hello", None)
    reply["choices"][0]["finish_reason"] = "eos"
    server.script(Reply(reply))

    assert said_by(OPENAI_CHAT, server) == "hello"
