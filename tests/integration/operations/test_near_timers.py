"""What is due within seconds happens at its time by a timer of the process that stored it: here nobody sweeps.

The sweep's period is a day, so that it looks once, when a worker starts. Each test waits for the condition itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from planq.shared.platform.database import Database
from planq.shared.subjects.tenants.api_keys import ApiKeyStore
from planq.shared.subjects.tenants.config import TenantConfig
from planq.shared.subjects.tenants.directory import TenantStore
from planq.shared.subjects.tenants.keys import KeyScope
from tests.integration.operations.conftest import Site
from tests.support.waiting import eventually


@pytest.fixture
def site(make_site: Callable[..., Site]) -> Site:
    site = make_site(PLANQ_SWEEP_SECONDS="86400")
    site.stack.run("api", "-m", "planq.api")
    for pool in ("io", "cpu"):
        site.stack.run_worker(pool, 1, concurrency=4)
    site.stack.wait_ready()
    return site


def test_a_wait_ends(site: Site) -> None:
    waits = (0, 0.3, 0.5)
    jobs = [site.submit(("wait", {"seconds": seconds}), ("now", {}), respond="output") for seconds in waits]

    ended = [site.ended(job) for job in jobs]

    assert [job["status"] for job in ended] == ["completed"] * 3
    assert [job["steps"][0]["output"] for job in ended] == [{"waited_seconds": seconds} for seconds in waits]


def test_a_step_is_tried_again(site: Site, tmp_path: Path) -> None:
    job = site.ended(site.submit(("test_flaky", {"path": str(tmp_path / "calls")}), respond="output"))

    assert (job["status"], job["steps"][0]["attempt"], job["output"]) == ("completed", 2, {"calls": 2})


def test_a_debounced_message_begins(site: Site, database_url: str) -> None:
    headers = asyncio.run(_gathering(database_url))
    body = {"tenant_id": "gathers", "channel": "api", "thread": "t", "content": {"text": "one"}}
    body |= {"from": {"external_id": "ada"}, "async_processing": True}

    answer = site.http.post("/messages/inbound", json=body, headers=headers)

    assert answer.status_code == 202, answer.text
    job = answer.json()["job_id"]
    eventually(
        lambda: site.http.get(f"/jobs/{job}", headers=headers).json()["status"] == "completed",
        60,
        what="the message is answered",
    )


async def _gathering(database_url: str) -> dict[str, str]:
    """Make a tenant whose messages wait for further ones; return what its requests are sent with."""
    async with Database(database_url, max_connections=1) as database:
        config = TenantConfig(strategy="react", tools=[], debounce_ms=700, debounce_most_ms=1500)
        tenant = await TenantStore(database).create("gathers", "", config)
        scopes = frozenset({KeyScope.MESSAGES, KeyScope.JOBS})
        _, key = await ApiKeyStore(database).create(tenant.id, "tests", scopes, None)
    return {"Authorization": f"Bearer {key}", "X-Tenant-ID": tenant.id}
