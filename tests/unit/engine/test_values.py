"""Arguments and outputs of a step, checked against schemas that may take seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, cast

import pytest

from planq.shared.agentic.tools.contract import Tool
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.platform.errors import InvalidArguments, InvalidOutput
from planq.shared.subjects.payloads.contract import Payloads
from planq.worker.handlers.step_values import OutputLimits, Values
from tests.unit.engine.test_calling import claim

SCHEMA = {"type": "object", "properties": {"x": {"contains": {"const": -1}, "items": {"not": {"type": "string"}}}}}
LONG = list(range(20_000))


class Listed:
    """A tool by its definition; nothing here calls it."""

    definition = ToolDefinition(name="probe", input_schema=SCHEMA, output_schema=SCHEMA)


VALUES = Values(cast(Payloads, None), OutputLimits(most=10_000_000, inline=1_000_000))
TOOL = cast(Tool, Listed())


def turns(work: Coroutine[Any, Any, Any]) -> tuple[Any, int]:
    """Return what `work` gives or raises, and how often the loop went on meanwhile."""

    async def run() -> tuple[Any, int]:
        task, count = asyncio.ensure_future(work), 0
        while not task.done():
            await asyncio.sleep(0)
            count += 1
        return task.exception() or task.result(), count

    return asyncio.run(run())


@pytest.mark.parametrize("last", [-1, 0], ids=["valid", "not valid"])
def test_a_long_check_lets_the_loop_go_on(last: int) -> None:
    value = {"x": [*LONG, last]}

    arguments, during_arguments = turns(VALUES.arguments(replace(claim(), arguments=value), TOOL))
    output, during_output = turns(VALUES.ready(claim(), TOOL, value))

    assert min(during_arguments, during_output) > 10
    if last == -1:
        assert arguments == value
        assert output.body.startswith(b'{"x":[0,1,2')
    else:
        assert isinstance(arguments, InvalidArguments)
        assert isinstance(output, InvalidOutput)
        assert "/x: expected contains" in arguments.message


def test_a_short_check_is_made_at_once() -> None:
    arguments, count = turns(VALUES.arguments(replace(claim(), arguments={"x": [-1]}), TOOL))

    assert (arguments, count) == ({"x": [-1]}, 1)
