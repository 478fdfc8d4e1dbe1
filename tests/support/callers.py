"""A caller without the HTTP API: submits to the database and the broker, and reads jobs back. Blocking, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from planq.shared.broker.celery_config import create_celery
from planq.shared.broker.publisher import CeleryPublisher
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import Strategy
from planq.shared.kernel.submission import Submission
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.database import Database
from tests.support.requests import OpenRequestStore


class Caller:
    """Submits jobs; use as a context manager."""

    def __init__(self, database_url: str, broker_url: str) -> None:
        self._runner = asyncio.Runner()
        self.database = Database(database_url, max_connections=4)
        self.requests = OpenRequestStore(self.database)
        self.app = create_celery(broker_url)
        self.publisher = CeleryPublisher(self.app)

    def __enter__(self) -> Caller:
        self.do(self.database.open())
        return self

    def __exit__(self, *_: object) -> None:
        self.publisher.close()
        self.app.close()
        self.do(self.database.close())
        self._runner.close()

    def do(self, work: Any) -> Any:
        """Run a coroutine to its end."""
        return self._runner.run(work)

    def submit(self, text: str, plan: Mapping[str, Any] | None = None, *, publish: bool = True) -> UUID:
        """Store a job; publish its wake-up unless told otherwise."""
        job_id = new_id()
        plan = None if plan is None else {"on_failure": "answer", **plan}
        submission = Submission(job_id, "default", text, Strategy.PLAN, "offline", Limits(), plan=plan)
        self.do(self.requests.submit(submission))
        if publish:
            self.publisher.publish_soon([Wake.plan(job_id)])
        return job_id

    def status(self, job_id: UUID) -> str:
        """Where a job stands."""
        return str(self.do(self.requests.status("default", job_id)))

    def job(self, job_id: UUID) -> tuple[Any, list[Any]]:
        """A job and its steps."""
        return self.do(self.requests.job("default", job_id))
