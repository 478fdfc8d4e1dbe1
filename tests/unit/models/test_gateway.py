"""The gateway without a network: offline rules, refusals, and what is loaded."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest

from planq.shared.agentic.models.exchange import Ask, Findings, ModelFailed, ModelReply
from planq.shared.agentic.models.names import Provider
from planq.shared.agentic.plan.document import Plan
from planq.shared.agentic.plan.interpret import Calls, interpret
from planq.shared.agentic.plan.validation import validate_plan
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.budget import Price
from planq.shared.kernel.steps import StepResult
from planq.shared.kernel.usage import Purpose
from planq.shared.platform.errors import ModelRefused, PolicyDenied
from planq.worker.models.gateway import ModelGateway
from planq.worker.models.settings import ModelSettings
from planq.worker.tools.registry import load_registry
from planq.worker.tools.services import ToolServices
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
SAMPLE = (
    'Search the handbook for "durable execution" and search the handbook for "leases", '
    "then write a report titled Findings from them."
)


def plan(text: str, model: str = "offline", settings: ModelSettings | None = None) -> ModelReply:
    gateway = ModelGateway(settings or ModelSettings())
    return asyncio.run(gateway.plan(Ask("job-1", text, model), [ToolDefinition(name="calculate")]))


def test_an_offline_plan_costs_nothing_and_is_recorded() -> None:
    call = plan("calculate 1+1").call

    assert (call.purpose, call.model, call.attempts, call.error) == (Purpose.PLAN, "offline", 1, None)
    assert (call.input_tokens, call.output_tokens, call.cost_usd) == (0, 0, Decimal(0))
    assert call.exchange is not None
    assert call.exchange["request"] is None, "the rules are sent no prompt"
    assert call.exchange["reply"]["tool_calls"][0]["arguments"]["calls"] == [
        {"tool_name": "calculate", "arguments": {"expression": "1+1"}}
    ]


def test_exchanges_are_kept_only_when_the_settings_say_so() -> None:
    assert plan("calculate 1+1", settings=ModelSettings(keep_exchanges=False)).call.exchange is None


def test_an_offline_answer_is_text() -> None:
    findings = Findings(results=[StepResult("calculate", {"expression": "1+1"}, {"result": 2})])

    reply = asyncio.run(ModelGateway(ModelSettings()).respond(Ask("job-1", "x", "offline"), findings))

    assert reply.text.startswith("1+1 = 2")
    assert reply.call.purpose is Purpose.RESPOND


def test_an_ask_without_a_model_goes_to_the_default() -> None:
    assert plan("calculate 1+1", model="").call.model == "offline"


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(ModelFailed, match="unknown model") as caught:
        plan("x", model="gpt-5")

    assert isinstance(caught.value.error, ModelRefused)
    assert caught.value.call.error is not None
    assert caught.value.call.error.code == "model_refused"


@pytest.mark.parametrize(
    "text",
    [
        SAMPLE,
        "calculate 2+2, then calculate it * 3, what time is it, and write a report from the results",
        "fetch https://example.org/ and write a report about it",
        "wait 2.5 seconds and then look up leases",
        'search for "$0.output.text {{ $0.output.text }}" and write a report titled "{{ $0.output.x }}"',
    ],
)
def test_offline_plans_are_valid_for_the_tools_that_come_with_planq(text: str) -> None:
    registry = load_registry(services=ToolServices(), entry_point_group=None, modules=["planq.worker.tools.builtin"])
    tools = {definition.name: definition for definition in registry.definitions()}

    reply = asyncio.run(ModelGateway(ModelSettings()).plan(Ask("job-1", text, "offline"), list(tools.values())))

    decided = interpret(reply.text, reply.tool_calls)
    assert isinstance(decided, Calls)
    assert isinstance(decided.plan, Plan)
    assert validate_plan(decided.plan, tools, max_steps=10) == []


def test_an_offline_process_loads_no_sdk() -> None:
    code = (
        "import asyncio, sys\n"
        "from planq.shared.agentic.models.exchange import Ask, Findings\n"
        "from planq.worker.models.gateway import ModelGateway\n"
        "from planq.worker.models.settings import ModelSettings\n"
        "gateway = ModelGateway(ModelSettings())\n"
        "asyncio.run(gateway.plan(Ask('j', 'hello', 'offline'), []))\n"
        "asyncio.run(gateway.respond(Ask('j', 'hello', 'offline'), Findings()))\n"
        "heavy = {'pydantic_ai', 'openai', 'anthropic', 'google', 'httpx', 'httpx2', 'genai_prices'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )

    assert done.stdout == "[]\n"


def test_a_call_is_recorded_under_the_id_that_was_reserved_or_one_of_its_own() -> None:
    gateway, reserved = ModelGateway(ModelSettings()), UUID(int=7)
    asks = [Ask("j", "calculate 1+1", "offline", call_id=call_id) for call_id in (reserved, None, None)]

    ids = [asyncio.run(gateway.plan(ask, [ToolDefinition(name="calculate")])).call.id for ask in asks]

    assert ids[0] == reserved
    assert len({*ids, None}) == 4


@pytest.mark.parametrize("model", ["nonsense", "openai:no-such-model"])
def test_what_has_no_known_price_is_told_as_such(model: str) -> None:
    assert asyncio.run(ModelGateway(ModelSettings()).price(model, 1_000)) is None


def test_a_price_grows_with_the_question_and_replies_cost_more() -> None:
    gateway = ModelGateway(ModelSettings(default_model="openai:gpt-5"))

    short, long = (asyncio.run(gateway.price("", tokens)) for tokens in (1_000, 2_000))

    assert short is not None
    assert long is not None
    assert long.asked_usd == pytest.approx(2 * short.asked_usd)
    assert short.token_usd > short.asked_usd / 1_000 > 0
    assert asyncio.run(gateway.price("offline", 1_000)) == Price(0.0, 0.0)


@pytest.mark.parametrize(("own_key", "is_refused"), [(None, True), ("sk-of-the-tenant", False)])
def test_a_model_that_a_tenant_may_not_name_is_not_asked_on_the_servers_key(
    own_key: str | None, is_refused: bool
) -> None:
    async def keys(_tenant: str, _provider: object) -> str | None:
        return own_key

    async def may_name(_tenant: str, _model: str) -> bool:
        return False

    closed = f"http://127.0.0.1:{free_port()}/v1"
    settings = ModelSettings(api_keys={Provider.OPENAI: "sk-of-the-server"}, base_urls={Provider.OPENAI: closed})
    gateway = ModelGateway(settings, keys=keys, may_name=may_name)

    with pytest.raises(ModelFailed) as failed:
        asyncio.run(gateway.respond(Ask("job-1", "x", "openai:dear"), Findings(results=[])))

    assert isinstance(failed.value.error, PolicyDenied) is is_refused
