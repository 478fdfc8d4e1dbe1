"""Batches as callers get them: their shape, and rows of the store as such documents."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field

from planq.api.http.exchange import json_bytes, on_one_line
from planq.api.schemas import Answer, ErrorDocument, Id, PageDocument, RequestBody, Time
from planq.shared.agentic.plan.document import WHOLE
from planq.shared.kernel.states import Priority
from planq.shared.platform.database import Row
from planq.shared.subjects.batches.rules import BatchStatus, Discount, LineStatus, PauseReason, ProviderBatchStatus

_PIECE_BYTES = 64 * 1024


class RequestCounts(Answer):
    """How many lines there are, and how many have ended well or badly; the names are those of OpenAI's batches."""

    total: int = Field(description="Valid lines, and those that were not looked at yet.")
    completed: int
    failed: int


class LineCounts(Answer):
    """How many lines stand where."""

    total: int
    unvalidated: int
    invalid: int
    waiting: int = Field(description="Valid ones that are no jobs yet.")
    running: int = Field(description="Jobs that have not ended.")
    deferred: int = Field(description="Of the running, those that wait for a provider's batch.")
    completed: int = Field(description="The partial and the incomplete ones, too.")
    partial: int = Field(description="Of the completed, those that answer from what there was.")
    incomplete: int = Field(description="Of the completed, those whose answer was cut off.")
    failed: int
    cancelled: int


class BatchBudget(Answer):
    """What all jobs of a batch may use up; null is without a limit. What running jobs may use is reserved."""

    max_cost_usd: float | None
    max_tokens: int | None
    reserved_usd: float
    reserved_tokens: int


class BatchEstimate(Answer):
    """What the valid lines are taken to use, before any was run."""

    model_calls: int
    input_tokens: int
    max_output_tokens: int = Field(description="With the longest replies.")
    least_cost_usd: float | None = Field(description="Of the questions alone; null where no price is known.")
    most_cost_usd: float | None = Field(description="With the longest replies; null where no price is known.")
    unpriced_lines: int = Field(description="Their models' prices are not known; they are not in the costs.")
    lines_with_rounds: int = Field(description="They may make more model calls than are told here.")


class ProviderBatchDocument(Answer):
    """Lines that were sent to a provider together, at half price."""

    id: Id
    provider_id: str | None = Field(description="What the provider calls it; null until it has accepted it.")
    model: str
    status: ProviderBatchStatus
    lines: int
    error: str | None = Field(description="Why it failed, or what went wrong with the last look at it.")
    created_at: Time
    submitted_at: Time | None
    ended_at: Time | None


class BatchDocument(Answer):
    """Many requests of one file, each of which becomes a job."""

    id: Id
    status: BatchStatus
    name: str
    metadata: Any
    defaults: Any = Field(description="Fields of every line that has not its own.")
    priority: Priority
    strict: bool = Field(description="Whether one invalid line fails it.")
    canary: int | None = Field(description="After so many lines it is paused.")
    discount: Discount | None = Field(description="`provider`: lines of one model call cost half, and take longer.")
    provider_batches: list[ProviderBatchDocument] = Field(description="Where its lines are sent together.")
    callback_url: str | None
    request_counts: RequestCounts
    counts: LineCounts
    progress: float = Field(description="The share of its valid lines that have ended, of 1.")
    eta_seconds: float | None = Field(description="Until its end, if it goes on as it did; null while not known.")
    cost_usd: float | None = Field(
        description="Of all lines that have ended, where prices are known; null where no price of what they used is."
    )
    tokens: int = Field(description="Of all lines that have ended.")
    budget: BatchBudget
    estimate: BatchEstimate | None = Field(description="Of the lines validated so far; null before the first.")
    paused_at: Time | None
    pause_reason: PauseReason | None = Field(description="Why nothing more begins; `resume` lets it go on.")
    error: ErrorDocument | None = Field(description="Why it failed as a whole.")
    created_at: Time
    validated_at: Time | None
    started_at: Time | None
    cancelled_at: Time | None
    finished_at: Time | None


class BatchPage(PageDocument[BatchDocument]):
    """Batches, newest first; `next_cursor` is null on the last page."""


class BatchResumeRequest(RequestBody):
    """How a batch goes on; a limit that is left out stays as it is."""

    max_cost_usd: Annotated[float, Field(gt=0, lt=1e9)] | None = Field(
        None, description="What all its jobs may cost, in US dollars."
    )
    max_tokens: Annotated[int, Field(gt=0, lt=2**53), WHOLE] | None = Field(
        None, description="Tokens that all its jobs may use."
    )


def batch_document(row: Row) -> dict[str, Any]:
    ended = row["completed"] + row["failed"] + row["cancelled"]
    unvalidated = row["total"] - row["validated_lines"]
    left = row["valid"] - ended + unvalidated
    return BatchDocument.of(
        row,
        provider_batches=row["provider_batches"] or [],
        estimate=None if row["estimate"] is None else _estimate(row["estimate"]),
        strict=row["is_strict"],
        request_counts=RequestCounts.of(row, total=row["valid"] + unvalidated),
        counts=LineCounts.of(row, unvalidated=unvalidated, waiting=row["valid"] - ended - row["running"]),
        progress=round(ended / (ended + left), 4) if ended else 0.0,
        eta_seconds=_seconds_left(row, ended, left),
        cost_usd=None if row["spent_tokens"] and not row["spent_usd"] else row["spent_usd"],
        tokens=row["spent_tokens"],
        budget=BatchBudget.of(row, max_cost_usd=row["budget_usd"], max_tokens=row["budget_tokens"]),
    )


def _estimate(kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return a `BatchEstimate`; the sum of no known price is not 0."""
    is_unknown = kept["unpriced_lines"] and not kept["most_cost_usd"]
    return {**kept, "least_cost_usd": None, "most_cost_usd": None} if is_unknown else {**kept}


def _seconds_left(row: Row, ended: int, left: int) -> float | None:
    if row["status"] != BatchStatus.IN_PROGRESS or row["paused_at"] is not None or not ended:
        return None
    if row["started_at"] is None:
        return None
    took: float = (datetime.now(UTC) - row["started_at"]).total_seconds()
    return round(max(0.0, took) / int(ended) * left, 1)


def error_line(row: Row) -> Mapping[str, Any]:
    """Return a line of a batch's errors; a line whose `custom_id` an earlier one has tells it in its error."""
    custom_id = row["custom_id"] or row["error"]["details"].get("custom_id")
    return {"custom_id": custom_id, **{name: row[name] for name in ("line", "status", "job_id", "error")}}


def result_line(batch_id: UUID, row: Row, job: dict[str, Any] | None) -> Mapping[str, Any]:
    """Return a line of a batch's results: what came of a line that has ended; `job` is None where there is none."""
    error = None
    if row["status"] == LineStatus.CANCELLED:
        error = {"code": "cancelled", "message": "the line was cancelled before it had come to an end"}
    elif row["status"] == LineStatus.FAILED:
        error = row["error"]
    return {
        "id": f"{batch_id}-{row['line']}",
        "custom_id": row["custom_id"],
        "response": None if job is None else {"status_code": 200, "request_id": row["job_id"], "body": job},
        "error": error,
    }


async def json_lines(values: AsyncIterator[Mapping[str, Any]]) -> AsyncIterator[bytes]:
    """Yield values as JSON, a line each, in pieces that are worth sending."""
    piece = bytearray()
    async for value in values:
        piece += on_one_line(json_bytes(value))
        piece += b"\n"
        if len(piece) >= _PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)
