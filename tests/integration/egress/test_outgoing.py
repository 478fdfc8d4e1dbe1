"""All HTTP that workers send: to servers that misbehave, under a private authority, through a proxy."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from planq.shared.agentic.models.exchange import Ask, ModelFailed
from planq.shared.agentic.models.names import Provider
from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.kernel.new_ids import new_id
from planq.shared.platform.errors import ErrorRecord, Misconfigured, PlanqError
from planq.shared.subjects.webhooks.rules import Delivery
from planq.worker.channels.telegram import BotApi
from planq.worker.egress import Egress, LeastRate
from planq.worker.models.gateway import ModelGateway
from planq.worker.models.settings import ModelSettings
from planq.worker.tools.builtin import telegram as telegram_tool
from planq.worker.tools.builtin import web
from planq.worker.tools.builtin.web import read_web_access
from planq.worker.tools.errors import as_execution_failed
from planq.worker.tools.mcp.config import McpServer
from planq.worker.tools.mcp.connection import ServerConnection
from planq.worker.tools.registry import load_registry
from planq.worker.tools.services import ToolServices
from planq.worker.webhooks.posting import Poster
from tests.support.hostile import MB, MISBEHAVIOURS, answer, private_authority, proxying, serving

MOST = 1 * MB
SECONDS = 1.0
LONGEST = 20.0
"""Far above every time limit here: what takes longer has none."""

NAME = "outside.example"
JSON_LIKE = b'{"results": [], "ok": true, "result": {}, "choices": []}'

Send = Callable[[str, Egress], Awaitable[ErrorRecord | None]]
"""Send a request to an address, and return what went wrong."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the tools whose time limits are constants as much time as the others have here."""
    monkeypatch.setattr(web, "_TIMEOUT_SECONDS", SECONDS)
    monkeypatch.setattr(telegram_tool, "_TIMEOUT_SECONDS", SECONDS)


def context() -> ToolContext:
    return ToolContext("0193a1b2-0000-7000-8000-000000000001", 0, 1, "probe", "default", "ada", "c", "r", "t")


async def _tool(name: str, services: ToolServices, arguments: dict[str, str]) -> ErrorRecord | None:
    registry = load_registry(services=services, entry_point_group=None, modules=["planq.worker.tools.builtin"])
    tool = registry.find(name)
    assert tool is not None
    try:
        await tool.call(arguments, context())
    except Exception as error:
        return ErrorRecord.of(as_execution_failed(error, name))
    return None


def services(egress: Egress, **changes: object) -> ToolServices:
    given: dict[str, object] = {
        "egress": egress,
        "allow_private_hosts": frozenset({"127.0.0.1", NAME}),
        "http_max_bytes": MOST,
        "http_timeout_seconds": SECONDS,
        "http_least_rate": LeastRate(1_000.0, SECONDS),
    }
    return ToolServices(**{**given, **changes})  # type: ignore[arg-type]


async def fetch(url: str, egress: Egress) -> ErrorRecord | None:
    return await _tool("http_fetch", services(egress), {"url": f"{url}/"})


async def search(url: str, egress: Egress) -> ErrorRecord | None:
    offered = services(egress, web_search=read_web_access("searxng", url, ""))
    return await _tool("web_search", offered, {"query": "boats"})


async def file(url: str, egress: Egress) -> ErrorRecord | None:
    tool_context = dataclasses.replace(context(), secrets=_Secrets())
    registry = load_registry(
        services=services(egress, telegram_url=url), entry_point_group=None, modules=["planq.worker.tools.builtin"]
    )
    tool = registry.find("telegram_file")
    assert tool is not None
    try:
        await tool.call({"file_id": "f"}, tool_context)
    except PlanqError as error:
        return ErrorRecord.of(error)
    return None


class _Secrets:
    async def get(self, name: str) -> str:
        return "123:abc"


async def webhook(url: str, egress: Egress) -> ErrorRecord | None:
    async def keys(tenant_id: str, endpoint_id: UUID | None) -> Sequence[str]:
        return ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]

    poster = Poster(keys, timedelta(seconds=SECONDS), frozenset({"127.0.0.1", NAME}), lambda: 0.0, egress=egress)
    one = Delivery(new_id(), "default", None, f"{url}/", "default x", "job.completed", "{}", 1, 1)
    return (await poster.send(one)).error


async def telegram(url: str, egress: Egress) -> ErrorRecord | None:
    try:
        found = await BotApi(url, timedelta(seconds=SECONDS), egress).call("123:abc", "sendMessage", {})
    except PlanqError as error:
        return ErrorRecord.of(error)
    return None if found.is_taken else ErrorRecord("refused", f"{found.status} {found.description}")


async def model(url: str, egress: Egress, *, stream: bool = True) -> ErrorRecord | None:
    settings = ModelSettings(
        default_model="openai:any",
        base_urls={Provider.OPENAI: url},
        request_timeout=SECONDS,
        first_token_timeout=SECONDS,
        max_attempts=1,
        stream=stream,
        egress=egress,
    )
    gateway = ModelGateway(settings)
    try:
        await gateway.plan(Ask("job", "hello", ""), [])
    except ModelFailed as failure:
        return ErrorRecord.of(failure.error)
    finally:
        await gateway.aclose()
    return None


async def whole_model(url: str, egress: Egress) -> ErrorRecord | None:
    return await model(url, egress, stream=False)


SENDERS: dict[str, Send] = {
    "http_fetch": fetch,
    "web_search": search,
    "telegram_file": file,
    "webhook": webhook,
    "telegram": telegram,
    "model": model,
    "whole_model": whole_model,
}

MAY_SUCCEED = {
    ("webhook", "says HTML"),
    ("webhook", "drips a body"),
    ("webhook", "sends 1 GB"),
    ("webhook", "one chunk of 10 MB"),
    ("webhook", "invalid UTF-8"),
    ("webhook", "another content type"),
    ("webhook", "gzip bomb"),
    ("webhook", "damaged gzip"),
    ("webhook", "br"),
    ("webhook", "zstd"),
    ("http_fetch", "says HTML"),
    ("http_fetch", "sends 1 GB"),
    ("http_fetch", "one chunk of 10 MB"),
    ("http_fetch", "invalid UTF-8"),
    ("http_fetch", "gzip bomb"),
}
"""A webhook's answer is its status; a fetched document is cut at its bound, and says so."""


@pytest.mark.parametrize("behaviour", MISBEHAVIOURS)
@pytest.mark.parametrize("sender", SENDERS)
def test_what_a_server_does_is_bounded_in_bytes_and_time(sender: str, behaviour: str) -> None:
    async def run() -> tuple[ErrorRecord | None, list[int]]:
        async with serving(MISBEHAVIOURS[behaviour]) as server, asyncio.timeout(LONGEST):
            error = await SENDERS[sender](f"http://127.0.0.1:{server.port}", Egress())
        return error, server.sent

    error, sent = asyncio.run(run())

    assert sent, "nothing was asked for"
    # The kernel's buffers of both sides, beside the largest bound of a body.
    assert max(sent) <= 16 * MB + 10 * MB
    if error is None:
        assert (sender, behaviour) in MAY_SUCCEED
    else:
        assert len(error.message) < 2_000
        assert error.message.isprintable()


@pytest.mark.parametrize("sender", ["http_fetch", "web_search", "webhook", "whole_model"])
@pytest.mark.parametrize("behaviour", ["refuses in HTML", "invalid UTF-8 in a refusal"])
def test_a_refusal_quotes_the_beginning_of_what_the_server_says(sender: str, behaviour: str) -> None:
    async def run() -> ErrorRecord | None:
        async with serving(MISBEHAVIOURS[behaviour]) as server:
            return await SENDERS[sender](f"http://127.0.0.1:{server.port}", Egress())

    error = asyncio.run(run())

    assert error is not None
    assert "asleep" in error.message
    assert "\x1b" not in error.message


async def _mcp(url: str, egress: Egress) -> str:
    connection = ServerConnection(McpServer(name="far", url=f"{url}/mcp"), lambda tools: None, egress)
    try:
        await connection.open()
        return connection.problem
    finally:
        await connection.aclose()


@pytest.mark.parametrize("behaviour", ["sends 1 GB", "one chunk of 10 MB", "gzip bomb", "br", "a head of 10 MB"])
def test_an_mcp_servers_answers_are_bounded(behaviour: str) -> None:
    async def run() -> list[int]:
        async with serving(MISBEHAVIOURS[behaviour]) as server, asyncio.timeout(60):
            await _mcp(f"http://127.0.0.1:{server.port}", Egress())
        return server.sent

    assert max(asyncio.run(run())) <= 16 * MB + 10 * MB


# A private authority


@pytest.mark.parametrize("sender", SENDERS)
def test_a_private_authority_is_trusted_where_the_operator_names_it(sender: str, tmp_path: Path) -> None:
    ca_file, tls = private_authority(tmp_path, "127.0.0.1", NAME)

    async def run() -> tuple[int, int]:
        async with serving(answer("200 OK", JSON_LIKE), tls) as server:
            url = f"https://127.0.0.1:{server.port}"
            assert await SENDERS[sender](url, Egress()) is not None
            refused = len(server.heads)
            await SENDERS[sender](url, Egress.read(ca_file, "", {}))
            return refused, len(server.heads)

    refused, taken = asyncio.run(run())

    assert refused == 0
    assert taken > 0


def test_an_mcp_server_may_be_under_a_private_authority(tmp_path: Path) -> None:
    ca_file, tls = private_authority(tmp_path, "127.0.0.1")

    async def run() -> list[bytes]:
        async with serving(answer("404 Not Found", b""), tls) as server:
            url = f"https://127.0.0.1:{server.port}"
            await _mcp(url, Egress())
            assert server.heads == []
            await _mcp(url, Egress.read(ca_file, "", {}))
            return server.heads

    assert asyncio.run(run())[0].startswith(b"POST /mcp")


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_an_authority_that_cannot_be_read_is_named(content: str | None, tmp_path: Path) -> None:
    ca_file = tmp_path / "authority.pem"
    if content is not None:
        ca_file.write_text(content)

    with pytest.raises(Misconfigured, match=r"PLANQ_CA_FILE: expected .* in PEM form, found '.*authority\.pem'"):
        Egress.read(ca_file, "", {})


@pytest.mark.parametrize("variable", ["PLANQ_CA_FILE", "SSL_CERT_FILE"])
def test_a_worker_does_not_start_without_its_authorities(variable: str, tmp_path: Path) -> None:
    environment = {
        "PATH": "/usr/bin:/bin",
        "DATABASE_URL": "postgresql://127.0.0.1:1/none",
        "BROKER_URL": "redis://127.0.0.1:1/0",
        variable: str(tmp_path / "gone.pem"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "planq.worker", "io", "--check"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 2
    assert f"{variable}: expected a readable file of certificates" in done.stderr


# A proxy


async def public(host: str, port: int) -> Sequence[str]:
    """Every name is at a public address, which nothing here connects to."""
    return ["93.184.216.34"]


@pytest.mark.parametrize("sender", SENDERS)
def test_requests_go_through_the_proxy_that_the_operator_names(sender: str, tmp_path: Path) -> None:
    ca_file, tls = private_authority(tmp_path, NAME)

    async def run() -> tuple[list[str], list[bytes]]:
        async with serving(answer("200 OK", JSON_LIKE), tls) as server, proxying() as proxy:
            proxy.routes[f"{NAME}:443"] = server.port
            through = dataclasses.replace(Egress.read(ca_file, f"http://127.0.0.1:{proxy.port}", {}), resolve=public)
            await SENDERS[sender](f"https://{NAME}", through)
        return proxy.asked, server.heads

    asked, heads = asyncio.run(run())

    assert set(asked) == {f"CONNECT {NAME}:443"}
    assert len(heads) >= 1


@pytest.mark.parametrize("sender", ["http_fetch", "webhook"])
def test_the_target_is_checked_before_the_proxy_is_asked(sender: str) -> None:
    async def private(host: str, port: int) -> Sequence[str]:
        return ["10.0.0.7"]

    async def run() -> tuple[ErrorRecord | None, list[str]]:
        async with proxying() as proxy:
            through = dataclasses.replace(Egress.read(None, f"http://127.0.0.1:{proxy.port}", {}), resolve=private)
            return await SENDERS[sender]("http://inside.example", through), proxy.asked

    error, asked = asyncio.run(run())

    assert error is not None
    assert error.code == "policy"
    assert asked == []


def test_a_host_that_the_operator_allows_may_have_a_name_that_only_the_proxy_knows() -> None:
    async def unknown(host: str, port: int) -> Sequence[str]:
        raise OSError("no such name")

    async def run() -> list[str]:
        async with serving(answer("200 OK", b"hello", kind="text/plain")) as server, proxying() as proxy:
            proxy.routes[NAME] = server.port
            through = dataclasses.replace(Egress.read(None, f"http://127.0.0.1:{proxy.port}", {}), resolve=unknown)
            assert await fetch(f"http://{NAME}", through) is None
            return proxy.asked

    assert asyncio.run(run()) == [f"GET http://{NAME}/"]


def test_hosts_of_no_proxy_are_reached_directly() -> None:
    async def run() -> tuple[ErrorRecord | None, list[str]]:
        async with proxying() as proxy, serving(answer("200 OK", b"hello", kind="text/plain")) as server:
            environment = {"HTTP_PROXY": f"http://127.0.0.1:{proxy.port}", "NO_PROXY": "other.example,.example"}

            async def here(host: str, port: int) -> Sequence[str]:
                return ["127.0.0.1"]

            egress = dataclasses.replace(Egress.read(None, "environment", environment), resolve=here)
            return await fetch(f"http://{NAME}:{server.port}", egress), proxy.asked

    assert asyncio.run(run()) == (None, [])


@pytest.mark.parametrize("sender", SENDERS)
def test_a_proxy_that_refuses_is_quoted_and_nothing_counts_as_sent(sender: str) -> None:
    async def run() -> ErrorRecord | None:
        async with proxying(refuses="403 Not on the list") as proxy:
            egress = dataclasses.replace(Egress.read(None, f"http://127.0.0.1:{proxy.port}", {}), resolve=public)
            return await SENDERS[sender](f"https://{NAME}", egress)

    error = asyncio.run(run())

    assert error is not None
    assert (error.code, error.retryable) == ("transient", True)
    assert sender.startswith("telegram") or "403 Not on the list" in error.message


def test_the_environments_proxy_is_used_only_where_the_operator_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> list[str]:
        async with proxying() as proxy, serving(answer("200 OK", JSON_LIKE)) as server:
            for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
                monkeypatch.setenv(variable, f"http://127.0.0.1:{proxy.port}")
            for send in SENDERS.values():
                await send(f"http://127.0.0.1:{server.port}", Egress())
            assert len(server.heads) >= len(SENDERS)
            return proxy.asked

    assert asyncio.run(run()) == []
