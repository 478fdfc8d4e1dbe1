"""The gateway against a third party's server: LiteLLM's proxy with mock replies, in an environment of its own."""

from __future__ import annotations

import asyncio
import http.client
import json
import secrets
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from planq.shared.agentic.models.exchange import (
    Ask,
    ChatMessage,
    Findings,
    ModelFailed,
    ModelReply,
    TurnForm,
    reply_to_json,
)
from planq.shared.agentic.models.names import Provider
from planq.shared.agentic.rounds.transcript import transcript
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.steps import RoundRecord, StepResult
from planq.worker.models.gateway import ModelGateway
from planq.worker.models.settings import ModelSettings
from tests.support import litellm_env
from tests.support.waiting import eventually

pytestmark = pytest.mark.whole  # the proxy takes minutes to start; what it answers, `wire.py` answers too

# Making the environment, when `python -m tests.support.litellm_env` has not run before, takes half a minute.

PLAN = {"type": "tool_calls", "reasoning": "r", "calls": [{"tool_name": "now", "arguments": {}}]}
TOOLS = [ToolDefinition(name="now", output_schema={"type": "object", "properties": {"iso": {"type": "string"}}})]


@dataclass(frozen=True)
class Proxy:
    """A running proxy: its base URL and the key that it demands."""

    base_url: str
    key: str


def _mock(name: str, **behaviour: Any) -> dict[str, Any]:
    return {"model_name": name, "litellm_params": {"model": "openai/mock", "api_key": "none", **behaviour}}


def _models() -> list[dict[str, Any]]:
    call = {"id": "c1", "type": "function", "function": {"name": "__planning__", "arguments": json.dumps(PLAN)}}
    native = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    return [
        _mock("caller", mock_tool_calls=[native], mock_response=""),
        _mock("planner", mock_tool_calls=[call], mock_response=""),
        _mock("writer", mock_response="It is noon."),
        _mock("limited", mock_response="litellm.RateLimitError"),
        _mock("broken", mock_response="litellm.InternalServerError"),
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    home = tmp_path_factory.mktemp("litellm")
    config = home / "config.yaml"
    # JSON is YAML; no retries of its own, so that each attempt of ours is one request.
    settings = {"num_retries": 0, "disable_cooldowns": True}
    config.write_text(json.dumps({"model_list": _models(), "router_settings": settings}))
    port, key = _free_port(), f"sk-{secrets.token_hex(24)}"
    with (home / "log").open("wb") as log:
        process = _start(litellm_env.ensure(), config, home, port, key, log.fileno())
        try:
            eventually(lambda: _answers(process, port, home / "log"), timeout=300, what="LiteLLM's proxy is up")
            yield Proxy(f"http://127.0.0.1:{port}/v1", key)
        finally:
            process.terminate()
            process.wait(60)


def _start(environment: Path, config: Path, home: Path, port: int, key: str, log: int) -> subprocess.Popen[bytes]:
    variables = {
        "HOME": str(home),
        "PATH": str(environment / "bin"),
        "LITELLM_MASTER_KEY": key,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # without it the proxy fetches prices from the network at start
    }
    command = [str(environment / "bin/litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    return subprocess.Popen([*command, "--telemetry", "False"], env=variables, cwd=home, stdout=log, stderr=log)


def _answers(process: subprocess.Popen[bytes], port: int, log: Path) -> bool:
    if process.poll() is not None:
        pytest.fail(f"LiteLLM's proxy ended with {process.returncode}:\n{log.read_text()[-2000:]}")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health/liveliness")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def settings_for(proxy: Proxy, model: str, *, stream: bool = True) -> ModelSettings:
    return ModelSettings(
        default_model=f"openai:{model}",
        base_urls={Provider.OPENAI: proxy.base_url},
        api_keys={Provider.OPENAI: proxy.key},
        backoff_base=0.0,
        max_attempts=2,
        stream=stream,
    )


def plan(settings: ModelSettings) -> ModelReply:
    async def run() -> ModelReply:
        gateway = ModelGateway(settings)
        try:
            return await gateway.plan(Ask("job-1", "What time is it?", settings.default_model), TOOLS)
        finally:
            await gateway.aclose()

    return asyncio.run(run())


def test_a_forced_tool_call_comes_back_through_the_proxy(proxy: Proxy) -> None:
    # LiteLLM's mock has tool calls only in whole replies; streamed it sends an empty text.
    reply = plan(settings_for(proxy, "planner", stream=False))

    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("__planning__", PLAN)]
    assert reply.call.input_tokens > 0
    assert reply.call.output_tokens > 0


def test_an_answer_comes_back_through_the_proxy(proxy: Proxy) -> None:
    settings = settings_for(proxy, "writer")

    async def run() -> ModelReply:
        gateway = ModelGateway(settings)
        try:
            findings = Findings(results=[StepResult("now", {}, {"iso": "2026-01-01T12:00:00Z"})])
            return await gateway.respond(Ask("job-1", "What time is it?", settings.default_model), findings)
        finally:
            await gateway.aclose()

    assert asyncio.run(run()).text == "It is noon."


@pytest.mark.parametrize("form", list(TurnForm))
def test_a_conversation_with_calls_goes_through_the_proxy(proxy: Proxy, form: TurnForm) -> None:
    async def turn(model: str, told: Sequence[ChatMessage]) -> ModelReply:
        settings = settings_for(proxy, model, stream=False)
        gateway = ModelGateway(settings)
        try:
            ask = Ask("job-1", "What time is it?", settings.default_model)
            return await gateway.turn(ask, TOOLS, told, TurnForm.REACT if model == "caller" else form)
        finally:
            await gateway.aclose()

    called = asyncio.run(turn("caller", ()))
    results = [StepResult("now", {}, {"iso": "2026-01-01T12:00:00Z"})]
    record = RoundRecord(0, "model", {}, reply_to_json(called), 0, results)
    answered = asyncio.run(turn("writer", transcript([record], max_tokens=1_000, form=form)))

    assert [(call.name, call.arguments, call.id) for call in called.tool_calls] == [("now", {}, "c1")]
    assert answered.text == "It is noon."


@pytest.mark.parametrize(
    ("model", "code", "attempts"),
    [("limited", "rate_limited", 2), ("broken", "transient", 2), ("unknown", "model_refused", 1)],
)
def test_the_proxys_errors_are_understood(proxy: Proxy, model: str, code: str, attempts: int) -> None:
    with pytest.raises(ModelFailed) as caught:
        plan(settings_for(proxy, model))

    assert (caught.value.error.code, caught.value.call.attempts) == (code, attempts)


def test_a_wrong_key_is_refused(proxy: Proxy) -> None:
    wrong = f"sk-{secrets.token_hex(24)}"

    with pytest.raises(ModelFailed) as caught:
        plan(replace(settings_for(proxy, "planner"), api_keys={Provider.OPENAI: wrong}))

    # Without a database of keys the proxy answers 400 instead of 401.
    assert (caught.value.error.code, caught.value.call.attempts) == ("model_refused", 1)
    assert wrong not in caught.value.error.message
