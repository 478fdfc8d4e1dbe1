"""Providers' batch APIs through pydantic-ai's `Model.batch_*` (2.68), for OpenAI's Responses API and Anthropic.

pydantic-ai submits an OpenAI batch without metadata, by which it could be found again after a crash, so that one call
is made here. Importing this module loads SDKs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from pydantic import TypeAdapter
from pydantic_ai.models import Model
from pydantic_ai.models.batch import Batch, EncodedBatchRequest
from pydantic_ai.models.openai import OpenAIResponsesModel

from planq.shared.kernel.deferral import CallStatus
from planq.shared.platform.errors import Transient
from planq.shared.subjects.batches.rules import CallResult, ProviderBatch

_MARK = "planq_batch"
"""The key of OpenAI's metadata under which a batch has our id."""

_ENDPOINT: Literal["/v1/responses"] = "/v1/responses"
_CLOCKS_DIFFER = timedelta(minutes=10)
_MOST_LISTED = 2_000
_HANDLE = TypeAdapter(Batch)


def handle_of(batch: Batch) -> str:
    return _HANDLE.dump_json(batch).decode()


def batch_of(handle: str) -> Batch:
    return _HANDLE.validate_json(handle)


def can_batch(model: Model) -> bool:
    has_form = isinstance(model, OpenAIResponsesModel) or model.system == "anthropic"
    return model.batch_max_requests is not None and has_form


async def submit(model: Model, held: ProviderBatch, calls: Sequence[tuple[UUID, str]]) -> Batch:
    """Send a batch; an error with a `status_code` below 500 says that the provider has refused it."""
    if not isinstance(model, OpenAIResponsesModel):
        requests = [EncodedBatchRequest(custom_id=str(job), group=held.scope, body=body) for job, body in calls]
        return await model.batch_create(requests)
    client = model.client.with_options(max_retries=0)
    file = await client.files.create(file=("planq.jsonl", _input_file(calls)), purpose="batch")
    made = await client.batches.create(
        input_file_id=file.id, endpoint=_ENDPOINT, completion_window="24h", metadata={_MARK: str(held.id)}
    )
    return _openai_batch(model, held, made.id, file.id, made.status)


def _input_file(calls: Sequence[tuple[UUID, str]]) -> bytes:
    # In ASCII: pydantic-ai reads the file of an expired batch again, and splits its lines at U+2028 too (2.68).
    lines = (
        {"custom_id": str(job), "method": "POST", "url": _ENDPOINT, "body": json.loads(body)} for job, body in calls
    )
    return "\n".join(map(json.dumps, lines)).encode()


def _openai_batch(model: Model, held: ProviderBatch, provider_id: str, file_id: str, status: str) -> Batch:
    return Batch(
        id=provider_id,
        model_name=model.model_name,
        provider_name=model.system,
        group=held.scope,
        status="in_progress",
        created_at=held.created_at,
        request_count=held.lines,
        provider_details={"status": status, "input_file_id": file_id},
    )


async def find(model: Model, held: ProviderBatch, calls: Sequence[tuple[UUID, str]]) -> Batch | None:
    """Return the batch that an earlier try may have sent; raise `Transient` while one might be it."""
    since = held.created_at - _CLOCKS_DIFFER
    if isinstance(model, OpenAIResponsesModel):
        listed = 0
        async for one in model.client.batches.list(limit=100):
            listed += 1
            if one.created_at < since.timestamp() or listed > _MOST_LISTED:
                return None
            if (one.metadata or {}).get(_MARK) == str(held.id):
                return _openai_batch(model, held, one.id, one.input_file_id, one.status)
        return None
    return await _find_anthropic(model, held, {str(job) for job, _ in calls}, since)


async def _find_anthropic(model: Model, held: ProviderBatch, ours: set[str], since: datetime) -> Batch | None:
    is_unclear = False
    listed = 0
    async for one in model.client.beta.messages.batches.list(limit=100):  # type: ignore[attr-defined]
        listed += 1
        if one.created_at < since or listed > _MOST_LISTED:
            break
        counts = one.request_counts
        total = counts.processing + counts.succeeded + counts.errored + counts.canceled + counts.expired
        if total != held.lines:
            continue
        batch = Batch(
            id=one.id,
            model_name=model.model_name,
            provider_name=model.system,
            group=held.scope,
            status="ended" if one.processing_status == "ended" else "in_progress",
            created_at=one.created_at,
            request_count=total,
        )
        if batch.status != "ended":
            is_unclear = True
        elif {result.custom_id for result in await model.batch_results(batch)} & ours:
            return batch
    if is_unclear:
        raise Transient("an earlier try may have sent the batch; the provider still runs one of as many requests")
    return None


async def results_of(model: Model, batch: Batch) -> Sequence[CallResult]:
    """Return what came of the calls of a batch that has ended; what is no call of ours is left out."""
    found: list[CallResult] = []
    for one in await model.batch_results(batch):
        try:
            found.append(CallResult(UUID(one.custom_id), CallStatus(one.status), one.body))
        except ValueError:
            continue
    return found
