"""Runs a plan, or an agent, to its end in this process."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

from planq.shared.agentic.agents.document import full_model_name, parse_agent
from planq.shared.agentic.agents.input import input_defects, input_refused
from planq.shared.agentic.plan.errors import format_plan_errors
from planq.shared.agentic.plan.forms import ReadPlan, read_any_form
from planq.shared.agentic.plan.validation import validate_plan
from planq.shared.agentic.rounds.block import parse_block
from planq.shared.agentic.source import read_source
from planq.shared.agentic.tools.contract import Tool
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.claims import StageClaim
from planq.shared.kernel.ids import PLAN, StepRef
from planq.shared.kernel.job_store import JobStore
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.states import STAGES, JobStatus, Pool, Respond, StepStatus, Strategy, WakeQueue
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.errors import InvalidRequest, PlanInvalid
from planq.shared.subjects.tenants.config import Tenant, TenantConfig
from planq.testing.answers import Answers, AskedQuestion, People
from planq.testing.contexts import JOB
from planq.testing.memory import MemoryStore
from planq.testing.scripted import ScriptedModel
from planq.worker.engine import Loop, LoopSettings
from planq.worker.engine.running import InFlightWork
from planq.worker.handlers import AttemptSettings, handlers
from planq.worker.handlers.stage_context import Backgrounds
from planq.worker.tools.declare import ToolOptions, options_of
from planq.worker.tools.function import FunctionTool
from planq.worker.tools.registry import Registry
from planq.worker.tools.resources import Resource, Resources, resource_of
from planq.worker.tools.services import ToolServices

if TYPE_CHECKING:
    from planq.testing.cassettes import Cassette

OwnTools = ModuleType | Iterable[Callable[..., Any] | Tool | ModuleType]
"""Functions with `@tool`, tools of other kinds, and modules whose tools are meant."""

_INLINE_BYTES = 2**31
_SLOTS = 300


@dataclass(frozen=True, slots=True)
class Run:
    """A job's result, as `GET /jobs/{id}` returns it, its events (kind, data), and the `questions` that it asked."""

    status: str
    outcome: str | None
    answer: str | None
    output: Any
    error: Mapping[str, Any] | None
    steps: Sequence[Mapping[str, Any]]
    events: Sequence[tuple[str, Any]]
    questions: Sequence[AskedQuestion]
    chained: Any
    stop_reason: str | None
    model: ScriptedModel | Cassette

    @property
    def outputs(self) -> list[Any]:
        return [step["output"] for step in self.steps]


class Surroundings(TypedDict, total=False):
    """What a job meets in a test; each may be left out.

    `tools` are functions, tools, or modules with tools. `answers` are what people answer, in order, or a function of
    the `AskedQuestion`; `model` says what the test wants, or replies as a recorded model did. `user` and `tenant` are
    those of the job, `secrets` what the tenant keeps under which name. `resources` are what tools ask for by type, in
    the place of those that modules declare. `policy` is the server's for tools, `limits` are lower ones of the job.
    """

    tools: OwnTools
    answers: Answers
    model: ScriptedModel | Cassette
    user: str
    tenant: str
    secrets: Mapping[str, str]
    resources: Mapping[type, Any]
    policy: Mapping[str, str]
    limits: Mapping[str, float]


def run_plan(plan: Any, *, respond: str = "output", **around: Unpack[Surroundings]) -> Run:
    """Run a caller's plan to its end, in whichever form, as a worker would; retries and waits take no time.

    `respond` is `output`, `none`, or `model`. Raises `PlanInvalid` with all defects for a plan that the API refuses,
    and `Misconfigured` for tools that a worker refuses.
    """
    limits = Limits().lowered(around.get("limits", {}))
    registry = _registry(around)
    body = _checked(plan, {one.name: one for one in registry.definitions()}, limits.max_plan_steps)
    return _run(around, registry, plan_body=body, plan_source="caller", respond=Respond(respond))


def run_job(
    input: str,
    *,
    strategy: str = "plan",
    loop: Mapping[str, Any] | None = None,
    **around: Unpack[Surroundings],
) -> Run:
    """Run a request that the model plans; otherwise as `run_plan`."""
    block = None if loop is None else parse_block(loop).to_json()
    return _run(around, _registry(around), input=input, strategy=Strategy(strategy), loop=block)


def run_agent(
    document: Mapping[str, Any] | str,
    input: str = "",
    *,
    action: str | None = None,
    with_: Mapping[str, Any] | None = None,
    skills: Mapping[str, str] | None = None,
    **around: Unpack[Surroundings],
) -> Run:
    """Run an agent's document (an object, YAML or JSON), with its chained tool; what it is asked as in `POST /jobs`.

    `skills` are the texts of those that it lists. Raises `InvalidRequest` for a document with defects,
    `InvalidArguments` for an action that it does not have or a `with_` that breaks its schema; else as `run_plan`.
    """
    agent = parse_agent(document)
    if found := input_defects(agent, action, with_ or {}):
        raise input_refused(agent, found)
    texts = skills or {}
    if missing := [name for name in agent.skills if name not in texts]:
        raise InvalidRequest(f"the agent lists the skill {missing[0]!r}; pass its text in `skills`")
    block = agent.loop_block()
    return _run(
        around,
        _registry(around),
        input=input,
        agent=read_source(document).value,
        agent_name=agent.name,
        agent_version=1,
        instructions=[texts[name] for name in agent.skills],
        action=action,
        with_=dict(with_ or {}),
        strategy=Strategy(agent.strategy or Strategy.PLAN),
        loop=None if block is None else block.to_json(),
        own_model=full_model_name(agent.model) if agent.model else "",
    )


def _first(**fields: Any) -> StageClaim:
    blank: dict[str, Any] = {
        "ref": StepRef(JOB, 0, PLAN),
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


def _registry(around: Surroundings) -> Registry:
    resources = Resources()
    for kind, value in around.get("resources", {}).items():
        resources.declare(Resource(kind, partial(nullcontext, value), "the test"))
    registry = Registry(resources=resources)
    services = ToolServices()
    tools = around.get("tools", ())
    given: Iterable[Any] = (tools,) if isinstance(tools, ModuleType) else tools
    found: list[Tool] = []
    for one in given:
        beside = one if isinstance(one, ModuleType) else sys.modules.get(getattr(one, "__module__", ""))
        for declared in map(resource_of, vars(beside).values() if beside else ()):
            if declared is not None and declared.kind not in resources:
                resources.declare(declared)
        named = [item for item in vars(one).values() if options_of(item)] if isinstance(one, ModuleType) else [one]
        for item in named:
            if isinstance(item, FunctionType):
                options = options_of(item) or ToolOptions()
                made = FunctionTool(item, options, services=services, threads=registry.threads, resources=resources)
                found.append(made)
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


def _run(around: Surroundings, registry: Registry, own_model: str = "", **fields: Any) -> Run:
    model = around.get("model") or ScriptedModel()
    if not isinstance(model, ScriptedModel):
        fields["model"] = own_model
    claim = _first(
        limits=Limits().lowered(around.get("limits", {})),
        user_id=around.get("user", ""),
        tenant_id=around.get("tenant", "default"),
        **fields,
    )

    async def run() -> Run:
        try:
            return await _Worker(claim, registry, around, model).run()
        finally:
            await registry.resources.close()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        found = asyncio.run(run())
    else:
        # A test that is itself on a loop: the job has one of its own, in a thread.
        with ThreadPoolExecutor(1) as thread:
            found = thread.submit(contextvars.copy_context().run, asyncio.run, run()).result()
    if not isinstance(model, ScriptedModel):
        model.check()
    return found


class _MemoryPayloads:
    def __init__(self) -> None:
        self._held: dict[tuple[str, bytes], bytes] = {}

    async def put(self, tenant_id: str, body: bytes, preview: bytes) -> bytes:
        digest = sha256(body).digest()
        self._held[tenant_id, digest] = body
        return digest

    async def get(self, tenant_id: str, digest: bytes) -> bytes:
        return self._held[tenant_id, digest]


class _Worker:
    def __init__(
        self, claim: StageClaim, registry: Registry, around: Surroundings, model: ScriptedModel | Cassette
    ) -> None:
        own = (claim.loop or {}).get("policy")
        self.store = MemoryStore(claim, () if own is None else (own,))
        self._model = model
        self._people = People(around.get("answers", ()))
        self._secrets = around.get("secrets", {})
        self._tools = {one.name: one for one in registry.definitions()}
        in_flight = InFlightWork()
        store = cast(JobStore, self.store)
        settings = AttemptSettings(
            max_output_bytes=_INLINE_BYTES,
            inline_output_bytes=_INLINE_BYTES,
            model_retry_seconds=0,
            tool_policy=around.get("policy", {}),
        )
        made = handlers(
            settings,
            store=store,
            catalogue=self,
            in_flight=in_flight,
            planner=model,
            turns=model,
            responder=model,
            toolbox=registry,
            payloads=_MemoryPayloads(),
            backgrounds=Backgrounds(self.store.history, self, lambda text: len(text) // 4),
            draw=lambda: 0.0,
            secrets=self._secret,
        )
        self._dispatcher = Loop(
            LoopSettings(Pool.IO, _SLOTS, fuse_seconds=0),
            store=store,
            handlers=made,
            publisher=self,
            tracker=self,
            in_flight=in_flight,
        )

    async def run(self) -> Run:
        """Carry out what is due, as long as something is."""
        job = self.store.first.job_id
        while not self.store.status.is_terminal:
            due: list[Wake] = [
                Wake(ref, Pool.IO, self.store.rows[ref.index].planned.tool_name) for ref in self.store.ready()
            ]
            if self.store.status in STAGES:
                due.append(Wake.plan(job) if self.store.status is not JobStatus.RESPONDING else self._respond())
            if due:
                await asyncio.gather(*(self._dispatcher.run(wake) for wake in due))
            elif not self._answered():
                break
        return self._result()

    def _respond(self) -> Wake:
        return Wake.respond(self.store.first.job_id, self.store.state.job.stage_attempt)

    def _answered(self) -> bool:
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
                    "content": row.artifact.content if row.artifact is not None else None,
                    "error": row.error.to_json() if failed and row.error else None,
                    "depends_on": list(row.planned.depends_on),
                }
            )
        return Run(
            str(JobStatus.INPUT_REQUIRED if store.asking() else store.status),
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

    async def _secret(self, tenant_id: str, name: str) -> str | None:
        return self._secrets.get(name)

    async def tools(self, tenant_id: str) -> Mapping[str, ToolDefinition]:
        return self._tools

    async def of(self, tenant_id: str) -> Tenant:
        return Tenant(tenant_id, tenant_id, False, TenantConfig(), Limits(), Limits())

    async def publish(self, wakes: Sequence[Any]) -> bool:
        """The port `Publisher`: what is due is looked for anew."""
        return True

    async def empty(self, queues: Collection[WakeQueue]) -> Collection[WakeQueue]:
        return queues

    def started(self, *_: Any) -> None:
        """The port `Tracker`."""

    def ended(self, *_: Any) -> None:
        """The port `Tracker`."""
