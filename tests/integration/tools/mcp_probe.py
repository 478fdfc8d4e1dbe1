"""Real MCP servers for the tests, over stdio and HTTP, and ways to reach them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from planq.shared.agentic.tools.contract import Tool
from planq.worker.tools.mcp import McpToolbox, connect_mcp
from tests.support.ports import free_port
from tests.support.waiting import eventually

SERVERS = Path(__file__).parent / "servers"

Entry = dict[str, Any]


def stdio(script: str, folder: Path, **more: Any) -> Entry:
    """An entry that starts a server of `servers/` over stdio."""
    env = {"PROBE_FOLDER": str(folder), "GREETING": "hello ${PQ_TEST_NAME:-nobody}"}
    return {"command": sys.executable, "args": [str(SERVERS / script)], "env": env, "cwd": str(folder), **more}


class HttpProbe:
    """The probe server over streamable HTTP, which a test may end and start again on the same port."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def entry(self) -> Entry:
        return {
            "type": "http",
            "url": f"http://127.0.0.1:{self.port}/mcp",
            "headers": {"X-Probe": "${PQ_TEST_NAME:-x}"},
        }

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(SERVERS / "probe.py"), str(self.port)],
            env={**os.environ, "PROBE_FOLDER": str(self.folder)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        eventually(self._answers, 60, what="the MCP server answers")

    def ready(self) -> None:
        """Run, with nothing left of the calls of another test."""
        if self._process is None:
            self.start()
        for left in ("hanging", "cancelled"):
            Path(self.folder, left).unlink(missing_ok=True)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/").status_code == 404
        except httpx.TransportError:
            return False


@pytest.fixture(scope="module")
def shared_probe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpProbe]:
    """The module's HTTP server: it takes as long to start as the tests that ask it take together."""
    probe = HttpProbe(tmp_path_factory.mktemp("probe"))
    yield probe
    probe.kill()


@pytest.fixture
def http_probe(shared_probe: HttpProbe) -> HttpProbe:
    """A running HTTP server, which a test may end."""
    shared_probe.ready()
    return shared_probe


@contextlib.asynccontextmanager
async def connected(
    folder: Path, on_change: Callable[[str, Sequence[Tool]], Sequence[str]] | None = None, **entries: Entry
) -> AsyncIterator[McpToolbox]:
    """A toolbox over an `mcp.json` with these servers."""
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": entries}), encoding="utf-8")
    toolbox = await connect_mcp(path, on_change)
    try:
        yield toolbox
    finally:
        await toolbox.aclose()


class _Gate(BaseHTTPRequestHandler):
    """A server by hand that answers a call with the HTTP status that the call asks for."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        arguments = request.get("params", {}).get("arguments", {})
        if "id" not in request:
            self._answer(202, None)
        elif self.path == "/closed":
            self._answer(401, None)
        elif arguments.get("status", 200) != 200:
            self._answer(arguments["status"], None)
        else:
            known = _GATE | (_TASKS if self.path == "/tasks" else {})
            result = known.get(request["method"], {"error": {"code": -32601, "message": "Method not found"}})
            self._answer(200, {"jsonrpc": "2.0", "id": request["id"], **result})

    def _answer(self, status: int, body: Any) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


_GATE: dict[str, Any] = {
    "initialize": {
        "result": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "gate", "version": "1"},
        }
    },
    "tools/list": {"result": {"tools": [{"name": "enter", "inputSchema": {"type": "object"}}]}},
    "tools/call": {"result": {"content": [{"type": "text", "text": "in"}]}},
}

_TASKS: dict[str, Any] = {
    "initialize": {"result": {**_GATE["initialize"]["result"], "protocolVersion": "2025-11-25"}},
    "tools/list": {
        "result": {
            "tools": [
                {"name": support, "inputSchema": {"type": "object"}, "execution": {"taskSupport": support}}
                for support in ("forbidden", "optional", "required")
            ]
        }
    },
}


@contextlib.contextmanager
def gate() -> Iterator[ThreadingHTTPServer]:
    """The server by hand, running."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Gate)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def tool(toolbox: McpToolbox, name: str) -> Tool:
    """The tool of a registered name."""
    return {found.definition.name: found for found in toolbox.tools()}[name]


async def until(condition: Callable[[], Any], what: str) -> None:
    """Wait for a condition without holding up the loop."""
    await asyncio.to_thread(eventually, condition, 20.0, what=what)


Scenario = Callable[[McpToolbox], Awaitable[None]]


@dataclass(frozen=True)
class Probed:
    """The probe server: how it is reached, and the folder where it leaves what it did."""

    entry: Entry
    folder: Path


@pytest.fixture(params=["stdio", "http"])
def probed(request: pytest.FixtureRequest, tmp_path: Path) -> Probed:
    """The probe server over each transport in turn."""
    if request.param == "http":
        probe: HttpProbe = request.getfixturevalue("http_probe")
        return Probed(probe.entry, probe.folder)
    return Probed(stdio("probe.py", tmp_path), tmp_path)


@pytest.fixture
def run(probed: Probed, tmp_path: Path) -> Callable[[Scenario], None]:
    """Run a scenario against the probe server, once over each transport."""

    def play(scenario: Scenario) -> None:
        async def whole() -> None:
            async with connected(tmp_path, probe=probed.entry) as toolbox:
                await scenario(toolbox)

        asyncio.run(whole())

    return play
