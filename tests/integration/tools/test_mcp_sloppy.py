"""What sloppy and hostile MCP servers do: a fault costs the tool or the call that it concerns, and nothing else."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.platform.errors import ExecutionFailed, InvalidOutput, Misconfigured, Transient
from planq.worker.tools.mcp import McpToolbox
from planq.worker.tools.registry import load_registry
from planq.worker.tools.services import ToolServices
from tests.integration.tools.mcp_probe import SERVERS, Entry, connected, tool

MOST = 256 * 1024


def sloppy(*faults: str, **planq: Any) -> Entry:
    """An entry that starts the server with these faults."""
    env = {"SLOPPY": ",".join(faults)}
    return {"command": sys.executable, "args": [str(SERVERS / "sloppy.py")], "env": env, "planq": planq}


Play = Callable[[Entry, Callable[[McpToolbox], Awaitable[None]]], None]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Run a scenario against a server of this entry."""

    def whole(entry: Entry, scenario: Callable[[McpToolbox], Awaitable[None]]) -> None:
        async def run() -> None:
            async with asyncio.timeout(120), connected(tmp_path, s=entry) as toolbox:
                await scenario(toolbox)

        asyncio.run(run())

    return whole


LEFT_OUT = {
    "no_schema": "(tool 'bare'): it is no valid tool at inputSchema: Field required",
    "text_schema": "(tool 'texts'): it is no valid tool at inputSchema",
    "list_schema": "(tool 'lists'): it is no valid tool at outputSchema",
    "misplaced": "(tool 'misplaced'): it is no valid tool at inputSchema.properties.required",
    "no_name": "(tool None): it is no valid tool at name",
    "number": "(tool 7): it is no valid tool at name",
    "no_tool": "(tool None): it is no valid tool",
    "twice": "(tool 'good'): the server lists another tool of the same name",
    "long_name": "expected a name of 1 to 256 printable characters",
    "control": "expected a name of 1 to 256 printable characters",
    "wordy": "(tool 'wordy'): its definition has 50",
    "deep": "(tool 'deep'): a schema is nested more than",
    "remote": "(tool 'remote'): input schema of 's_remote': $ref",
    "zero": "(tool 'zero'): its definition holds a null character",
    "half": "(tool 'half'): its definition holds half a character",
    "no_number": "(tool 'no_number'): its definition holds half a character, or a number that is none",
}


def test_a_tool_that_cannot_be_offered_is_named_and_costs_no_other(play: Play) -> None:
    async def scenario(toolbox: McpToolbox) -> None:
        offered = {one.definition.name for one in toolbox.tools()}
        assert offered == {
            *("s_good", "s_half_an_emoji", "s_broken", "s_nested", "s_crowded"),
            *("s_large", "s_flood", "s_strange", "s_leaves", "s__x"),
            *("s_fetch", "s_b_c", "s_c"),
        }
        left_out = toolbox.left_out()
        assert len(left_out) == len(LEFT_OUT)
        for words in LEFT_OUT.values():
            assert any(words in sentence and sentence.startswith("mcp:s (tool ") for sentence in left_out), words
        assert all(len(sentence) < 600 for sentence in left_out)

    play(sloppy("reserved", *LEFT_OUT, required=True), scenario)


def test_answers_that_cannot_be_read_fail_their_calls_at_once_and_the_connection_stays(
    play: Play, context: ToolContext
) -> None:
    faults = {
        "half_an_emoji": "cannot be read: Invalid JSON",
        "broken": "cannot be read: Invalid JSON",
        "nested": "cannot be read: Invalid JSON",
        "large": f"is larger than the allowed {MOST} bytes",
        "crowded": "is no valid MCP result",
    }

    async def scenario(toolbox: McpToolbox) -> None:
        for name, words in faults.items():
            with pytest.raises(InvalidOutput, match=words):
                await tool(toolbox, f"s_{name}").call({}, context)
        assert await tool(toolbox, "s_strange").call({}, context) == {"text": "first"}
        assert await tool(toolbox, "s_flood").call({}, context) == {"text": "done"}
        assert await tool(toolbox, "s_good").call({}, context) == {"text": "yes"}
        with pytest.raises(Transient, match="connection ended"):
            await tool(toolbox, "s_leaves").call({}, context)

    play(sloppy(max_answer_bytes=MOST, timeout_seconds=60), scenario)


def test_noise_on_standard_output_is_one_line_of_the_log(
    play: Play, context: ToolContext, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(toolbox: McpToolbox) -> None:
        assert await tool(toolbox, "s_good").call({}, context) == {"text": "yes"}

    play(sloppy("noisy"), scenario)
    (record,) = [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert (record.message, vars(record)["line"]) == ("mcp_server_noise", "'ready!'")


def test_a_list_without_an_end_is_cut_and_one_that_is_too_large_is_refused(play: Play) -> None:
    async def cut(toolbox: McpToolbox) -> None:
        assert len(toolbox.tools()) == 12
        assert any("its list of tools does not end" in one for one in toolbox.left_out())

    play(sloppy("endless"), cut)
    with pytest.raises(Misconfigured, match=f"is larger than the allowed {MOST} bytes"):
        play(sloppy("huge_list", max_answer_bytes=MOST, required=True), cut)


def test_a_server_cannot_take_the_name_of_another_tool(
    tmp_path: Path, services: ToolServices, context: ToolContext
) -> None:
    registry = load_registry(services=services)
    own = registry.find("http_fetch")

    async def scenario() -> None:
        entries = {"http": sloppy(), "a": sloppy(), "a_b": sloppy()}
        async with connected(tmp_path, registry.replace, **entries) as toolbox:
            assert registry.find("http_fetch") is own
            (sentence,) = toolbox.left_out()
            assert sentence.startswith("mcp:http (tool 'fetch'): 'http_fetch' is the name of ")
            names = {one.name for one in registry.definitions()}
            assert {"http_good", "a_good", "a_b_good", "a_b_c"} <= names
            theirs = tool(toolbox, "a_b_c")
            assert theirs.definition.source == "mcp:a_b"
            (other,) = {name for name in names if re.fullmatch("a_[0-9a-f]{8}_b_c", name)}
            assert await tool(toolbox, other).call({}, context) == {"text": "yes"}

    asyncio.run(scenario())


class _Flooder(BaseHTTPRequestHandler):
    """An MCP server over HTTP whose answers to calls are larger than anything, in the form that the path names."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if request.get("method") == "tools/call":
            self._flood(request["id"])
            return
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "f", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "flood", "inputSchema": {"type": "object"}}]},
        }
        found = results.get(request.get("method"))
        body = {"result": found} if found else {"error": {"code": -32601, "message": "Method not found"}}
        text = json.dumps({"jsonrpc": "2.0", "id": request.get("id"), **body}).encode()
        self.send_response(200 if "id" in request else 202)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _flood(self, request: Any) -> None:
        kind = self.path.strip("/")
        self.send_response(200)
        self.send_header("Content-Type", "application/json" if kind in ("json", "zipped") else "text/event-stream")
        if kind == "zipped":
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        event = b'data: {"jsonrpc": "2.0", "method": "notifications/x", "params": {"a": "%s"}}\n\n' % (b"x" * 4_000)
        chunk = event if kind == "events" else b"x" * 4_000
        try:
            if kind != "events":
                self.wfile.write(b'data: {"jsonrpc": "2.0", "id": %d, "result": "' % request)
            while True:
                self.wfile.write(chunk)
        except OSError:
            return

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def flooder() -> Iterator[int]:
    """The server, running on this port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Flooder)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("json", "expected a body of at most 262144 bytes"),
        ("event", "exceeded the 262144 byte limit"),
        ("events", "is larger than the allowed"),
        ("zipped", "is no valid gzip"),
    ],
)
def test_an_answer_without_an_end_over_http_fails_its_call(
    play: Play, context: ToolContext, kind: str, words: str
) -> None:
    async def scenario(toolbox: McpToolbox) -> None:
        for _ in range(2):  # the connection is there for the next call
            with pytest.raises(ExecutionFailed, match=words) as caught:
                await tool(toolbox, "s_flood").call({}, context)
            assert not caught.value.retryable

    with flooder() as port:
        play({"url": f"http://127.0.0.1:{port}/{kind}", "planq": {"max_answer_bytes": MOST}}, scenario)
