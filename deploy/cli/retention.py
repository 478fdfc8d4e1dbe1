"""`planq retention`: removes now what the scheduled retention would remove sooner or later, or only counts it.

It speaks to the database itself: how long jobs are kept is the operator's business, and no endpoint takes it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from planq.api.cli.connection import AsJson, located_settings
from planq.api.cli.console import columns, out, print_json
from planq.api.cli.outcome import reported
from planq.deploy.cli.database import with_database
from planq.shared.kernel.states import TERMINAL_JOB

if TYPE_CHECKING:
    from planq.shared.subjects.retention.store import Retention

T = TypeVar("T")
Found = dict[str, Any]


def retention(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what would be removed, and remove nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove what has been kept for long enough: jobs, batches, messages, deliveries, old versions, unused outputs.

    How long is PLANQ_RETAIN_COMPLETED_DAYS, PLANQ_RETAIN_FAILED_DAYS and PLANQ_RETAIN_CANCELLED_DAYS, counted from
    the end of a job or a batch, and PLANQ_RETAIN_CONVERSATIONS_DAYS, _DELIVERIES_DAYS and _VERSIONS_DAYS, or what its
    tenant's configuration says instead. With a job go its steps, events, artifacts, model calls and its idempotency
    key. --dry-run does not count what goes after something else: messages of jobs that are there, say.
    """
    with reported(as_json=as_json):
        keep = located_settings().retention
        if dry_run:
            document = _document(keep, "due", _with_retention(keep, _due))
        else:
            document = _document(keep, "removed", _with_retention(keep, _remove))
    if as_json:
        print_json(document)
    else:
        _show(document)


def _with_retention(keep: Mapping[str, timedelta], use: Callable[[Retention], Awaitable[T]]) -> T:
    from planq.shared.subjects.payloads.objects import open_objects
    from planq.shared.subjects.payloads.store import PayloadStore
    from planq.shared.subjects.retention.store import Retention

    objects = open_objects(located_settings().payloads)
    return with_database(lambda database: use(Retention(database, keep, PayloadStore(database, objects))))


async def _remove(store: Retention) -> Mapping[str, Found]:
    removed: Counter[str] = Counter()
    async for batch in store.remove():
        removed[batch.kind] += batch.count
    return defaultdict(lambda: {"removed": 0}, {kind: {"removed": count} for kind, count in removed.items()})


async def _due(store: Retention) -> Mapping[str, Found]:
    from planq.shared.subjects.retention.store import MOST_COUNTED

    found: dict[str, Found] = {}
    for kind, due in (await store.due()).items():
        found[kind] = {"due": due.count, "or_more": due.count >= MOST_COUNTED}
        if kind in TERMINAL_JOB:
            found[kind]["oldest"] = due.oldest.isoformat() if due.oldest else None
    return found


def _document(keep: Mapping[str, timedelta], what: str, found: Mapping[str, Found]) -> dict[str, Any]:
    from planq.shared.subjects.retention.store import BATCHES, CONVERSATIONS, DELIVERIES, MESSAGES, PAYLOADS, VERSIONS

    def kept(kind: str) -> Found:
        return {"kept_days": keep[kind] / timedelta(days=1) if kind in keep else None}

    return {
        "dry_run": what == "due",
        "jobs": {status.value: kept(status) | found[status] for status in sorted(TERMINAL_JOB)},
        "batches": found[BATCHES],
        "messages": kept(CONVERSATIONS) | found[MESSAGES],
        "conversations": kept(CONVERSATIONS) | found[CONVERSATIONS],
        "deliveries": kept(DELIVERIES) | found[DELIVERIES],
        "versions": kept(VERSIONS) | found[VERSIONS],
        "large_outputs": found[PAYLOADS],
    }


_KEPT = {"batches": "kept as jobs that ended so", "large_outputs": "kept while a job has them"}


def _show(document: Mapping[str, Any]) -> None:
    key = "due" if document["dry_run"] else "removed"
    rows = {
        **document["jobs"],
        **{name: found for name, found in document.items() if name not in ("dry_run", "jobs")},
    }
    lines = []
    for name, found in rows.items():
        days = found.get("kept_days")
        kept = _KEPT.get(name, "kept for ever" if days is None else f"kept for {days:g} days")
        more = " or more" if found.get("or_more") else ""
        lines.append([name.replace("_", " "), kept, f"{found[key]}{more} {key}"])
    for line in columns(lines):
        out.print(line)
