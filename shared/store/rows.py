"""Rows to records and back: the only place that knows both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from shared.domain.budget import Holder, Wanted
from shared.domain.compile import PlannedStep
from shared.domain.errors import InvalidArguments, storable
from shared.domain.excerpts import Excerpts, path_text
from shared.domain.ids import StepRef
from shared.domain.model import ModelCall, StepResult
from shared.domain.resolution import MAX_SIZE, resolve, uncovered
from shared.domain.states import Lane, StepStatus
from shared.ports import ArtifactRecord, Message, PayloadRecord, ReusedStep, StepWake
from shared.store.database import Row, json_text, stored_text


def step_to_json(step: PlannedStep, reused: ReusedStep | None = None) -> dict[str, Any]:
    """Return a step as `planq_accept_plans` and `planq_chain_tool` take it; `reused` is whose outcome it has."""
    shape = {
        "index": step.index,
        "kind": str(step.kind),
        "tool_name": step.tool_name,
        "lane": str(step.lane),
        "effect": str(step.effect),
        "arguments": json_text(step.arguments),
        "inputs": list(step.inputs),
        "depends_on": list(step.depends_on),
        "dependents": list(step.dependents),
        "retries": step.retries,
        "timeout_seconds": step.timeout_seconds,
        "recovery": str(step.recovery),
        "wanted": json_text([path_text(path) for path in step.wanted]) if step.wanted else None,
    }
    if reused is not None:
        shape |= {"reuse_job": str(reused.job_id), "reuse_index": reused.index}
    return shape


def message_to_json(message: Message) -> dict[str, Any]:
    """Return the form in which `planq_end_jobs` takes a message."""
    return {
        "kind": message.kind,
        "call_id": storable(message.call_id),
        "name": storable(message.name),
        "content": json_text(message.content),
    }


def call_to_json(call: ModelCall) -> dict[str, Any]:
    """Return the form in which the transitions take a model call."""
    return {
        "id": None if call.id is None else str(call.id),
        "purpose": str(call.purpose),
        "model": call.model,
        "attempts": call.attempts,
        "latency_ms": call.latency_ms,
        "input_tokens": call.input_tokens,
        "output_tokens": call.output_tokens,
        "cost_usd": None if call.cost_usd is None else str(call.cost_usd),
        "error": json_text(call.error.to_json()) if call.error else None,
        "exchange": None if call.exchange is None else json_text(call.exchange),
    }


def holder_to_json(holder: Holder, wanted: Wanted) -> dict[str, Any]:
    """Return the form in which `planq_reserve` takes who reserves, and for which call."""
    return {
        "job": str(holder.job_id),
        "round": holder.round,
        "index": holder.index,
        "attempt": holder.attempt,
        "call": None if wanted.call_id is None else str(wanted.call_id),
    }


def wanted_to_json(wanted: Wanted) -> dict[str, Any]:
    """Return the form in which `planq_reserve` takes what is wanted."""
    return {
        "asked": wanted.asked_tokens,
        "reply": wanted.reply_tokens,
        "least": wanted.least_tokens,
        "calls": wanted.model_calls,
        "steps": wanted.steps,
        "asked_usd": None if wanted.price is None else wanted.price.asked_usd,
        "token_usd": None if wanted.price is None else wanted.price.token_usd,
        "may_ask": wanted.may_ask,
    }


def made_to_json(made: Sequence[ModelCall]) -> dict[str, Any]:
    """Return the form in which `planq_reserve` takes what calls have used that are not recorded yet."""
    return {
        "input": sum(call.input_tokens for call in made),
        "output": sum(call.output_tokens for call in made),
        "cost": float(sum(call.cost_usd or 0 for call in made)),
        "calls": len(made),
    }


class CalledArguments:
    """The arguments that the steps of one round were called with; resolution is pure, so nothing needs to be stored.

    `outputs` are the outputs of its succeeded steps, of large ones what `known_output` knows: no payload is loaded.
    All arguments together are bounded (`MAX_SIZE`): a plan of a few kilobytes can name one large output in every one
    of its steps.
    """

    def __init__(self, outputs: Mapping[int, Any]) -> None:
        self._outputs = outputs
        self._left = MAX_SIZE

    def of(self, row: Row) -> Any:
        """Return a step's arguments; those it was planned with if it was never begun, or if they are too large."""
        if row["attempt"] == 0 or not row["inputs"]:
            return row["arguments"]
        inputs = {index: self._outputs[index] for index in row["inputs"] if index in self._outputs}
        if uncovered(row["arguments"], inputs):
            return row["arguments"]
        try:
            resolved = resolve(row["arguments"], inputs, max_size=self._left)
        except InvalidArguments:
            return row["arguments"]
        self._left -= resolved.size
        return resolved.arguments


def known_output(row: Row) -> Any:
    """Return a succeeded step's output, or the `Excerpts` of it where it is a payload."""
    if row["payload_hash"] is None:
        return row["output"]
    digest = row["payload_hash"]
    # As part of a JSON value, a hash is text.
    found = bytes.fromhex(digest) if isinstance(digest, str) else digest
    return Excerpts.read(found, row["output_bytes"], row["excerpts"])


def step_result(row: Row, called: CalledArguments) -> StepResult:
    """Return a begun step's outcome as RESPOND sees it; of a large output its preview."""
    succeeded = row["status"] == StepStatus.SUCCEEDED
    preview = row["preview"]
    error = row["error"] or {}
    seconds = row["seconds"]
    return StepResult(
        tool_name=row["tool_name"],
        arguments=called.of(row),
        output=row["output"] if preview is None else preview["value"],
        shortened_from=None if preview is None or preview["is_whole"] else row["output_bytes"],
        error=None if succeeded else str(error.get("message", "unknown error")),
        duration_ms=round(seconds * 1000) if seconds else 0,
        index=row["index"],
        code=None if succeeded else error.get("code"),
        details={} if succeeded else error.get("details") or {},
    )


def outcome_fields(output: Any, artifact: ArtifactRecord | None, payload: PayloadRecord | None) -> dict[str, Any]:
    """Return the fields of a `planq_outcome` in which a step has succeeded."""
    fields: dict[str, Any] = {"output": stored_text(output)}
    if artifact is not None:
        fields["artifact"] = artifact_text(artifact)
    if payload is not None:
        fields |= {"hash": payload.hash.hex(), "bytes": payload.size, "excerpts": payload.excerpts.decode()}
    return fields


def artifact_text(artifact: ArtifactRecord) -> str:
    """Return the JSON in which the transitions take an artifact."""
    return json_text(_artifact_fields(artifact))


def _artifact_fields(artifact: ArtifactRecord) -> dict[str, Any]:
    fields = {
        "id": artifact.id,
        "skill_id": artifact.skill_id,
        "type": artifact.type,
        "metadata": None if artifact.metadata is None else json_text(artifact.metadata),
        "beside": artifact.beside and _artifact_fields(artifact.beside),
        "body": artifact.body and artifact.body.body.decode(),
        "hash": artifact.hash and artifact.hash.hex(),
    }
    return {name: value for name, value in fields.items() if value is not None}


def step_wakes(job_id: UUID, round: int, ready: Sequence[Mapping[str, Any]]) -> list[StepWake]:
    """Return the wake-ups of steps that a transition made ready."""
    return [StepWake(StepRef(job_id, round, r["index"]), Lane(r["lane"]), r["tool_name"]) for r in ready]
