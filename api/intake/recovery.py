"""What may be done again: by a resumed job, by a fork, and by a step whose call was cut off.

    carried         every field of a job's request, for another job with the same request
    again_of        a new job with the request of another
    fork_of         a new job with the plan of another, and the steps that take over what is done already
    verdict_of      what a person's answer about a call that was cut off means for its step

Nothing `unsafe` is done twice unless a person says so. Nothing is stored here but a large output of an answer, and a
refusal leaves no trace. `planq.shared.agentic.plan.fork` decides by content what a fork need not run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from uuid import UUID

from planq.api.http.bounds import MAX_INPUT_BYTES
from planq.api.intake.plan_checks import allowed_tools, valid_plan
from planq.api.intake.submission import check_object, checked_input
from planq.api.schemas import MAX_METADATA_BYTES, ForkRequest, SettleRequest
from planq.shared.agentic.plan.compile import compile_plan
from planq.shared.agentic.plan.document import Plan
from planq.shared.agentic.plan.fork import SourceStep, in_doubt, reusable
from planq.shared.agentic.results.artifacts import identify
from planq.shared.agentic.rounds.guide import GUIDE_SOURCE
from planq.shared.agentic.schema.schemas import violations
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.job_store import ArtifactRecord, PayloadRecord
from planq.shared.kernel.limits import INLINE_OUTPUT_BYTES, Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.retry import is_in_doubt
from planq.shared.kernel.states import (
    Effect,
    JobStatus,
    Priority,
    QuestionKind,
    Respond,
    Settlement,
    StepStatus,
    Strategy,
)
from planq.shared.kernel.steps import PlannedStep
from planq.shared.kernel.submission import CARRIED, Submission
from planq.shared.platform.computing import off_loop
from planq.shared.platform.database import Row
from planq.shared.platform.errors import Conflict, ErrorRecord, InvalidRequest, OutcomeUnknown, TooLarge
from planq.shared.platform.values.encoding import encode
from planq.shared.platform.values.excerpts import excerpts_json, path_of
from planq.shared.platform.values.preview import preview_json
from planq.shared.settings.settings import Settings
from planq.shared.subjects.jobs.again import doubt_of, named_steps, rule_says
from planq.shared.subjects.jobs.store import Verdict
from planq.shared.subjects.payloads.contract import Payloads

_INLINE_STEPS = 100
"""Up to this many steps are compared on the event loop (a few milliseconds); more of them in a thread."""


def _refused_fork(job: Row, steps: Sequence[Row], doubts: Mapping[int, int]) -> OutcomeUnknown:
    """Return the refusal of a fork: `doubts` maps its steps to steps of the source whose effect they may repeat."""
    named = named_steps([steps[own] for own in doubts.values()])
    return OutcomeUnknown(
        f"job {job['id']} is not forked: {named} may have taken effect, or still may, and its tool is unsafe to "
        'repeat; the fork would call it again: find out, then send {"repeat_unsafe": true} to call it all the same, '
        "or a plan that goes without",
        errors=[{**doubt_of(steps[own]), "step": index, "source_step": own} for index, own in doubts.items()],
    )


@dataclass(frozen=True, slots=True)
class Fork:
    """A fork that may be stored: its submission, and the steps of its plan.

    `doubts` maps steps that may repeat an effect of a step of the source to that step; see `fork.in_doubt`.
    """

    submission: Submission
    steps: Sequence[PlannedStep]
    doubts: Mapping[int, int]

    @property
    def reuse(self) -> Mapping[int, int]:
        """Return by step of the fork the step of the source whose outcome it takes over."""
        return self.submission.reuse or {}


def carried(job: Row, present: Limits) -> Submission:
    """Return a new job with the request of another: all fields but its plan and its conversation.

    `present` are the present limits of the tenant, which bound those of the job.
    """
    kept = Limits.from_json(job["limits"])
    is_root = job["conversation_id"] is None and job["parent_job_id"] is None
    same: dict[str, Any] = {name: job[column] for name, column in CARRIED.items()}
    return Submission(
        **same
        | {
            "id": new_id(),
            "strategy": Strategy(job["strategy"]),
            "priority": Priority(job["priority"]),
            "respond": Respond(job["respond"]),
            "limits": replace(kept, **{name: min(own, getattr(present, name)) for name, own in asdict(kept).items()}),
            "is_task": job["in_message_flow"] and is_root,
        }
    )


async def again_of(
    job: Row, tools: Mapping[str, ToolDefinition], present: Limits, *, given: Mapping[str, Any]
) -> Submission:
    """Return a new job with the request of another, including a caller's plan; `job` is a row of `planned`.

    Agents and skills keep their versions; a conversation is read as it is now. Raises `Conflict` for a child job, and
    `PlanInvalid` for a plan that is no longer valid.
    """
    if job["parent_job_id"] is not None:
        raise Conflict(
            f"job {job['id']} is a child of job {job['parent_job_id']}; run that job again, or fork this one",
            job_status=JobStatus(job["status"]),
        )
    made = carried(job, present)
    plan = None
    if job["plan_source"] == "caller":
        valid = await valid_plan(job["plan_body"], _published(job, tools), tools, made.limits)
        plan = valid.model_dump(mode="json", exclude_none=True)
    history_of = None if job["history"] is None else UUID(job["history"]["of"])
    return replace(made, plan=plan, history_of=history_of, **given)


def _published(job: Row, tools: Mapping[str, ToolDefinition]) -> list[str] | None:
    """Return the tools that a job may use and a worker still publishes; None for all."""
    return None if job["tools"] is None else [name for name in job["tools"] if name in tools]


async def fork_of(
    request: ForkRequest,
    job: Row,
    steps: Sequence[Row],
    tools: Mapping[str, ToolDefinition],
    present: Limits,
    *,
    given: Mapping[str, Any],
) -> Fork:
    """Return the fork of a job, whose row and steps are those of `RequestStore.planned`.

    Its plan is that of the request, or of the source's first round. A job with rounds needs a plan in the request,
    whose steps may take over outcomes of any round. The chained tool is called with the fork's own answer. `present`
    are the present limits of the tenant, `given` the fields of a `Submission` from headers. Raises `Conflict` if the
    source has no valid plan, `InvalidRequest`, `TooLarge`, `PlanInvalid`, or, unless the request says `repeat_unsafe`
    or is a dry run, `OutcomeUnknown` with every doubt.
    """
    _require_plan(job, request)
    if not Strategy(job["strategy"]).has_rounds:
        steps = [step for step in steps if step["round"] == 0]
    made = carried(job, present)
    if request.input is not None:
        made = replace(made, input=checked_input(request.input, MAX_INPUT_BYTES))
    if request.metadata is not None:
        check_object("metadata", request.metadata, MAX_METADATA_BYTES)
        made = replace(made, metadata=request.metadata)
    if request.limits is not None:
        bounds = request.limits.bounds()
        lowered = present.lowered(bounds)
        limits = replace(made.limits, **{name: getattr(lowered, name) for name in bounds})
        made = replace(made, limits=limits, budget=request.limits.checked_budget() or made.budget)
    raw = job["plan_body"] if request.plan is None else request.plan
    names = _published(job, tools)
    plan = await valid_plan(raw, names, tools, made.limits)
    if request.from_step is not None and request.from_step >= len(plan.calls):
        raise InvalidRequest(
            f"from_step: expected the index of a step of the new plan, 0 to {len(plan.calls) - 1}; "
            f"found {request.from_step}"
        )
    work = (plan, steps, allowed_tools(names, tools), tools, made.limits.step_timeout_seconds, request.from_step)
    is_long = max(len(plan.calls), len(steps)) > _INLINE_STEPS
    compiled, reuse, doubts = await off_loop(_compare, *work) if is_long else _compare(*work)
    if doubts and not (request.repeat_unsafe or request.dry_run):
        raise _refused_fork(job, steps, doubts)
    submission = replace(
        made, plan=plan.model_dump(mode="json", exclude_none=True), reuse=reuse, forked_from=job["id"], **given
    )
    return Fork(submission, compiled, doubts)


_OWN_PLANS = {"orchestrate": "its plan is that of an orchestration: fork the job that it works for"}
"""Plans that planq makes for itself, by their source, and what to do instead of forking one."""


def _require_plan(job: Row, request: ForkRequest) -> None:
    if (why_not := _OWN_PLANS.get(job["plan_source"])) is not None:
        raise Conflict(f"job {job['id']} cannot be forked: {why_not}", job_status=JobStatus(job["status"]))
    if job["plan_source"] == GUIDE_SOURCE and request.plan is not None:
        return  # nothing executes a guide, so it is no plan that could be wrong
    if Strategy(job["strategy"]).has_rounds and request.plan is None:
        raise Conflict(
            f"job {job['id']} has the strategy {job['strategy']}, which plans each round after those before: a "
            "fork of it needs a `plan`, whose steps take over what any of its rounds has done",
            job_status=JobStatus(job["status"]),
        )
    if job["plan_body"] is not None and job["plan_errors"] is None:
        return
    status = JobStatus(job["status"])
    if job["plan_errors"] is not None:
        why = "its plan was refused"
    elif status.is_terminal:
        why = f"it is {status} without one"
    else:
        why = f"it is still {status}; wait until it has one"
    raise Conflict(
        f"job {job['id']} has no plan that could be forked: {why}. A new job with a plan of its own is submitted by "
        "POST /jobs",
        job_status=status,
    )


def _compare(
    plan: Plan,
    steps: Sequence[Row],
    allowed: Mapping[str, ToolDefinition],
    tools: Mapping[str, ToolDefinition],
    step_timeout_seconds: float,
    from_step: int | None,
) -> tuple[Sequence[PlannedStep], dict[int, int], dict[int, int]]:
    compiled = compile_plan(plan, allowed, step_timeout_seconds=step_timeout_seconds).steps
    source = [_source_step(row, tools) for row in steps]
    return compiled, reusable(source, compiled, from_step=from_step), in_doubt(source, compiled)


def _source_step(row: Row, tools: Mapping[str, ToolDefinition]) -> SourceStep:
    name: str = row["tool_name"]
    arguments: Mapping[str, Any] = row["arguments"]
    effect = tools[name].effect if name in tools else Effect(row["effect"])
    has_succeeded = row["status"] == StepStatus.SUCCEEDED
    return SourceStep(name, effect, arguments, has_succeeded, rule_says(is_in_doubt, row, effect), row["verbatim"])


async def verdict_of(
    request: SettleRequest,
    job: Row,
    step: Row,
    tools: Mapping[str, ToolDefinition],
    settings: Settings,
    payloads: Payloads,
) -> Verdict:
    """Return what an answer means for the step that asked; a large output of what happened is stored as a payload.

    Raises `Conflict` if the step asks nothing, `InvalidRequest` with every defect of `output`, and `TooLarge`.
    """
    if step["asks"] != QuestionKind.OUTCOME:
        raise asks_nothing(job, step["index"], StepStatus(step["status"]))
    outcome = Settlement(request.outcome)
    if outcome is Settlement.HAPPENED:
        given = (request.output, step["tool_name"], tools, settings.max_output_bytes)
        body = await off_loop(_checked_output, *given)
        found = identify(request.output)
        artifact = None if found is None else ArtifactRecord(found.id, found.skill_id, found.type, found.metadata)
        if len(body) <= INLINE_OUTPUT_BYTES:
            return Verdict(outcome, output=request.output, artifact=artifact)
        return Verdict(
            outcome, artifact=artifact, payload=await _keep(job["tenant_id"], request.output, body, step, payloads)
        )
    if request.output is not None:
        raise InvalidRequest('output: expected none, since it only belongs to the outcome "happened"')
    if outcome is Settlement.DID_NOT_HAPPEN:
        return Verdict(outcome)
    unknown = OutcomeUnknown(
        f"the call of the unsafe tool {step['tool_name']!r} was cut off, and whether it took effect could not be "
        "found out; it is not repeated"
    )
    return Verdict(outcome, error=ErrorRecord.of(unknown))


def asks_nothing(job: Row, index: int, status: StepStatus) -> Conflict:
    """Return the refusal of an answer to a step that waits for none."""
    return Conflict(
        f"${index} of job {job['id']} asks nothing; its status is {status}. Only a step that waits for a person "
        "to say what became of its call can be settled, and only once",
        step_status=status,
    )


async def _keep(tenant_id: str, output: Any, body: bytes, step: Row, payloads: Payloads) -> PayloadRecord:
    """Store a large output as workers do: apart from its step, with the parts that later steps refer to."""
    wanted = [path_of(path) for path in step["wanted"] or ()]
    excerpts = await off_loop(excerpts_json, output, wanted)
    digest = await payloads.put(tenant_id, body, await off_loop(preview_json, output))
    return PayloadRecord(digest, len(body), excerpts)


def _checked_output(output: Any, tool_name: str, tools: Mapping[str, ToolDefinition], most: int) -> bytes:
    if not isinstance(output, dict):
        found = "none" if output is None else "something else"
        raise InvalidRequest(f"output: expected the object that {tool_name!r} would have returned, found {found}")
    body = encode(output)
    if len(body) > most:
        raise TooLarge(
            f"output: expected at most {most} bytes of JSON, found {len(body)}", limit=most, actual=len(body)
        )
    # Where no worker publishes the tool any more there is nothing to check against.
    schema = tools[tool_name].output_schema if tool_name in tools else None
    defects = violations(schema or {}, output)
    if defects:
        errors = [{"pointer": f"/output{defect.pointer}", "message": defect.message} for defect in defects]
        message = "; ".join(f"{error['pointer']}: {error['message']}" for error in errors)
        raise InvalidRequest(f"the output breaks the output schema of {tool_name!r}: {message}", errors=errors)
    return body
