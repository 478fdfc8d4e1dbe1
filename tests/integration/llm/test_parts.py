"""Images, files and audio on the way to a model: read from payloads, fetched from URLs, refused by models."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from planq.shared.agentic.models.exchange import Ask, ModelFailed
from planq.shared.agentic.models.names import OFFLINE
from planq.shared.platform.errors import StorageUnavailable
from planq.shared.platform.values.parts import Part
from planq.worker.egress import Egress
from planq.worker.models.gateway import ModelGateway, TryLimits
from planq.worker.models.parts import PartLimits, PartLoader
from tests.integration.llm.calls import RESULTS, Waits, every_dialect, settings_for
from tests.integration.llm.dialects import ANTHROPIC, OPENAI_CHAT, Dialect
from tests.integration.llm.wire import Reply, WireServer
from tests.support.pictures import PDF, PNG, WAV, base64_of

LIMITS = PartLimits()


class HeldPayloads:
    """Payloads in memory."""

    def __init__(self) -> None:
        self.bodies: dict[bytes, bytes] = {}

    async def put(self, tenant_id: str, body: bytes, preview: bytes) -> bytes:
        digest = hashlib.sha256(body).digest()
        self.bodies[digest] = body
        return digest

    async def get(self, tenant_id: str, digest: bytes) -> bytes:
        if digest not in self.bodies:
            raise StorageUnavailable("it is gone")
        return self.bodies[digest]


class Site:
    """A web server that gives each path its answer, and counts the requests."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[str] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                status, headers, body = site.answers[self.path]
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def url(self, path: str, body: bytes, kind: str = "", *, status: int = 200, **headers: str) -> str:
        self.answers[path] = (status, {**({"Content-Type": kind} if kind else {}), **headers}, body)
        return f"http://{self.host}{path}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def site() -> Iterator[Site]:
    running = Site()
    yield running
    running.close()


def stored(kind: str, data: bytes, media_type: str, **more: str) -> tuple[Part, HeldPayloads]:
    payloads = HeldPayloads()
    digest = asyncio.run(payloads.put("t", data, b""))
    return Part(kind, media_type, sha256=digest.hex(), size=len(data), **more), payloads


def answered(
    dialect: Dialect,
    server: WireServer,
    *parts: Part,
    payloads: HeldPayloads | None = None,
    limits: PartLimits = LIMITS,
    model: str | None = None,
    times: int = 1,
) -> str:
    """Return what the last request to the model was, after `times` of them."""
    settings = settings_for(dialect, server)
    ask = Ask("job-1", "What is it?", model or dialect.model, tenant_id="t", parts=parts)

    async def run() -> None:
        loader = PartLoader(payloads or HeldPayloads(), Egress(), limits)
        gateway = ModelGateway(settings, patience=TryLimits(settings, Waits()), parts=loader)
        try:
            for _ in range(times):
                await gateway.respond(ask, RESULTS)
        finally:
            await gateway.aclose()

    asyncio.run(run())
    return json.dumps(server.requests[-1].body, ensure_ascii=False)


def refusal(dialect: Dialect, server: WireServer, *parts: Part, **given: object) -> tuple[str, str]:
    with pytest.raises(ModelFailed) as failed:
        answered(dialect, server, *parts, **given)  # type: ignore[arg-type]
    assert server.requests == []
    return failed.value.error.code, failed.value.error.message


@every_dialect
def test_a_picture_goes_to_the_model_beside_the_text(server: WireServer, dialect: Dialect) -> None:
    server.script(Reply(dialect.reply("Red.", None)))
    part, payloads = stored("image", PNG, "image/png")

    sent = answered(dialect, server, part, payloads=payloads)

    assert base64_of(PNG) in sent.replace("-", "+").replace("_", "/")  # Google takes the alphabet of URLs
    assert ("image/png" in sent, "What is it?" in sent) == (True, True)


def test_a_text_alone_is_sent_as_a_plain_string(server: WireServer) -> None:
    server.script(Reply(OPENAI_CHAT.reply("Red.", None)))
    answered(OPENAI_CHAT, server)
    assert isinstance(server.requests[-1].body["messages"][-1]["content"], str)


def test_the_record_of_a_call_names_the_picture_without_its_bytes(server: WireServer) -> None:
    server.script(Reply(OPENAI_CHAT.reply("Red.", None)))
    part, payloads = stored("image", PNG, "image/png", filename="dot.png")
    settings = settings_for(OPENAI_CHAT, server)

    async def run() -> object:
        gateway = ModelGateway(settings, parts=PartLoader(payloads, Egress(), PartLimits()))
        try:
            ask = Ask("job-1", "What is it?", OPENAI_CHAT.model, tenant_id="t", parts=[part])
            return (await gateway.respond(ask, RESULTS)).call.exchange
        finally:
            await gateway.aclose()

    kept = asyncio.run(run())
    assert isinstance(kept, dict)
    assert kept["request"]["messages"][-2]["parts"] == [part.to_json()]
    assert base64_of(PNG) not in json.dumps(kept)


@pytest.mark.parametrize("dialect", [OPENAI_CHAT, ANTHROPIC], ids=repr)
def test_a_pdf_goes_to_the_model_and_a_file_of_text_as_text(server: WireServer, dialect: Dialect) -> None:
    server.script(Reply(dialect.reply("Nothing.", None)))
    pdf, payloads = stored("file", PDF, "application/pdf")
    digest = asyncio.run(payloads.put("t", b"a,b\n1,2\n", b""))
    table = Part("file", "text/csv", "numbers.csv", digest.hex(), 8)

    sent = answered(dialect, server, pdf, table, payloads=payloads)

    assert base64_of(PDF) in sent
    assert ("File numbers.csv:\\n<data-" in sent, "a,b\\n1,2" in sent) == (True, True)


def test_a_url_is_fetched_once_and_its_bytes_are_sent(server: WireServer, site: Site) -> None:
    server.script(Reply(OPENAI_CHAT.reply("Red.", None)))
    there = site.url("/dot", PNG, "image/png; charset=binary")
    part = Part("image", url=site.url("/moved", b"", status=302, Location=there))

    sent = answered(OPENAI_CHAT, server, part, limits=PartLimits(allowed=frozenset({site.host})), times=2)

    assert (base64_of(PNG) in sent, site.asked) == (True, ["/moved", "/dot"])
    assert there not in sent


def test_what_a_url_answers_is_checked(server: WireServer, site: Site) -> None:
    limits = PartLimits(2_000, frozenset({site.host}))

    def refused(part: Part) -> tuple[str, str]:
        return refusal(OPENAI_CHAT, server, part, limits=limits)

    code, message = refused(Part("image", "image/png", url=site.url("/page", b"<html>", "text/html")))
    assert (code, "found text/html" in message) == ("invalid_arguments", True), message
    code, message = refused(Part("image", url=site.url("/lie", b"<html>", "image/png")))
    assert (code, "found bytes of no known kind" in message) == ("invalid_arguments", True), message
    code, message = refused(Part("image", url=site.url("/big", PNG + bytes(3_000), "image/png")))
    assert (code, "at most 2000 bytes" in message) == ("invalid_arguments", True), message
    code, message = refused(Part("image", url=site.url("/none", b"", status=404)))
    assert (code, "HTTP status 404" in message) == ("invalid_arguments", True), message
    code, message = refused(Part("image", url=site.url("/away", b"", status=503)))
    assert (code, "HTTP status 503" in message) == ("transient", True), message
    for number in range(5):
        url = site.url(f"/{number}", b"", status=302, Location=f"/{number + 1}")
    code, message = refused(Part("image", url=url.replace("/4", "/0")))
    assert (code, "more than 3 redirects" in message) == ("invalid_arguments", True), message


def test_a_url_at_a_private_address_is_refused_also_behind_a_redirect(server: WireServer, site: Site) -> None:
    code, message = refusal(OPENAI_CHAT, server, Part("image", url=site.url("/dot", PNG, "image/png")))
    assert (code, site.asked, "public address" in message) == ("policy", [], True)
    away = site.url("/to", b"", status=302, Location="http://127.0.0.2:9/")
    limits = PartLimits(allowed=frozenset({site.host}))
    code, _ = refusal(OPENAI_CHAT, server, Part("image", url=away), limits=limits)
    assert (code, site.asked) == ("policy", ["/to"])


def test_all_parts_together_are_bounded(server: WireServer) -> None:
    part, payloads = stored("image", PNG, "image/png")
    limits = PartLimits(len(PNG) * 2 - 1)
    code, message = refusal(OPENAI_CHAT, server, part, part, payloads=payloads, limits=limits)
    assert (code, f"have {len(PNG) * 2 - 1} bytes together" in message) == ("invalid_arguments", True)


def test_a_model_that_does_not_read_a_kind_is_not_asked(server: WireServer) -> None:
    sound, payloads = stored("audio", WAV, "audio/wav")
    code, message = refusal(OPENAI_CHAT, server, sound, payloads=payloads)
    assert (code, "does not read audio input of audio/wav" in message) == ("model_refused", True)
    picture, payloads = stored("image", PNG, "image/png")
    code, message = refusal(OPENAI_CHAT, server, picture, payloads=payloads, model=OFFLINE)
    assert (code, "'offline' reads text only" in message) == ("model_refused", True)


def test_a_payload_that_cannot_be_read_now_is_tried_again_later(server: WireServer) -> None:
    part, _ = stored("image", PNG, "image/png")
    code, message = refusal(OPENAI_CHAT, server, part)
    assert (code, "it is gone" in message) == ("transient", True)


def test_a_part_is_stored_and_read_again() -> None:
    part = Part("image", "image/png", "dot.png", "ab" * 32, 7)
    assert Part.of(part.to_json()) == part
    assert Part.of(replace(part, sha256=None, url="https://example.org/x").to_json()).url == "https://example.org/x"
