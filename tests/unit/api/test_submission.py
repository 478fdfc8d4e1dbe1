"""What comes with headers, and names of tools."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from planq.api.http.exchange import HttpRefusal
from planq.api.plan_checks import known_names, valid_plan
from planq.api.submission import check_key, trace_id
from planq.shared.domain.errors import InvalidRequest, PlanInvalid
from planq.shared.domain.jobs.limits import Limits
from planq.shared.domain.tools.definition import ToolDefinition
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


FIND = ToolDefinition(name="find", output_schema={"type": "object", "properties": {"topic": {"type": "string"}}})


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


def test_an_output_cannot_be_written_into_a_plan_for_agents() -> None:
    # Pins: such a plan was called valid, ran two tools, and then its step failed.
    def after_find(prompt: str, topic: str) -> dict[str, Any]:
        given = {"plan": _for_agents(prompt), "bindings": {"topic": topic}}
        return {"calls": [{"tool_name": "find"}, {"tool_name": "cp__agent_orchestrate", "arguments": given}]}

    with pytest.raises(PlanInvalid, match="hand it over in bindings"):
        _accepted(after_find("{{ $0.output.topic }}", "rust"))
    assert len(_accepted(after_find("{{ bindings.topic }}", "$0.output.topic")).calls) == 2
