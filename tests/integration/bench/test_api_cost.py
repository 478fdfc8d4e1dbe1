"""What measures the API: it asks both servers as often as it says, and every client of a storm is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.bench import http_cost, inbound_cost, noisy_tenant, poll_storm
from tests.bench.context import Context

ROUNDS, REQUESTS = 1, 40
RECEIVED = "SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM conversation_messages)"
TOLD = "SELECT (SELECT count(*) FROM jobs WHERE status = 'queued'), (SELECT count(*) FROM bare_jobs)"


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    with Context(tmp_path, quick=True) as running:
        yield running


def test_both_servers_do_the_same_work(context: Context) -> None:
    with http_cost.serving(context) as servers:
        loads = http_cost.run(http_cost.compared(servers, ROUNDS, REQUESTS))
        with psycopg.connect(servers["planq"].database_url) as connection:
            stored = connection.execute(TOLD).fetchone()

    kinds, keyed = len(http_cost.KINDS), len(http_cost.KEYED_KINDS)
    assert [len(load.per_second) for load in loads.values()] == [ROUNDS] * (2 * kinds + keyed)
    # The jobs to be looked at, and two kinds of POST in every round, the one that does not count too; one with a key.
    looked_at, asked = http_cost.CONNECTIONS, (ROUNDS + 1) * REQUESTS
    assert stored == (2 * looked_at + 3 * asked, looked_at + 2 * asked)


@pytest.mark.whole
def test_as_many_messages_as_jobs_come_in(context: Context) -> None:
    with inbound_cost.serving(context) as server:
        loads = inbound_cost.run(inbound_cost.compared(server, ROUNDS, REQUESTS))
        with psycopg.connect(server.database_url) as connection:
            stored = connection.execute(RECEIVED).fetchone()

    assert [len(load.per_second) for load in loads.values()] == [ROUNDS] * 2
    messages = (ROUNDS + 1) * REQUESTS
    assert stored == (2 * messages, messages)


@pytest.mark.whole
def test_of_many_tenants_one_is_noisy_and_refused(context: Context) -> None:
    database_url = context.create_migrated()
    senders = asyncio.run(noisy_tenant.tenants(database_url, 3))
    with context.planq(io=1, env={"DATABASE_URL": database_url}) as stack:
        phase = noisy_tenant.run(noisy_tenant.phase(stack.url, senders, 0.6))

    assert len(phase.waits) == 2 * 4
    assert phase.noise == {200: 50, 429: 350}
    assert 0 < phase.p95 < 60


def test_every_client_of_a_storm_is_answered_after_its_job_has_ended(context: Context) -> None:
    storm = poll_storm.storm(context, 30)

    assert 0 < storm.worst_seconds < poll_storm.WAIT_SECONDS
    assert storm.peak_bytes > 0
