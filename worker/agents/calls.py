"""The tools that call agents: `ask_agent`, `cp__call_agents`, and the steps of an orchestration's own job.

Each delegates to child jobs in `call`, and makes its output of their outcomes in `gather`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from planq.shared.agentic.agents.chaining import stored_chained_result
from planq.shared.agentic.orchestration.compiling import CALL_AGENT, PARALLEL
from planq.shared.agentic.orchestration.plan import STRATEGIES, MergeStrategy
from planq.shared.agentic.orchestration.request import AgentRequest, agent_request
from planq.shared.agentic.orchestration.templates import restored
from planq.shared.agentic.orchestration.validation import MAX_CHILDREN, defects_text
from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.agentic.turns.messages import HistoryForm
from planq.shared.kernel.children import ChildOutcome, ChildRequest, Delegated
from planq.shared.kernel.limits import MAX_TIMEOUT_SECONDS
from planq.shared.kernel.states import Effect, JoinPolicy, Pool, StepKind
from planq.shared.platform.errors import InvalidArguments
from planq.shared.platform.values.defects import Defect
from planq.worker.agents.orchestration.results import Status, group_status, is_failure, merge
from planq.worker.agents.orchestration.schema import AGENT_ID, CALL_PROPERTIES, agent_call
from planq.worker.agents.orchestration_jobs import journal_progress
from planq.worker.agents.outcomes import (
    FAULTS,
    agent_failure,
    agent_result,
    error_of,
    output_of,
    published_code,
    status_of,
)
from planq.worker.agents.services import AgentServices, log_agents_ended


def delegating_tool(
    name: str,
    description: str,
    input_schema: Mapping[str, Any],
    output_schema: Mapping[str, Any],
    *,
    kind: StepKind = StepKind.AGENT,
) -> ToolDefinition:
    """Return the definition of a tool that delegates; its agents' own times bound its calls."""
    return ToolDefinition(
        name=name,
        description=description,
        input_schema=dict(input_schema),
        output_schema=dict(output_schema),
        effect=Effect.IDEMPOTENT,
        pool=Pool.IO,
        kind=kind,
        timeout_seconds=MAX_TIMEOUT_SECONDS,
        retries=0,
        source="planq:agents",
    )


def _object(required: Sequence[str], *, is_open: bool = True, **properties: Any) -> dict[str, Any]:
    closed = {} if is_open else {"additionalProperties": False}
    return {"type": "object", **closed, "required": list(required), "properties": properties}


_STRING, _WHOLE = {"type": "string"}, {"type": "integer"}
_EXEC_ID = {"type": "string", "description": "The agent's job."}
_STEP_ID = {"step_id": _STRING}
_HISTORY = {
    "history": {
        "enum": ["none", *HistoryForm],
        "description": "What it is shown of the conversation before this turn: none of it by default.",
    }
}

_TEXTS: dict[str, Any] = {
    "type": "object",
    "description": "Texts of prompt and with that are put together only now, by their places in the call.",
    "additionalProperties": {"type": "array", "items": {"type": "object"}},
}


class _AgentCallingTool:
    def __init__(self, services: AgentServices) -> None:
        self._services = services


class AskAgent(_AgentCallingTool):
    """`ask_agent`: one agent asks another; the other's failure is a result, not an error."""

    definition = delegating_tool(
        "ask_agent",
        "Ask another agent and wait for its answer.",
        _object(
            ["agent_name", "input_text"],
            is_open=False,
            agent_name={**AGENT_ID, "description": "The agent to ask."},
            input_text={"type": "string", "minLength": 1, "description": "The question."},
            input_data={"type": "object", "description": "Data that belongs to it."},
            **_HISTORY,
        ),
        _object(
            ["status"],
            status={"enum": ["success", "error"]},
            output={"description": "The answer: an object, or a text."},
            text_response={
                "type": ["string", "null"],
                "description": "The answer as text; null of a structured one.",
            },
            agent_schema={"type": "string", "description": "The name of the agent."},
            is_structured_output={"type": "boolean"},
            chained_tool_result={"description": "The result of the agent's chained tool; null where it has none."},
            exec_id=_EXEC_ID,
            error={"type": "object", "description": "Why there is no answer: code and message."},
        ),
    )

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        await self._services.check_depth(context)
        child = ChildRequest(
            agent=arguments["agent_name"].strip(),
            input=arguments["input_text"],
            timeout_seconds=await self._services.seconds(None, context),
            with_=arguments.get("input_data") or {},
            history=_history(arguments),
        )
        return Delegated([child], max_parallel=1)

    async def gather(
        self, arguments: dict[str, Any], children: Sequence[ChildOutcome], note: Any, context: ToolContext
    ) -> Any:
        """Return the answer, or why there is none."""
        (child,) = await self._services.opened().whole(children)
        log_agents_ended(children, context, [status_of(child)], None)
        known = {"agent_schema": child.agent or arguments["agent_name"], "exec_id": str(child.job_id)}
        if status_of(child) is not Status.SUCCESS:
            return {"status": "error", **known, "output": "", "text_response": "", "error": error_of(child)}
        is_structured = child.output is not None
        return {
            "status": "success",
            **known,
            "output": output_of(child) if is_structured else child.answer or "",
            "text_response": None if is_structured else child.answer or "",
            "is_structured_output": is_structured,
            "chained_tool_result": stored_chained_result(child.chained),
        }


class CallAgent(_AgentCallingTool):
    """`cp__call_agent`: one call of one agent, as a step of an orchestration or of any plan."""

    definition = delegating_tool(
        CALL_AGENT,
        "Call one agent and wait for its answer. With retries, an agent that failed temporarily is called again.",
        agent_call(**_STEP_ID, **_HISTORY, texts=_TEXTS),
        _object(
            ["output", "exec_id"],
            output={"description": "The agent's answer: its object, or its text as {text}."},
            exec_id=_EXEC_ID,
            agent_id=_STRING,
            action_id=_STRING,
            elapsed_ms=_WHOLE,
            chained={"description": "The result of its chained tool; null where it has none."},
        ),
    )

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        await self._services.check_depth(context)
        child = await _child_request(arguments, self._services, context)
        if arguments.get("step_id"):
            await journal_progress(self._services, UUID(context.job_id))
        return Delegated([child], max_parallel=1)

    async def gather(
        self, arguments: dict[str, Any], children: Sequence[ChildOutcome], note: Any, context: ToolContext
    ) -> Any:
        """Return `{output, exec_id, …}` of the agent; an agent that did not succeed fails the step with its error."""
        (child,) = await self._services.opened().whole(children)
        log_agents_ended(children, context, [status_of(child)], arguments.get("step_id"))
        if status_of(child) is not Status.SUCCESS:
            raise agent_failure(child)
        return {
            "output": output_of(child),
            "exec_id": str(child.job_id),
            "agent_id": child.agent or "",
            "action_id": child.action or "",
            "elapsed_ms": child.elapsed_ms,
            "chained": child.chained,
        }


class Parallel(_AgentCallingTool):
    """`cp__parallel`: a group of agents at once, whose outputs are merged (docs/decisions.md, D13)."""

    definition = delegating_tool(
        PARALLEL,
        "Call several agents at once. With retries, a group that failed temporarily is repeated as a whole.",
        _object(
            ["steps"],
            is_open=False,
            steps={
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_CHILDREN,
                "items": agent_call(result_key=_STRING, **_HISTORY, texts=_TEXTS),
            },
            max_concurrency={"type": "integer", "minimum": 1},
            merge_strategy={"enum": list(STRATEGIES)},
            **_STEP_ID,
        ),
        _object(
            ["output", "status", "children"],
            output={"description": "The outputs by result_key, or that of the first to succeed."},
            status={"enum": ["success", "partial", "failed"]},
            children={
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        **dict.fromkeys(("id", "key", "agent_id", "action_id"), _STRING),
                        "status": {"enum": ["success", "failed", "skipped"]},
                        "exec_id": _EXEC_ID,
                        "elapsed_ms": _WHOLE,
                        "output": {},
                        "error": {},
                        "timed_out": {"type": "boolean"},
                        "chained_tool_result": {},
                    },
                },
            },
            warnings={"type": "array", "description": "Where max_concurrency was lowered to the limit."},
        ),
        kind=StepKind.PARALLEL,
    )

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Delegate to the agents' jobs, as many at once as the limits and the group allow."""
        await self._services.check_depth(context)
        calls = arguments["steps"]
        children = [
            await _child_request(
                call, self._services, context, path=f"steps[{position}]: ", key=call.get("result_key")
            )
            for position, call in enumerate(calls)
        ]
        if arguments.get("step_id"):
            await journal_progress(self._services, UUID(context.job_id))
        limits = await self._services.limits(context)
        at_once = limits.parallel(len(calls), arguments.get("max_concurrency"))
        return Delegated(children, _JOIN_POLICIES[_strategy(arguments)], at_once)

    async def gather(
        self, arguments: dict[str, Any], children: Sequence[ChildOutcome], note: Any, context: ToolContext
    ) -> Any:
        """Merge the outputs; if too many failed, raise the first agent's error with the outcome of each."""
        children = await self._services.opened().whole(children)
        strategy = _strategy(arguments)
        statuses = [status_of(child) for child in children]
        step_id = arguments.get("step_id")
        log_agents_ended(children, context, statuses, step_id)
        status = group_status(statuses, strategy)
        entries = [_group_entry(child, step_id or PARALLEL) for child in children]
        if is_failure(status, strategy):
            ended = [{name: value for name, value in entry.items() if name != "output"} for entry in entries]
            raise agent_failure(_first_failure(children), status=status.value, children=ended)
        output = merge(strategy, [agent_result(child, child.key or "") for child in children])
        limits, wanted = await self._services.limits(context), arguments.get("max_concurrency")
        lowered = [one.of_plan() for one in limits.group_lowerings(len(children), wanted, "max_concurrency")]
        document = {"output": output, "status": status.value, "children": entries}
        return document | ({"warnings": lowered} if lowered else {})


class CallAgents(_AgentCallingTool):
    """`cp__call_agents`: several independent agents at once; succeeds even if all fail (cases call_agents)."""

    definition = delegating_tool(
        "cp__call_agents",
        "Call several agents at once and get every outcome, failures too.",
        _object(["agents"], is_open=False, agents={"type": "array", "minItems": 1, "items": agent_call(**_HISTORY)}),
        _object(
            ["results", "total_count", "success_count", "failure_count"],
            results={
                "type": "array",
                "description": "One entry per agent, in the order of the call.",
                "items": _object(
                    ["agent_id", "success"],
                    agent_id=_STRING,
                    action_id=_STRING,
                    success={"type": "boolean"},
                    output={},
                    error=_STRING,
                    error_code=_STRING,
                    exec_id=_EXEC_ID,
                    duration_ms=_WHOLE,
                    timed_out={"type": "boolean", "description": "True where its time ended before it did."},
                    chained_tool_result={"description": "The result of its chained tool, or its error."},
                ),
            },
            total_count=_WHOLE,
            success_count=_WHOLE,
            failure_count=_WHOLE,
        ),
        kind=StepKind.PARALLEL,
    )

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Delegate to the agents' jobs; raises `InvalidArguments` with the defects of every entry."""
        entries = arguments["agents"]
        most = (await self._services.limits(context)).max_parallel
        defects = [defect for position, entry in enumerate(entries) for defect in _entry_defects(entry, position)]
        if len(entries) > most:
            excess = f"agents: at most {most} at once, found {len(entries)}"
            defects.append(Defect("agents", "max_items", excess))
        if defects:
            raise _invalid(defects)
        await self._services.check_depth(context)
        children = [await _child_request(entry, self._services, context) for entry in entries]
        return Delegated(children, JoinPolicy.ALL, most)

    async def gather(
        self, arguments: dict[str, Any], children: Sequence[ChildOutcome], note: Any, context: ToolContext
    ) -> Any:
        children = await self._services.opened().whole(children)
        log_agents_ended(children, context, [status_of(child) for child in children], None)
        results = [_outcome_entry(child) for child in children]
        succeeded = sum(result["success"] for result in results)
        return {
            "results": results,
            "total_count": len(results),
            "success_count": succeeded,
            "failure_count": len(results) - succeeded,
        }


async def _child_request(
    raw: dict[str, Any], services: AgentServices, context: ToolContext, *, path: str = "", key: str | None = None
) -> ChildRequest:
    call = _restored(raw, path)
    request = agent_request(call, (await services.limits(context)).default_timeout_ms)
    if not isinstance(request, AgentRequest):
        raise _invalid(request, path)
    return ChildRequest(
        agent=request.agent_id,
        input=str(call.get("prompt") or ""),
        timeout_seconds=await services.seconds(request.timeout_ms, context),
        action=str(call.get("action_id") or "").strip() or None,
        with_=call.get("with") or {},
        key=key,
        history=_history(call),
    )


def _history(call: Mapping[str, Any]) -> HistoryForm | None:
    form = call.get("history")
    return None if form in (None, "none") else HistoryForm(form)


def _invalid(defects: Sequence[Defect], path: str = "") -> InvalidArguments:
    errors = [defect.of_plan() for defect in defects]
    return InvalidArguments(f"{path}{defects_text(defects)}", error_code="InvalidArgument", errors=errors)


def _restored(raw: dict[str, Any], path: str) -> dict[str, Any]:
    """Return a call with its texts in their places: compiled plans are sound, other callers may write anything."""
    try:
        call = restored(raw, raw.get("texts") or {})
    except (LookupError, TypeError, ValueError, AttributeError):
        call = {"with": None}
    if isinstance(call.get("with", {}), dict):
        return call
    raise InvalidArguments(
        f'{path}texts: expected JSON pointers to texts of prompt and with, each with a list of {{"text": …}} or '
        '{"value": …}; leave texts out and put the text itself where it belongs',
        error_code="InvalidArgument",
    )


_JOIN_POLICIES = {
    MergeStrategy.COLLECT: JoinPolicy.FIRST_FAILURE,
    MergeStrategy.FIRST_SUCCESS: JoinPolicy.FIRST_SUCCESS,
    MergeStrategy.BEST_EFFORT: JoinPolicy.ALL,
}


def _strategy(arguments: dict[str, Any]) -> MergeStrategy:
    return MergeStrategy(arguments.get("merge_strategy") or MergeStrategy.COLLECT)


def _first_failure(children: Sequence[ChildOutcome]) -> ChildOutcome:
    ended = [child for child in children if child.ended_at is not None and status_of(child) is not Status.SUCCESS]
    failed = [child for child in ended if status_of(child) is Status.FAILED] or ended or list(children)
    return min(failed, key=lambda child: agent_result(child).order)


def _group_entry(child: ChildOutcome, step_id: str) -> dict[str, Any]:
    """Return the entry of an agent; its output may be null, so that a text can refer to it."""
    shown = {
        "id": f"{step_id}[{child.position}]",
        "key": child.key,
        "status": status_of(child).value,
        "exec_id": str(child.job_id),
        "agent_id": child.agent,
        "action_id": child.action,
        "elapsed_ms": child.elapsed_ms,
        "output": output_of(child),
        "error": error_of(child),
        "timed_out": agent_result(child).timed_out or None,
        "chained_tool_result": stored_chained_result(child.chained),
    }
    return {name: value for name, value in shown.items() if value is not None or name == "output"}


def _entry_defects(entry: dict[str, Any], position: int) -> list[Defect]:
    found = agent_request(entry, 1)
    known = found if isinstance(found, list) else []
    unknown = [
        Defect(name, "forbidden", f"unknown key {name!r}")
        for name in entry
        if name not in CALL_PROPERTIES and name not in _HISTORY
    ]
    path = f"agents[{position}]"
    return [
        Defect(f"{path}.{defect.pointer}", defect.code, f"{path}: {defect.message}") for defect in [*known, *unknown]
    ]


def _outcome_entry(child: ChildOutcome) -> dict[str, Any]:
    known = {"agent_id": child.agent or "", "exec_id": str(child.job_id), "duration_ms": child.elapsed_ms}
    if child.action:
        known["action_id"] = child.action
    if child.chained is not None:
        known["chained_tool_result"] = stored_chained_result(child.chained)
    if agent_result(child).timed_out:
        known["timed_out"] = True
    error = error_of(child)
    if status_of(child) is Status.SUCCESS or error is None:
        return {**known, "success": True, "output": output_of(child)}
    # The published word for faults that no agent is to blame for.
    message = f"panic: {error['message']}" if error["code"] in FAULTS else error["message"]
    return {**known, "success": False, "error": message, "error_code": published_code(error["code"])}
