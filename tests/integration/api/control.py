"""An API with tools of every effect class, whose jobs are moved step by step as workers move them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from planq.shared.agentic.plan.compile import compile_plan
from planq.shared.agentic.plan.document import Plan
from planq.shared.agentic.references.resolution import as_called
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.children import ChildRequest, Delegated
from planq.shared.kernel.claims import StageClaim, StepClaim
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.questions import OUTCOME_SCHEMA, StepQuestion
from planq.shared.kernel.states import Effect, JobStatus, QuestionKind, Recovery
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.platform.database import Database
from planq.shared.platform.errors import ErrorRecord
from tests.support.claiming import claim_stage, claim_step
from tests.support.stored import documents

if TYPE_CHECKING:
    from tests.integration.api.conftest import Api

OUTPUT = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["text"],
}


def tool(name: str, effect: Effect, recovery: Recovery = Recovery.FAIL) -> ToolDefinition:
    return ToolDefinition(name=name, effect=effect, recovery=recovery, output_schema=OUTPUT)


TOOLS = [
    tool("calc", Effect.PURE),
    tool("look", Effect.READ),
    tool("put", Effect.IDEMPOTENT),
    tool("mail", Effect.UNSAFE),
    tool("pay", Effect.UNSAFE, Recovery.FIND_OUT),
    tool("sign", Effect.UNSAFE, Recovery.ASK),
]

Call = dict[str, Any]


def call(name: str, text: str = "") -> Call:
    return {"tool_name": name, "arguments": {"text": text}}


def plan(*calls: Call) -> dict[str, Any]:
    return {"type": "tool_calls", "calls": list(calls)}


DID_IT_HAPPEN = StepQuestion(QuestionKind.OUTCOME, "did it happen?", OUTCOME_SCHEMA)


class JobDriver:
    """What workers do to one job."""

    def __init__(self, api: Api, job_id: str) -> None:
        self._api = api
        self._worker = new_id()
        self.id = job_id

    def accept(self) -> bool:
        """Accept the job's plan; True when a step is left to run."""

        async def work(database: Database) -> bool:
            store = PostgresJobStore(database, self._worker, as_called)
            claim = await claim_stage(store, UUID(self.id), [JobStatus.QUEUED])
            assert claim is not None
            compiled = compile_plan(Plan.model_validate(claim.plan_body), {one.name: one for one in TOOLS})
            moved = await store.accept_plan(claim, "caller", claim.plan_body, compiled.steps, [])
            assert moved.applied
            return moved.job_status is JobStatus.EXECUTING

        return bool(self._api.jobs.run(work))

    def claim(self, index: int) -> StepClaim | None:
        """Take a step."""

        async def work(database: Database) -> StepClaim | None:
            return await claim_step(
                PostgresJobStore(database, self._worker, as_called), StepRef(UUID(self.id), 0, index)
            )

        claim: StepClaim | None = self._api.jobs.run(work)
        return claim

    def claim_stage(self) -> StageClaim | None:
        """Take the stage that the job stands before."""

        async def work(database: Database) -> StageClaim | None:
            statuses = [JobStatus.QUEUED, JobStatus.PLANNING, JobStatus.RESPONDING]
            return await claim_stage(PostgresJobStore(database, self._worker, as_called), UUID(self.id), statuses)

        claim: StageClaim | None = self._api.jobs.run(work)
        return claim

    def succeed(self, *indices: int) -> None:
        """Run steps that return their index."""

        async def work(database: Database) -> None:
            store = PostgresJobStore(database, self._worker, as_called)
            for index in indices:
                claim = await claim_step(store, StepRef(UUID(self.id), 0, index))
                assert claim is not None, index
                moved = await store.succeed_step(claim, {"text": f"of {self.id}", "n": index}, None)
                assert moved.applied

        self._api.jobs.run(work)

    def succeed_claimed(self, claim: StepClaim) -> None:
        """End an attempt that was taken before."""

        async def work(database: Database) -> None:
            store = PostgresJobStore(database, self._worker, as_called)
            assert (await store.succeed_step(claim, {"text": "late"}, None)).applied

        self._api.jobs.run(work)

    def fail(self, index: int, code: str) -> None:
        """Run a step that fails for good."""

        async def work(database: Database) -> None:
            store = PostgresJobStore(database, self._worker, as_called)
            claim = await claim_step(store, StepRef(UUID(self.id), 0, index))
            assert claim is not None
            assert (await store.fail_step(claim, ErrorRecord(code, "no"), None)).applied

        self._api.jobs.run(work)

    def ask(self, index: int, question: StepQuestion = DID_IT_HAPPEN) -> None:
        """Run a step whose call is cut off, and let it ask; or another question."""

        async def work(database: Database) -> None:
            store = PostgresJobStore(database, self._worker, as_called)
            claim = await claim_step(store, StepRef(UUID(self.id), 0, index))
            assert claim is not None
            error = ErrorRecord("outcome_unknown", "the worker was lost")
            assert await store.ask_step(claim, question, error if question is DID_IT_HAPPEN else None)

        self._api.jobs.run(work)

    def lose(self, index: int) -> None:
        """Run a step whose call is cut off, and let its tool find out later."""

        async def work(database: Database) -> None:
            store = PostgresJobStore(database, self._worker, as_called)
            claim = await claim_step(store, StepRef(UUID(self.id), 0, index))
            assert claim is not None
            error = ErrorRecord("outcome_unknown", "the worker was lost")
            assert (await store.fail_step(claim, error, timedelta(seconds=60), in_doubt=True)).applied

        self._api.jobs.run(work)

    def delegate(self, index: int, most: int) -> list[JobDriver]:
        """Hand a step over to two child jobs, so many of them at once."""

        async def work(database: Database) -> list[UUID]:
            store = PostgresJobStore(database, self._worker, as_called)
            claim = await claim_step(store, StepRef(UUID(self.id), 0, index))
            assert claim is not None
            asked = [ChildRequest(None, "", 60.0, plan=plan(call("look")))] * 2
            assert (await store.delegate_step(claim, Delegated(asked, max_parallel=most))).applied
            return [child.job_id for child in await store.children(claim)]

        return [JobDriver(self._api, str(child)) for child in self._api.jobs.run(work)]

    def answer(self, text: str | None = "done") -> None:
        """Carry out RESPOND, with an error where there is no text."""

        async def work(database: Database) -> None:
            store = PostgresJobStore(database, self._worker, as_called)
            claim = await claim_stage(store, UUID(self.id), [JobStatus.RESPONDING])
            assert claim is not None
            status = JobStatus.FAILED if text is None else JobStatus.COMPLETED
            error = ErrorRecord("transient", "no model") if text is None else None
            assert await store.end_job(claim, status, text, error, [])

        self._api.jobs.run(work)

    def seen(self) -> dict[str, Any]:
        """Return the job's document."""
        document: dict[str, Any] = self._api.http.get(f"/jobs/{self.id}").json()
        return document

    def statuses(self) -> list[str]:
        return [step["status"] for step in self.seen()["steps"]]


def begun(api: Api, *calls: Call, **fields: Any) -> JobDriver:
    """A job whose plan was accepted."""
    story = JobDriver(api, api.submit({"plan": plan(*calls), **fields})["id"])
    story.accept()
    return story


def failed_job(api: Api, code: str, tool: str = "mail") -> JobDriver:
    """A job that completed with its second step of three failed."""
    story = begun(api, call("look"), call(tool), call("put"), input="x")
    story.succeed(0)
    story.fail(1, code)
    story.answer("two did not work")
    return story


def publish(api: Api, tools: Sequence[ToolDefinition]) -> None:
    """Publish tools."""
    api.jobs.run(lambda database: WorkerRegistry(database, timedelta(seconds=15)).publish_tools(documents(tools)))
