"""B22: twenty conversations, then the same beside a message whose request makes the model answer 500.

What one in twenty of the healthy messages waits for its answer is measured in both, in turns, and every one has to be
answered. The poisoned turn is tried again all the while, as one of its tenant.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from time import perf_counter
from uuid import uuid4

from planq.shared.platform.database import Database
from planq.shared.subjects.tenants.api_keys import ApiKeyStore
from planq.shared.subjects.tenants.config import TenantConfig
from planq.shared.subjects.tenants.directory import TenantStore
from planq.shared.subjects.tenants.keys import KeyScope
from tests.bench.client import Answer, Client, run
from tests.bench.context import Context
from tests.bench.figures import Bound, Figure
from tests.bench.noisy_tenant import Sender
from tests.bench.parallelqa import questions
from tests.bench.react import model_server

CONVERSATIONS = 20
MESSAGES, QUICK_MESSAGES = 20, 6
PAUSE_SECONDS = 0.5
POISON = "a question that the model does not know"
MOST = 1.2
MS = 1_000.0


def measure(context: Context) -> list[Figure]:
    """Converse without and with the poison in turns, after a round that does not count."""
    database_url = context.create_migrated()
    tenant = asyncio.run(_tenant(database_url))
    with model_server() as model_url:
        env = {
            "DATABASE_URL": database_url,
            "PLANQ_MODEL": "openai:parallelqa",
            "PLANQ_MODEL_BASE_URL": f"{model_url}/v1",
        }
        with context.planq(env=env) as stack:
            count = context.either(MESSAGES, QUICK_MESSAGES)
            alone, beside = run(alternating(stack.url, tenant, context.repeats, count))
    return [
        Figure(
            f"B22 p95 of {CONVERSATIONS} conversations, one message is poisoned",
            MS * statistics.median(beside),
            "ms",
            limits={"alone": MS * statistics.median(alone)},
            bounds=[Bound(MOST, "alone")],
            samples=[MS * one for one in beside],
        )
    ]


async def _tenant(database_url: str) -> Sender:
    """Make a tenant whose messages the model answers without a tool."""
    config = TenantConfig(strategy="react", tools=[], rate_limit=1_000_000, channel_rate_limit=1_000_000)
    async with Database(database_url, max_connections=1) as database:
        tenant = await TenantStore(database).create("talkative", "", config)
        _, key = await ApiKeyStore(database).create(tenant.id, "bench", frozenset({KeyScope.MESSAGES}), None)
        return Sender(tenant.id, key)


async def alternating(url: str, tenant: Sender, rounds: int, count: int) -> tuple[Sequence[float], Sequence[float]]:
    """Return the p95 of so many rounds without the poison and with it."""
    async with Client(url, connections=2 * CONVERSATIONS) as client:
        await client.answering()
        await _round(client, tenant, count, is_poisoned=False)
        found = [
            [await _round(client, tenant, count, is_poisoned=poisoned) for poisoned in (False, True)]
            for _ in range(rounds)
        ]
    return [alone for alone, _ in found], [beside for _, beside in found]


async def _round(client: Client, tenant: Sender, count: int, *, is_poisoned: bool) -> float:
    if is_poisoned:
        await _say(client, tenant, POISON, async_processing=True)
    waits: list[float] = []

    async def converse(thread: str) -> None:
        text = questions(1)[0].text
        for _ in range(count):
            begun = perf_counter()
            answer = await _say(client, tenant, text, thread=thread)
            waits.append(perf_counter() - begun)
            if answer.status != 200:
                raise RuntimeError(f"expected an answer, found {answer.status}: {answer.body!r}")
            await asyncio.sleep(PAUSE_SECONDS)

    await asyncio.gather(*(converse(str(uuid4())) for _ in range(CONVERSATIONS)))
    return statistics.quantiles(waits, n=20)[-1]


async def _say(client: Client, tenant: Sender, text: str, **more: object) -> Answer:
    body = {
        "tenant_id": tenant.tenant_id,
        "channel": "web",
        "from": {"external_id": "user-1"},
        "content": {"text": text},
        **more,
    }
    return await client.post("/messages/inbound", body, headers={"Authorization": f"Bearer {tenant.key}"})
