"""A worker without a model's key beside one that has it, as real processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import httpx
import psycopg

from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import Pool
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.platform.database import Database
from planq.shared.platform.lacking import model_place
from tests.integration.llm.dialects import OPENAI_CHAT
from tests.integration.llm.wire import Reply, wire_server
from tests.support.stack import Stack
from tests.support.waiting import eventually


def is_free(database_url: str, job_id: str) -> bool:
    """Return whether a job is being planned, and no worker has it."""
    with psycopg.connect(database_url) as connection:
        row = connection.execute("SELECT status, stage_worker FROM jobs WHERE id = %s", [job_id]).fetchone()
    return row == ("planning", None)


def test_a_worker_without_a_models_key_leaves_its_jobs_to_one_that_has_it(
    database_url: str, valkey_url: str, make_stack: Callable[..., Stack]
) -> None:
    async def register_holder() -> None:
        async with Database(database_url, max_connections=1) as database:
            registry = WorkerRegistry(database, timedelta(seconds=600))
            await registry.register(new_id(), "holder", [Pool.IO], [], 1, "test", provides=[model_place("openai")])

    asyncio.run(register_holder())
    stack = make_stack(database_url, valkey_url, env={"PLANQ_LEASE_SECONDS": "600"})
    stack.start(cpu=0, ready=False)
    with wire_server() as server, httpx.Client(base_url=stack.url, timeout=30) as api:
        server.script(Reply(OPENAI_CHAT.reply("done", None)))
        eventually(lambda: "worker_ready" in stack.log("io-1").read_text(), 60, what="the worker runs")
        job = api.post("/jobs", json={"input": "hello", "model": OPENAI_CHAT.model}).json()["id"]

        eventually(lambda: "model_lacked_here" in stack.log("io-1").read_text(), 60, what="it is handed back")
        eventually(lambda: is_free(database_url, job), 60, what="it is free")
        stack.kill("io-1")
        url, key = f"{server.url}{OPENAI_CHAT.base_path}", "sk-test-0123456789"
        stack.run_worker("io", 2, env={"OPENAI_API_KEY": key, "OPENAI_BASE_URL": url})

        eventually(lambda: api.get(f"/jobs/{job}").json()["status"] == "completed", 90, what="it is carried out")
        provided = [worker["provides"] for worker in api.get("/workers").json()["workers"]]
    assert any(model_place("openai") in one for one in provided)
