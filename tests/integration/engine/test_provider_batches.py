"""Batches at half price: lines of a single call go through the provider's batch API, the others as always."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row

from planq.shared.agentic.models.prices import OwnPrice
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import Priority, Strategy
from planq.shared.kernel.submission import Submission
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.database import query
from planq.shared.subjects.batches.provider_store import ProviderBatches
from planq.shared.subjects.batches.rules import Discount
from planq.shared.subjects.jobs.store import submission_values
from planq.worker.batches import HOLD, ProviderBatchDuty
from planq.worker.models.batch_api import BatchApi
from planq.worker.models.gateway import ModelGateway
from planq.worker.models.settings import ModelSettings
from planq.worker.tools.declare import tool
from tests.integration.llm.dialects import ANTHROPIC, KEY, OPENAI_CHAT, OPENAI_RESPONSES
from tests.support.agents import keep_agent
from tests.support.batch_server import Answer, BatchServer, batch_server
from tests.support.batches import admitted, settled, stored_batch
from tests.support.harness import Harness, make_tool
from tests.support.servers import FUNCTIONS

MODELS = {"openai": "openai-responses@half:gpt-5-mini", "anthropic": "anthropic@half:claude-haiku-4-5"}
each = pytest.mark.parametrize("dialect", list(MODELS))
FULL_PRICE = {"openai": (100 * 0.25 + 20 * 2) / 1e6, "anthropic": (100 * 1 + 20 * 5) / 1e6}


@tool(name="look_up", effect="read")
async def look_up() -> str:
    """Look something up."""
    return "found"


def live(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reply of a chat model to a call of its own, nothing for another form."""
    return OPENAI_CHAT.reply("It is done.", None) if "messages" in body else {}


def answer_of(dialect: str) -> Answer:
    """Return what answers every request with a text."""
    kind = ANTHROPIC if dialect == "anthropic" else OPENAI_RESPONSES
    name = MODELS[dialect].partition(":")[2]
    return lambda _, body: kind.reply("It is done.", None) | {"model": name}


def line(number: int, model: str, **fields: Any) -> dict[str, object]:
    """Return a line that is a single call, unless its fields say otherwise."""
    limits = fields.pop("limits", Limits())
    given = {"tools": [], "priority": Priority.BULK, **fields}
    return submission_values(
        Submission(
            new_id(), "default", f"line {number}\u2028 \N{GRINNING FACE}", Strategy.PLAN, model, limits, **given
        )
    )


@dataclass
class Stage:
    """A batch with a discount on an engine, and the provider that it is for."""

    harness: Harness
    connection: psycopg.Connection[Any]
    gateway: ModelGateway
    batch_id: UUID
    pause: timedelta = timedelta(0)

    async def admit(self) -> list[UUID]:
        """Let lines become jobs, and these come as far as they can."""
        jobs = admitted(self.connection)
        await self.carry_out(jobs)
        return jobs

    async def carry_out(self, jobs: Sequence[UUID]) -> None:
        """Carry out jobs as far as they can come."""
        self.harness.published += [Wake.plan(job, priority=Priority.BULK) for job in jobs]
        await self.harness.drain()

    async def look(self, worker: UUID | None = None) -> None:
        """Look after the provider's batches that are due."""
        store = ProviderBatches(self.harness.database, worker or new_id(), timedelta(0), HOLD)
        await ProviderBatchDuty(store, BatchApi(self.gateway), self.pause).carry_out()

    async def to_its_end(self) -> None:
        """Run the batch to its end."""
        jobs = await self.admit()
        await self.look()
        await self.carry_out(jobs)
        settled(self.connection, 1_000)

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Return what a query finds."""
        with self.connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(sql).fetchall()  # type: ignore[call-overload, no-any-return]

    def jobs(self) -> list[dict[str, Any]]:
        """Return the jobs of the batch in the order of its lines."""
        return self.rows("SELECT * FROM jobs ORDER BY batch_line, id")


Perform = Callable[..., None]


@pytest.fixture
def perform(play: Any, database_url: str) -> Perform:
    """`perform(server, lines, scenario)`: run an async `scenario(stage)` for a batch with these lines."""

    def run(server: BatchServer, lines: Sequence[Mapping[str, object]], scenario: Any, **settings: Any) -> None:
        places = {model.partition(":")[0]: server.url for model in MODELS.values()} | {"openai@live": server.url}
        urls = {place: url if "anthropic" in place else f"{url}/v1" for place, url in places.items()}
        given = ModelSettings(
            base_urls=urls, api_keys=dict.fromkeys(urls, KEY), request_timeout=20, stream=False, **settings
        )
        gateway = ModelGateway(given)

        async def inside(harness: Harness) -> None:
            with psycopg.connect(database_url, autocommit=True) as connection:
                batch_id = stored_batch(connection, lines, discount=Discount.PROVIDER)
                try:
                    await scenario(Stage(harness, connection, gateway, batch_id))
                finally:
                    await gateway.aclose()

        play(inside, gateway, [make_tool(look_up)])

    return run


@each
@pytest.mark.parametrize("own", [False, True], ids=["listed", "own price"])
def test_lines_of_one_call_are_answered_together_at_half_price(perform: Perform, dialect: str, own: bool) -> None:
    prices = {MODELS[dialect]: OwnPrice(input=10, output=20)} if own else {}
    price = (100 * 10 + 20 * 20) / 1e6 if own else FULL_PRICE[dialect]

    async def scenario(stage: Stage) -> None:
        await stage.admit()
        waiting = stage.jobs()
        assert {job["status"] for job in waiting} == {"planning"}
        assert all(job["run_at"].year == 9999 for job in waiting)
        assert not server.batches, "nothing is sent within the job"
        await stage.look()
        await stage.carry_out([job["id"] for job in waiting])
        settled(stage.connection, 1_000)

        jobs = stage.jobs()
        assert [(job["status"], job["answer"]) for job in jobs] == [("completed", "It is done.")] * 3
        assert [float(job["cost_usd"]) for job in jobs] == pytest.approx([price / 2] * 3)
        assert {(job["input_tokens"], job["output_tokens"], job["model_calls"]) for job in jobs} == {(100, 20, 1)}
        (batch,) = stage.rows("SELECT * FROM batches")
        assert (batch["status"], batch["completed"]) == ("completed", 3)
        assert float(batch["spent_usd"]) == pytest.approx(price / 2 * 3)
        (sent,) = stage.rows("SELECT * FROM provider_batches")
        assert (sent["status"], sent["provider_id"], sent["lines"]) == ("ended", "batch_0", 3)
        assert stage.rows("SELECT body FROM deferred_calls WHERE body IS NOT NULL") == []

    with batch_server(answer_of(dialect), dialect=dialect) as server:
        perform(server, [line(number, MODELS[dialect]) for number in range(3)], scenario, prices=prices)
        assert (sum(server.paid.values()), server.live) == (3, [])


def test_lines_that_may_call_tools_and_models_without_batches_run_as_always(perform: Perform) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.to_its_end()
        assert {job["status"] for job in stage.jobs()} == {"completed"}
        assert stage.rows("SELECT * FROM deferred_calls") == []

    lines = [line(0, MODELS["openai"], tools=["look_up"]), line(1, "offline"), line(2, "openai@live:gpt-5-mini")]
    answered = answer_of("openai")
    with batch_server(lambda custom_id, body: live(body) or answered(custom_id, body)) as server:
        perform(server, lines, scenario)
        assert (len(server.live), server.batches) == (2, {})


@each
def test_each_line_gets_its_own_end_and_a_retry_sends_the_failed_ones_again(perform: Perform, dialect: str) -> None:
    done = answer_of(dialect)
    broken = {"type": "invalid_request_error", "message": f"too rude, says {KEY}"}
    said = {"line 1": {}, "line 2": {"error": broken}}

    def answer(custom_id: str, body: dict[str, Any]) -> dict[str, Any]:
        return next((reply for text, reply in said.items() if text in str(body)), None) or (
            {} if "line 1" in str(body) and said else done(custom_id, body)
        )

    async def scenario(stage: Stage) -> None:
        await stage.to_its_end()
        jobs = stage.jobs()
        assert [job["status"] for job in jobs] == ["completed", "failed", "failed"]
        assert {job["error"]["code"] for job in jobs[1:]} == {"provider_batch_failed"}
        assert "within 24 hours" in jobs[1]["error"]["message"]
        assert "too rude" in jobs[2]["error"]["message"]
        assert KEY not in str([job["error"] for job in jobs[1:]])
        assert "planq batch retry" in jobs[1]["error"]["message"]

        said.clear()
        stage.rows(f"SELECT planq_retry_batch('{stage.batch_id}', 'default')")
        await stage.to_its_end()
        (batch,) = stage.rows("SELECT * FROM batches")
        assert (batch["status"], batch["completed"], batch["failed"]) == ("completed", 3, 0)

    with batch_server(answer, dialect=dialect) as server:
        perform(server, [line(number, MODELS[dialect]) for number in range(3)], scenario)
        assert [len(one["requests"]) for one in server.batches.values()] == [3, 2]


@each
def test_a_batch_that_the_provider_refuses_fails_its_lines_with_its_words(perform: Perform, dialect: str) -> None:
    async def scenario(stage: Stage) -> None:
        server.refusal = 400, f"billing limit reached for {KEY}"
        await stage.to_its_end()
        errors = [job["error"] for job in stage.jobs()]
        assert {error["code"] for error in errors} == {"provider_batch_failed"}
        assert all("billing limit reached" in error["message"] for error in errors)
        assert KEY not in str([errors, stage.rows("SELECT error FROM provider_batches")])

    with batch_server(answer_of(dialect), dialect=dialect) as server:
        perform(server, [line(number, MODELS[dialect]) for number in range(2)], scenario)


@each
def test_a_provider_that_is_away_is_asked_again_later(perform: Perform, dialect: str) -> None:
    async def scenario(stage: Stage) -> None:
        server.refusal = 503, "overloaded"
        stage.pause = timedelta(hours=1)
        jobs = await stage.admit()
        await stage.look()
        (batch,) = stage.rows("SELECT * FROM provider_batches")
        assert (batch["status"], batch["tries"], "overloaded" in batch["error"]) == ("submitting", 1, True)

        server.refusal = None
        for _ in range(2):
            stage.connection.execute("UPDATE provider_batches SET next_look_at = now()")
            await stage.look()
        await stage.carry_out(jobs)
        assert {job["status"] for job in stage.jobs()} == {"completed"}

    with batch_server(answer_of(dialect), dialect=dialect) as server:
        perform(server, [line(number, MODELS[dialect]) for number in range(2)], scenario)
        assert len(server.batches) == 1


@each
def test_a_batch_that_was_sent_before_a_crash_is_found_again(perform: Perform, dialect: str) -> None:
    async def scenario(stage: Stage) -> None:
        jobs = await stage.admit()
        store = ProviderBatches(stage.harness.database, new_id(), timedelta(0), HOLD)
        held = await store.take()
        assert held is not None
        await BatchApi(stage.gateway).submit(held, await store.calls(held))  # and here it dies
        await stage.look()
        assert stage.rows("SELECT 1 FROM provider_batches WHERE status = 'ended'") == [], "another worker holds it"
        stage.connection.execute("UPDATE provider_batches SET held_until = now()")
        if dialect == "anthropic":
            stage.pause = timedelta(hours=1)
            await stage.look()
            (batch,) = stage.rows("SELECT * FROM provider_batches")
            assert (batch["status"], "still runs" in batch["error"]) == ("submitting", True)
            server.run("batch_0")
            stage.connection.execute("UPDATE provider_batches SET next_look_at = now()")
            stage.pause = timedelta(0)
        await stage.look()
        await stage.carry_out(jobs)
        assert {job["status"] for job in stage.jobs()} == {"completed"}

    with batch_server(answer_of(dialect), dialect=dialect) as server:
        perform(server, [line(number, MODELS[dialect]) for number in range(2)], scenario)
        assert (len(server.batches), sum(server.paid.values())) == (1, 2)


def test_the_answer_of_an_agent_without_tools_is_checked_and_repaired_by_a_call_of_its_own(perform: Perform) -> None:
    document = {
        "name": "sorter",
        "description": "You sort.",
        "structured_output": True,
        "properties": {"kind": {"type": "string"}},
        "required": ["kind"],
    }

    async def scenario(stage: Stage) -> None:
        assert await keep_agent(stage.harness, document) == 1
        await stage.to_its_end()
        assert [(job["status"], job["output"]) for job in stage.jobs()] == [("completed", {"kind": "bill"})] * 2
        assert sorted(job["model_calls"] for job in stage.jobs()) == [1, 2]
        stage.connection.execute(query("tidy_deferred_results"))
        assert stage.rows("SELECT 1 FROM deferred_calls WHERE result IS NOT NULL") == []

    def answer(custom_id: str, body: dict[str, Any]) -> dict[str, Any]:
        is_wrong = "line 0" in str(body) and custom_id != "live"
        return OPENAI_RESPONSES.reply("a bill" if is_wrong else '{"kind": "bill"}', None)

    lines = [line(number, MODELS["openai"], tools=None, agent="sorter", agent_version=1) for number in range(2)]
    with batch_server(answer) as server:
        perform(server, lines, scenario)
        assert (sum(server.paid.values()), len(server.live)) == (2, 1)


def test_a_job_keeps_the_time_that_it_had_and_leaves_its_place_to_others(perform: Perform) -> None:
    async def scenario(stage: Stage) -> None:
        stage.connection.execute(
            f"CREATE OR REPLACE FUNCTION {FUNCTIONS}.planq_window(p_priority text) RETURNS int "
            "LANGUAGE sql AS 'SELECT 2'"
        )
        left = "SELECT extract(epoch FROM expires_at - now())::float8 AS left FROM jobs"
        before = 600.0
        first = await stage.admit()
        assert len(first) == 2
        assert all(25 * 3_600 < row["left"] < 27 * 3_600 for row in stage.rows(left))
        second = await stage.admit()
        assert len(second) == 1, "those that wait for the provider take no worker's place"
        await stage.look()
        assert all(before - 300 < row["left"] <= before for row in stage.rows(left))

    with batch_server(answer_of("openai")) as server:
        limits = Limits(job_timeout_seconds=600, queue_timeout_seconds=300)
        lines = [line(number, MODELS["openai"], limits=limits) for number in range(3)]
        perform(server, lines, scenario)


def test_a_cancelled_batch_is_cancelled_at_its_provider(perform: Perform) -> None:
    async def scenario(stage: Stage) -> None:
        stage.pause = timedelta(hours=1)
        await stage.admit()
        await stage.look()
        stage.rows(f"SELECT planq_change_batch('{stage.batch_id}', 'default', 'cancel')")
        stage.rows(f"SELECT planq_cancel_lines('{stage.batch_id}', 100)")
        for _ in range(2):
            stage.connection.execute("UPDATE provider_batches SET next_look_at = now()")
            await stage.look()
        (batch,) = stage.rows("SELECT * FROM provider_batches")
        assert (batch["status"], batch["cancelled_at"] is not None) == ("ended", True)
        assert {job["status"] for job in stage.jobs()} == {"cancelled"}

    with batch_server(answer_of("openai"), runs_at_once=False) as server:
        perform(server, [line(number, MODELS["openai"]) for number in range(2)], scenario)
        assert (server.paid, server.live) == ({}, [])
