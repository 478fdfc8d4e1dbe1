"""The jobs of the chaos run: repeatable, valid plans, and answers that the tools really give."""

from __future__ import annotations

import asyncio
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from planq.shared.agentic.models.exchange import Ask
from planq.shared.agentic.plan.document import parse_plan
from planq.shared.agentic.plan.validation import validate_plan
from planq.shared.agentic.references.resolution import resolve
from planq.shared.agentic.tools.contract import Suspended, Tool, ToolContext
from planq.worker.models.offline import plan_offline
from planq.worker.tools import ToolError
from planq.worker.tools.registry import Registry, load_registry
from planq.worker.tools.services import ToolServices
from tests.chaos import ledger
from tests.chaos.blob import shrunk
from tests.chaos.recipes import KINDS, PEACEFUL, Recipe, recipes
from tests.chaos.tools import LEDGER_VARIABLE


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_registry(services=ToolServices(), modules=["tests.chaos.tools"])


def context(index: int, tool: str, attempt: int) -> ToolContext:
    return ToolContext("job", index, attempt, tool, "default", "", "job", "job", "")


async def call(tool: Tool, arguments: dict[str, Any], index: int, retries: int) -> Any:
    for attempt in range(1, retries + 2):
        try:
            output = await tool.call(arguments, context(index, tool.definition.name, attempt))
        except ToolError:
            continue
        return output.output if isinstance(output, Suspended) else output
    raise AssertionError(f"{tool.definition.name} failed {retries + 1} times")


async def outputs(plan: Any, registry: Registry) -> list[Any]:
    """Run a plan in sequence, with the real tools; timers run out at once."""
    found: list[Any] = []
    for index, planned in enumerate(plan.calls):
        tool = registry.find(planned.tool_name)
        assert tool is not None
        arguments = resolve(planned.arguments, dict(enumerate(found))).arguments
        assert isinstance(arguments, dict)
        if "seconds" in arguments and planned.tool_name != "wait":
            arguments["seconds"] = 0
        found.append(await call(tool, arguments, index, planned.retries or 0))
    return found


def plan_of(recipe: Recipe, registry: Registry) -> Any:
    if "plan" in recipe.body:
        return parse_plan(recipe.body["plan"])
    (asked,) = plan_offline(Ask("job", recipe.body["input"], "offline"), registry.definitions()).tool_calls
    return parse_plan(asked.arguments)


def ends_its_process(recipe: Recipe) -> bool:
    """Say whether a recipe's first step kills or freezes whoever runs it."""
    if recipe.kind in PEACEFUL:
        return False
    arguments = recipe.body["plan"]["calls"][0]["arguments"]
    return bool(arguments["hold"] if recipe.kind == "freeze" else arguments["times"])


def test_the_same_seed_gives_the_same_jobs_and_every_kind_comes_in_turn() -> None:
    first = list(islice(recipes(3), 2 * len(KINDS)))

    assert first == list(islice(recipes(3), 2 * len(KINDS)))
    assert first != list(islice(recipes(4), 2 * len(KINDS)))
    assert [recipe.number for recipe in first] == list(range(2 * len(KINDS)))
    assert {recipe.kind for recipe in first[: len(KINDS)]} == set(KINDS)


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_expected_outputs_are_what_the_tools_give(
    kind: str, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LEDGER_VARIABLE, str(tmp_path / "ledger"))
    recipe = next(recipe for recipe in recipes(11) if recipe.kind == kind and not ends_its_process(recipe))
    plan = plan_of(recipe, registry)
    tools = {definition.name: definition for definition in registry.definitions()}

    assert validate_plan(plan, tools, max_steps=100) == []
    assert [shrunk(output) for output in asyncio.run(outputs(plan, registry))] == list(recipe.outputs)
    unsafe = {index for index, one in enumerate(plan.calls) if tools[one.tool_name].effect == "unsafe"}
    assert recipe.unsafe == unsafe
    written = ledger.read(tmp_path / "ledger")
    assert {int(entry.key.split("/")[1]) for entry in written if entry.effect == "unsafe"} == unsafe
