"""A job of `react` with each provider's format: what a model said is stored, read again, and goes back as it came."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from planq.shared.kernel.states import Strategy
from planq.worker.models.gateway import ModelGateway
from planq.worker.tools.builtin.pure import calculate
from tests.integration.llm.calls import every_stream, settings_for
from tests.integration.llm.dialects import Dialect
from tests.integration.llm.turns import WireMessage, calling, conversation, reasoning
from tests.integration.llm.wire import Reply, WireServer, wire_server
from tests.support.harness import Harness, make_tool


@pytest.fixture
def server() -> Iterator[WireServer]:
    with wire_server() as running:
        yield running


@every_stream
def test_a_turn_goes_back_with_its_ids_and_signature(
    play: Callable[..., Any], server: WireServer, dialect: Dialect
) -> None:
    dialect = reasoning(dialect)
    sums = [("calculate", {"expression": "2+2"}), ("calculate", {"expression": "$0.output.result"})]
    server.script(Reply(calling(dialect, "Let me see.", *sums)), Reply(dialect.reply("It is 4.", None)))

    async def scenario(harness: Harness) -> Any:
        return await harness.run("What is 2+2?", strategy=Strategy.REACT, model=dialect.model)

    job, _ = play(scenario, ModelGateway(settings_for(dialect, server)), [make_tool(calculate)])

    assert (job["status"], job["stop_reason"], job["answer"]) == ("completed", "answered", "It is 4.")
    question, said, results = conversation(dialect, server.requests[1].body)
    names = [name for name, _, _ in said.calls]
    assert question == WireMessage("user", ("What is 2+2?",))
    calls = tuple((name, *one) for name, one in zip(names, sums, strict=True))
    assert said == WireMessage("assistant", ("Let me see.",), calls, signed=True)
    (first, second) = results.results
    assert first == (names[0], '{"result": 4}')
    # A reference is text here, and no expression.
    assert (second[0], '"status": "failed"' in second[1]) == (names[1], True)
