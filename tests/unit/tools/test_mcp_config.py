"""`mcp.json` and the definitions that listed tools become, without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.domain.errors import Misconfigured
from shared.domain.schemas import check_schema
from shared.domain.states import Effect
from shared.domain.tool import TEXT_OUTPUT_SCHEMA
from worker.tools import ToolError
from worker.tools.mcp.config import McpServer, read_mcp_file
from worker.tools.mcp.definitions import definition_of, effect_of, output_of, registry_name


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
        (None, {"text"}),
        ({"type": "object", "properties": {"a": {}}}, {"a"}),
        ({"properties": {"a": {}}}, {"a"}),
        ({"type": "array", "items": {"$ref": "#/$defs/N"}, "$defs": {"N": {"type": "integer"}}}, {"result"}),
        ({"anyOf": [{"type": "string"}, {"type": "object"}]}, {"result"}),
    ],
)
def test_output_schema_is_an_object_and_resolves(declared: Any, expected_properties: set[str]) -> None:
    server = McpServer(name="s", command="c")

    definition = definition_of(server, {"name": "t", "inputSchema": {"type": "object"}, "outputSchema": declared})

    assert definition.output_schema is not None
    assert set(definition.output_schema["properties"]) == expected_properties
    check_schema(definition.output_schema, "output")
    if declared is None:
        assert definition.output_schema == TEXT_OUTPUT_SCHEMA


def test_undeclared_structured_content_whose_text_is_no_text_is_kept_apart() -> None:
    result = {"content": [{"type": "text", "text": "said"}], "structuredContent": {"text": 3}}

    assert output_of("t", None, result) == {"text": "said", "result": {"text": 3}}


def test_error_of_a_result_carries_its_first_text() -> None:
    result = {"content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "isError": True}

    with pytest.raises(ToolError, match=r"one$"):
        output_of("t", None, result)
