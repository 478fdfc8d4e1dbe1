"""Conformance of the planning call (`inbound_flow`, operation `planner_call`): the real gateway over a wire."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from planq.shared.agentic.models.exchange import Ask, ModelFailed
from planq.shared.agentic.rounds.guide import Guide, read_guide
from planq.worker.models.gateway import ModelGateway, TryLimits
from tests.conformance.cases import Case, load, mismatches, params
from tests.conformance.overrides import expectation
from tests.integration.llm.calls import Waits, settings_for
from tests.integration.llm.dialects import ANTHROPIC, GOOGLE, OPENAI_CHAT
from tests.integration.llm.wire import Reply, WireServer, wire_server

CASES = [case for case in load("inbound_flow") if case.op == "planner_call"]
DIALECTS = {"openai": OPENAI_CHAT.whole, "gemini": GOOGLE.whole, "anthropic": ANTHROPIC.whole}


def run_case(given: Mapping[str, Any], server: WireServer) -> dict[str, Any]:
    dialect = DIALECTS[given["provider"]]
    outcomes = [
        Reply(dialect.reply(said, None)) if isinstance(said, str) else Reply({"error": said}, 503)
        for said in given["outcomes"]
    ]
    server.script(*outcomes)
    settings = settings_for(dialect, server)
    model = f"{dialect.provider}:{given['model']}"

    async def ask() -> Any:
        gateway = ModelGateway(settings, patience=TryLimits(settings, Waits(), lambda: 0.5))
        try:
            reply = await gateway.guide(Ask("job-1", "do it", model), [])
        except ModelFailed as failure:
            return None, failure.call
        finally:
            await gateway.aclose()
        return reply, reply.call

    reply, call = asyncio.run(ask())
    is_guide = reply is not None and isinstance(read_guide(reply.text, []), Guide)
    return {"model": call.model.partition(":")[2], "calls": len(server.requests), "ok": is_guide}


@pytest.mark.parametrize("case", params(CASES))
def test_planner_call(case: Case) -> None:
    expected, used = expectation(case)

    with wire_server() as server:
        actual = run_case(case.input, server)

    by = "; ".join(f"D{rule.decision}: {rule.name}" for rule in used) or "the case itself"
    assert mismatches(expected, actual) == [], f"expected by {by}"
