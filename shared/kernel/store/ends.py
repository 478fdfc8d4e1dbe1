"""Ends of jobs in the store: whoever waits for them is served."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import UUID

from planq.shared.kernel.follow_ups import after_end
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.job_store import Consequence, ParentTransition
from planq.shared.kernel.states import TERMINAL_JOB, JobStatus, Priority
from planq.shared.kernel.store.codec import transition_result
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.database import Database
from planq.shared.platform.errors import DatabaseUnavailable

_log = logging.getLogger("planq.sweep")


async def serve_ends(database: Database, jobs: Sequence[UUID]) -> Consequence:
    """See `SweepStore.serve_ends`."""
    served = await database.call("planq_serve_ends", list(jobs))
    if "index" in served:
        step = StepRef(UUID(served["job_id"]), served["round"], served["index"])
        of_parent = Priority(served["priority"]), served["tenant"]
        return Consequence(True, ParentTransition(step, transition_result(served), *of_parent))
    begun = served.get("next")
    wakes = () if begun is None else (Wake.plan(UUID(begun), name=served["agent"], tenant=served["tenant"]),)
    return Consequence(served["applied"], wakes=wakes)


async def wakes_of_end(database: Database, job_id: UUID, status: JobStatus | None) -> Sequence[Wake]:
    """Serve whoever waits for a job if it has ended, as its `status` says; return the wake-ups that this asks for.

    Raises nothing: the end is stored, and the sweeper serves what could not be served here.
    """
    if status not in TERMINAL_JOB:
        return ()
    try:
        return after_end(await serve_ends(database, [job_id]))
    except DatabaseUnavailable:
        _log.warning("end_not_served", extra={"job": str(job_id)})
    except Exception:
        _log.exception("end_not_served", extra={"job": str(job_id)})
    return ()
