"""The servers that other tests stand on: fresh databases are separate, every kind of broker carries a message."""

from __future__ import annotations

import kombu
import psycopg

from planq.shared.kernel.schema_version import current
from tests.support.servers import TestPostgres


def test_databases_are_migrated_separate_and_dropped(postgres: TestPostgres) -> None:
    first, second = postgres.create_migrated(), postgres.create_migrated()

    with psycopg.connect(first) as connection:
        connection.execute("CREATE TABLE only_here ()")

    assert current(first).is_ready
    assert current(second).is_ready
    with psycopg.connect(second) as connection:
        assert connection.execute("SELECT to_regclass('only_here')").fetchone() == (None,)
    for url in (first, second):
        postgres.drop(url)


def test_a_broker_of_each_kind_carries_a_message(broker_url: str) -> None:
    with kombu.Connection(broker_url) as connection, connection.SimpleQueue("planq.probe") as queue:
        queue.put({"id": 1})
        message = queue.get(timeout=60)
        message.ack()

    assert message.payload == {"id": 1}
