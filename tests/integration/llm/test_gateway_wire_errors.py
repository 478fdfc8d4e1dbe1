"""The gateway against a server that speaks the providers' formats: what becomes of everything that goes wrong."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest

from planq.shared.agentic.models.exchange import ModelFailed
from planq.shared.agentic.models.names import Provider
from planq.worker.models.gateway import ModelGateway
from planq.worker.models.http_client import MAX_REPLY_BYTES
from tests.integration.llm.calls import (
    PLAN,
    TOOLS,
    Waits,
    ask_for,
    every_dialect,
    every_whole,
    failure,
    one_dialect,
    plan,
    respond,
    settings_for,
)
from tests.integration.llm.dialects import ANTHROPIC, GOOGLE, KEY, OPENAI_CHAT, OPENAI_RESPONSES, Dialect
from tests.integration.llm.events import events_of
from tests.integration.llm.wire import Reply, WireServer
from tests.support.tiers import rare, some


@every_dialect
def test_prose_instead_of_the_tool_is_a_text_reply(server: WireServer, dialect: Dialect) -> None:
    server.script(Reply(dialect.reply("I would rather chat.", None)))

    reply = plan(settings_for(dialect, server), dialect)

    assert (reply.text, list(reply.tool_calls)) == ("I would rather chat.", [])


@pytest.mark.parametrize("dialect", [OPENAI_CHAT, OPENAI_RESPONSES], ids=repr)
@pytest.mark.parametrize("raw", ['{"type": "tool_calls", "calls": [', "[1, 2]", "not JSON", "[" * 5000])
def test_arguments_that_are_no_object_arrive_raw(server: WireServer, dialect: Dialect, raw: str) -> None:
    server.script(Reply(dialect.reply("", raw)))

    reply = plan(settings_for(dialect, server), dialect)

    assert [call.arguments for call in reply.tool_calls] == [raw]


@every_dialect
def test_an_empty_reply_is_an_error_and_is_not_repeated(server: WireServer, dialect: Dialect) -> None:
    server.script(Reply(dialect.reply("", None)))

    code, message, call = failure(settings_for(dialect, server), dialect)

    assert code == "invalid_output"
    assert "answered with nothing" in message
    assert (call.attempts, call.input_tokens, call.output_tokens) == (1, 100, 20)


@every_dialect
def test_a_tool_call_without_text_is_no_answer(server: WireServer, dialect: Dialect) -> None:
    server.script(Reply(dialect.reply("", PLAN)))

    with pytest.raises(ModelFailed, match=r"the model called .* where only a text was") as failed:
        respond(settings_for(dialect, server), dialect)
    # Pins: it advised to raise the limit of output tokens.
    assert "output tokens" not in str(failed.value)


@every_dialect
def test_a_rate_limit_is_waited_out_as_long_as_the_server_asks(server: WireServer, dialect: Dialect) -> None:
    limited = Reply({"error": {"message": "slow down", "type": "rate_limit_error"}}, 429, {"retry-after": "7"})
    server.script(limited, Reply(dialect.reply("", PLAN)))
    waits = Waits()

    reply = plan(settings_for(dialect, server, backoff_base=0.0), dialect, waits)

    assert (reply.call.attempts, len(server.requests), waits.seconds) == (2, 2, [7.0])


@one_dialect
def test_a_wait_beyond_the_cap_ends_the_call(server: WireServer, dialect: Dialect) -> None:
    server.script(Reply({"error": {"message": "slow down"}}, 429, {"retry-after": "31"}))
    waits = Waits()

    code, _, call = failure(settings_for(dialect, server, retry_after_cap=30.0), dialect, waits)

    assert (code, call.attempts, waits.seconds) == ("rate_limited", 1, [])


@one_dialect
@pytest.mark.parametrize("status", some([500, 502, 503, 529], 503))
def test_server_errors_are_tried_again_with_growing_waits(server: WireServer, dialect: Dialect, status: int) -> None:
    server.script(Reply({"error": {"message": "broken"}}, status))
    waits = Waits()

    code, _, call = failure(settings_for(dialect, server, backoff_base=1.0, max_attempts=4), dialect, waits)

    assert (code, call.attempts, len(server.requests)) == ("transient", 4, 4)
    assert waits.seconds == [0.5, 1.0, 2.0]


@one_dialect
@pytest.mark.parametrize(
    ("status", "code"), [(401, "auth"), rare(403, "auth"), (400, "model_refused"), rare(404, "model_refused")]
)
def test_a_refusal_is_final_and_hides_the_key(server: WireServer, dialect: Dialect, status: int, code: str) -> None:
    server.script(Reply({"error": {"message": f"no, {KEY}!"}}, status))

    found, message, call = failure(settings_for(dialect, server), dialect)

    assert (found, call.attempts, len(server.requests)) == (code, 1, 1)
    assert "no, [API key]!" in message
    assert KEY not in message


@one_dialect
def test_a_used_up_quota_is_final(server: WireServer, dialect: Dialect) -> None:
    server.script(Reply({"error": {"message": "pay first"}}, 402))

    code, message, call = failure(settings_for(dialect, server), dialect)

    assert (code, call.attempts) == ("model_refused", 1)
    assert "quota" in message


@one_dialect
def test_a_silent_server_times_out(server: WireServer, dialect: Dialect) -> None:
    server.script(Reply(hang=True))

    code, _, call = failure(settings_for(dialect, server, request_timeout=0.2, max_attempts=2), dialect)

    assert (code, call.attempts) == ("timeout", 2)
    assert call.error is not None
    assert call.error.retryable


@one_dialect
def test_a_dropped_connection_is_tried_again(server: WireServer, dialect: Dialect) -> None:
    server.script(Reply(drop=True), Reply(dialect.reply("", PLAN)))

    assert plan(settings_for(dialect, server), dialect).call.attempts == 2


@one_dialect
def test_a_closed_port_is_transient(server: WireServer, dialect: Dialect) -> None:
    server.close()

    code, _, call = failure(settings_for(dialect, server, max_attempts=2), dialect)

    assert (code, call.attempts) == ("transient", 2)


@one_dialect
@pytest.mark.parametrize("body", ["<html>gateway</html>", {}, [], None, {"error": {"message": "oops"}}])
def test_a_body_of_another_form_is_an_error_of_ours(server: WireServer, dialect: Dialect, body: Any) -> None:
    server.script(Reply(body))

    code, _, call = failure(settings_for(dialect, server, max_attempts=2), dialect)

    assert code in {"invalid_output", "unreadable_reply", "transient"}
    assert call.attempts == (1 if code == "invalid_output" else 2)


@one_dialect
def test_a_page_in_the_place_of_a_reply_is_tried_again(server: WireServer, dialect: Dialect) -> None:
    server.script(
        Reply("<html>starting</html>", headers={"content-type": "text/html"}), Reply(dialect.reply("", PLAN))
    )

    assert plan(settings_for(dialect, server, max_attempts=2), dialect).call.attempts == 2


def test_a_content_filter_that_leaves_nothing_is_a_refusal(server: WireServer) -> None:
    reply = OPENAI_CHAT.reply("", None)
    reply["choices"][0]["finish_reason"] = "content_filter"
    server.script(Reply(reply))

    code, message, call = failure(settings_for(OPENAI_CHAT, server), OPENAI_CHAT)

    assert (code, call.attempts) == ("model_refused", 1)
    assert "content filter" in message
    assert "output tokens" not in message


@pytest.mark.parametrize(
    "error",
    [
        {"message": "This model's maximum context length is 8192 tokens.", "code": "context_length_exceeded"},
        {"message": "litellm.ContextWindowExceededError: prompt is too long: 9 > 8", "type": None, "code": "400"},
        {"message": "litellm.BadRequestError: AnthropicException - prompt is too long: 9 tokens > 8", "code": "400"},
    ],
    ids=["direct", "gateway", "gateway that does not know it"],
)
def test_a_request_that_is_too_long_is_told_so_behind_a_gateway_too(server: WireServer, error: Any) -> None:
    server.script(Reply({"error": error}, 400))

    code, message, call = failure(settings_for(OPENAI_CHAT, server), OPENAI_CHAT)

    assert (code, call.attempts) == ("context_exceeded", 1)
    assert message.startswith("the request is too long for the model: ")


def test_a_short_key_is_not_hidden_inside_words(server: WireServer) -> None:
    server.script(Reply({"error": {"message": "the maximumm and maximums, key=maximum!"}}, 401))

    _, message, _ = failure(settings_for(OPENAI_CHAT, server, api_keys={Provider.OPENAI: "maximum"}), OPENAI_CHAT)

    assert "the maximumm and maximums, key=[API key]!" in message


@pytest.mark.parametrize("dialect", [OPENAI_CHAT, ANTHROPIC, GOOGLE], ids=repr)
def test_a_missing_key_is_said_before_anything_is_sent(server: WireServer, dialect: Dialect) -> None:
    urls = {} if dialect.provider is Provider.OPENAI else {dialect.provider: server.url}

    code, message, _ = failure(settings_for(dialect, server, api_keys={}, base_urls=urls), dialect)

    assert code == "auth"
    assert f"{dialect.provider.value.upper()}_API_KEY" in message
    assert server.requests == []


@one_dialect
@pytest.mark.parametrize("wish", some(["9" * 30, "1e30", "nan", "inf", "-5", "tomorrow"], "9" * 30, "nan"))
def test_an_absurd_wish_to_wait_is_an_error_of_ours(server: WireServer, dialect: Dialect, wish: str) -> None:
    server.script(Reply({"error": {"message": "slow down"}}, 429, {"retry-after": wish}))

    code, _, call = failure(settings_for(dialect, server, max_attempts=2), dialect)

    assert code == "rate_limited"
    assert call.attempts in (1, 2)


@pytest.mark.parametrize("body", ["[" * 100_000, '{"choices": ' + "[" * 100_000 + "]" * 100_000 + "}"])
@one_dialect
def test_a_body_nested_too_deeply_is_an_error_of_ours(server: WireServer, dialect: Dialect, body: str) -> None:
    server.script(Reply(body, headers={"content-type": "application/json"}))

    code, _, _ = failure(settings_for(dialect, server, max_attempts=1), dialect)

    assert code in {"invalid_output", "unreadable_reply"}


@one_dialect
@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "packed"])
def test_a_reply_without_an_end_is_cut_off(server: WireServer, dialect: Dialect, is_packed: bool) -> None:
    body = b" " * (MAX_REPLY_BYTES + 1)
    if is_packed:
        server.script(Reply(gzip.compress(body, 1), headers={"content-encoding": "gzip"}))
    else:
        server.script(Reply(body))

    code, message, call = failure(settings_for(dialect, server), dialect)

    assert (code, call.attempts) == ("invalid_output", 1)
    assert f"at most {MAX_REPLY_BYTES} bytes" in message


@one_dialect
def test_a_packed_reply_is_read(server: WireServer, dialect: Dialect) -> None:
    whole = dialect.reply("hello", None)
    events = events_of(dialect.path, {"stream": dialect.stream}, whole)
    plain = json.dumps(whole).encode() if events is None else b"".join(event.wire for event in events)
    kind = "application/json" if events is None else "text/event-stream"
    server.script(Reply(gzip.compress(plain), headers={"content-encoding": "gzip", "content-type": kind}))

    assert plan(settings_for(dialect, server), dialect).text == "hello"
    assert server.requests[0].headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
@every_whole
def test_numbers_that_json_does_not_know_are_no_arguments(server: WireServer, dialect: Dialect, number: str) -> None:
    body = json.dumps(dialect.reply("", {"type": "tool_calls", "calls": 0.125}))
    server.script(Reply(body.replace("0.125", number), headers={"content-type": "application/json"}))

    (call,) = plan(settings_for(dialect, server), dialect).tool_calls

    assert isinstance(call.arguments, str)


@pytest.mark.parametrize(("claimed", "kept"), [(2**31 - 1, 2**31 - 1), (10**10, 2**31 - 1), (10**18, 2**31 - 1)])
def test_a_claimed_usage_is_kept_within_what_can_be_stored(server: WireServer, claimed: int, kept: int) -> None:
    reply = OPENAI_CHAT.reply("hello", None)
    reply["usage"]["prompt_tokens"] = claimed
    server.script(Reply(reply))

    assert plan(settings_for(OPENAI_CHAT, server), OPENAI_CHAT).call.input_tokens == kept


def test_a_cancelled_call_is_cancelled(server: WireServer) -> None:
    server.script(Reply(hang=True))
    gateway = ModelGateway(settings_for(OPENAI_CHAT, server))

    async def run() -> None:
        try:
            async with asyncio.timeout(0.5):
                await gateway.plan(ask_for(OPENAI_CHAT), TOOLS)
        finally:
            await gateway.aclose()

    with pytest.raises(TimeoutError):
        asyncio.run(run())
