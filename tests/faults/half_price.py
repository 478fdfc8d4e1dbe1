"""Batches at half price: whoever dies, each line is paid once and gets its reply."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import psycopg

from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import Priority, Strategy
from planq.shared.kernel.submission import Submission
from planq.shared.subjects.batches.rules import Discount
from planq.shared.subjects.jobs.store import submission_values
from tests.faults.batching import batch_ends
from tests.faults.scene import PATIENCE, Scene
from tests.integration.llm.dialects import KEY, OPENAI_RESPONSES
from tests.support.batch_server import BatchServer, batch_server
from tests.support.batches import stored_batch
from tests.support.waiting import eventually

Recipe = Callable[[Scene, str], None]

MODEL = "openai-responses@half:gpt-5-mini"
LINES = 6


def given(server: BatchServer) -> dict[str, str]:
    """Return the environment of a worker that has this provider, and waits for nothing."""
    place = {"openai-responses@half": {"base_url": f"{server.url}/v1", "key": KEY}}
    return {"PLANQ_MODEL_SERVERS": json.dumps(place), "PLANQ_PROVIDER_BATCH_SECONDS": "0.2"}


def discounted(scene: Scene, model: str = MODEL) -> UUID:
    """Store a batch whose lines are a single call each."""
    line = Submission(new_id(), "default", "", Strategy.PLAN, model, Limits(), tools=[], priority=Priority.BULK)
    items = [submission_values(replace(line, input=f"line {number}")) for number in range(LINES)]
    with psycopg.connect(scene.database_url, autocommit=True) as connection:
        return stored_batch(connection, items, discount=Discount.PROVIDER)


def answered(_: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a request."""
    return OPENAI_RESPONSES.reply("It is done.", None) | {"model": "gpt-5-mini"}


def freed(scene: Scene) -> None:
    """Let the next worker look at what a dead one held, as it would a quarter of an hour later."""
    scene.read("UPDATE provider_batches SET held_until = now() WHERE held_until IS NOT NULL")


def each_line_is_paid_once(scene: Scene, server: BatchServer, batch_id: UUID) -> None:
    """See all lines of a batch completed at half price, each asked once, and none by a call of its own."""
    assert batch_ends(scene, batch_id) == ("completed", {"completed": LINES})
    assert (sum(server.paid.values()), len(server.paid), server.live) == (LINES, LINES, [])
    jobs = scene.read("SELECT answer, cost_usd, model_calls FROM jobs WHERE batch_id = %s", batch_id)
    assert {(job["answer"], job["model_calls"]) for job in jobs} == {("It is done.", 1)}
    # 0.25 and 2 US dollars for a million tokens of gpt-5-mini, half of that in a batch
    assert {float(job["cost_usd"]) for job in jobs} == {(100 * 0.25 + 20 * 2) / 2e6}


def at_half_price(scene: Scene, point: str) -> None:
    """Recipe: a worker dies anywhere on the way of a provider's batch."""
    with batch_server(answered) as server:
        batch_id = discounted(scene)
        scene.died_at(point, **given(server))
        freed(scene)
        scene.worker(**given(server))
        each_line_is_paid_once(scene, server, batch_id)


def looked_for(scene: Scene, point: str) -> None:
    """Recipe: a worker dies after it has sent a batch, and another one while it looks for that batch."""
    with batch_server(answered) as server:
        batch_id = discounted(scene)
        for dies_at in ("batch_api.submit:after", point):
            scene.died_at(dies_at, **given(server))
            freed(scene)
        scene.worker(**given(server))
        each_line_is_paid_once(scene, server, batch_id)
        assert len(server.batches) == 1


def cancelled(scene: Scene, point: str) -> None:
    """Recipe: a batch is cancelled whose lines are at the provider; a worker dies that cancels them there."""
    with batch_server(answered, runs_at_once=False) as server:
        batch_id = discounted(scene)
        first = scene.worker(**given(server))
        sent = "SELECT 1 FROM provider_batches WHERE status = 'submitted'"
        eventually(lambda: scene.read(sent), PATIENCE, what="the provider has the batch")
        scene.stack.kill(first)
        scene.read("SELECT planq_change_batch(%s, 'default', 'cancel')", batch_id)
        freed(scene)
        scene.died_at(point, **given(server))
        freed(scene)
        scene.worker(**given(server))
        assert batch_ends(scene, batch_id) == ("cancelled", {"cancelled": LINES})
        over = "SELECT 1 FROM provider_batches WHERE status = 'ended'"
        eventually(lambda: scene.read(over), PATIENCE, what="the provider's batch has ended")
        assert (server.paid, server.live) == ({}, [])


HALF_PRICE: Mapping[str, Recipe] = {
    "store.defer_stage": at_half_price,
    "provider_batches.take": at_half_price,
    "provider_batches.calls": at_half_price,
    "provider_batches.keep": at_half_price,
    "provider_batches.settle": at_half_price,
    "batch_api.submit": at_half_price,
    "batch_api.find": looked_for,
    "batch_api.results": at_half_price,
    "batch_api.cancel": cancelled,
}
