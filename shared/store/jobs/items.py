"""Calls of one kind as the items of a batch: what each asks of SQL, and what it gets of the answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planq.shared.domain.jobs.states import STAGES, JobStatus, Lane, StepStatus
from planq.shared.ports.jobs.claims import StageClaim, StepClaim
from planq.shared.ports.jobs.store import ClaimRequest, JobEnd
from planq.shared.store.database import Row, json_text, storable_fields, stored_text

_BYTES_OF_A_SUCCESS = 16 * 1024
"""A success that is longer counts as several, so that a statement stays within a few megabytes."""

NOTHING = ClaimRequest(Lane.IO, 0, False)

SqlValue = Mapping[str, Any]
LATE: SqlValue = {"applied": False}


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One call: `text` is its JSON object without the opening brace and its number.

    `owner` says whose it is: interactive work passes the batch of bulk work also where both are of one tenant.
    """

    job: str
    text: str
    take: ClaimRequest = NOTHING
    weight: int = 1
    owner: str = ""


def end_fields(end: JobEnd) -> dict[str, Any]:
    """Return the fields of an item of `planq_end_jobs`."""
    fields: dict[str, Any] = {
        "status": str(end.status),
        "answer": end.answer,
        "error": None if end.error is None else json_text(end.error.to_json()),
    }
    if end.output is not None:
        fields["output"] = stored_text(end.output)
    if end.chained is not None:
        fields["chained"] = stored_text(end.chained)
    if end.stop_reason is not None:
        fields["stop_reason"] = str(end.stop_reason)
    if end.messages:
        fields["messages"] = list(map(storable_fields, end.messages))
    return fields


def item_of(
    fields: Mapping[str, Any],
    *,
    take: ClaimRequest = NOTHING,
    weight: int = 1,
    claim: StageClaim | StepClaim | None = None,
) -> BatchItem:
    """Return the item of a call with these fields, `job` among them; raises ValueError for what is no JSON."""
    owner = "" if claim is None else f"{claim.priority} {claim.tenant_id}"
    return BatchItem(fields["job"], json_text(fields)[1:], take, weight, owner)


def weight_of_success(item: BatchItem) -> int:
    """Return how much of a statement a success takes, by its steps and its length."""
    return item.weight + len(item.text) // _BYTES_OF_A_SUCCESS


def array(items: Sequence[BatchItem]) -> str:
    """Return the items as the SQL functions take them: numbered, in the order of their jobs' ids."""
    ordered = sorted(enumerate(items), key=lambda numbered: numbered[1].job)
    return "[" + ",".join([f'{{"n":{n},{item.text}' for n, item in ordered]) + "]"


def in_order(items: Sequence[BatchItem], rows: Sequence[Row]) -> Sequence[SqlValue]:
    """Return the answer of each item; that of one which came too late stands in no row."""
    values = {row["n"]: row["result"] for row in rows}
    return [values.get(n, LATE) for n in range(len(items))]


def shared_out(items: Sequence[BatchItem], row: Row) -> Iterator[tuple[int, SqlValue]]:
    """Yield what each of the items gets that applied in one job: every one what it takes over, the last one the rest.

    For the others it is as if they had come before: the job went on executing.
    """
    applied: list[int] = sorted(row["applied"])
    claims = list(row["taken"] or ())
    for n in applied:
        is_last = n == applied[-1]
        status = row["job_status"]
        steps = items[n].take.steps
        outcome = {
            "applied": True,
            "status": StepStatus.SUCCEEDED,
            "job_status": status if is_last or status not in STAGES else JobStatus.EXECUTING,
            "stage_attempt": row["stage_attempt"],
            "taken": claims[:steps],
            "ready": row["ready"] if is_last else (),
            "stage": row["stage"] if is_last else None,
        }
        claims = claims[steps:]
        yield n, outcome
