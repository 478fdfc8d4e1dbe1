"""The database goes away under running workers for longer than a lease: work pauses, goes on, is not repeated."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from planq.deploy.local.child import has_exited
from tests.integration.operations.conftest import Site
from tests.support.outage import closed, cut, locked, read_only
from tests.support.tiers import some
from tests.support.waiting import eventually

Loss = Callable[[str], AbstractContextManager[Any]]

LONG_LEASE_SECONDS = 8.0


@pytest.mark.parametrize("loss", some([closed, read_only, locked], closed), ids=lambda loss: loss.__name__)
def test_work_pauses_and_goes_on(
    make_site: Callable[..., Site], database_url: str, tmp_path: Path, loss: Loss
) -> None:
    # A write that outlasted the lease would be stopped; these have ended by then, and their outcomes wait.
    site = make_site(PLANQ_DATABASE_CONNECTIONS="4", PLANQ_LEASE_SECONDS=str(LONG_LEASE_SECONDS))
    site.stack.start(io=2, cpu=1)
    ledger = tmp_path / "ledger"
    effect = ("test_ledger", {"path": str(ledger), "line": "paid", "seconds": 2})
    under_way = [
        site.submit(effect, ("calculate", {"expression": "6 * 7"}), ("wait", {"seconds": 1})) for _ in range(10)
    ]
    for job in under_way:
        site.running(job)

    with loss(database_url):
        lost = monotonic()
        if loss is not locked:
            eventually(lambda: site.http.post("/jobs", json={"input": "a"}).status_code == 503, 60)
        # Long enough for every outcome to meet a database that is away, and for every lease to run out.
        eventually(lambda: monotonic() - lost > 1.5 * LONG_LEASE_SECONDS, 60)

    ends = [site.ended(job, 60) for job in under_way]
    assert {job["status"] for job in ends} == {"completed"}
    assert {step["status"] for job in ends for step in job["steps"]} == {"succeeded"}
    # Where the locks are gone, one worker may sweep before the other one's heartbeat has got through: what only looks
    # at the world may then run again.
    again = {step["index"] for job in ends for step in job["steps"] if step["attempt"] != 1}
    assert again <= ({1, 2} if loss is locked else set())
    assert len(ledger.read_text().splitlines()) == 10, "each effect happened once"
    assert not any(has_exited(process) for process in site.stack.processes.values())
    assert site.ended(site.submit(("now", {})))["status"] == "completed"


@pytest.mark.whole  # `faults/test_matrix.py` ends sessions too
def test_connections_that_are_cut_all_the_time_repeat_no_effect(
    make_site: Callable[..., Site], database_url: str, tmp_path: Path
) -> None:
    """`pg_terminate_backend` for everybody, between any two statements."""
    site = make_site()
    site.stack.start(io=2, cpu=1)
    ledger = tmp_path / "ledger"
    effect = ("test_ledger", {"path": str(ledger), "line": "x", "seconds": 0.05})
    unsafe, safe = [], []
    for _ in range(10):
        unsafe.append(site.submit(*[effect] * 3))
        safe.append(site.submit(*[("test_hold", {"seconds": 0.05})] * 3))
        cut(database_url)

    ends = [site.ended(job, 60) for job in [*unsafe, *safe]]

    assert {job["status"] for job in ends} == {"completed"}
    assert {step["status"] for job in ends[len(unsafe) :] for step in job["steps"]} == {"succeeded"}
    lines = ledger.read_text().splitlines()
    assert len(lines) == len(set(lines)), "no effect happened twice"
    errors = [step["error"]["code"] for job in ends for step in job["steps"] if step["error"]]
    assert set(errors) <= {"outcome_unknown"}, "a claim whose answer was cut off may have been carried out"


def test_one_connection_is_enough_for_many_steps(make_site: Callable[..., Site]) -> None:
    site = make_site(PLANQ_DATABASE_CONNECTIONS="1")
    site.stack.start(io=1, cpu=1)

    job = site.submit(*[("test_hold", {"seconds": 0.5})] * 120)

    assert {step["status"] for step in site.ended(job, 60)["steps"]} == {"succeeded"}
