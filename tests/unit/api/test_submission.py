"""What comes with headers, and names of tools."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from planq.api.http.exchange import HttpRefusal
from planq.api.intake.plan_checks import known_names, valid_plan
from planq.api.intake.submission import check_key, trace_id
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.limits import Limits
from planq.shared.platform.errors import InvalidRequest, PlanInvalid
from planq.worker.agents.orchestrate import Orchestrate

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TOOLS = {name: ToolDefinition(name=name) for name in ("web_fetch", "web.fetch", "text_search")}


@pytest.mark.parametrize(
    "header", [f"00-{TRACE}-00f067aa0ba902b7-01", f" cc-{TRACE}-00f067aa0ba902b7-00-what-later "]
)
def test_the_trace_of_a_valid_header_is_taken(header: str) -> None:
    assert trace_id(header) == TRACE


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        TRACE,
        f"ff-{TRACE}-00f067aa0ba902b7-01",
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-00f067aa0ba902b7-01",
        f"00-{TRACE}-00f067aa0ba902b7",
    ],
)
def test_any_other_header_gives_a_fresh_trace(header: str | None) -> None:
    first, second = trace_id(header), trace_id(header)

    assert re.fullmatch("[0-9a-f]{32}", first)
    assert first not in (second, TRACE)


def test_a_key_is_kept_as_it_came() -> None:
    assert check_key(None) is None
    assert check_key("a" * 255) == "a" * 255
    assert check_key('"x-1"') == '"x-1"'


@pytest.mark.parametrize("key", ["", "a b", "\n", "é", "a" * 256])
def test_a_key_that_is_none_is_refused(key: str) -> None:
    with pytest.raises(HttpRefusal, match="Idempotency-Key"):
        check_key(key)


def test_tools_are_known_in_every_spelling_once_and_in_order() -> None:
    assert known_names(["text/search", "web.fetch", "text_search"], TOOLS) == ["text_search", "web.fetch"]


def test_tools_that_are_unknown_or_ambiguous_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"'a', 'b'; known tools are 'text_search', 'web\.fetch', 'web_fetch'"):
        known_names(["a", "text_search", "b"], TOOLS)
    with pytest.raises(InvalidRequest, match="ambiguous"):
        known_names(["web-fetch"], TOOLS)


_FOUND = {"topic": {"type": "string"}, "count": {"type": "integer"}}
FIND = ToolDefinition(name="find", output_schema={"type": "object", "properties": _FOUND})


def _for_agents(prompt: str) -> dict[str, Any]:
    agent = {"agent_id": "a", "prompt": prompt}
    return {
        "bindings": {"topic": "rust"},
        "steps": [{"id": "one", "type": "agent", "status": "pending", "agent": agent}],
    }


def _accepted(plan: Any) -> Any:
    tools = {tool.name: tool for tool in (Orchestrate.definition, FIND)}
    return asyncio.run(valid_plan(plan, None, tools, Limits(orchestrate_max_steps=2)))


def test_a_plan_for_agents_becomes_the_call_that_carries_it_out() -> None:
    plan = _for_agents("On {{ topic }}")

    accepted = _accepted({**plan, "on_failure": "continue"})

    (call,) = accepted.calls
    assert (call.tool_name, call.arguments["plan"]["steps"]) == ("cp__agent_orchestrate", plan["steps"])
    assert accepted.on_failure == "continue"


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        (_for_agents("On {{ nope }}"), "nothing is called 'nope'; there: 'topic'"),
        (_for_agents("On {{ topic | upper }}"), "has the filter 'upper', and there are none"),
        ({"steps": _for_agents("x")["steps"] * 3}, "at most 2 are allowed, found 3"),
    ],
)
def test_what_is_wrong_with_a_plan_for_agents_is_told_before_it_runs(plan: Any, told: str) -> None:
    with pytest.raises(PlanInvalid, match=re.escape(told)):
        _accepted(plan)


def _nested(**arguments: Any) -> dict[str, Any]:
    orchestrate = {"tool_name": "cp__agent_orchestrate", "arguments": arguments}
    return {"calls": [{"tool_name": "find"}, orchestrate]}


@pytest.mark.parametrize(
    ("arguments", "place", "told"),
    [
        ({"plan": _for_agents("On {{ nope }}")}, "/plan/steps/0/agent/prompt", "nothing is called 'nope'"),
        ({"plan": {"steps": _for_agents("x")["steps"] * 2}}, "/plan/steps/1/id", "duplicates steps[0].id"),
        ({"plan": {"steps": _for_agents("x")["steps"] * 3}}, "/plan/steps", "at most 2 are allowed, found 3"),
        ({"plan": _for_agents("x"), "max_parallel": 0}, "/max_parallel", "expected minimum 1, found 0"),
        ({"prompt": "x", "planner_model": "nonsense"}, "/planner_model", "unknown model"),
        ({"prompt": " "}, "", "a prompt that is not blank"),
        ({"prompt": "x", "disable_planner": True}, "", "the planner is switched off"),
        ({"plan": _for_agents("$0.output.topic"), "planner_model": "x"}, "/planner_model", "unknown model"),
    ],
)
def test_a_plan_for_agents_in_an_argument_is_checked_with_the_plan_around_it(
    arguments: dict[str, Any], place: str, told: str
) -> None:
    # Pins: the calls before it ran, also unsafe ones, and then its step failed.
    with pytest.raises(PlanInvalid, match=re.escape(told)) as refused:
        _accepted(_nested(**arguments))
    assert (1, place) in [(one["tool_index"], one["argument"]) for one in refused.value.errors]
    assert len({one["argument"] for one in refused.value.errors}) == len(refused.value.errors), "each defect once"


@pytest.mark.parametrize(
    "arguments",
    [
        {"plan": "$0.output"},
        {"plan": _for_agents("On {{ bindings.later }}"), "bindings": "$0.output"},
        {"plan": _for_agents("On {{ bindings.topic.name }}"), "bindings": {"topic": "$0.output.topic"}},
        {"prompt": "$0.output.topic"},
        {"prompt": "x", "max_parallel": "$0.output.count"},
    ],
)
def test_what_only_a_call_will_know_of_a_plan_for_agents_is_not_refused_before(arguments: dict[str, Any]) -> None:
    assert len(_accepted(_nested(**arguments)).calls) == 2


def test_an_output_cannot_be_written_into_a_plan_for_agents() -> None:
    # Pins: such a plan was called valid, ran two tools, and then its step failed.
    def after_find(prompt: str, topic: str) -> dict[str, Any]:
        given = {"plan": _for_agents(prompt), "bindings": {"topic": topic}}
        return {"calls": [{"tool_name": "find"}, {"tool_name": "cp__agent_orchestrate", "arguments": given}]}

    with pytest.raises(PlanInvalid, match="hand it over in bindings"):
        _accepted(after_find("{{ $0.output.topic }}", "rust"))
    assert len(_accepted(after_find("{{ bindings.topic }}", "$0.output.topic")).calls) == 2
