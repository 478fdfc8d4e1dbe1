"""Real processes with short leases, and jobs submitted to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.support.stack import Stack
from tests.support.waiting import eventually

LEASE_SECONDS = 2.0

SHORT = {
    "PLANQ_TOOLS": "tests.support.tools",
    "PLANQ_HEARTBEAT_SECONDS": "0.5",
    "PLANQ_LEASE_SECONDS": str(LEASE_SECONDS),
    "PLANQ_SWEEP_SECONDS": "0.2",
    "PLANQ_DRAIN_SECONDS": "2",
}


class Site:
    """A stack and a client of its API."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.http = httpx.Client(base_url=stack.url, timeout=30, trust_env=False)

    def submit(self, *calls: tuple[str, Mapping[str, Any]], **fields: Any) -> str:
        """Submit a plan as a patient client does, once however often it has to ask; return the job's id."""
        plan = {"calls": [{"tool_name": name, "arguments": arguments} for name, arguments in calls]}
        headers = {"Idempotency-Key": uuid4().hex}

        def accepted() -> httpx.Response | None:
            response = self.http.post("/jobs", json={"plan": plan, **fields}, headers=headers)
            return None if response.status_code == 503 else response

        response = eventually(accepted, 60, what="the API takes a job")
        assert response is not None
        assert response.status_code == 202, response.text
        return str(response.json()["id"])

    def ended(self, job_id: str, timeout: float = 40.0) -> dict[str, Any]:
        """Wait until a job has ended, whatever happens to the API meanwhile; return its document."""

        def look() -> dict[str, Any] | None:
            response = self.http.get(f"/jobs/{job_id}")
            if response.status_code != 200:
                return None
            job: dict[str, Any] = response.json()
            return job if job["status"] in ("completed", "failed", "cancelled") else None

        found = eventually(look, timeout, every=0.05, what=f"job {job_id} has ended")
        assert found is not None
        return found

    def running(self, job_id: str, index: int = 0) -> None:
        """Wait until a step runs."""
        eventually(
            lambda: (
                [one["status"] for one in self.http.get(f"/jobs/{job_id}").json()["steps"][index : index + 1]]
                == ["running"]
            ),
            20,
            what=f"step {index} of {job_id} runs",
        )


@pytest.fixture
def make_site(make_stack: Callable[..., Stack], database_url: str, valkey_url: str) -> Iterator[Callable[..., Site]]:
    """`make_site(**env)`: a stack that is not started yet, with short leases."""
    sites: list[Site] = []

    def make(**env: str) -> Site:
        sites.append(Site(make_stack(database_url, valkey_url, env={**SHORT, **env})))
        return sites[-1]

    yield make
    for site in sites:
        site.http.close()
