"""Images and files that tools have made, on the way to a model: shown where it can see, and named to every model."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from planq.shared.agentic.models.exchange import ModelReply, ToolCallRequest, TurnForm
from planq.shared.agentic.rounds.transcript import transcript
from planq.shared.kernel.steps import RoundRecord, StepResult
from planq.shared.platform.values.parts import part_of_artifact
from planq.worker.egress import Egress
from planq.worker.models.gateway import ModelGateway, TryLimits
from planq.worker.models.parts import PartLimits, PartLoader
from tests.integration.llm.calls import TOOLS, Waits, ask_for, every_dialect, settings_for
from tests.integration.llm.dialects import ANTHROPIC, OPENAI_CHAT, Dialect
from tests.integration.llm.test_parts import HeldPayloads
from tests.integration.llm.wire import Reply, WireServer
from tests.support.pictures import PNG, WAV, base64_of

CALL = ToolCallRequest("calculate", {"expression": "1"}, "call00001")


def sent(
    dialect: Dialect,
    server: WireServer,
    data: bytes = PNG,
    media_type: str = "image/png",
    *,
    form: TurnForm = TurnForm.REACT,
    limits: PartLimits = PartLimits(),  # noqa: B008
    has_loader: bool = True,
) -> list[str]:
    """Return the bodies of the requests of a turn after one whose tool has made an artifact."""
    payloads = HeldPayloads()
    digest = asyncio.run(payloads.put("t", data, b""))
    made = part_of_artifact("charts/1", media_type, digest.hex(), len(data))
    result = StepResult("calculate", {"expression": "1"}, {"n": 1}, artifacts=[made])
    reply = {"text": "", "tool_calls": [{"id": CALL.id, "name": CALL.name, "arguments": dict(CALL.arguments)}]}
    told = transcript([RoundRecord(0, "model", {}, reply, 0, [result])], max_tokens=10_000, form=form)
    settings = settings_for(dialect, server)

    async def run() -> ModelReply:
        loader = PartLoader(payloads, Egress(), limits) if has_loader else None
        gateway = ModelGateway(settings, patience=TryLimits(settings, Waits()), parts=loader)
        try:
            return await gateway.turn(ask_for(dialect), TOOLS, told, form)
        finally:
            await gateway.aclose()

    assert asyncio.run(run()).text == "Red."
    bodies = [json.dumps(request.body, ensure_ascii=False) for request in server.requests]
    assert all("charts/1" in body for body in bodies), "it is named in each of them"
    return [body.replace("-", "+").replace("_", "/") for body in bodies]  # Google takes the alphabet of URLs


@every_dialect
@pytest.mark.parametrize("form", [TurnForm.REACT, TurnForm.ANSWER])
def test_an_image_goes_to_the_model_after_the_result(server: WireServer, dialect: Dialect, form: TurnForm) -> None:
    server.script(Reply(dialect.reply("Red.", None)))
    (body,) = sent(dialect, server, form=form)
    assert base64_of(PNG) in body


@pytest.mark.parametrize(
    ("dialect", "data", "media_type"),
    [(OPENAI_CHAT, WAV, "audio/wav"), (ANTHROPIC, WAV, "audio/wav"), (OPENAI_CHAT, b"<html>", "image/png")],
    ids=["audio", "audio for Claude", "no image"],
)
def test_what_a_model_cannot_take_is_only_named(
    server: WireServer, dialect: Dialect, data: bytes, media_type: str
) -> None:
    server.script(Reply(dialect.reply("Red.", None)))
    (body,) = sent(dialect, server, data, media_type)
    assert base64_of(data) not in body


@pytest.mark.parametrize("given", [{"limits": PartLimits(max_bytes=10)}, {"has_loader": False}], ids=repr)
def test_without_room_for_it_it_is_only_named(server: WireServer, given: Any) -> None:
    server.script(Reply(OPENAI_CHAT.reply("Red.", None)))
    (body,) = sent(OPENAI_CHAT, server, **given)
    assert base64_of(PNG) not in body


def test_a_server_that_refuses_images_is_asked_again_without_them(server: WireServer) -> None:
    refusal = {"error": {"message": "unknown variant `image_url`, expected `text`", "type": "invalid_request_error"}}
    server.script(Reply(refusal, status=400), Reply(OPENAI_CHAT.reply("Red.", None)))
    first, second = sent(OPENAI_CHAT, server)
    assert (base64_of(PNG) in first, base64_of(PNG) in second) == (True, False)
