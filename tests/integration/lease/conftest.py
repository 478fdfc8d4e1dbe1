"""Workers with short leases, and looking at them through the API and the database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from psycopg.rows import dict_row

from tests.support.stack import Stack, step_processes
from tests.support.waiting import eventually

SHORT = {
    "PLANQ_LEASE_SECONDS": "2",
    "PLANQ_HEARTBEAT_SECONDS": "0.5",
    "PLANQ_SWEEP_SECONDS": "0.2",
    "PLANQ_TOOLS": "tests.support.tools",
}


class Scene:
    """A stack with short leases; `path` is where tools write."""

    def __init__(self, stack: Stack, database_url: str, folder: Path) -> None:
        self.stack = stack
        self.path = folder / "told"
        self._database_url = database_url

    def submit(self, *calls: tuple[str, dict[str, Any]]) -> str:
        """Submit a plan; returns the job's id."""
        plan = {"calls": [{"tool_name": name, "arguments": arguments} for name, arguments in calls]}
        answer = httpx.post(f"{self.stack.url}/jobs", json={"plan": plan}, timeout=60)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def job(self, job_id: str) -> Any:
        """The job's document."""
        return httpx.get(f"{self.stack.url}/jobs/{job_id}", timeout=60).json()

    def until_running(self, job_id: str) -> None:
        """Wait until the job's first step runs."""

        def runs() -> bool:
            steps = self.job(job_id)["steps"]
            return bool(steps) and steps[0]["status"] == "running"

        eventually(runs, 60, what="the step runs")

    def ended(self, job_id: str, seconds: float = 60) -> Any:
        """The job's document once it has ended."""
        answer = httpx.get(f"{self.stack.url}/jobs/{job_id}", params={"wait": seconds}, timeout=seconds + 10)
        assert answer.json()["status"] in ("completed", "failed", "cancelled"), answer.text
        return answer.json()

    def cancel(self, job_id: str) -> int:
        """Cancel over HTTP; returns the status code."""
        return httpx.post(f"{self.stack.url}/jobs/{job_id}/cancel", timeout=60).status_code

    def pids(self, count: int = 1) -> list[int]:
        """The process ids that tools have written, once there are so many."""

        def written() -> list[int]:
            lines = self.path.read_text().split() if self.path.exists() else []
            return [int(line) for line in lines] if len(lines) >= count else []

        return eventually(written, 60, what="a tool has begun")

    def sql(self, statement: str, *parameters: Any) -> list[Any]:
        """Run a statement; returns its rows, if it has any."""
        with psycopg.connect(self._database_url, autocommit=True, row_factory=dict_row) as connection:
            cursor = connection.execute(statement.encode(), parameters)
            return list(cursor) if cursor.description else []

    def children(self, name: str) -> set[int]:
        """The process ids of a `cpu` worker's children."""
        return {child.pid for child in step_processes(self.stack.processes[name].pid)}


@pytest.fixture
def make_scene(
    make_stack: Callable[..., Stack], database_url: str, broker_url: str, tmp_path: Path
) -> Callable[..., Scene]:
    """`make_scene(io=1, cpu=1, **settings)`: a running stack on each kind of broker."""

    def make(*, io: int = 1, cpu: int = 1, **settings: str) -> Scene:
        stack = make_stack(database_url, broker_url, env=SHORT | settings)
        stack.start(io=io, cpu=cpu, ready=bool(io and cpu))
        return Scene(stack, database_url, tmp_path)

    return make
