"""`mcp.json` and the definitions that listed tools become, without a server."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planq.shared.agentic.plan.document import parse_plan
from planq.shared.agentic.plan.validation import validate_plan
from planq.shared.agentic.results.artifacts import MAX_CONTENT
from planq.shared.agentic.schema.schemas import check_schema, violations
from planq.shared.kernel.states import Effect
from planq.shared.platform.errors import Misconfigured
from planq.worker.tools import ToolError
from planq.worker.tools.mcp.config import McpServer, read_mcp_file
from planq.worker.tools.mcp.definitions import (
    UNDECLARED_OUTPUT_SCHEMA,
    McpAnswer,
    McpFile,
    answer_of,
    definition_of,
    effect_of,
    registry_name,
    registry_names,
)


def write(folder: Path, content: Any) -> Path:
    """Write an `mcp.json`."""
    path = folder / "mcp.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_both_kinds_of_server_are_read_and_foreign_keys_passed_over(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {
            "inputs": [],
            "mcpServers": {
                "files": {"command": "files", "args": ["${HOME}"], "env": {"A": "${PQ_A}-${PQ_B:-b}", "C": "$X"}},
                "search": {
                    "type": "streamable-http",
                    "url": "https://search.example/mcp",
                    "headers": {"Authorization": "Bearer ${PQ_A}"},
                    "autoApprove": ["x"],
                    "planq": {"required": True, "timeout_seconds": 5},
                },
                "off": {"command": "off", "disabled": True, "env": {"A": "${PQ_NOT_SET}"}},
            },
        },
    )

    files, search = read_mcp_file(path, {"PQ_A": "a"})

    assert (files.transport, files.args, files.env) == ("stdio", ["${HOME}"], {"A": "a-b", "C": "$X"})
    assert (search.transport, search.headers) == ("http", {"Authorization": "Bearer a"})
    assert (search.planq.required, search.planq.timeout_seconds) == (True, 5)
    assert search.source == "mcp:search"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot be read as MCP configuration"),
        ([], "expected .*mcpServers"),
        ({"servers": {}}, "expected .*mcpServers"),
        ({"mcpServers": {"a": 1}}, "mcpServers.a: expected an object"),
        ({"mcpServers": {"a": {}}}, "either `command`.*or `url`"),
        ({"mcpServers": {"a": {"command": "c", "url": "http://x"}}}, "not both"),
        ({"mcpServers": {"a": {"url": "ftp://x"}}}, "mcpServers.a: url"),
        ({"mcpServers": {"a": {"type": "sse", "url": "http://x"}}}, "SSE transport is not supported"),
        ({"mcpServers": {"a": {"type": "http", "command": "c"}}}, "expected stdio"),
        ({"mcpServers": {"a": {"command": "c", "args": "x"}}}, "mcpServers.a: args"),
        ({"mcpServers": {"a": {"command": "c", "env": {"K": "${PQ_NOT_SET}"}}}}, "a.env: .*PQ_NOT_SET is not set"),
        ({"mcpServers": {"a": {"command": "c", "planq": {"requird": True}}}}, "planq.requird"),
        ({"mcpServers": {"a": {"command": "c", "planq": {"timeout_seconds": 301}}}}, "planq.timeout_seconds"),
        ({"mcpServers": {"a-b": {"command": "c"}, "a_b": {"command": "c"}}}, "'a-b' and 'a_b' differ only in"),
    ],
)
def test_faults_name_file_and_key(tmp_path: Path, content: Any, words: str) -> None:
    path = write(tmp_path, content)

    with pytest.raises(Misconfigured, match=words) as caught:
        read_mcp_file(path, {})

    assert str(path) in caught.value.message


@pytest.mark.parametrize(
    ("server", "tool", "expected"),
    [
        ("web", "fetch", "web_fetch"),
        ("web", "fetch-page.now", "web_fetch_page_now"),
        ("my server", "a b/ü", "my_server_a_b__"),
        ("9lives", "x", "mcp_9lives_x"),
        ("s", "t" * 200, "s_" + "t" * 126),
    ],
)
def test_registry_name_is_service_and_method(server: str, tool: str, expected: str) -> None:
    assert registry_name(server, tool) == expected


def test_no_two_tools_of_any_servers_share_a_name() -> None:
    servers = ("a", "a_b", "web", "mcp", "9")
    listed = {
        "a": ["b_c", "c", "b.c", "b"],
        "a_b": ["c", "_c", ".c", "c" * 200, "c" * 201],
        "web": ["find.all", "find_all", "find/all", "é", "ü"],
        "mcp": ["9_x", "x"],
        "9": ["x"],
    }

    named = {name: registry_names(name, tools, servers) for name, tools in listed.items()}

    every = [name for names in named.values() for name in names.values()]
    assert len(every) == len({*every}) == sum(map(len, listed.values()))
    assert all(len(name) <= 128 for name in every)
    assert (named["a_b"]["c"], named["web"]["find_all"], named["9"]["x"]) == ("a_b_c", "web_find_all", "mcp_9_x")
    assert named["a"]["b_c"].startswith("a_")
    # What another server lists changes no name.
    assert registry_names("a", ["b_c"], servers) == {"b_c": named["a"]["b_c"]}
    assert registry_names("a", ["b_c"], ["a"]) == {"b_c": "a_b_c"}


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        (None, Effect.UNSAFE),
        ({}, Effect.UNSAFE),
        ({"readOnlyHint": True}, Effect.READ),
        ({"readOnlyHint": True, "idempotentHint": True}, Effect.READ),
        ({"readOnlyHint": False, "idempotentHint": True, "destructiveHint": True}, Effect.IDEMPOTENT),
        ({"destructiveHint": False}, Effect.UNSAFE),
        ({"readOnlyHint": "yes"}, Effect.UNSAFE),
    ],
)
def test_annotations_say_the_effect(annotations: dict[str, Any] | None, expected: Effect) -> None:
    assert effect_of(annotations) is expected


@pytest.mark.parametrize(
    ("declared", "expected_properties"),
    [
        (None, {"text", "content"}),
        ({"type": "object", "properties": {"a": {}}}, {"a"}),
        ({"properties": {"a": {}}}, {"a"}),
        ({"type": "array", "items": {"$ref": "#/$defs/N"}, "$defs": {"N": {"type": "integer"}}}, {"result"}),
        ({"anyOf": [{"type": "string"}, {"type": "object"}]}, {"result"}),
    ],
)
def test_output_schema_is_an_object_and_resolves(declared: Any, expected_properties: set[str]) -> None:
    server = McpServer(name="s", command="c")

    definition = definition_of(
        server, {"name": "t", "inputSchema": {"type": "object"}, "outputSchema": declared}, "s_t"
    )

    assert definition.output_schema is not None
    assert set(definition.output_schema["properties"]) == expected_properties
    check_schema(definition.output_schema, "output")
    if declared is None:
        assert definition.output_schema["additionalProperties"] is True


SAID = {"type": "text", "text": "said"}
IMAGE = {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}
LINK = {"type": "resource_link", "name": "log", "uri": "file:///log", "mimeType": "text/plain"}
PAGE = {"type": "resource", "resource": {"uri": "x://page", "mimeType": "text/html", "text": "<p>"}}
FOR_USERS = {"type": "text", "text": "for people", "annotations": {"audience": ["user"]}}
LONG = {"type": "text", "text": "x" * (MAX_CONTENT + 1)}
STATED_IMAGE = '{"type": "image", "mimeType": "image/png", "bytes": 5, "artifact_id": "id/0"}'
PIXELS = McpFile("id/0", b"hello", "image/png")
IMAGE_FOR_USERS = {**IMAGE, "annotations": {"audience": ["user"]}}
BLOB = {"type": "resource", "resource": {"uri": "x://zip", "mimeType": "application/zip", "blob": "AAEC"}}


@pytest.mark.parametrize(
    ("declared", "structured", "content", "output", "said", "kept", "files"),
    [
        (None, {"k": 1}, [SAID], {"k": 1}, "said", (), []),
        (None, {"text": 3}, [SAID, SAID], {"text": 3}, "said\nsaid", (), []),
        (None, {"k": 1}, [{"type": "text", "text": '{"k": 1}'}], {"k": 1}, None, (), []),
        (None, {"k": 1}, [{"type": "text", "text": '{"k": 1}'}, IMAGE], {"k": 1}, STATED_IMAGE, (), [PIXELS]),
        (
            None,
            [1, 2],
            [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}],
            {"result": [1, 2]},
            None,
            (),
            [],
        ),
        ({"type": "object"}, {"result": "said"}, [SAID], {"result": "said"}, None, (), []),
        ({"type": "object"}, {"k": 1}, [SAID, LINK], {"k": 1}, f"said\n{json.dumps(LINK)}", [SAID, LINK], []),
        ({"type": "array"}, [1], [SAID], {"result": [1]}, "said", (), []),
        (None, {"a": [1]}, [], {"a": [1]}, None, (), []),
        (None, {"k": 1}, [FOR_USERS], {"k": 1}, None, [FOR_USERS], []),
        (None, {"k": 1}, [SAID, FOR_USERS], {"k": 1}, "said", [SAID, FOR_USERS], []),
        (None, {"k": 1}, [SAID, IMAGE_FOR_USERS], {"k": 1}, "said", (), [replace(PIXELS, artifact_id="id/1")]),
        (None, {"k": 1}, [LONG], {"k": 1}, LONG["text"], [LONG], []),
    ],
)
def test_structured_content_is_the_output_unaltered_and_what_else_was_said_is_for_models(
    declared: Any, structured: Any, content: list[Any], output: Any, said: str | None, kept: Any, files: Any
) -> None:
    result = {"content": content, "structuredContent": structured}

    assert answer_of("t", declared, result, "id") == McpAnswer(output, said, kept, files)


def test_what_is_no_text_is_stated_in_the_output_and_its_bytes_are_kept() -> None:
    answer = answer_of("t", None, {"content": [SAID, IMAGE, LINK, PAGE, BLOB]}, "job/0/content")

    assert answer.content is None
    assert answer.output == {
        "text": "said",
        "content": [
            {"type": "image", "mimeType": "image/png", "bytes": 5, "artifact_id": "job/0/content/0"},
            LINK,
            PAGE,
            {
                "type": "resource",
                "uri": "x://zip",
                "mimeType": "application/zip",
                "bytes": 3,
                "artifact_id": "job/0/content/3",
            },
        ],
    }
    assert answer.kept == []
    assert answer.files == [
        McpFile("job/0/content/0", b"hello", "image/png"),
        McpFile("job/0/content/3", b"\x00\x01\x02", "application/zip"),
    ]
    assert violations(UNDECLARED_OUTPUT_SCHEMA, answer.output) == []


@pytest.mark.parametrize("data", ["no base64", "aGVsbG8", "é"])
def test_bytes_that_cannot_be_read_are_said_to_be_so_and_kept_as_they_came(data: str) -> None:
    broken = {**IMAGE, "data": data}

    for structured in (None, {"k": 1}):
        answer = answer_of("t", None, {"content": [broken], "structuredContent": structured}, "id")

        assert (answer.kept, answer.files) == ([broken], [])
        assert "not in base64" in json.dumps([answer.output, answer.content])


def test_fields_of_structured_content_that_nobody_declared_can_be_referenced() -> None:
    server = McpServer(name="s", command="c")
    definition = definition_of(server, {"name": "t", "inputSchema": {"type": "object"}, "outputSchema": None}, "s_t")
    plan = parse_plan(
        {
            "calls": [
                {"tool_name": "s_t"},
                {"tool_name": "s_t", "arguments": {"k": "$0.output.k", "t": "$0.output.text"}},
            ]
        }
    )

    assert validate_plan(plan, {"s_t": definition}, max_steps=2) == []


def test_a_server_entry_names_tools_that_may_be_called_again_and_again() -> None:
    server = McpServer.model_validate({"name": "s", "command": "c", "planq": {"repeatable": ["poll.it"]}})
    poll, other = (
        definition_of(server, {"name": name, "inputSchema": {"type": "object"}}, f"s_{name}")
        for name in ("poll.it", "x")
    )

    assert (poll.repeatable, other.repeatable) == (True, False)


def test_a_server_entry_says_what_calls_of_its_tools_cost() -> None:
    prices = {"search": 0.005, "*": 0.001}
    server = McpServer.model_validate({"name": "s", "command": "c", "planq": {"prices_usd": prices}})
    search, other = (
        definition_of(server, {"name": name, "inputSchema": {"type": "object"}}, f"s_{name}")
        for name in ("search", "x")
    )

    assert (search.price_usd, other.price_usd) == (0.005, 0.001)


def test_error_of_a_result_carries_its_first_text() -> None:
    result = {"content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "isError": True}

    with pytest.raises(ToolError, match=r"one$"):
        answer_of("t", None, result, "id")
