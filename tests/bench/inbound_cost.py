"""B16: what a message costs on its way in, against a job that is submitted to the same API process, in turns.

Each message begins a conversation of its own and becomes a job at once, as each submission does; the answer, 202,
comes when that is stored. No worker runs.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psutil
import psycopg

from tests.bench.client import Answer, Client, run
from tests.bench.context import Context
from tests.bench.figures import Bound, Figure
from tests.bench.http_cost import MS, Load, Server, flood
from tests.support.stack import Stack

REQUESTS, QUICK_REQUESTS = 2_000, 1_000
MOST = 1.3
TEXT = "Take these notes, please."
JOB = "POST /jobs"
MESSAGE = "POST /messages/inbound"
BODIES: Mapping[str, dict[str, Any]] = {
    JOB: {"input": TEXT},
    MESSAGE: {
        "tenant_id": "default",
        "channel": "web",
        "from": {"external_id": "user-1"},
        "content": {"text": TEXT},
        "async_processing": True,
    },
}

_UNBOUNDED = '{"rate_limit": 1000000, "channel_rate_limit": 1000000}'


def measure(context: Context) -> list[Figure]:
    """Send both in turns, after a round that does not count."""
    with serving(context) as server:
        loads = run(compared(server, context.repeats, context.either(REQUESTS, QUICK_REQUESTS)))
    taken = {kind: [MS / per_second for per_second in load.per_second] for kind, load in loads.items()}
    cpu = {kind: MS * statistics.median(load.cpu_seconds) for kind, load in loads.items()}
    return [
        Figure(
            f"B16 {MESSAGE}, asynchronous",
            statistics.median(taken[MESSAGE]),
            "ms",
            limits={JOB: statistics.median(taken[JOB])},
            bounds=[Bound(MOST, JOB)],
            samples=taken[MESSAGE],
            note=f"CPU of the API's process, ms: a message {cpu[MESSAGE]:.2f}, a job {cpu[JOB]:.2f}",
        )
    ]


@contextmanager
def serving(context: Context) -> Iterator[Server]:
    """Run an API process whose tenant may send as much as it likes."""
    database_url = context.create_migrated()
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE tenants SET config = %s WHERE id = 'default'", [_UNBOUNDED])
    stack = Stack(context.new_folder("api"), database_url, context.valkey.url, fresh=True)
    try:
        process = stack.run("api", "-m", "planq.api")
        yield Server(stack.url, database_url, psutil.Process(process.pid))
    finally:
        stack.stop()


async def compared(server: Server, rounds: int, requests: int) -> Mapping[str, Load]:
    """Send so many of both in every round, and in one before that does not count."""
    loads = {kind: Load() for kind in BODIES}
    async with Client(server.url) as client:
        await client.answering()
    for turn, (kind, body) in itertools.product(range(rounds + 1), BODIES.items()):

        async def send(client: Client, path: str = kind.split()[1], body: Any = body) -> Answer:
            return await client.post(path, body)

        await flood(server, send, requests, loads[kind] if turn else Load(), expected=202)
    return loads
