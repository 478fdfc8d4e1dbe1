"""How far a list looks for what no index knows: it stops after so many jobs, and goes on where it stopped."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from uuid import UUID

from planq.shared.kernel.states import JobStatus
from planq.shared.platform.database import Database
from planq.shared.subjects.jobs.find import LOOKED_THROUGH, FoundJobs, found_jobs
from planq.shared.subjects.jobs.selection import JobFilter


class History:
    """Jobs 1 to `count`, of which every one that `step` divides fits; it counts what was looked at."""

    def __init__(self, count: int, step: int) -> None:
        self.count, self.step, self.looked_at = count, step, 0

    async def fetch_page(self, *_: str, below: UUID, limit: int, **given: Any) -> list[dict[str, Any]]:
        top = min(below.int - 1, self.count)
        numbers = range(max(top - limit, 0) + 1, top + 1)
        self.looked_at += len(numbers)
        return [{"id": UUID(int=one), "fits": one % self.step == 0, "metadata": {"n": one % 2}} for one in numbers]


def look(history: History, wanted: JobFilter, below: int | None = None) -> tuple[list[int], int | None]:
    given = cast("Database", history)
    at = None if below is None else UUID(int=below)
    found: FoundJobs = asyncio.run(found_jobs(given, "t", wanted, below=at, limit=3, roots=True))
    return [one.int for one in found.ids], None if found.next_below is None else found.next_below.int


def test_a_full_page_leads_behind_its_last_job_and_the_last_one_nowhere() -> None:
    history = History(1_000, 100)
    assert look(history, JobFilter(words="x")) == ([1000, 900, 800], 800)
    assert history.looked_at == 500, "the first part has a fourth one"
    assert look(history, JobFilter(words="x"), 400) == ([300, 200, 100], None)
    assert look(history, JobFilter(metadata={"n": 1})) == ([], None)


def test_what_is_rare_ends_the_look_after_so_many_jobs() -> None:
    history = History(3 * LOOKED_THROUGH, 3 * LOOKED_THROUGH + 1)
    assert look(history, JobFilter(words="x")) == ([], 2 * LOOKED_THROUGH + 1)
    assert history.looked_at == LOOKED_THROUGH


def test_what_an_index_knows_is_looked_at_up_to_the_page_alone() -> None:
    history = History(1_000, 1)
    assert look(history, JobFilter(status=JobStatus.FAILED)) == ([1000, 999, 998], 998)
    assert history.looked_at == 4
