"""Rows, and the JSON of SQL functions, to records and back: the only place that knows both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias
from uuid import UUID

from planq.shared.kernel.claims import Claim, ReusedStep, StageClaim, StepClaim
from planq.shared.kernel.deferral import Deferral
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.job_store import (
    ArtifactRecord,
    ClaimRequest,
    JobEnd,
    PayloadRecord,
    ReadyStep,
    TransitionResult,
)
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.questions import (
    MAX_QUESTION_CHARS,
    AfterAnswer,
    ContinueStep,
    FailStep,
    QuestionAnswer,
    StepQuestion,
    SucceedStep,
)
from planq.shared.kernel.retry import NOT_TRIED, RetryTerms, StageTries, apart
from planq.shared.kernel.states import (
    STAGES,
    Effect,
    JobStatus,
    Pool,
    Priority,
    Recovery,
    Respond,
    StepKind,
    StepStatus,
    Strategy,
)
from planq.shared.kernel.steps import PlannedStep, RoundRecord, StepResult
from planq.shared.kernel.usage import ModelCall
from planq.shared.kernel.wakes import TaskLinks, Wake, stage_index
from planq.shared.platform.database import Row, json_text, record, sql_fields, storable_fields, stored_text
from planq.shared.platform.errors import InternalFault, capped, storable
from planq.shared.platform.values.encoding import JsonText
from planq.shared.platform.values.excerpts import Excerpts, path_of, path_text
from planq.shared.platform.values.parts import part_of_artifact

NOTHING = ClaimRequest(Pool.IO, 0, False)
SqlValue = Mapping[str, Any]

AsCalled: TypeAlias = Callable[[Any, Mapping[int, Any], int | None], tuple[Any, int | None]]
"""Returns the arguments of a step as it was called with them, and how much the steps after it may add.

It gets the planned arguments, the outputs that they name, by step, and what is left (None before the first step).
"""


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One call of a batch: `text` is its JSON object without the opening brace and its number.

    `owner` says whose it is: interactive work passes the batch of bulk work also where both are of one tenant.
    """

    job: str
    text: str
    take: ClaimRequest
    weight: int
    owner: str

    @classmethod
    def of(
        cls,
        fields: Mapping[str, Any],
        claim: Claim | None = None,
        take: ClaimRequest | None = None,
        weight: int = 1,
    ) -> BatchItem:
        """Return the item of a call with these fields, `job` among them; raises ValueError for what is no JSON."""
        owner = "" if claim is None else f"{claim.priority} {claim.tenant_id}"
        return cls(fields["job"], json_text(fields)[1:], take or NOTHING, weight, owner)


def array_of(items: Sequence[BatchItem]) -> str:
    """Return the items as the SQL functions take them: numbered, in the order of their jobs' ids."""
    ordered = sorted(enumerate(items), key=lambda numbered: numbered[1].job)
    return "[" + ",".join([f'{{"n":{n},{item.text}' for n, item in ordered]) + "]"


def step_to_json(step: PlannedStep, reused: ReusedStep | None = None) -> dict[str, Any]:
    """Return a step as `planq_accept_plans` and `planq_chain_tool` take it; `reused` is whose outcome it has."""
    fields = sql_fields(step)
    del fields["wanted"]
    if step.wanted:
        fields["wanted"] = json_text([path_text(path) for path in step.wanted])
    if step.known is not None:
        fields |= {**sql_fields(step.known), "known": step.known.status}
    if reused is not None:
        fields |= {"reuse_job": str(reused.job_id), "reuse_index": reused.index}
    return fields


def stage_fence(claim: StageClaim, calls: Sequence[ModelCall]) -> dict[str, Any]:
    """Return the attempt at a stage and what it has spent, as the transitions take them."""
    fence: dict[str, Any] = {"job": str(claim.job_id), "attempt": claim.attempt}
    if calls:
        costs = [call.cost_usd for call in calls if call.cost_usd is not None]
        fence |= {
            "calls": json_text(calls_fields(calls)),
            "spent": {
                "calls": len(calls),
                "input": sum(call.input_tokens for call in calls),
                "output": sum(call.output_tokens for call in calls),
                "read": sum(call.cache_read_tokens for call in calls),
                "write": sum(call.cache_write_tokens for call in calls),
                "usd": str(sum(costs)) if costs else None,
            },
        }
    return fence | made_fields(calls)


def calls_fields(calls: Sequence[ModelCall]) -> list[dict[str, Any]]:
    """Return model calls as `planq_record_calls` takes them."""
    recorded = list(map(sql_fields, calls))
    for fields in recorded:
        del fields["artifacts"]
    return recorded


def made_fields(calls: Sequence[ModelCall]) -> dict[str, Any]:
    """Return the files that these calls have made, as the transitions take them; nothing where they made none."""
    made = [sql_fields(artifact) for call in calls for artifact in call.artifacts]
    return {"made": made} if made else {}


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


class CalledArguments:
    """The arguments that the steps of a job were called with; resolution is pure, so nothing needs to be stored.

    `outputs` are the outputs of its succeeded steps, of large ones what `known_output` knows: no payload is loaded.
    All arguments together are bounded (`left`): a plan of a few kilobytes can name one large output in every one of
    its steps.
    """

    def __init__(self, outputs: Mapping[int, Any], as_called: AsCalled, left: int | None = None) -> None:
        self.outputs = outputs
        self.left = left
        self._as_called = as_called

    def of(self, row: Row) -> Any:
        """Return a step's arguments; those it was planned with if it was never begun, or if they are too large."""
        if row["attempt"] == 0 or not row["inputs"]:
            return row["arguments"]
        inputs = {index: self.outputs[index] for index in row["inputs"] if index in self.outputs}
        arguments, self.left = self._as_called(row["arguments"], inputs, self.left)
        return arguments


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
    is_cut = preview is not None and not preview["is_whole"]
    error = row["error"] or {}
    seconds = row["seconds"]
    return StepResult(
        tool_name=row["tool_name"],
        arguments=called.of(row),
        output=row["output"] if preview is None else preview["value"],
        shortened_from=row["output_bytes"] if is_cut else None,
        payload=bytes.fromhex(row["payload_hash"]) if is_cut else None,
        error=None if succeeded else str(error.get("message", "unknown error")),
        duration_ms=round(seconds * 1000) if seconds else 0,
        index=row["index"],
        code=None if succeeded else error.get("code"),
        details={} if succeeded else error.get("details") or {},
        content=row["content"] if succeeded else None,
    )


def outcome_fields(output: Any, artifact: ArtifactRecord | None, payload: PayloadRecord | None) -> dict[str, Any]:
    """Return the fields of a `planq_outcome` in which a step has succeeded."""
    text = output.body.decode() if isinstance(output, JsonText) else stored_text(output)
    fields: dict[str, Any] = {"output": text}
    if artifact is not None:
        fields["artifact"] = json_text(_artifact_fields(artifact))
    if payload is not None:
        fields |= {"hash": payload.hash.hex(), "bytes": payload.size, "excerpts": payload.excerpts.decode()}
    return fields


def question_text(id: UUID, question: StepQuestion, step: int | None = None) -> str:
    """Return the JSON in which `planq_ask_step` takes a question, also one about a step that has not begun."""
    fields = {
        **storable_fields(question),
        "id": str(id),
        "message": capped(question.message, MAX_QUESTION_CHARS),
        "details": json_text(question.details) if question.details else None,
        "asked_of": question.asked_of.kind,
        "asked_ids": list(map(storable, question.asked_of.ids)) or None,
        "call": question.details.get("arguments_sha256"),
        "step": step,
    }
    return json_text({name: value for name, value in fields.items() if value is not None})


def after_answer_fields(after: AfterAnswer) -> dict[str, Any]:
    """Return the fields of the `planq_outcome` that an answer is for its step; none where the step continues."""
    match after:
        case SucceedStep(output):
            return outcome_fields(output, None, None)
        case FailStep(error):
            return {"error": json_text(error.to_json())}
        case ContinueStep():
            return {}


def _artifact_fields(artifact: ArtifactRecord) -> dict[str, Any]:
    fields = sql_fields(artifact)
    del fields["beside"]
    return {**fields, "beside": list(map(_artifact_fields, artifact.beside))} if artifact.beside else fields


def requested_wakes(job_id: UUID, status: JobStatus, value: Mapping[str, Any]) -> list[Wake]:
    """Return the wake-ups that a person's request led to: `value` is of planq_answer_question or planq_resume_job.

    `status` is that of the job since then.
    """
    priority, links, tenant = Priority(value["priority"]), TaskLinks.below(UUID(value["root"])), value["tenant"]
    wakes: list[Wake] = [
        Wake(
            StepRef(job_id, value["round"], r["index"]),
            Pool(r["pool"]),
            r["tool_name"],
            priority=priority,
            links=links,
            tenant=tenant,
        )
        for r in value["ready"]
    ]
    if status in STAGES:
        again = value["stage_attempt"] + 1
        shown = {"priority": priority, "name": value["agent"], "links": links, "tenant": tenant}
        wakes.append(Wake.stage(job_id, status, again, **shown))
    return wakes


# Both are read for every attempt, field by field: a validator of records takes ten times as long.


# To ask an enum for its member costs as much as to make the rest of a claim.
_PRIORITY = {str(one): one for one in Priority}
_EFFECT = {str(one): one for one in Effect}
_RECOVERY = {str(one): one for one in Recovery}
_RESPOND = {str(one): one for one in Respond}
_STRATEGY = {str(one): one for one in Strategy}
_KIND = {str(one): one for one in StepKind}
_POOL = {str(one): one for one in (Pool.IO, Pool.CPU)}
_STEP_STATUS = {str(one): one for one in StepStatus}
_JOB_STATUS = {str(one): one for one in JobStatus}


def step_claim(value: Mapping[str, Any]) -> StepClaim:
    """Return a claim that `planq_step_claims` returned; JSON of users in it is not looked at."""
    tree = value["job_tree"]
    given = tree.get
    limits, root, conversation, left = (
        given("limits"),
        given("root_job_id"),
        value["conversation_id"],
        value["time_left"],
    )
    return StepClaim(
        ref=StepRef(UUID(value["job_id"]), value["round"], value["index"]),
        tenant_id=value["tenant_id"],
        attempt=value["attempt"],
        user_id=value["user_id"],
        trace_id=value["trace_id"],
        context_id=value["context_id"],
        conversation_id=None if conversation is None else UUID(conversation),
        agent_name=given("agent"),
        depth=given("depth", 0),
        root_job_id=None if root is None else UUID(root),
        priority=_PRIORITY[value["priority"]],
        time_left=None if left is None else timedelta(seconds=left),
        pool=_POOL.get(value["pool"]) or Pool(value["pool"]),
        effect=_EFFECT[value["effect"]],
        tool_name=value["tool_name"],
        arguments=value["arguments"],
        outputs={
            int(index): stored["output"] if stored["payload_hash"] is None else known_output(stored)
            for index, stored in value["outputs"].items()
        },
        tries=value["tries"],
        retry=RetryTerms(**value["retry"]),
        worker_losses=value["worker_losses"],
        timeout_seconds=value["timeout_seconds"],
        recovery=_RECOVERY[value["recovery"]],
        in_doubt=value["in_doubt"],
        wanted=tuple(map(path_of, value["wanted"])) if value["wanted"] else (),
        dependents=value["dependents"],
        kind=_KIND[given("kind", "tool")],
        joined=given("joined", False),
        note=given("note"),
        verbatim=value["verbatim"],
        limits=None if limits is None else Limits.from_json(limits),
        skill_id=given("skill_id"),
        answers=tuple([record(QuestionAnswer, answer) for answer in value["answers"]]),
        policies=tuple([block["policy"] for block in value["loops"] if block.get("policy")]),
        waited=timedelta(seconds=value["waited"]),
    )


def stage_claim(value: Mapping[str, Any], as_called: AsCalled, rounds: Sequence[RoundRecord] = ()) -> StageClaim:
    """Return a claim that `planq_stage_claims` returned; JSON of users in it is not looked at.

    `rounds` are all that are over, where the job plans a further one (`CachedRounds`).
    """
    tree: Mapping[str, Any] = value["job_tree"] or {}
    given, results, source, parent = tree.get, value["results"], _uuid(value["forked_from"]), tree.get("parent")
    reuse = (value["plan_reuse"] or {}).items() if source is not None else ()
    return StageClaim(
        ref=StepRef(UUID(value["job_id"]), value["round"], stage_index(value["status"])),
        tenant_id=value["tenant_id"],
        attempt=value["attempt"],
        user_id=value["user_id"],
        trace_id=value["trace_id"],
        context_id=value["context_id"],
        conversation_id=_uuid(value["conversation_id"]),
        agent_name=given("agent_name"),
        depth=given("depth", 0),
        root_job_id=_uuid(given("root_job_id")),
        priority=_PRIORITY[value["priority"]],
        time_left=_seconds(value["time_left"]),
        model=value["model"],
        input=value["input"],
        tools=value["tools"],
        limits=Limits.from_json(value["limits"]),
        plan_source=value["plan_source"],
        plan_body=value["plan_body"],
        plan_errors=value["plan_errors"],
        reuse={int(index): ReusedStep(source, reused) for index, reused in reuse} if source else {},
        results=None if results is None else step_results(results, as_called),
        agent=given("agent"),
        agent_version=given("agent_version"),
        instructions=tuple(given("instructions", ())),
        action=given("action"),
        with_=given("with_", {}),
        parent=None if parent is None else StepRef(UUID(parent["job_id"]), parent["round"], parent["index"]),
        output=given("output"),
        answer=given("answer"),
        budgeted=given("budgeted", False),
        next_index=given("next_index", 0),
        history=value["history"],
        tried=NOT_TRIED if value["tried"] is None else record(StageTries, value["tried"]),
        strategy=_STRATEGY[value["strategy"]],
        rounds=rounds,
        rounds_time_left=_seconds(value["rounds_time_left"]),
        loop=value["loop"],
        respond=_RESPOND[value["respond"]],
        on_incomplete=value["on_incomplete"],
        model_settings=value["model_settings"],
        kept=value["kept"],
        parts=value["parts"] or (),
        deferral=None if value["deferral"] is None else record(Deferral, value["deferral"]),
    )


def _uuid(text: str | None) -> UUID | None:
    return None if text is None else UUID(text)


def _seconds(number: float | None) -> timedelta | None:
    return None if number is None else timedelta(seconds=number)


def _with_artifacts(result: StepResult, made: Sequence[Mapping[str, Any]]) -> StepResult:
    own = [one for one in made if one["index"] == result.index]
    parts = [part_of_artifact(one["id"], one["media_type"], one["sha256"], one["size"]) for one in own]
    return replace(result, artifacts=parts)


def step_results(values: Sequence[Mapping[str, Any]], as_called: AsCalled) -> Sequence[StepResult]:
    known = {v["index"]: known_output(v) for v in values if v["status"] == StepStatus.SUCCEEDED}
    called = CalledArguments(known, as_called)
    return [step_result(value, called) for value in values]


@dataclass(frozen=True, slots=True)
class CachedRounds:
    """The first rounds of a job, oldest first, as its planner sees them, and when the last of them ended.

    `bytes` is the size of their JSON. `outputs` are those of their steps and `left` is what `CalledArguments` has
    left after them: arguments may refer to the outputs of all earlier rounds. `mark` is their `planq_cached`.
    """

    records: tuple[RoundRecord, ...] = ()
    ended: str | None = None
    bytes: int = 0
    outputs: Mapping[int, Any] = field(default_factory=dict)
    left: int | None = None
    mark: Mapping[str, Any] | None = None

    def after(self, claim: Mapping[str, Any], as_called: AsCalled) -> CachedRounds:
        """Return all rounds of the job, from a claim with this `mark` for which `planq_stage_claims` read the rest.

        A message of the conversation belongs to the round in which it came, also where it is read later.
        """
        values = claim["rounds"] or ()
        before = self if not values or values[0]["round"] else NO_ROUNDS
        steps = [step for value in values for step in value["results"]]
        succeeded = {s["index"]: known_output(s) for s in steps if s["status"] == StepStatus.SUCCEEDED}
        called = CalledArguments({**before.outputs, **succeeded}, as_called, before.left)
        records = list(before.records)
        for value in values:
            first = records[-1].first_index + len(records[-1].results) if records else 0
            records.append(_round_record(value, called, first))
        came: dict[int, tuple[str, ...]] = {}
        for message in claim["merged"] or ():
            came[message["round"]] = (*came.get(message["round"], ()), message["text"])
        if came or any(record.merged for record in records):
            records = [_with_merged(record, came.get(record.number, ())) for record in records]
        size = before.bytes + len(json_text(values)) if values else before.bytes
        ended = claim["rounds_ended"]
        mark = {"rounds": len(records), "index": records[-1].first_index, "ended": ended} if records else None
        return CachedRounds(tuple(records), ended, size, called.outputs, called.left, mark)


NO_ROUNDS = CachedRounds()


def _with_merged(record: RoundRecord, texts: Sequence[str]) -> RoundRecord:
    return record if record.merged == texts else replace(record, merged=texts)


def _round_record(value: Mapping[str, Any], called: CalledArguments, first: int) -> RoundRecord:
    results = [step_result(step, called) for step in value["results"]]
    if value["artifacts"]:
        results = [_with_artifacts(result, value["artifacts"]) for result in results]
    plan = value["source"], value["body"], value["reply"]
    return RoundRecord(value["round"], *plan, first, results, value["errors"] or ())


def transition_result(
    value: Mapping[str, Any], stage: Callable[[SqlValue], StageClaim] | None = None
) -> TransitionResult:
    """Return what a transition did, from the JSON that the SQL functions return, with what it took over if any.

    `stage` reads the claim of a stage; transitions that take none over need none.
    """
    if not value["applied"]:
        return TransitionResult(False)
    given = value.get
    taken: list[Claim] = [step_claim(claim) for claim in given("taken") or ()]
    if (claimed := given("stage")) is not None:
        if stage is None:
            raise InternalFault("a transition that was not asked for a stage has claimed one")
        taken.append(stage(claimed))
    status, job_status = given("status"), given("job_status")
    return TransitionResult(
        True,
        tuple([ReadyStep(one["index"], Pool(one["pool"]), one["tool_name"]) for one in given("ready") or ()]),
        None if job_status is None else _JOB_STATUS[job_status],
        None if status is None else _STEP_STATUS[status],
        given("stage_attempt") or 0,
        tuple(taken),
        given("steps") or 1,
        tuple([Wake.plan(UUID(child["job_id"]), name=child["agent"]) for child in given("children") or ()]),
    )


def array_text(items: Iterable[object]) -> str:
    """Return the one-dimensional array of the texts of these items, as PostgreSQL reads it; None is NULL.

    For parameters that are cast in the statement: `unnest(%(id)s::uuid[])`. psycopg's own dumper goes item by item; a
    batch of one costs a tenth of what psycopg 3.3 takes for 16 lists.
    """
    return f"{{{','.join(['NULL' if item is None else _quoted(str(item)) for item in items])}}}"


def _quoted(text: str) -> str:
    if "\\" in text:
        text = text.replace("\\", "\\\\")
    if '"' in text:
        text = text.replace('"', '\\"')
    return f'"{text}"'


def suspects_of(lost: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the suspects of all lost workers, one for each row of what was in flight in them.

    One that ran `is_apart` from the others has no group.
    """
    delayed: set[UUID] = set()
    suspects = []
    by_worker = sorted(lost, key=lambda row: (row["worker_id"], row["tool_name"], row["job_id"], row["index"]))
    for _, rows in groupby(by_worker, key=itemgetter("worker_id")):
        company = list(rows)
        for group in apart(company):
            group_id = None if group[0]["is_apart"] else str(new_id())
            for row in group:
                place = {name: row[name] for name in ("round", "index", "attempt", "pool")}
                family = {"job_id": str(row["job_id"]), "group_id": group_id, "company": len(company)}
                suspects.append({**place, **family, "delays": row["job_id"] not in delayed})
                delayed.add(row["job_id"])
    return suspects
