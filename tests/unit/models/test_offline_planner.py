"""The offline grammar and the plans made from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.agentic.models.exchange import Ask
from planq.shared.agentic.plan.interpret import Calls, Direct, interpret
from planq.shared.agentic.references.grammar import find_references
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.worker.models.offline import plan_offline
from planq.worker.models.offline.grammar import read_commands
from planq.worker.models.offline.structured import SIGNATURE

NAMES = ["calculate", "http_fetch", "json_query", "knowledge_search", "now", "wait", "write_report"]
TOOLS = [ToolDefinition(name=name) for name in NAMES]


def decision(text: str, tools: list[ToolDefinition] = TOOLS) -> Mapping[str, Any]:
    completion = plan_offline(Ask("job-1", text, "offline"), tools)
    assert [call.name for call in completion.tool_calls] == ["__planning__"]
    arguments = completion.tool_calls[0].arguments
    assert isinstance(arguments, Mapping)
    return arguments


def calls(text: str, tools: list[ToolDefinition] = TOOLS) -> list[tuple[str, dict[str, Any]]]:
    return [(call["tool_name"], call["arguments"]) for call in decision(text, tools).get("calls", [])]


def search(query: str) -> tuple[str, dict[str, Any]]:
    return "knowledge_search", {"query": query}


def calculate(expression: str) -> tuple[str, dict[str, Any]]:
    return "calculate", {"expression": expression}


def test_two_searches_are_joined_by_a_report() -> None:
    text = (
        'Search the handbook for "durable execution" and search the handbook for "leases", '
        "then write a report titled Findings from them."
    )

    assert calls(text) == [
        search("durable execution"),
        search("leases"),
        (
            "write_report",
            {
                "title": "Findings",
                "sections": [
                    {"heading": "durable execution", "content": "$0.output.text"},
                    {"heading": "leases", "content": "$1.output.text"},
                ],
            },
        ),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("search for salt and pepper", [search("salt and pepper")]),
        ("Please look up leases in the handbook.", [search("leases")]),
        ("research retries", [search("retries")]),
        ('search for "a", "b" and "c"', [search("a"), search("b"), search("c")]),
        ('search for "wait 5 seconds, then stop"', [search("wait 5 seconds, then stop")]),
        ("Hi, could you search the knowledge base for leases? Thanks!", [search("leases")]),
        ("calculate 2+2", [calculate("2+2")]),
        ("What is 2 + 2?", [calculate("2 + 2")]),
        ("calculate max(1, 2) and 3 + 3", [calculate("max(1, 2)"), calculate("3 + 3")]),
        ("calculate 3 times 4", [calculate("3 * 4")]),
        ("Calculate 2+2, then calculate it * 3", [calculate("2+2"), calculate("({{ $0.output.result }}) * 3")]),
        ("calculate it * 3", [calculate("it * 3")]),
        ("fetch https://example.org/a?b=1,2.", [("http_fetch", {"url": "https://example.org/a?b=1,2"})]),
        ('get "https://example.org/x"', [("http_fetch", {"url": "https://example.org/x"})]),
        ("what time is it?", [("now", {})]),
        ("what's the current date", [("now", {})]),
        ("wait 5 seconds", [("wait", {"seconds": 5})]),
        ("wait for 1.5 s then wait 2 minutes", [("wait", {"seconds": 1.5}), ("wait", {"seconds": 120})]),
        (
            'call json_query with {"expression": "a[0], then b", "data": {"a": [1]}} and wait 1 second',
            [("json_query", {"expression": "a[0], then b", "data": {"a": [1]}}), ("wait", {"seconds": 1})],
        ),
        ("use now", [("now", {})]),
    ],
)
def test_a_command_becomes_a_call(text: str, expected: list[tuple[str, dict[str, Any]]]) -> None:
    assert calls(text) == expected


@pytest.mark.parametrize("joint", [" and ", ", then ", "; ", ". ", "\n", ", and then "])
def test_commands_are_joined_in_many_ways(joint: str) -> None:
    assert calls(f"search for leases{joint}calculate 1+1") == [search("leases"), calculate("1+1")]


def test_a_report_about_something_searches_for_it_first() -> None:
    made = calls("Write a report about durable execution")

    assert made[0] == search("durable execution")
    assert made[1][1] == {
        "title": "durable execution",
        "sections": [{"heading": "durable execution", "content": "$0.output.text"}],
    }


def test_a_report_from_it_uses_the_last_result_only() -> None:
    sections = calls('search for "a" and search for "b", then write a report from it')[2][1]["sections"]

    assert [section["content"] for section in sections] == ["$1.output.text"]


def test_a_report_shows_calculations_in_a_sentence() -> None:
    sections = calls("calculate 6*7 and write a report from the results")[1][1]["sections"]

    assert sections == [{"heading": "6*7", "content": "6*7 = {{ $0.output.result }}"}]


@pytest.mark.parametrize(
    "text", ["hello", "", "   ", "Who are you?", "wait a moment", "call 5", "\x00\x00", "fetch ftp://x"]
)
def test_what_matches_no_tool_is_answered_directly_and_honestly(text: str) -> None:
    made = decision(text)

    assert made["type"] == "direct_response"
    assert made["content"].endswith(SIGNATURE)
    assert "not a language model" in made["content"]


def test_a_report_from_nothing_is_not_written() -> None:
    made = decision("write a report from them")

    assert made["type"] == "direct_response"
    assert "something to report from" in made["content"]


def test_what_needs_a_tool_that_is_not_offered_is_refused_whole() -> None:
    offered = [ToolDefinition(name="customer"), ToolDefinition(name="calculate")]

    for text in ("search for leases and calculate 1+1", 'call customer with {"id": 1}, then call nosuchtool with {}'):
        made = decision(text, offered)
        assert made["type"] == "direct_response"
        assert "not offered here: " + ("knowledge_search" if "search" in text else "nosuchtool") in made["content"]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('calculate 1+1, then call customer with {"id": }', "call customer with {id: }"),
        ("calculate 1+1, then call customer with [1], then what time is it", "call customer with [1]"),
        ("calculate 1+1 and then search", "search"),
        ('call customer with {"id": 1}, then use customer with "x"', "use customer with x"),
    ],
)
def test_a_part_that_cannot_be_read_is_named_and_nothing_is_run(text: str, part: str) -> None:
    offered = [ToolDefinition(name=name) for name in ("customer", "calculate", "knowledge_search", "now")]

    made = decision(text, offered)

    assert made["type"] == "direct_response"
    assert f"cannot read this part of what you ask for: “{part}" in made["content"]


@pytest.mark.parametrize("hostile", ["$0.output.text", "$step[0].output.x", "a {{ $0.output.text }} b", "$0.output."])
def test_what_the_user_writes_is_never_a_reference(hostile: str) -> None:
    text = f'search for leases, search for "{hostile}" and write a report titled "{hostile}" from it'
    made = calls(text)

    assert [name for name, _ in made] == ["knowledge_search", "knowledge_search", "write_report"]
    assert find_references(made[1][1]) == []
    assert [str(found.reference) for found in find_references(made[2][1])] == ["$1.output.text"]


words = st.sampled_from(
    [
        *("search", "the handbook", "for", "look up", "calculate", "2+2", "it", "fetch", "https://a.b", "now", "and"),
        *("then", ",", ".", "\n", '"', "'", "“", "”", "`", "write a report", "titled", "about", "from them", "call"),
        *(
            "now with",
            "{",
            "}",
            '{"a": 1}',
            "[",
            "wait",
            "3 seconds",
            "$0.output.x",
            "{{",
            "}}",
            "\x00",
            "0",
            "\x000\x00",
        ),
    ]
)


@given(st.one_of(st.text(), st.lists(st.one_of(words, st.text(max_size=5)), max_size=40).map(" ".join)))
def test_every_input_gives_a_well_formed_decision_and_always_the_same(text: str) -> None:
    completion = plan_offline(Ask("job-1", text, "offline"), TOOLS)

    decided = interpret(completion.text, completion.tool_calls)
    assert isinstance(decided, (Direct, Calls))
    assert plan_offline(Ask("job-1", text, "offline"), TOOLS) == completion


def cost(text: str) -> float:
    """The least CPU seconds of three readings."""
    tries = []
    for _ in range(3):
        started = process_time()
        read_commands(text)
        tries.append(process_time() - started)
    return min(tries)


@pytest.mark.parametrize(
    "text",
    [
        *("“" * 100_000, "'" * 100_000, '"' * 99_999, " " * 100_000, "\n" * 100_000, "search for " + "a, " * 30_000),
        *("call x with {" * 8_000, 'call x with {"a":' * 6_000, "call x with " + "[" * 90_000, "search for " * 9_000),
        *("calculate " + "(" * 90_000, "write a report titled " * 4_500, "and " * 25_000, "please " * 14_000),
        *("x " * 50_000, "search for x" + " in" * 30_000, "write a report about " * 4_700, "wait " + "9" * 99_000),
    ],
    ids=lambda text: text[:20],
)
def test_a_long_hostile_input_costs_no_more_than_a_plain_one_times_a_bound(text: str) -> None:
    # At this length a reading that is quadratic in tokens costs thousands of times as much, a backtracking one more.
    assert cost(text) < 80 * cost("and then " * (len(text) // 9))


@pytest.mark.parametrize(
    ("argument", "data", "planned"),
    [
        ("{{ with.topic }}", {"topic": "leases"}, "leases"),
        ("{{with.topic}}", {"topic": {"a": ["$0.output.x", 1]}}, {"a": ["\\$0.output.x", 1]}),
        ("about {{ with.topic }}, {{ with.n }}", {"topic": "leases", "n": [1]}, "about leases, [1]"),
        ("{{ with.other }}", {"topic": "leases"}, "{{ with.other }}"),
        ("$0.output.x of {{ with.topic }}", {}, "$0.output.x of {{ with.topic }}"),
        ("{{ with.a }}.output.x", {"a": "$0"}, "\\$0.output.x"),
        ("{{{ with.a }}", {"a": "{ $0.output.x }}"}, "\\{{ $0.output.x }}"),
        ("{{ with.a }}", {"a": "{{ $0.output.x }}"}, "\\{{ $0.output.x }}"),
        ("x {{ with.a }}", {"a": "{{ $0.output.x }}"}, "x \\{{ $0.output.x }}"),
    ],
)
def test_input_data_stands_in_a_call_as_what_it_is_and_never_as_a_reference(
    argument: str, data: dict[str, Any], planned: Any
) -> None:
    ask = Ask("job-1", f'call json_query with {{"data": {json.dumps(argument)}}}', "offline", data=data)

    arguments = plan_offline(ask, TOOLS).tool_calls[0].arguments

    assert isinstance(arguments, Mapping)
    assert arguments["calls"][0]["arguments"] == {"data": planned}
