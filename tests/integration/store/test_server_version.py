"""What planq asks of the server's version, and does itself where an older one cannot."""

from __future__ import annotations

import time
from uuid import RFC_4122

import psycopg
import pytest

from planq.shared.kernel.ids import unix_ms_of
from planq.shared.kernel.schema_version import require_server
from planq.shared.platform.errors import Misconfigured


def test_ids_that_the_database_makes_are_uuids_of_version_7(database_url: str) -> None:
    """`uuidv7()` is new in PostgreSQL 18."""
    before = time.time_ns() // 1_000_000
    with psycopg.connect(database_url, autocommit=True) as connection:
        made = [row[0] for row in connection.execute("SELECT planq_new_id() FROM generate_series(1, 500)")]
    after = time.time_ns() // 1_000_000
    assert len(set(made)) == 500
    assert {(one.version, one.variant) for one in made} == {(7, RFC_4122)}
    assert all(before <= unix_ms_of(one) <= after for one in made)


@pytest.mark.parametrize("version", [150_000, 150_018, 180_001])
def test_a_server_from_15_on_is_used(version: int) -> None:
    require_server(version)


@pytest.mark.parametrize(("version", "named"), [(140_021, "14.21"), (90_624, "9.624")])
def test_an_older_server_is_refused_by_its_version(version: int, named: str) -> None:
    with pytest.raises(Misconfigured, match=f"PostgreSQL {named}; planq needs 15 or newer"):
        require_server(version)
