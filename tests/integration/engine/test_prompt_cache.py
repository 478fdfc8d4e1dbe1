"""Prompt caches: what a loop of ten rounds reads from the provider's cache, and what is stored and priced of it."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from typing import Any

import pytest

from planq.shared.agentic.models.names import Provider
from planq.shared.agentic.models.prices import OwnPrice
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.states import Strategy
from planq.shared.subjects.metrics.store import TallyStore
from planq.worker.models.gateway import ModelGateway
from planq.worker.models.settings import ModelSettings
from planq.worker.tools.declare import tool
from tests.integration.llm.calls import plan, settings_for
from tests.integration.llm.dialects import ANTHROPIC, DIALECTS, KEY, OPENAI_CHAT, Dialect
from tests.integration.llm.turns import calling
from tests.integration.llm.wire import Reply, WireServer
from tests.support.harness import Harness, make_tool
from tests.support.prompt_cache import LEAST_TOKENS, PromptCache, Refused

ROUNDS = 10
TASK = "Look up the order of each customer, and say which are late. " * 80
USED = """
    SELECT sum(input_tokens)::int AS input_tokens, sum(cache_read_tokens)::int AS cache_read_tokens,
           sum(cache_write_tokens)::int AS cache_write_tokens, sum(output_tokens)::int AS output_tokens,
           sum(cost_usd)::float8 AS cost_usd FROM """


class CachingServer(WireServer):
    """Answers `rounds` times with a call and then with a text, and counts as a provider with a prompt cache does.

    The calls are planned with `__planning__` where the model has to call that.
    """

    def __init__(self, cache: PromptCache, refuses: str = "", rounds: int = ROUNDS, lines: int = 30) -> None:
        super().__init__()
        self.cache = cache
        self.refuses = refuses
        self.rounds = rounds
        self.lines = lines
        self.answered = 0

    def next_reply(self, asked: Any) -> Reply:
        if self.refuses and self.refuses in str(asked):
            return Reply({"error": {"message": f"{self.refuses}: Extra inputs are not permitted"}}, 400)
        try:
            usage = self.cache.usage(asked)
        except Refused as error:
            return Reply({"error": {"message": str(error)}}, 400)
        done, self.answered = self.answered, self.answered + 1
        given = {"number": done, "lines": self.lines}
        is_forced = asked.get("tool_choice", {}).get("type") == "tool"
        body = deepcopy(ANTHROPIC.reply("All are late.", None))
        if done < self.rounds and is_forced:
            call = {"number": done, "tool_name": "look_up", "arguments": given}
            plan = {"type": "tool_calls", "reasoning": "Next.", "calls": [call]}
            body = deepcopy(calling(ANTHROPIC, "", ("__planning__", plan)))
        elif done < self.rounds:
            body = deepcopy(calling(ANTHROPIC, "Next.", ("look_up", given)))
        elif is_forced:
            decision = {"type": "direct_response", "content": "All are late."}
            body = deepcopy(calling(ANTHROPIC, "", ("__planning__", decision)))
        if body["content"][-1]["type"] == "tool_use":
            body["content"][-1]["id"] = f"call_{done}"
        body["usage"] |= usage
        return Reply(body)


@tool(name="look_up", effect="read")
async def look_up(number: int, lines: int) -> dict[str, Any]:
    """Look up the orders of a customer by its number."""
    return {"customer": number, "orders": [f"order {number}-{one}: due on 3 May, not sent" for one in range(lines)]}


NO_LIMIT = Limits(max_tool_steps=100, max_rounds=100)
"""The model ends by itself."""


def loop(
    play: Any,
    server: CachingServer,
    limits: Limits = NO_LIMIT,
    strategy: Strategy = Strategy.REACT,
    calls: int = 0,
    **settings: Any,
) -> dict[str, Any]:
    """Run a job of ten rounds; return what its row, its calls and the day's costs say of tokens and money."""
    gateway = ModelGateway(
        ModelSettings(ANTHROPIC.model, {Provider.ANTHROPIC: server.url}, {Provider.ANTHROPIC: KEY}, **settings)
    )

    async def scenario(harness: Harness) -> dict[str, Any]:
        job_id = await harness.submit(TASK, strategy=strategy, model=ANTHROPIC.model, limits=limits)
        await harness.drain()
        await gateway.aclose()
        await TallyStore(harness.database).add_up()
        job, _ = await harness.requests.job("default", job_id)
        assert (job["status"], job["answer"], job["model_calls"]) == (
            "completed",
            "All are late.",
            calls or server.rounds + 1,
        )
        names = ("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens", "cost_usd")
        async with harness.database.connection() as connection:
            rows = {}
            for table in (f"model_calls WHERE job_id = '{job_id}'", "daily_costs"):
                found = await (await connection.execute(USED + table)).fetchone()
                rows[table.partition(" ")[0]] = dict(found or {})
        of_job = {name: job[name] for name in names[:-1]} | {"cost_usd": float(job["cost_usd"])}
        return {"job": of_job, **rows}

    used: dict[str, Any] = play(scenario, gateway, [make_tool(look_up)])
    return used


def test_a_loop_of_ten_rounds_reads_its_prompt_from_the_cache(play: Any, database_url: str) -> None:
    server = CachingServer(PromptCache())
    try:
        used = loop(play, server)
    finally:
        server.close()

    job = used["job"]
    assert used["model_calls"] == pytest.approx(job)
    assert used["daily_costs"] == pytest.approx(job)
    assert job["cache_read_tokens"] >= 0.8 * job["input_tokens"]
    # 1 USD for a million tokens of Claude Haiku 4.5, 1.25 where they are stored, 0.10 where they are read; 5 USD out.
    plain = job["input_tokens"] - job["cache_read_tokens"] - job["cache_write_tokens"]
    price = plain + 1.25 * job["cache_write_tokens"] + 0.1 * job["cache_read_tokens"] + 5 * job["output_tokens"]
    assert job["cost_usd"] == pytest.approx(price / 1e6)


@pytest.mark.parametrize("strategy", [Strategy.REACT, Strategy.LOOP])
def test_the_answer_after_the_last_round_is_read_from_the_cache(play: Any, strategy: Strategy) -> None:
    server = CachingServer(PromptCache())
    try:
        used = loop(play, server, Limits(max_tool_steps=ROUNDS, max_rounds=ROUNDS), strategy)
    finally:
        server.close()

    job, asked = used["job"], [request.body for request in server.requests]
    assert job["cache_read_tokens"] >= 0.8 * job["input_tokens"]
    for field in ("tools", "tool_choice", "system"):
        assert [body.get(field) for body in asked[-2:]] == [asked[0].get(field)] * 2
    assert "no room for further tool calls" in str(asked[-1]["messages"][-1])


def test_a_model_that_calls_a_tool_at_the_limit_is_asked_without_tools(play: Any) -> None:
    server = CachingServer(PromptCache(), rounds=3)
    try:
        used = loop(play, server, Limits(max_tool_steps=2), calls=3)
    finally:
        server.close()

    *_, last = [request.body for request in server.requests]
    assert len(server.requests) == 4
    assert ("tools" in last, "Result of look_up" in str(last["messages"])) == (False, True)
    assert used["model_calls"] == pytest.approx(used["job"])


@pytest.mark.parametrize("strategy", [Strategy.REACT, Strategy.LOOP])
def test_a_loop_whose_rounds_are_cut_off_reads_most_from_the_cache(play: Any, strategy: Strategy) -> None:
    server = CachingServer(PromptCache(), rounds=50, lines=110)
    try:
        job = loop(play, server, strategy=strategy)["job"]
    finally:
        server.close()

    cut = [str(request.body["messages"]).count("Left out for length") for request in server.requests]
    assert sum(cut) > 5
    assert job["cache_read_tokens"] >= 0.8 * job["input_tokens"]


def test_without_the_setting_nothing_is_marked_and_everything_is_paid(play: Any) -> None:
    server = CachingServer(PromptCache())
    try:
        job = loop(play, server, prompt_cache=False)["job"]
    finally:
        server.close()

    assert "cache_control" not in str([request.body for request in server.requests])
    assert job["cache_read_tokens"] == job["cache_write_tokens"] == 0
    assert job["cost_usd"] == pytest.approx((job["input_tokens"] + 5 * job["output_tokens"]) / 1e6)


def test_a_gateway_that_refuses_marks_is_sent_none(play: Any) -> None:
    server = CachingServer(PromptCache(), refuses="cache_control")
    try:
        loop(play, server)
    finally:
        server.close()

    marked = ["cache_control" in str(request.body) for request in server.requests]
    assert marked == [True, *[False] * (ROUNDS + 1)], "it is refused once, and that is remembered"


CACHED = {
    "openai-chat": {"prompt_tokens_details": {"cached_tokens": 64}},
    "openai-responses": {"input_tokens_details": {"cached_tokens": 64}},
    "anthropic": {"cache_read_input_tokens": 64, "cache_creation_input_tokens": 0, "input_tokens": 36},
    "google": {"cachedContentTokenCount": 64},
}


@pytest.mark.parametrize("dialect", DIALECTS, ids=repr)
def test_cached_tokens_of_every_format_are_counted_and_cheaper(dialect: Dialect) -> None:
    costs: dict[int, float] = {}
    for cached in ({}, CACHED[dialect.name]):
        reply = deepcopy(dialect.reply("Fine.", None))
        reply["usageMetadata" if dialect.name == "google" else "usage"] |= cached
        server = WireServer()
        server.script(Reply(reply))
        try:
            call = plan(settings_for(dialect, server), dialect).call
        finally:
            server.close()
        assert (call.input_tokens, call.output_tokens) == (100, 20)
        costs[call.cache_read_tokens] = float(call.cost_usd or 0)
    assert set(costs) == {0, 64}
    assert 0 < costs[64] < costs[0]


def test_the_cache_of_the_tests_reads_only_what_was_marked_before() -> None:
    def body(*texts: str, marked: int = -1) -> dict[str, Any]:
        blocks: list[dict[str, Any]] = [{"type": "text", "text": text} for text in texts]
        if marked >= 0:
            blocks[marked]["cache_control"] = {"type": "ephemeral"}
        return {"model": "m", "messages": [{"role": "user", "content": blocks}]}

    long, cache = "x" * LEAST_TOKENS * 4, PromptCache()
    assert cache.usage(body(long))["cache_creation_input_tokens"] == 0
    assert cache.usage(body("short", marked=0))["cache_creation_input_tokens"] == 0
    written = cache.usage(body(long, "a", marked=1))["cache_creation_input_tokens"]
    assert written > LEAST_TOKENS
    assert cache.usage(body(long, "a", "b", marked=2))["cache_read_input_tokens"] == written
    assert cache.usage(body("y", long, "a", marked=2))["cache_read_input_tokens"] == 0
    with pytest.raises(Refused):
        cache.usage(body("", marked=0))


@pytest.mark.parametrize("name", ["*", "openai:*", OPENAI_CHAT.model])
def test_the_operators_price_counts_in_calls_and_budgets(name: str) -> None:
    own = {name: OwnPrice(input=2, cached_input=0.5, output=8), "openai:z*": OwnPrice(input=9, output=9)}
    reply = deepcopy(OPENAI_CHAT.reply("Fine.", None))
    reply["usage"] |= CACHED["openai-chat"]
    server = WireServer()
    server.script(Reply(reply))
    settings = settings_for(OPENAI_CHAT, server, prices=own)
    try:
        call = plan(settings, OPENAI_CHAT).call
    finally:
        server.close()

    assert float(call.cost_usd or 0) == pytest.approx((36 * 2 + 64 * 0.5 + 20 * 8) / 1e6)
    price = asyncio.run(ModelGateway(settings).price(OPENAI_CHAT.model, 1_000))
    assert price is not None
    assert (price.asked_usd, price.token_usd) == pytest.approx((0.002, 0.000_008))
