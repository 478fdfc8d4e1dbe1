"""The loop block: every defect with its place, what a request may change, and what the rules decide."""

from __future__ import annotations

from typing import Any

import pytest

from planq.shared.agentic.agents.document import parse_agent
from planq.shared.agentic.rounds.block import LoopBlock, merged, parse_block, read_block, rendered_prompt
from planq.shared.agentic.rounds.evaluate import (
    RuleCall,
    after_steps,
    errors_matched,
    loop_variables,
    prompt_text,
    until_holds,
)
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.states import Strategy
from planq.shared.kernel.steps import RoundRecord, StepResult
from planq.shared.platform.errors import InvalidArguments, InvalidRequest

BROKEN_AGENT = """\
name: looper
strategy: loop
loop:
  max_rounds: 0
  timeout_seconds: -1
  until: results[
  prompt: "Plan {{query}} and {{ x.__class__ }}"
  colour: red
  policy:
    "web_*": perhaps
  after:
    - tool: report
      when: round > 3
      with:
        text: "{{ x.__class__ }}"
  on_error:
    - when: step.name
"""


def defects(raw: Any) -> dict[tuple[str | int, ...], str]:
    block, found = read_block(raw)
    assert (block is None) == bool(found)
    return dict(found)


def test_every_defect_of_a_document_has_its_line() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_agent(BROKEN_AGENT)

    assert {(one["line"], one["path"]) for one in caught.value.details["errors"]} == {
        (4, "/loop/max_rounds"),
        (5, "/loop/timeout_seconds"),
        (6, "/loop/until"),
        (7, "/loop/prompt"),
        (8, "/loop/colour"),
        (10, "/loop/policy/web_*"),
        (13, "/loop/after/0/when"),
        (15, "/loop/after/0/with/text"),
        (17, "/loop/on_error/0"),
    }


def test_broken_yaml_has_its_line() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_agent("name: a\nloop:\n  until: [\n")

    (error,) = caught.value.details["errors"]
    assert error["line"] == 4
    assert "not valid YAML" in error["message"]


def test_a_block_without_rounds_needs_a_strategy_that_has_some() -> None:
    with pytest.raises(InvalidRequest, match="add strategy: loop"):
        parse_agent("name: a\nloop: {until: round > `3`}")

    assert parse_agent("name: a\nloop: {tools: {block: [x]}, policy: {'*': ask}}").strategy is None
    assert parse_agent("name: a\nstrategy: react\nloop: {until: query}").strategy == "react"


@pytest.mark.parametrize("raw", [None, [], "until: x", 3])
def test_what_is_no_object_is_no_block(raw: Any) -> None:
    assert "expected an object" in defects(raw)[()]


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "3", 2**31])
def test_limits_are_whole_numbers_above_zero(count: Any) -> None:
    raw = {"max_rounds": count, "guard": {"consecutive_limit": count, "window_size": count}}

    assert set(defects(raw)) == {("max_rounds",), ("guard", "consecutive_limit"), ("guard", "window_size")}


@pytest.mark.parametrize("seconds", [0, -0.5, float("inf"), True, "1"])
def test_times_are_numbers_above_zero(seconds: Any) -> None:
    assert defects({"timeout_seconds": seconds})


def test_a_block_is_bounded() -> None:
    deep: Any = {}
    for _ in range(500):
        deep = {"a": deep}

    assert "levels deep" in defects({"vars": deep})[()]
    assert "bytes of JSON" in defects({"vars": {"a": "x" * 70_000}})[()]
    assert ("after",) in defects({"after": [{"tool": "a"}] * 21})


def test_a_rule_that_does_nothing_is_refused() -> None:
    found = defects({"on_error": [{}, {"then": "abort"}, {"with": {"a": 1}, "then": "abort"}]})

    assert set(found) == {("on_error", 0), ("on_error", 2, "with")}


def test_a_stored_block_is_read_as_it_was() -> None:
    raw = {
        "max_rounds": 3,
        "prompt": "my-plan",
        "until": "round > `3`",
        "after": [{"tool": "a", "with": {"x": "{{ query }}"}}],
        "on_error": [{"when": "step.code == 'timeout'", "then": "abort"}],
        "vars": {"a": None},
    }

    stored = parse_block(raw).to_json()

    assert stored == {**raw, "prompt": {"name": "my-plan"}, "until": ["round > `3`"]}
    assert parse_block(stored).to_json() == stored


def test_a_prompt_is_filled_in_one_pass() -> None:
    assert (
        rendered_prompt("{{query}} {{round}} {query}", {"query": "{{round}}", "round": "2"}) == "{{round}} 2 {query}"
    )
    assert "inserts nothing" in defects({"prompt": {"text": "{{nothing}}"}})[("prompt", "text")]
    assert "no closing" in defects({"prompt": "Plan {{query"})[("prompt",)]
    assert "a text, or the name" in defects({"prompt": {}})[("prompt",)]


AGENT = {
    "max_rounds": 5,
    "timeout_seconds": 100.0,
    "prompt": "agents-own",
    "tools": {"allow": ["web.fetch", "web.search", "mail"], "block": ["shell"]},
    "policy": {"web_*": "ask", "*": "auto"},
    "guard": {"consecutive_limit": 3, "window_size": 8},
    "until": "round > `4`",
    "after": [{"tool": "a"}],
    "vars": {"a": 1, "b": 1},
}


def test_a_request_narrows_what_the_agent_allows() -> None:
    asked = {
        "max_rounds": 2,
        "prompt": "Plan {{query}}",
        "tools": {"allow": ["web_search", "mail", "http_fetch"], "block": ["mail"]},
        "policy": {"web_*": "auto", "mail": "deny"},
        "guard": {"consecutive_limit": 2, "window_size": 10},
        "until": ["query == 'x'"],
        "after": [{"tool": "b"}],
        "vars": {"b": 2},
    }

    block = merged(parse_block(AGENT), parse_block(asked))

    assert block is not None
    assert block.to_json() == {
        "max_rounds": 2,
        "timeout_seconds": 100.0,
        "prompt": {"text": "Plan {{query}}"},
        "tools": {"allow": ["web.search", "mail"], "block": ["shell", "mail"]},
        "policy": {"web_*": "ask", "*": "auto", "mail": "deny"},
        "guard": {"consecutive_limit": 2, "window_size": 10},
        "until": ["round > `4`", "query == 'x'"],
        "after": [{"tool": "a"}, {"tool": "b"}],
        "vars": {"a": 1, "b": 2},
    }
    assert block.tool_names(["http_fetch", "mail", "web_search"]) == ["web_search"]
    assert merged(None, block) is block
    assert merged(block, None) is block


def test_a_request_that_loosens_is_refused_with_every_number() -> None:
    asked = {"max_rounds": 6, "timeout_seconds": 101, "guard": {"consecutive_limit": 4, "window_size": 4}}

    with pytest.raises(InvalidRequest) as caught:
        merged(parse_block(AGENT), parse_block(asked))

    assert [one["path"] for one in caught.value.details["errors"]] == [
        "/max_rounds",
        "/timeout_seconds",
        "/guard/consecutive_limit",
        "/guard/window_size",
    ]


def test_the_servers_limits_bound_a_block() -> None:
    limits = Limits(max_rounds=3, loop_timeout_seconds=50)
    block = parse_block(AGENT)

    assert [path for path, _ in block.above(limits)] == [("max_rounds",), ("timeout_seconds",)]
    assert block.lowered(limits) == limits
    assert parse_block({"max_rounds": 2}).lowered(limits) == Limits(max_rounds=2, loop_timeout_seconds=50)
    react = parse_block({"timeout_seconds": 40}).lowered(limits, Strategy.REACT)
    assert react == Limits(max_rounds=3, loop_timeout_seconds=40, plan_timeout_seconds=40)


def test_tools_are_all_unless_the_block_says_so() -> None:
    assert LoopBlock().tool_names(["a", "b"]) == ["a", "b"]
    assert parse_block({"tools": {"block": ["a"]}}).tool_names(["a", "b"]) == ["b"]
    assert parse_block({"tools": {"allow": []}}).tool_names(["a", "b"]) == []


def record(number: int, first: int, *results: StepResult, source: str = "model") -> RoundRecord:
    calls = [{"tool_name": result.tool_name, "arguments": result.arguments} for result in results]
    body = {"type": "tool_calls", "reasoning": "why", "calls": calls}
    return RoundRecord(number, source, body, None, first, results)


GOOD = StepResult("web_fetch", {"url": "a"}, output={"text": "$0.output.x {{ query }}"})
BAD = StepResult("mail", {"to": "b"}, error="no such box", code="tool_error")
SKIPPED = StepResult("mail", {"to": "b"}, error="it needs step 1", code="skipped")

ROUNDS = [record(0, 0, GOOD, BAD), record(1, 2, BAD, SKIPPED), record(2, 4, GOOD, source="on_error")]
KNOWN = loop_variables(ROUNDS, query="q", own={"channel": "#alerts"})


def test_what_expressions_look_into() -> None:
    assert [one["index"] for one in KNOWN["results"]] == [0, 1, 2, 3, 4]
    assert KNOWN["results"][1] == {
        "index": 1,
        "name": "mail",
        "args": {"to": "b"},
        "result": None,
        "error": "no such box",
        "code": "tool_error",
        "round": 0,
    }
    assert KNOWN["plan"]["steps"] == [
        {"index": 2, "name": "mail", "args": {"to": "b"}},
        {"index": 3, "name": "mail", "args": {"to": "b"}},
    ]
    assert KNOWN["plan"]["reasoning"] == "why"
    assert (KNOWN["round"], KNOWN["query"], KNOWN["vars"]) == (2, "q", {"channel": "#alerts"})
    assert loop_variables([], query="q", own={})["plan"] == {"reasoning": None, "steps": []}


def test_any_condition_ends_the_loop() -> None:
    assert not until_holds(LoopBlock(), KNOWN)
    assert not until_holds(parse_block({"until": "round > `2`"}), KNOWN)
    assert until_holds(parse_block({"until": ["round > `2`", "results[?code == 'tool_error']"]}), KNOWN)
    with pytest.raises(InvalidArguments, match="loop/until/0: "):
        until_holds(parse_block({"until": "length(round)"}), KNOWN)


def test_all_rules_of_a_decision_share_their_steps() -> None:
    """Each expression alone may take half a second: 32 templates took a quarter of a minute."""
    rows = {"rows": [1] * 1_500}
    costly = f"{{{{ length([{','.join(['vars.rows[?@ > `0`]'] * 10)}]) }}}}"
    known = {**KNOWN, "vars": rows}
    one = parse_block({"after": [{"tool": "a", "with": {"texts": [costly]}}]})
    assert [call.arguments for call in after_steps(one, known)] == [{"texts": [10]}]
    many = parse_block({"after": [{"tool": "a", "with": {"texts": [costly] * 32}}]})

    with pytest.raises(InvalidArguments, match="loop/after/0/with: the expressions take more than 1000000 steps"):
        after_steps(many, known)


def test_the_first_rule_that_holds_counts_for_each_failed_step() -> None:
    block = parse_block(
        {
            "on_error": [
                {"when": "step.name == 'other'", "then": "abort"},
                {"tool": "notify", "with": {"to": "{{ vars.channel }}", "text": "tool {{ step.name }}: {{ error }}"}},
                {"then": "abort"},
            ]
        }
    )

    reaction = errors_matched(block, ROUNDS[1], KNOWN)

    assert reaction.calls == [RuleCall("notify", {"to": "#alerts", "text": "tool mail: no such box"})]
    assert reaction.abort_reason is None


def test_an_abort_says_which_step_failed() -> None:
    reaction = errors_matched(parse_block({"on_error": [{"tool": "n", "then": "abort"}]}), ROUNDS[0], KNOWN)

    assert reaction.calls == [RuleCall("n", {})]
    assert reaction.abort_reason == "$1 (mail) failed: no such box"


def test_calls_of_rules_have_no_rules() -> None:
    failed = record(2, 4, BAD, source="on_error")

    assert errors_matched(parse_block({"on_error": [{"then": "abort"}]}), failed, KNOWN).abort_reason is None


def test_what_follows_the_last_round_is_data() -> None:
    block = parse_block(
        {
            "after": [
                {"tool": "summarise", "when": "length(results) > `0`", "with": {"data": "{{ results[-1].result }}"}},
                {"tool": "never", "when": "length(results) > `100`"},
            ]
        }
    )

    assert after_steps(block, KNOWN) == [RuleCall("summarise", {"data": {"text": "$0.output.x {{ query }}"}})]
    with pytest.raises(InvalidArguments, match="loop/after/0/with"):
        after_steps(parse_block({"after": [{"tool": "a", "with": {"x": "{{ length(round) }}"}}]}), KNOWN)


def test_a_prompt_by_name_needs_its_skill() -> None:
    assert prompt_text(LoopBlock()) is None
    assert prompt_text(parse_block({"prompt": {"name": "a", "text": "Plan {{query}}"}})) == "Plan {{query}}"
    with pytest.raises(InvalidArguments, match="the skill 'my-plan' was not stored"):
        prompt_text(parse_block({"prompt": "my-plan"}))
