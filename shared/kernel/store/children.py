"""Child jobs in the store: a step delegates to them, is notified of their ends, and reads their outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from planq.shared.kernel.children import ChildOutcome, ChildRequest, Delegated
from planq.shared.kernel.claims import StepClaim
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.new_ids import new_ids
from planq.shared.kernel.states import JobStatus
from planq.shared.platform.database import Database, Row, json_text, storable_fields
from planq.shared.platform.errors import ErrorRecord


def children_text(claim: StepClaim, delegated: Delegated) -> str:
    """Return the JSON in which `planq_delegate_step` takes the child jobs: their ids sort as they were asked for."""
    ids = new_ids(len(delegated.children), after=claim.ref.job_id)
    pairs = zip(ids, delegated.children, strict=True)
    return json_text([_child(id, position, child) for position, (id, child) in enumerate(pairs)])


async def outcomes(database: Database, first: StepRef, last: int) -> Mapping[int, Sequence[ChildOutcome]]:
    """Return how the child jobs stand of the steps from `first` to that with the index `last`, by step.

    Those of a step are in the order in which they were asked for; a step without any is left out.
    """
    found: dict[int, list[ChildOutcome]] = {}
    given = {"job_id": first.job_id, "round": first.round, "first": first.index, "last": last}
    for row in await database.fetch_all("child_outcomes", **given):
        found.setdefault(row["parent_step_index"], []).append(_outcome(row))
    return found


def _outcome(row: Row) -> ChildOutcome:
    return ChildOutcome(
        job_id=row["id"],
        position=row["child_position"],
        key=row["child_key"],
        agent=row["agent_name"],
        action=row["action"],
        status=JobStatus(row["status"]),
        output=row["output"],
        answer=row["answer"],
        chained=row["chained"],
        error=None if row["error"] is None else error_record(row["error"]),
        elapsed_ms=round(row["seconds"] * 1000),
        ended_at=row["finished_at"],
        has_begun=row["has_begun"],
        tenant_id=row["tenant_id"],
    )


def error_record(stored: Mapping[str, Any]) -> ErrorRecord:
    """Read an error as a job or a step has it."""
    return ErrorRecord(
        stored.get("code", "internal"),
        stored.get("message", ""),
        bool(stored.get("retryable")),
        stored.get("details") or {},
    )


def _child(id: UUID, position: int, child: ChildRequest) -> dict[str, Any]:
    fields = {**storable_fields(child), "id": str(id), "position": position}
    return fields if child.with_ else {name: value for name, value in fields.items() if name != "with_"}
