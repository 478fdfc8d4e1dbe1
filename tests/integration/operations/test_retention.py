"""Workers remove old jobs by themselves, while they work."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from tests.integration.operations.conftest import Site
from tests.support.ended import ended
from tests.support.waiting import eventually

TWO_SECONDS = str(2 / 86_400)


def test_workers_remove_what_has_been_kept_for_long_enough(make_site: Callable[..., Site], database_url: str) -> None:
    site = make_site(PLANQ_RETAIN_COMPLETED_DAYS=TWO_SECONDS)
    with psycopg.connect(database_url) as connection:
        old = ended(connection, "failed", days=91, count=150, steps=2)
        kept = ended(connection, "failed", days=89)
    site.stack.start(io=2, cpu=1)
    headers = {"Idempotency-Key": "monday"}

    first = site.http.post("/jobs", json={"input": "hello"}, headers=headers).json()["id"]
    due = f"SELECT 1 FROM jobs WHERE id = '{first}' AND finished_at < clock_timestamp() - interval '2 s'"
    with psycopg.connect(database_url, autocommit=True) as connection:
        eventually(lambda: connection.execute(due).fetchone() is not None, 60, what="the job has been kept")
    site.stack.run_worker("io", 3)  # a worker looks at its start
    eventually(lambda: site.http.get(f"/jobs/{first}").status_code == 404, 60, what="the job is removed")
    second = site.http.post("/jobs", json={"input": "hello"}, headers=headers).json()["id"]

    assert second != first, "the key is free again"
    eventually(lambda: site.http.get(f"/jobs/{old[-1]}").status_code == 404, 60, what="the old jobs are removed")
    assert site.http.get(f"/jobs/{kept[0]}").json()["status"] == "failed"
    logs = "".join(site.stack.log(name).read_text() for name in ("io-1", "io-2", "cpu-1"))
    assert "retention_removed" in logs
    assert "Traceback" not in logs
