"""What transitions and claims bring, from the JSON of the SQL functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from shared.domain.excerpts import path_of
from shared.domain.ids import StepRef
from shared.domain.limits import Limits
from shared.domain.model import StepResult
from shared.domain.retry import StageTries
from shared.domain.states import Effect, JobStatus, Lane, Recovery, StepKind, StepStatus
from shared.ports import Moved, ReadyStep, ReusedStep, StageClaim, StepClaim
from shared.store.rows import CalledArguments, known_output, step_result


def step_claim(value: Mapping[str, Any]) -> StepClaim:
    """Return the claim that a row of `planq_step_claims` is."""
    outputs = value["outputs"] or {}
    family = value["family"]
    time_left = value["time_left"]
    ref = StepRef(UUID(value["job_id"]), value["round"], value["index"])
    return StepClaim(
        ref=ref,
        tenant_id=value["tenant_id"],
        tool_name=value["tool_name"],
        effect=Effect(value["effect"]),
        lane=Lane(value["lane"]),
        arguments=value["arguments"],
        outputs={int(index): known_output(stored) for index, stored in outputs.items()},
        attempt=value["attempt"],
        tries=tries_of(value, has_gathered=family is not None and family["gathered"]),
        retries=value["retries"],
        worker_losses=value["worker_losses"],
        timeout_seconds=value["timeout_seconds"],
        user_id=value["user_id"],
        trace_id=value["trace_id"],
        context_id=value["conversation_id"] or str(ref.job_id),
        recovery=Recovery(value["recovery"]),
        unsure=value["unsure"],
        wanted=tuple(path_of(path) for path in value["wanted"] or ()),
        time_left=None if time_left is None else timedelta(seconds=time_left),
        **({} if family is None else _step_family(family)),
    )


def tries_of(row: Mapping[str, Any], *, has_gathered: bool) -> int:
    """Return how many attempts at a step count; the one that delegates and the one that gathers are one together."""
    tries: int = row["attempt"] - row["worker_losses"] - row["releases"] - has_gathered
    return tries


def _step_family(family: Mapping[str, Any]) -> dict[str, Any]:
    root, limits = family["root"], family["limits"]
    return {
        "kind": StepKind(family["kind"]),
        "gathered": family["gathered"],
        "note": family["note"],
        "verbatim": family["verbatim"],
        "depth": family["depth"],
        "root_job_id": None if root is None else UUID(root),
        "agent": family["agent"],
        "limits": None if limits is None else Limits.from_json(limits),
        "skill_id": family["skill"],
    }


def stage_claim(value: Mapping[str, Any]) -> StageClaim:
    """Return the claim that a row of `planq_stage_claims` is."""
    results, family, time_left = value["results"], value["family"], value["time_left"]
    return StageClaim(
        job_id=UUID(value["job_id"]),
        tenant_id=value["tenant_id"],
        status=JobStatus(value["status"]),
        round=value["round"],
        attempt=value["attempt"],
        model=value["model"],
        input=value["input"],
        tools=value["tools"],
        limits=Limits.from_json(value["limits"]),
        plan_source=value["plan_source"],
        plan_body=value["plan_body"],
        plan_errors=value["plan_errors"],
        reuse=_reuse(value["forked_from"], value["plan_reuse"]),
        results=None if results is None else step_results(results),
        user_id=value["user_id"],
        trace_id=value["trace_id"],
        context_id=value["conversation_id"] or value["job_id"],
        tried=StageTries(**(value["tried"] or {})),
        time_left=None if time_left is None else timedelta(seconds=time_left),
        **({} if family is None else _stage_family(family)),
    )


def _stage_family(family: Mapping[str, Any]) -> dict[str, Any]:
    root, parent = family["root"], family["parent"]
    index = family["parent_index"]
    return {
        "agent": family["agent"],
        "agent_name": family["agent_name"],
        "agent_version": family["agent_version"],
        "instructions": tuple(family["instructions"] or ()),
        "action": family["action"],
        "with_": family["with"] or {},
        "depth": family["depth"],
        "root_job_id": None if root is None else UUID(root),
        "parent": None if parent is None else StepRef(UUID(parent), family["parent_round"] or 0, index or 0),
        "output": family["output"],
        "answer": family["answer"],
        "budgeted": family["budgeted"],
    }


def step_results(values: Sequence[Mapping[str, Any]]) -> Sequence[StepResult]:
    """Return what `planq_results` yields, arguments resolved."""
    called = CalledArguments({v["index"]: known_output(v) for v in values if v["status"] == StepStatus.SUCCEEDED})
    return [step_result(value, called) for value in values]


def moved(value: Mapping[str, Any]) -> Moved:
    """Return what a transition did, from the JSON that the SQL functions return, with what it took over if any."""
    if not value["landed"]:
        return Moved(False)
    status = value.get("status")
    taken: list[StepClaim | StageClaim] = [step_claim(claim) for claim in value.get("taken") or ()]
    if (stage := value.get("stage")) is not None:
        taken.append(stage_claim(stage))
    return Moved(
        True,
        [ReadyStep(r["index"], Lane(r["lane"]), r["tool_name"]) for r in value.get("ready") or ()],
        JobStatus(value["job_status"]),
        StepStatus(status) if status else None,
        value.get("stage_attempt") or 0,
        taken,
        value.get("steps") or 1,
        [UUID(child) for child in value.get("children") or ()],
    )


def _reuse(source: str | None, stored: Mapping[str, int] | None) -> Mapping[int, ReusedStep]:
    if source is None or not stored:
        return {}
    return {int(index): ReusedStep(UUID(source), reused) for index, reused in stored.items()}
