"""Model calls of bulk jobs ask for the cheaper tier; those of interactive jobs do not."""

from __future__ import annotations

from typing import Any

import pytest

from planq.shared.kernel.states import Priority
from planq.worker.models.gateway import ModelGateway
from tests.integration.llm.calls import settings_for
from tests.integration.llm.dialects import OPENAI_CHAT
from tests.integration.llm.wire import Reply, wire_server
from tests.support.harness import Harness


@pytest.mark.parametrize(("priority", "tier"), [(Priority.BULK, "flex"), (Priority.INTERACTIVE, None)])
def test_the_priority_of_a_job_decides_the_tier_of_its_calls(play: Any, priority: Priority, tier: str | None) -> None:
    with wire_server() as server:
        server.script(Reply(OPENAI_CHAT.reply("It is four.", None)))
        gateway = ModelGateway(settings_for(OPENAI_CHAT, server, bulk_tier="flex"))

        async def scenario(harness: Harness) -> None:
            job_id = await harness.submit("What is 2+2?", model=OPENAI_CHAT.model, priority=priority)
            await harness.drain()
            await gateway.aclose()
            job, _ = await harness.requests.job("default", job_id)
            assert job["answer"] == "It is four."

        play(scenario, gateway)

    assert [request.body.get("service_tier") for request in server.requests] == [tier]
