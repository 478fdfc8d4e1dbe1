"""Runs a plan, or an agent, to its end in this process."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, TypeVar, cast

from planq.shared.domain.agents.document import parse_agent
from planq.shared.domain.agents.input import input_defects, input_refused
from planq.shared.domain.agents.source import read_source
from planq.shared.domain.errors import ErrorRecord, InternalFault, PlanInvalid
from planq.shared.domain.jobs.limits import Limits
from planq.shared.domain.jobs.states import STAGES, JobStatus, Lane, Respond, StepStatus, Strategy, WakeQueue
from planq.shared.domain.plan.errors import format_plan_errors
from planq.shared.domain.plan.forms import ReadPlan, read_any_form
from planq.shared.domain.plan.validation import validate_plan
from planq.shared.domain.rounds.block import parse_block
from planq.shared.domain.tenants.config import TenantConfig
from planq.shared.domain.tools.definition import ToolDefinition
from planq.shared.ports import JobStore, Payloads, PlanWake, RespondWake, StageClaim, StepWake, Tool, Wake
from planq.shared.ports.tenants import Tenant
from planq.testing.answers import Answers, People, Question
from planq.testing.contexts import JOB
from planq.testing.memory import MemoryStore
from planq.testing.scripted import ScriptedModel
from planq.worker.attempts import Attempts, AttemptSettings
from planq.worker.attempts.background import Backgrounds
from planq.worker.engine import Dispatcher, DispatcherSettings
from planq.worker.engine.in_flight import InFlightWork
from planq.worker.tools.declare import ToolOptions, options_of
from planq.worker.tools.function import FunctionTool
from planq.worker.tools.registry import Registry
from planq.worker.tools.services import ToolServices

T = TypeVar("T")

Tools = ModuleType | Iterable[Callable[..., Any] | Tool | ModuleType]
"""Functions with `@tool`, tools of other kinds, and modules whose tools are meant."""

_INLINE_BYTES = 2**31
_SLOTS = 300


@dataclass(frozen=True, slots=True)
class Run:
    """What a job came to, as `GET /jobs/{id}` has it; of `events` the kind and the data, in their order.

    `questions` is what was asked. Where a question found no answer, the job is `input_required`.
    """

    status: str
    outcome: str | None
    answer: str | None
    output: Any
    error: Mapping[str, Any] | None
    steps: Sequence[Mapping[str, Any]]
    events: Sequence[tuple[str, Any]]
    questions: Sequence[Question]
    chained: Any
    stop_reason: str | None
    model: ScriptedModel

    @property
    def outputs(self) -> list[Any]:
        """The output of each step, None where it has none."""
        return [step["output"] for step in self.steps]


def run_plan(
    plan: Any,
    *,
    tools: Tools = (),
    answers: Answers = (),
    model: ScriptedModel | None = None,
    user: str = "",
    tenant: str = "default",
    policy: Mapping[str, str] | None = None,
    limits: Mapping[str, float] | None = None,
    respond: str = "output",
) -> Run:
    """Run a caller's plan to its end, in whichever form, as a worker would.

    `answers` are what people answer, in order, or a function of the `Question`. Raises `PlanInvalid` with all defects
    for a plan that the API refuses. Retries and waits take no time. `policy` is the server's for tools.
    """
    bounds = Limits().lowered(limits or {})
    registry = _registry(tools)
    body = _checked(plan, {one.name: one for one in registry.definitions()}, bounds.max_plan_steps)
    claim = _first(
        limits=bounds, user_id=user, tenant_id=tenant, plan_body=body, plan_source="caller", respond=Respond(respond)
    )
    return _run(_Worker(claim, registry, model or ScriptedModel(), People(answers), policy).run())


def run_job(
    input: str,
    *,
    tools: Tools = (),
    model: ScriptedModel | None = None,
    strategy: str = "plan",
    loop: Mapping[str, Any] | None = None,
    answers: Answers = (),
    user: str = "",
    tenant: str = "default",
    policy: Mapping[str, str] | None = None,
    limits: Mapping[str, float] | None = None,
) -> Run:
    """Run a request that the model plans, to its end; else as `run_plan`."""
    block = None if loop is None else parse_block(loop).to_json()
    claim = _first(
        input=input,
        strategy=Strategy(strategy),
        loop=block,
        limits=Limits().lowered(limits or {}),
        user_id=user,
        tenant_id=tenant,
    )
    return _run(_Worker(claim, _registry(tools), model or ScriptedModel(), People(answers), policy).run())


def run_agent(
    document: Mapping[str, Any] | str,
    input: str = "",
    *,
    action: str | None = None,
    with_: Mapping[str, Any] | None = None,
    tools: Tools = (),
    skills: Mapping[str, str] | None = None,
    model: ScriptedModel | None = None,
    answers: Answers = (),
    user: str = "",
    tenant: str = "default",
    policy: Mapping[str, str] | None = None,
    limits: Mapping[str, float] | None = None,
) -> Run:
    """Run an agent's document (an object, YAML or JSON), with its chained tool; what it is asked as in `POST /jobs`.

    The model says what the test wants. Raises `InvalidRequest` for a document with defects, `InvalidArguments` for an
    action that it does not have or a `with_` that breaks its schema; else as `run_plan`.
    """
    agent = parse_agent(document)
    if found := input_defects(agent, action, with_ or {}):
        raise input_refused(agent, found)
    texts = skills or {}
    missing = [name for name in agent.skills if name not in texts]
    if missing:
        raise InternalFault(f"the agent lists the skill {missing[0]!r}; pass its text in `skills`")
    block = agent.loop_block()
    claim = _first(
        input=input,
        limits=Limits().lowered(limits or {}),
        user_id=user,
        tenant_id=tenant,
        agent=read_source(document).value,
        agent_name=agent.name,
        agent_version=1,
        instructions=[texts[name] for name in agent.skills],
        action=action,
        with_=dict(with_ or {}),
        strategy=Strategy(agent.strategy or Strategy.PLAN),
        loop=None if block is None else block.to_json(),
    )
    return _run(_Worker(claim, _registry(tools), model or ScriptedModel(), People(answers), policy).run())


def _first(**fields: Any) -> StageClaim:
    """Return the claim of a job that has not begun."""
    blank: dict[str, Any] = {
        "job_id": JOB,
        "status": JobStatus.QUEUED,
        "round": 0,
        "attempt": 0,
        "model": "scripted:test",
        "input": "",
        "tools": None,
        "plan_source": None,
        "plan_body": None,
        "plan_errors": None,
        "root_job_id": JOB,
        "trace_id": "0" * 32,
        "context_id": str(JOB),
    }
    return StageClaim(**{**blank, **fields})


def _registry(tools: Tools) -> Registry:
    """Return the tools, checked as a worker checks them at its start; raises `Misconfigured`."""
    registry = Registry()
    services = ToolServices()
    found: list[Tool] = []
    given: Iterable[Any] = (tools,) if isinstance(tools, ModuleType) else tools
    for one in given:
        named = [item for item in vars(one).values() if options_of(item)] if isinstance(one, ModuleType) else [one]
        for item in named:
            if isinstance(item, FunctionType):
                options = options_of(item) or ToolOptions()
                found.append(FunctionTool(item, options, services=services, threads=registry.threads))
            else:
                found.append(cast(Tool, item))
    registry.extend(found)
    return registry


def _checked(plan: Any, tools: Mapping[str, ToolDefinition], max_steps: int) -> dict[str, Any]:
    read = read_any_form(plan)
    found = validate_plan(read.plan, tools, max_steps=max_steps) if isinstance(read, ReadPlan) else read
    if found or not isinstance(read, ReadPlan):
        raise PlanInvalid(format_plan_errors(found), [error.to_json() for error in found])
    return read.plan.model_dump(mode="json", exclude_none=True)


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    # A test that is itself on a loop: the job has one of its own, in a thread.
    found: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(asyncio.run(work))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,))
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


class _Worker:
    """One worker's engine, for one job."""

    def __init__(
        self,
        claim: StageClaim,
        registry: Registry,
        model: ScriptedModel,
        people: People,
        policy: Mapping[str, str] | None,
    ) -> None:
        self.store = MemoryStore(claim)
        self._registry, self._model, self._people = registry, model, people
        self._tools = {one.name: one for one in registry.definitions()}
        in_flight = InFlightWork()
        guarded = in_flight.guard(cast(JobStore, self.store))
        settings = AttemptSettings(
            max_output_bytes=_INLINE_BYTES,
            inline_output_bytes=_INLINE_BYTES,
            model_retry_seconds=0,
            tool_policy=policy or {},
        )
        attempts = Attempts(
            settings,
            store=guarded,
            catalogue=self,
            in_flight=in_flight,
            planner=model,
            turns=model,
            responder=model,
            toolbox=registry,
            payloads=cast(Payloads, None),  # every output is small
            backgrounds=Backgrounds(guarded, self, lambda text: len(text) // 4),
            draw=lambda: 0.0,
        )
        self._dispatcher = Dispatcher(
            DispatcherSettings(Lane.IO, _SLOTS, fuse_seconds=0),
            store=guarded,
            executor=attempts,
            publisher=self,
            tracker=self,
            in_flight=in_flight,
        )

    async def run(self) -> Run:
        """Carry out what is due, as long as something is."""
        job = self.store.first.job_id
        while not self.store.status.is_terminal:
            due: list[Wake] = [
                StepWake(ref, Lane.IO, self.store.rows[ref.index].planned.tool_name) for ref in self.store.ready()
            ]
            if self.store.status in STAGES:
                due.append(PlanWake(job) if self.store.status is not JobStatus.RESPONDING else self._respond())
            if due:
                await asyncio.gather(*(self._dispatcher.run(wake) for wake in due))
            elif not self._answered():
                break
        return self._result()

    def _respond(self) -> Wake:
        return RespondWake(self.store.first.job_id, self.store.state.job.stage_attempt)

    def _answered(self) -> bool:
        """Answer the first question that is open; False where there is none, or the test has no answer."""
        for index in self.store.asking():
            question = self.store.rows[index].question
            assert question is not None
            answer = self._people.answer(question, index)
            if answer is not None:
                self.store.settle(index, answer)
                return True
        return False

    def _result(self) -> Run:
        store = self.store
        steps = []
        for index, row in sorted(store.rows.items()):
            state = store.state.steps[index]
            failed = state.status is StepStatus.FAILED
            steps.append(
                {
                    "index": index,
                    "round": row.round,
                    "kind": str(row.planned.kind),
                    "tool_name": row.planned.tool_name,
                    "status": str(state.status),
                    "attempt": state.attempt,
                    "arguments": dict(row.planned.arguments if row.arguments is None else row.arguments),
                    "output": row.output if state.status is StepStatus.SUCCEEDED else None,
                    "error": row.error.to_json() if failed and row.error else None,
                    "depends_on": list(row.planned.depends_on),
                }
            )
        return Run(
            str(store.status),
            None if store.outcome is None else str(store.outcome),
            store.answer,
            store.output,
            store.error,
            steps,
            store.events,
            self._people.asked,
            store.chained,
            store.stop_reason,
            self._model,
        )

    # What else a worker has ----------------------------------------------------------------------------------

    async def tools(self, tenant_id: str) -> Mapping[str, ToolDefinition]:
        """The port `ToolCatalogue`."""
        return self._tools

    async def of(self, tenant_id: str) -> Tenant:
        """The port `Tenants`."""
        return Tenant(tenant_id, tenant_id, False, TenantConfig(), Limits(), Limits())

    async def publish(self, wakes: Sequence[Any]) -> bool:
        """The port `Publisher`: what is due is looked for anew."""
        return True

    async def empty(self, queues: Collection[WakeQueue]) -> Collection[WakeQueue]:
        """The port `Queues`."""
        return queues

    def started(self, wake: Wake, attempt: int) -> None:
        """The port `Tracker`."""

    def ended(self, wake: Wake, attempt: int, error: ErrorRecord | None, runtime_seconds: float) -> None:
        """The port `Tracker`."""
