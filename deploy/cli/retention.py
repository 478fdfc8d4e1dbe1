"""`planq retention`: removes now what the scheduled retention would remove sooner or later, or only counts it.

It speaks to the database itself: how long jobs are kept is the operator's business, and no endpoint takes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from api.cli.connection import AsJson, located_settings
from api.cli.console import columns, out, print_json
from api.cli.outcome import reported
from deploy.cli.database import with_database

if TYPE_CHECKING:
    from shared.domain.jobs.states import JobStatus
    from shared.store.retention import Purgeable, Retention

T = TypeVar("T")


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(retention)


def retention(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what would be removed, and remove nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove jobs that have been kept for long enough.

    How long is PLANQ_RETAIN_COMPLETED_DAYS, PLANQ_RETAIN_FAILED_DAYS and PLANQ_RETAIN_CANCELLED_DAYS, counted from
    the end of a job, or what its tenant's configuration says instead. With a job go its steps, events, artifacts,
    model calls and its idempotency key.
    """
    with reported(as_json=as_json):
        keep = located_settings().retention
        if dry_run:
            due = _with_retention(keep, lambda store: store.due())
            document = _counted(keep, due)
        else:
            document = _removed(keep, _with_retention(keep, _remove))
    if as_json:
        print_json(document)
    else:
        _show(document)


def _with_retention(keep: Mapping[JobStatus, timedelta], use: Callable[[Retention], Awaitable[T]]) -> T:
    """Run `use` on the database; raises `Misconfigured` or `DatabaseUnavailable` when there is none of ours."""
    from shared.store.objects import open_objects
    from shared.store.payloads import PayloadStore
    from shared.store.retention import Retention

    objects = open_objects(located_settings().payloads)
    return with_database(lambda database: use(Retention(database, keep, PayloadStore(database, objects))))


async def _remove(store: Retention) -> Counter[str]:
    removed: Counter[str] = Counter()
    async for batch in store.remove():
        removed[batch.kind] += batch.count
    return removed


def _counted(keep: Mapping[JobStatus, timedelta], due: Mapping[JobStatus, Purgeable]) -> dict[str, Any]:
    from shared.store.retention import MOST_COUNTED

    jobs = _kept(keep)
    for status, purgeable in due.items():
        oldest = purgeable.oldest.isoformat() if purgeable.oldest else None
        jobs[status.value] |= {"due": purgeable.jobs, "or_more": purgeable.jobs >= MOST_COUNTED, "oldest": oldest}
    return {"dry_run": True, "jobs": jobs}


def _removed(keep: Mapping[JobStatus, timedelta], removed: Mapping[str, int]) -> dict[str, Any]:
    from shared.store.retention import PAYLOADS

    jobs = _kept(keep)
    for status in jobs:
        jobs[status] |= {"removed": removed.get(status, 0)}
    return {"dry_run": False, "jobs": jobs, "large_outputs": {"removed": removed.get(PAYLOADS, 0)}}


def _kept(keep: Mapping[JobStatus, timedelta]) -> dict[str, dict[str, Any]]:
    """Return how long each kind of ended job is kept, in days; None is for ever."""
    from shared.domain.jobs.states import TERMINAL_JOB

    return {
        status.value: {"kept_days": keep[status] / timedelta(days=1) if status in keep else None}
        for status in sorted(TERMINAL_JOB)
    }


def _show(document: Mapping[str, Any]) -> None:
    key = "due" if document["dry_run"] else "removed"
    lines = []
    for status, found in document["jobs"].items():
        days = found["kept_days"]
        kept = "kept for ever" if days is None else f"kept for {days:g} days"
        more = " or more" if found.get("or_more") else ""
        lines.append([status, kept, f"{found[key]}{more} {key}"])
    if "large_outputs" in document:
        lines.append(
            ["large outputs", "kept while a job has them", f"{document['large_outputs']['removed']} removed"]
        )
    for line in columns(lines):
        out.print(line)
