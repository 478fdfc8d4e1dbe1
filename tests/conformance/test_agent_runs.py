"""Conformance of chained tools and of agents that run: the real engine on a real database, with scripted models."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest

from planq.shared.agentic.agents.chaining import stored_chained_result
from planq.shared.agentic.agents.document import AgentDocument
from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.agentic.tools.names import resolve_name
from planq.shared.kernel.states import Effect
from planq.shared.platform.database import Database
from planq.shared.platform.errors import ToolFailed
from planq.shared.settings.settings import Settings
from planq.shared.subjects.agents.store import DocumentStore
from planq.shared.subjects.moments.store import PostgresMemory
from planq.worker.agents import agent_tools
from planq.worker.tools.registry import load_registry
from planq.worker.tools.services import ToolServices
from tests.conformance.cases import Case, load, mismatches, params
from tests.conformance.rule import Expected, Rule
from tests.integration.api.conftest import Api
from tests.model.shapes import turn_rows
from tests.support.agents import look, rows, saying
from tests.support.harness import Harness

ENGINE = ("execute", "agent_run", "registry", "tool_result")
CASES = [case for case in load("chained_tool") if case.op in ENGINE]
ANYTHING = {"type": "object"}


class CaseTool:
    """A tool of a case: what it returns or raises, and with which arguments it was called."""

    def __init__(self, name: str, behaviour: Mapping[str, Any]) -> None:
        names = behaviour.get("signature")
        schema: dict[str, Any] = ANYTHING
        if names is not None:
            known = {one: {} for one in names}
            schema = {"type": "object", "properties": known, "required": names, "additionalProperties": False}
        self.definition = ToolDefinition(
            name=name, input_schema=schema, output_schema={}, effect=Effect.UNSAFE, source="case"
        )
        self._behaviour = behaviour
        self.called: list[dict[str, Any]] = []

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        self.called.append(copy.deepcopy(arguments))
        if "mutates" in self._behaviour:
            arguments.clear()
        if "raises" in self._behaviour:
            raise ToolFailed(self._behaviour["raises"]["message"])
        return self._behaviour.get("returns")


def agent_of(schema: Mapping[str, Any] | None, output: Any) -> dict[str, Any] | None:
    """The agent of a case: its schema, with the fields of the object that it answers as properties."""
    if schema is None:
        return None
    fields = {key: {} for key in output} if isinstance(output, Mapping) else {}
    if isinstance(output, Mapping) and not fields:
        fields = {"optional": {}}  # without any, there is no structured mode
    return {"name": "case", "description": "d", "properties": fields, **schema}


Scenario = Callable[[Harness], Awaitable[Any]]


async def played(url: str, model: Any, tools: Any, scenario: Scenario) -> Any:
    database = Database(url, max_connections=3)
    await database.open()
    try:
        services = ToolServices(knowledge=_Nothing(), memory=PostgresMemory(database))
        harness = Harness(database, model, [*tools, *_builtins(services, {one.definition.name for one in tools})])
        harness.registry.reserve(agent_tools(harness.agent_services))
        await harness.open()
        return await scenario(harness)
    finally:
        await database.close()


class _Nothing:
    async def search(self, tenant_id: str, query: str, limit: int) -> list[Any]:
        return []


def _builtins(services: ToolServices, without: set[str]) -> list[Any]:
    registry = load_registry(services=services)
    found = [registry.find(one.name) for one in registry.definitions() if one.name not in without]
    return [one for one in found if one is not None]


async def _keep(harness: Harness, agent: Mapping[str, Any] | None) -> int:
    if agent is None:
        return 0
    AgentDocument.of(agent)
    kept = await DocumentStore(harness.database, "agent").put("default", "case", json.dumps(agent), skills=[])
    return kept.version


def said(output: Any) -> str:
    return output if isinstance(output, str) else json.dumps(output)


async def execute(url: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """An agent answers with the object of the case, in a job of its own."""
    tools = [CaseTool(name, behaviour) for name, behaviour in given["registry"].items()]
    agent = agent_of(given["schema"], given["structured_output"])

    async def scenario(harness: Harness) -> Any:
        version = await _keep(harness, agent)
        job_id = await harness.submit("go", agent="case", agent_version=version, skill_versions=[])
        await harness.drain()
        return await look(harness, job_id)

    job, _, messages, events = await played(url, saying(said(given["structured_output"])), tools, scenario)
    called = [arguments for one in tools for arguments in one.called]
    answer = {
        "result": stored_chained_result(job["chained"]),
        "tool_calls": len(called),
        "llm_calls": job["model_calls"] - 1,
        "messages": [_message(one, messages) for one in messages],
        "warning": any(kind == "chained_tool_missing" for kind, _ in events),
        "status": job["status"],
    }
    return answer | ({"tool_kwargs": called[0]} if called else {})


def _message(message: Mapping[str, Any], messages: list[Mapping[str, Any]]) -> dict[str, Any]:
    others = [index for index, one in enumerate(messages) if one["call_id"] == message["call_id"]]
    twin = next(index for index in others if messages[index] is not message)
    told = {"type": message["kind"], "name": message["name"], "same_id": twin}
    if message["kind"] == "tool_call":
        return told | {"content": None, "arguments": message["content"]}
    return told | {"content_json": message["content"]}


async def agent_run(url: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The agent of the case is asked by another job (`ask_agent`), or is a job of its own (a turn of a chat)."""
    tools = [CaseTool(name, behaviour) for name, behaviour in given["registry"].items()]
    agent = agent_of(given["schema"], given["agent_output"])
    call = {"tool_name": "ask_agent", "arguments": {"agent_name": "case", "input_text": "go"}}

    async def scenario(harness: Harness) -> Any:
        version = await _keep(harness, agent)
        if given["path"] == "ask_agent":
            job_id = await harness.submit("", plan={"calls": [call]})
        else:
            job_id = await harness.submit("go", agent="case", agent_version=version, skill_versions=[])
        await harness.drain()
        return await look(harness, job_id)

    job, steps, messages, events = await played(url, saying(said(given["agent_output"])), tools, scenario)
    facts: dict[str, Any] = {"tool_calls": sum(len(one.called) for one in tools)}
    if given["path"] == "ask_agent":
        result = steps[0]["output"]
        facts |= {**result, "keys": [key for key in S3_KEYS if key in result]}
        facts["has_chained_tool_result"] = "chained_tool_result" in result
        return facts
    kinds = [str(kind) for kind in turn_rows([{"result": True}] if messages else [], is_chained=True)]
    assert [one["kind"] for one in messages] == kinds[2:]
    told = [data for kind, data in events if kind == "step_succeeded"]
    return facts | {
        "row_order": kinds,
        "chained_result_streamed": bool(told),
        "status": "success" if job["status"] == "completed" else "error",
        "output": job["output"],
        "chained_tool_result": stored_chained_result(job["chained"]),
    }


S3_KEYS = ("status", "output", "text_response", "agent_schema", "is_structured_output", "chained_tool_result")


async def registry(url: str, given: Mapping[str, Any]) -> dict[str, Any]:
    async def scenario(harness: Harness) -> Any:
        return [one.name for one in harness.registry.definitions()]

    return {"found": resolve_name(given["name"], await played(url, saying("unused"), [], scenario)) is not None}


async def tool_result(url: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The tool of the case is the only step of a plan."""
    plan = {"calls": [{"tool_name": given["tool"], "arguments": given["arguments"]}]}

    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("", plan=plan, user_id="somebody")
        await harness.drain()
        moments = await rows(harness, "SELECT id::text, name FROM moments")
        return (await look(harness, job_id))[1], {one["id"]: one["name"] for one in moments}

    (step, *_), kept = await played(url, saying("done"), [], scenario)
    result = step["output"] or {"error": step["error"]}
    saved = result.get("saved_moment_ids", ())
    return {**result, "saved_count": sum(map(_is_uuid, saved)), "names": [kept[one] for one in saved]}


def _is_uuid(text: str) -> bool:
    with suppress(ValueError):
        return bool(UUID(text))
    return False


def _calls_twice(case: Case, expected: Expected) -> bool:
    return bool(expected["tool_calls"] > 1)


def _keeps_no_rows(case: Case, expected: Expected) -> bool:
    return not case.input["session"] and expected["tool_calls"] > 0


def _hides_the_result(case: Case, expected: Expected) -> bool:
    return expected.get("chained_result_streamed") is False


RULES = (
    Rule("it is called once", 23, "execute", _calls_twice, lambda case, expected: {**expected, "tool_calls": 1}),
    Rule(
        "rows are kept with every job",
        23,
        "execute",
        _keeps_no_rows,
        lambda case, expected: {**expected, "messages": "*"},
    ),
    Rule(
        "its result is shown in the stream too",
        23,
        "agent_run",
        _hides_the_result,
        lambda case, expected: {**expected, "chained_result_streamed": True},
    ),
)

ADAPTERS = {"execute": execute, "agent_run": agent_run, "registry": registry, "tool_result": tool_result}


@pytest.mark.parametrize("case", params([case for case in load("agent_schema") if case.op == "http"]))
def test_http(case: Case, database_url: str, valkey_url: str) -> None:
    """A job without an agent is taken, one of an unknown agent is not; 202 is the status of what is taken."""
    api = Api(Settings(database_url=database_url, broker_url=valkey_url))
    api.start()
    try:
        agent = case.input["agent_header"]
        response = api.http.post("/jobs", json={"input": "hello", **({} if agent is None else {"agent": agent})})
    finally:
        api.stop()

    assert (200 if response.status_code == 202 else response.status_code) == case.winner.expected["status"]


def _with_any_reason(expected: Expected) -> Expected:
    """A case that expects an error without saying its text takes any."""
    is_bare = expected.get("result") == {"status": "error"}
    return {**expected, "result": {"status": "error", "error": "*"}} if is_bare else expected


@pytest.mark.parametrize("case", params(CASES))
def test_case(case: Case, database_url: str) -> None:
    expected = _with_any_reason(case.winner.expected)
    for rule in RULES:
        if rule.op == case.op and rule.applies(case, expected):
            expected = rule.rewrite(case, expected)

    actual = asyncio.run(ADAPTERS[case.op](database_url, case.input))

    assert mismatches(expected, actual) == []
