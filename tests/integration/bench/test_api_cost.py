"""What measures the API: it asks both servers as often as it says, and every client of a storm is answered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.bench import http_cost, poll_storm
from tests.bench.context import Context

ROUNDS, REQUESTS = 1, 40
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


def test_every_client_of_a_storm_is_answered_after_its_job_has_ended(context: Context) -> None:
    storm = poll_storm.storm(context, 30)

    assert 0 < storm.worst_seconds < poll_storm.WAIT_SECONDS
    assert storm.peak_bytes > 0
