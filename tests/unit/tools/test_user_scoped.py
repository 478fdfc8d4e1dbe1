"""Function tools whose parameters say whom they act for."""

from __future__ import annotations

import asyncio

import pytest

from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.platform.errors import Misconfigured
from planq.worker.tools.declare import options_of, tool
from planq.worker.tools.function import FunctionTool
from planq.worker.tools.services import ToolServices
from planq.worker.tools.threads import ToolThreads


@tool(effect="read", user_scoped=["customer_id", "tenant_id"])
async def orders(customer_id: str, tenant_id: str, month: int) -> str:
    """List orders."""
    return f"{tenant_id}/{customer_id}/{month}"


def made(function: object) -> FunctionTool:
    options = options_of(function)
    assert options is not None
    return FunctionTool(function, options, services=ToolServices(), threads=ToolThreads())  # type: ignore[arg-type]


def test_they_stand_in_no_schema_and_get_the_values_of_the_job(context: ToolContext) -> None:
    found = made(orders)

    assert found.definition.user_scoped == ["customer_id", "tenant_id"]
    assert set(found.definition.input_schema["properties"]) == {"month"}
    assert found.definition.input_schema["required"] == ["month"]
    assert asyncio.run(found.call({"month": 3}, context)) == {"text": "default/ada/3"}
    assert asyncio.run(found.call({"month": 3, "customer_id": "eve"}, context)) == {"text": "default/ada/3"}


def test_a_name_that_is_no_parameter_stops_the_worker() -> None:
    @tool(user_scoped=["customer"])
    async def other(customer_id: str) -> str:
        return customer_id

    with pytest.raises(Misconfigured, match="user_scoped names 'customer'; its parameters are customer_id"):
        made(other)
