"""What a tenant is not offered does not exist for its jobs: not for models, not in plans."""

from __future__ import annotations

from typing import Any

from planq.shared.subjects.tenants.config import TenantConfig
from planq.shared.subjects.tenants.directory import TenantStore
from planq.worker.tools.declare import tool
from tests.support.harness import Harness, ScriptedModel, make_tool


@tool(effect="pure")
async def calc(text: str) -> str:
    """Calculate."""
    return text


@tool(effect="pure")
async def mail_send(text: str) -> str:
    """Send."""
    return text


def test_jobs_of_a_tenant_have_the_tools_that_its_configuration_leaves(play: Any) -> None:
    async def scenario(harness: Harness) -> None:
        await TenantStore(harness.database).change("default", config=TenantConfig(tools=["c*"]))
        call = {"tool_name": "mail_send", "arguments": {"text": "x"}}

        await harness.run("calculate")
        refused, steps = await harness.run(plan={"type": "tool_calls", "calls": [call]})

        ((_, offered), *_) = model.asked
        assert [one.name for one in offered] == ["calc"]
        assert (refused["plan_errors"][0]["error"]["type"], steps) == ("unknown_tool", [])
        assert refused["plan_errors"][0]["error"]["available_tools"] == ["calc"]

    model = ScriptedModel("hello")
    play(scenario, model, [make_tool(calc), make_tool(mail_send)])
