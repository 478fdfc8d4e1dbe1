"""MCP servers as real processes, over stdio and streamable HTTP: listed, called, broken, killed, brought back."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from planq.shared.agentic.schema.schemas import violations
from planq.shared.agentic.tools.contract import BytesArtifact, RichOutput, Tool, ToolContext
from planq.shared.kernel.states import Effect, Pool
from planq.shared.platform.errors import (
    AuthFailed,
    ExecutionFailed,
    InvalidArguments,
    InvalidOutput,
    Misconfigured,
    RateLimited,
    ToolFailed,
    Transient,
    Unreached,
)
from planq.worker.tools.mcp import McpToolbox
from planq.worker.tools.mcp.definitions import UNDECLARED_OUTPUT_SCHEMA
from planq.worker.tools.registry import Registry
from tests.integration.tools.mcp_probe import Entry, HttpProbe, Probed, Scenario, connected, gate, stdio, tool, until
from tests.support.tiers import rare

SAID = {"type": "text", "text": "said"}

# The other transport shows it as well, at a tenth of the time: its server is there.
over_http = pytest.mark.parametrize("probed", [rare("stdio"), "http"], indirect=True)


@over_http
def test_tools_are_listed_with_schemas_and_effects(run: Callable[[Scenario], None]) -> None:
    async def scenario(toolbox: McpToolbox) -> None:
        registry = Registry()
        registry.extend(toolbox.tools())
        found = {definition.name: definition for definition in registry.definitions()}

        assert {"probe_add", "probe_shout", "probe_fails_always_now", "probe_hang"} <= set(found)
        assert found["probe_add"].effect is Effect.READ
        assert found["probe_add"].retries == 2
        assert found["probe_shout"].effect is Effect.IDEMPOTENT
        assert (found["probe_fails_always_now"].effect, found["probe_fails_always_now"].retries) == (Effect.UNSAFE, 0)
        assert found["probe_add"].description == "Add numbers."
        assert found["probe_add"].pool == Pool.IO
        assert found["probe_add"].source == "mcp:probe"
        assert found["probe_add"].input_schema["required"] == ["numbers"]
        assert found["probe_add"].output_schema is not None
        assert set(found["probe_add"].output_schema["properties"]) == {"total", "parts"}
        assert found["probe_shout"].output_schema == UNDECLARED_OUTPUT_SCHEMA

    run(scenario)


def test_calls_give_structured_content_or_wrapped_text(run: Callable[[Scenario], None], context: ToolContext) -> None:
    async def scenario(toolbox: McpToolbox) -> None:
        assert await tool(toolbox, "probe_add").call({"numbers": [1, 2]}, context) == {"total": 3, "parts": [1, 2]}
        assert await tool(toolbox, "probe_shout").call({"text": "hé"}, context) == {"text": "HÉ"}

    run(scenario)


@over_http
def test_error_of_a_tool_fails_the_step_with_its_text(run: Callable[[Scenario], None], context: ToolContext) -> None:
    async def scenario(toolbox: McpToolbox) -> None:
        with pytest.raises(ToolFailed, match="the cupboard is bare") as caught:
            await tool(toolbox, "probe_fails_always_now").call({}, context)
        assert caught.value.retryable is False

    run(scenario)


@over_http
def test_idempotency_key_is_the_same_for_every_attempt(run: Callable[[Scenario], None], context: ToolContext) -> None:
    async def scenario(toolbox: McpToolbox) -> None:
        key = tool(toolbox, "probe_key")
        again = dataclasses.replace(context, attempt=2)

        assert await key.call({}, context) == {"text": context.idempotency_key}
        assert await key.call({}, again) == {"text": context.idempotency_key}

    run(scenario)


def test_calls_run_at_the_same_time(run: Callable[[Scenario], None], context: ToolContext) -> None:
    async def scenario(toolbox: McpToolbox) -> None:
        meet = tool(toolbox, "probe_meet")
        async with asyncio.timeout(60):
            outputs = await asyncio.gather(*(meet.call({"parties": 8}, context) for _ in range(8)))
        assert outputs == [{"result": 8}] * 8

    run(scenario)


def test_cancelled_call_is_cancelled_on_the_server_and_the_next_works(
    run: Callable[[Scenario], None], context: ToolContext, probed: Probed
) -> None:
    async def scenario(toolbox: McpToolbox) -> None:
        call = asyncio.create_task(tool(toolbox, "probe_hang").call({}, context))
        await until((probed.folder / "hanging").exists, "the call has begun")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until((probed.folder / "cancelled").exists, "the server has stopped the call")
        assert await tool(toolbox, "probe_shout").call({"text": "a"}, context) == {"text": "A"}

    run(scenario)


def test_stdio_server_killed_in_the_middle_is_a_passing_fault_and_comes_back(
    tmp_path: Path, context: ToolContext
) -> None:
    changes: list[str] = []

    async def scenario() -> None:
        def on_change(source: str, tools: Sequence[Tool]) -> Sequence[str]:
            changes.append(source)
            return []

        async with connected(tmp_path, on_change, probe=stdio("probe.py", tmp_path)) as toolbox:
            call = asyncio.create_task(tool(toolbox, "probe_hang").call({}, context))
            await until((tmp_path / "hanging").exists, "the call has begun")
            os.kill(int((tmp_path / "hanging").read_text("utf-8")), signal.SIGKILL)
            with pytest.raises(Transient, match="ended before the answer came"):
                await call
            assert await tool(toolbox, "probe_shout").call({"text": "back"}, context) == {"text": "BACK"}

    asyncio.run(scenario())
    assert changes == ["mcp:probe"]  # as it came first, and not again


def test_http_server_killed_in_the_middle_is_a_passing_fault_and_comes_back(
    tmp_path: Path, context: ToolContext, http_probe: HttpProbe
) -> None:
    async def scenario() -> None:
        at_once = {**http_probe.entry, "planq": {"away_seconds": 0}}
        async with connected(tmp_path, probe=at_once) as toolbox:
            shout = tool(toolbox, "probe_shout")
            call = asyncio.create_task(tool(toolbox, "probe_hang").call({}, context))
            await until((http_probe.folder / "hanging").exists, "the call has begun")
            await asyncio.to_thread(http_probe.kill)
            with pytest.raises(Transient):
                await call
            with pytest.raises(Unreached):
                await shout.call({"text": "away"}, context)
            await asyncio.to_thread(http_probe.start)

            async def back() -> Any:
                async with asyncio.timeout(60):
                    while True:
                        try:
                            return await shout.call({"text": "back"}, context)
                        except Transient:
                            await until(lambda: True, "another moment")

            assert await back() == {"text": "BACK"}

    asyncio.run(scenario())


def test_a_call_that_could_not_be_sent_waits_for_the_server(
    tmp_path: Path, context: ToolContext, http_probe: HttpProbe
) -> None:
    async def scenario() -> None:
        waits = {**http_probe.entry, "planq": {"away_seconds": 120, "timeout_seconds": 240}}
        async with connected(tmp_path, probe=waits) as toolbox:
            await asyncio.to_thread(http_probe.kill)
            call = asyncio.create_task(tool(toolbox, "probe_shout").call({"text": "back"}, context))
            await asyncio.to_thread(http_probe.start)
            with contextlib.suppress(Transient):  # the server that is back does not know the session of before
                assert await call == {"text": "BACK"}
            assert await tool(toolbox, "probe_shout").call({"text": "c"}, context) == {"text": "C"}

    asyncio.run(scenario())


class Reports:
    """What a call says of its progress."""

    def __init__(self) -> None:
        self.heard: list[tuple[float | None, str]] = []

    def report(self, done: float | None, message: str) -> None:
        self.heard.append((done, message))

    def report_from_thread(self, done: float | None, message: str) -> None:
        self.report(done, message)


def test_what_a_server_says_of_progress_is_told_of_the_step(
    run: Callable[[Scenario], None], context: ToolContext
) -> None:
    async def scenario(toolbox: McpToolbox) -> None:
        reports = Reports()
        await tool(toolbox, "probe_work").call({"parts": 4}, dataclasses.replace(context, reports=reports))
        assert reports.heard == [(part / 4, f"part {part}") for part in range(1, 5)]

    run(scenario)


@pytest.mark.parametrize("way", ["stdio", "http"])
def test_tools_that_a_server_adds_while_it_runs_are_offered(
    tmp_path: Path, context: ToolContext, way: str, request: pytest.FixtureRequest
) -> None:
    entry = stdio("probe.py", tmp_path) if way == "stdio" else request.getfixturevalue("http_probe").entry
    registry = Registry()

    async def scenario() -> None:
        async with connected(tmp_path, registry.replace, probe=entry) as toolbox:
            registry.extend(toolbox.tools())
            name = f"sums_{way}"
            await tool(toolbox, "probe_learn").call({"name": name}, context)
            await until(lambda: registry.find(f"probe_{name}") is not None, "the tool is offered")
            assert await tool(toolbox, f"probe_{name}").call({}, context) == {"text": name}

    asyncio.run(scenario())


def test_what_a_server_of_an_older_protocol_adds_is_offered_too(tmp_path: Path, context: ToolContext) -> None:
    registry = Registry()

    async def scenario() -> None:
        async with connected(tmp_path, registry.replace, elder=stdio("elder.py", tmp_path)) as toolbox:
            registry.extend(toolbox.tools())
            await tool(toolbox, "elder_age").call({}, context)
            await until(lambda: registry.find("elder_older") is not None, "the tool is offered")

    asyncio.run(scenario())


@pytest.mark.whole
def test_http_server_started_anew_between_calls_needs_no_restart_of_ours(
    tmp_path: Path, context: ToolContext, http_probe: HttpProbe
) -> None:
    async def scenario() -> None:
        async with connected(tmp_path, probe=http_probe.entry) as toolbox:
            shout = tool(toolbox, "probe_shout")
            assert await shout.call({"text": "a"}, context) == {"text": "A"}
            await asyncio.to_thread(http_probe.kill)
            await asyncio.to_thread(http_probe.start)
            with contextlib.suppress(Transient):
                await shout.call({"text": "b"}, context)
            assert await shout.call({"text": "c"}, context) == {"text": "C"}

    asyncio.run(scenario())


def test_odd_results_are_judged(tmp_path: Path, context: ToolContext) -> None:
    async def scenario() -> None:
        async with connected(tmp_path, odd=stdio("odd.py", tmp_path)) as toolbox:
            assert len(toolbox.tools()) == 13

            async def broken(name: str) -> list[str]:
                found = tool(toolbox, f"odd_{name}")
                answer = await found.call({}, context)
                output = answer.output if isinstance(answer, RichOutput) else answer
                return [one.code for one in violations(found.definition.output_schema or {}, output)]

            async def call(name: str) -> Any:
                assert await broken(name) == []
                answer = await tool(toolbox, f"odd_{name}").call({}, context)
                if not isinstance(answer, RichOutput):
                    return answer
                files = [one for one in answer.artifacts if isinstance(one, BytesArtifact)]
                assert all(one.metadata["tool_name"] == context.tool_name for one in files)
                told = [(one.artifact_id, one.data, one.media_type) for one in files]
                kept = [one["artifact"]["content"] for one in answer.artifacts if not isinstance(one, BytesArtifact)]
                return answer.output, answer.content, told, *kept

            artifact_id = f"{context.idempotency_key}/content"

            def image(number: int) -> dict[str, Any]:
                at = f"{artifact_id}/{number}"
                return {"type": "image", "mimeType": "image/png", "bytes": 2, "artifact_id": at}

            def pixels(number: int) -> tuple[str, bytes, str]:
                return f"{artifact_id}/{number}", b"hi", "image/png"

            # The engine looks at outputs; the SDK would look at the second one for hours.
            assert await broken("breaks") == ["type"]
            assert await broken("hostile") == ["pattern"]
            with pytest.raises(InvalidOutput, match="returned no structured_content"):
                await call("silent")
            assert await call("undeclared") == ({"n": 1}, "said", [])
            assert await call("undeclared_list") == ({"result": [1, 2]}, "said", [])
            output, said, files = await call("shown")
            assert (output, files) == ({"n": 1}, [pixels(1)])
            first, stated = said.splitlines()
            assert (first, json.loads(stated)) == ("said", image(1))
            assert await call("two_texts") == ({"text": "said\nsaid", "content": [image(0)]}, None, [pixels(0)])
            assert await call("picture") == ({"text": "", "content": [image(0)]}, None, [pixels(0)])
            output, _, files = await call("many_kinds")
            assert [one["type"] for one in output["content"]] == ["image", "audio", "resource_link", "resource"]
            assert output["content"][2]["uri"] == "file:///log"
            assert output["content"][3]["resource"]["text"] == "<p>"
            assert files == [pixels(0), (f"{artifact_id}/1", b"\x00\x01\x02", "audio/wav")]
            with pytest.raises(ToolFailed, match="Unknown error"):
                await call("wordless")
            with pytest.raises(ToolFailed, match="quota used up"):
                await call("refuses")
            with pytest.raises(InvalidArguments, match="no such place"):
                await call("wrong")

    asyncio.run(scenario())


def test_a_tool_whose_schemas_may_never_end_is_not_offered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with connected(tmp_path, odd=stdio("odd.py", tmp_path)) as toolbox:
            offered = [one.definition.name for one in toolbox.tools()]
            assert "odd_hostile" in offered
            assert not {"odd_looks_around", "odd_branches"}.intersection(offered)

    asyncio.run(scenario())
    reasons = [vars(record)["reason"] for record in caplog.records if record.message == "mcp_tool_refused"]
    patterns, branches = sorted(reasons, reverse=True)
    assert "(tool 'looks_around'): output schema" in patterns
    assert "needs look-around or back-references" in patterns
    assert "(tool 'branches'): output schema" in branches
    assert "with its references written out" in branches


def test_a_tool_that_demands_to_be_called_as_a_task_is_not_offered_and_keeps_no_worker_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(port: int) -> None:
        entry = {"url": f"http://127.0.0.1:{port}/tasks", "planq": {"required": True}}
        async with connected(tmp_path, gate=entry) as toolbox:
            assert sorted(one.definition.name for one in toolbox.tools()) == ["gate_forbidden", "gate_optional"]

    with gate() as server:
        asyncio.run(scenario(server.server_port))
    (refused,) = [record for record in caplog.records if record.message == "mcp_tool_refused"]
    assert "(tool 'required'): it can only be called as a task" in vars(refused)["reason"]


def test_result_of_another_type_than_object_is_put_under_result(tmp_path: Path, context: ToolContext) -> None:
    async def scenario() -> None:
        async with connected(tmp_path, odd=stdio("odd.py", tmp_path)) as toolbox:
            listing = tool(toolbox, "odd_listing")
            assert listing.definition.output_schema is not None
            assert listing.definition.output_schema["required"] == ["result"]
            answer = await listing.call({}, context)
            assert isinstance(answer, RichOutput)
            assert answer.output == {"result": [1, 2]}

    asyncio.run(scenario())


def test_server_of_the_first_protocol_version_is_spoken_to(tmp_path: Path, context: ToolContext) -> None:
    async def scenario() -> None:
        async with connected(tmp_path, elder=stdio("elder.py", tmp_path)) as toolbox:
            assert await tool(toolbox, "elder_age").call({}, context) == {"text": "2024-11-05"}

    asyncio.run(scenario())


def test_environment_and_folder_reach_a_stdio_server(
    tmp_path: Path, context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PQ_TEST_NAME", "Ada")
    monkeypatch.setenv("PQ_TEST_SECRET", "not for servers")

    async def scenario() -> None:
        async with connected(tmp_path, probe=stdio("probe.py", tmp_path)) as toolbox:
            look = tool(toolbox, "probe_environment")
            assert await look.call({"name": "GREETING"}, context) == {"text": "hello Ada"}
            assert await look.call({"name": "PQ_TEST_SECRET"}, context) == {"text": ""}
            assert await look.call({"name": "cwd"}, context) == {"text": str(tmp_path)}

    asyncio.run(scenario())


def test_closing_ends_a_stdio_server(tmp_path: Path, context: ToolContext) -> None:
    async def scenario() -> int:
        async with connected(tmp_path, probe=stdio("probe.py", tmp_path)) as toolbox:
            output = await tool(toolbox, "probe_environment").call({"name": "pid"}, context)
            pid = int(output["text"])
            os.kill(pid, 0)
        with pytest.raises(Unreached, match="closed its connection"):
            await tool(toolbox, "probe_shout").call({"text": "a"}, context)
        return pid

    pid = asyncio.run(scenario())

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("status", "expected", "retryable"),
    [
        (400, ToolFailed, False),
        (401, AuthFailed, False),
        (403, AuthFailed, False),
        (429, RateLimited, True),
        (500, Transient, True),
        (503, Transient, True),
    ],
)
def test_http_status_of_a_refused_call_decides_the_failure(
    tmp_path: Path, context: ToolContext, status: int, expected: type[ExecutionFailed], retryable: bool
) -> None:
    async def scenario(port: int) -> None:
        async with connected(tmp_path, gate={"url": f"http://127.0.0.1:{port}/mcp"}) as toolbox:
            enter = tool(toolbox, "gate_enter")
            with pytest.raises(expected, match=f"HTTP {status}") as caught:
                await enter.call({"status": status}, context)
            assert caught.value.retryable is retryable
            assert await enter.call({"status": 200}, context) == {"text": "in"}

    with gate() as server:
        asyncio.run(scenario(server.server_port))


def test_http_status_that_refuses_the_connection_is_named(tmp_path: Path) -> None:
    async def scenario(port: int) -> None:
        entry = {"url": f"http://127.0.0.1:{port}/closed", "planq": {"required": True}}
        async with connected(tmp_path, gate=entry):
            raise AssertionError("must not connect")

    with gate() as server, pytest.raises(Misconfigured, match="HTTP 401"):
        asyncio.run(scenario(server.server_port))


def test_headers_reach_an_http_server(
    tmp_path: Path, context: ToolContext, http_probe: HttpProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PQ_TEST_NAME", "Ada")

    async def scenario() -> None:
        async with connected(tmp_path, probe=http_probe.entry) as toolbox:
            assert await tool(toolbox, "probe_header").call({"name": "x-probe"}, context) == {"text": "Ada"}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("over", "shown", "else_shown"), [("http", "ada,default,conversation", ",,"), rare("stdio", "", "")]
)
def test_a_server_with_user_scoped_parameters_is_told_whom_a_call_is_made_for(
    request: pytest.FixtureRequest, tmp_path: Path, context: ToolContext, over: str, shown: str, else_shown: str
) -> None:
    entry = request.getfixturevalue("http_probe").entry if over == "http" else stdio("probe.py", tmp_path)

    async def scenario() -> None:
        scoped = {**entry, "planq": {"user_scoped": ["name"]}}
        async with connected(tmp_path, probe=entry, scoped=scoped) as toolbox:
            names = ["X-User-External-ID", "X-Tenant-ID", "X-Conversation-ID"]
            asked = {"names": [name.lower() for name in names]}
            assert await tool(toolbox, "scoped_headers").call(asked, context) == {"text": shown}
            assert await tool(toolbox, "probe_headers").call(asked, context) == {"text": else_shown}
            told = await tool(toolbox, "scoped_told").call({}, context)
            assert ast.literal_eval(told["text"]) == dict(zip(names, ["ada", "default", "conversation"], strict=True))
            assert (await tool(toolbox, "probe_told").call({}, context))["text"] == "None"
            definition = tool(toolbox, "scoped_environment").definition
            assert (definition.user_scoped, definition.input_schema["properties"]) == (["name"], {})

    asyncio.run(scenario())


def test_server_that_is_away_at_start_is_left_out_and_comes_later(tmp_path: Path, context: ToolContext) -> None:
    registry = Registry()
    probe = HttpProbe(tmp_path)

    async def scenario() -> None:
        async with connected(
            tmp_path, registry.replace, late=probe.entry, elder=stdio("elder.py", tmp_path)
        ) as toolbox:
            registry.extend(toolbox.tools())
            assert [definition.name for definition in registry.definitions()] == ["elder_age"]
            await asyncio.to_thread(probe.start)
            await until(lambda: registry.find("late_shout") is not None, "the late server's tools are registered")
            found = registry.find("late_shout")
            assert found is not None
            assert await found.call({"text": "here"}, context) == {"text": "HERE"}

    try:
        asyncio.run(scenario())
    finally:
        probe.kill()


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"command": "planq-no-such-command"}, "FileNotFoundError"),
        rare({"command": sys.executable, "args": ["-c", "raise SystemExit(3)"]}, "required"),
        ({"command": sys.executable, "args": ["-c", "import sys; sys.stdin.read()"]}, "did not answer in time"),
        ({"url": "http://127.0.0.1:9/mcp"}, "ConnectError"),
    ],
)
def test_required_server_that_is_away_stops_the_worker(tmp_path: Path, entry: Entry, words: str) -> None:
    options = {"required": True, "connect_timeout_seconds": 1.5}

    async def scenario() -> None:
        async with connected(tmp_path, probe={**entry, "planq": options}):
            raise AssertionError("must not connect")

    with pytest.raises(Misconfigured, match=f"(?s)'probe' is required.*{words}"):
        asyncio.run(scenario())


def test_required_server_that_goes_away_is_reported_until_it_is_back(
    tmp_path: Path, context: ToolContext, http_probe: HttpProbe
) -> None:
    registry = Registry()

    async def scenario() -> None:
        entry = {**http_probe.entry, "planq": {"required": True, "away_seconds": 0.2}}
        async with connected(tmp_path, registry.replace, probe=entry, elder=stdio("elder.py", tmp_path)) as toolbox:
            registry.extend(toolbox.tools())
            assert toolbox.away() == []
            http_probe.kill()
            shout = registry.find("probe_shout")
            assert shout is not None
            with pytest.raises(ExecutionFailed):
                await shout.call({"text": "here"}, context)
            (told,) = toolbox.away()
            assert told.startswith("the required MCP server 'probe' is away: ")
            await asyncio.to_thread(http_probe.start)
            await until(lambda: toolbox.away() == [], "the server is back")

    asyncio.run(scenario())


def test_no_file_gives_no_tools_and_imports_no_sdk() -> None:
    code = (
        "import asyncio, sys\n"
        "from planq.worker.tools.mcp import connect_mcp\n"
        "toolbox = asyncio.run(connect_mcp(None))\n"
        "assert toolbox.tools() == []\n"
        "assert not [name for name in sys.modules if name.split('.')[0] in ('mcp', 'mcp_types')]\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
