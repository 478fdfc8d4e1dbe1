"""Planners of packages: how they are found, and that what they return is only taken as JSON."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from planq.shared.agentic.models.exchange import ModelFailed, ModelReply, TurnForm
from planq.shared.agentic.plan.interpret import Direct
from planq.shared.agentic.plan.planner import PlanningRequest
from planq.shared.agentic.rounds.reading import TurnCalls, interpret_turn
from planq.shared.kernel.usage import ModelCall
from planq.shared.platform.errors import Misconfigured, Transient
from planq.shared.settings.settings import Settings
from planq.worker.container import Tools
from planq.worker.models.planners import InstalledPlanners, load_planners
from planq.worker.tools.services import NoDatabase

ASKED = PlanningRequest("job", "what?", (), {"results": [], "round": 0}, 0, 3)
CALLS = {"type": "tool_calls", "reasoning": "why", "calls": [{"tool_name": "a", "arguments": {"x": 1}}]}


class Own:
    """A planner that does what it is made for."""

    def __init__(self, act: Callable[[PlanningRequest], Any]) -> None:
        self._act = act

    async def plan(self, request: PlanningRequest) -> Mapping[str, Any]:
        found = self._act(request)
        return await found if asyncio.iscoroutine(found) else found  # type: ignore[no-any-return]


def decided(act: Callable[[PlanningRequest], Any], **options: Any) -> ModelReply:
    return asyncio.run(InstalledPlanners({"own": Own(act)}, **options).decide("own", ASKED))


def failure(act: Callable[[PlanningRequest], Any], **options: Any) -> ModelFailed:
    with pytest.raises(ModelFailed) as caught:
        decided(act, **options)
    return caught.value


def test_a_decision_is_read_as_a_models() -> None:
    reply = decided(lambda _: CALLS)

    turn = interpret_turn(reply.text, reply.tool_calls, TurnForm.LOOP)
    assert isinstance(turn, TurnCalls)
    assert turn.plan.calls[0].arguments == {"x": 1}
    assert (reply.call.model, reply.call.input_tokens, reply.call.error) == ("planner:own", 0, None)
    answer = decided(lambda request: {"type": "direct_response", "content": request.input})
    assert interpret_turn(answer.text, answer.tool_calls, TurnForm.LOOP) == Direct("what?")


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (None, "returned null; expected an object"),
        ([CALLS], "expected an object"),
        ({"type": object()}, "returned what is no JSON"),
        ({"type": float("nan")}, "returned what is no JSON"),
        ({"type": "x" * 2_000_000}, "at most 1000000 are read"),
    ],
)
def test_what_is_no_decision_is_refused(result: Any, told: str) -> None:
    failed = failure(lambda _: result)

    assert (failed.error.code, failed.error.retryable) == ("invalid_output", False)
    assert told in failed.error.message
    assert failed.call.error is not None


def test_a_planner_that_raises_fails_with_what_it_raised() -> None:
    def broken(_: PlanningRequest) -> Any:
        raise KeyError("x")

    def away(_: PlanningRequest) -> Any:
        raise Transient("the index is away")

    assert failure(broken).error.message == "planner 'own' raised KeyError: 'x'"
    assert failure(away).error.retryable


def test_a_planner_has_its_time() -> None:
    async def forever() -> Any:
        await asyncio.Event().wait()

    assert failure(lambda _: forever(), seconds=0.001).error.code == "timeout"


def test_a_planner_that_is_cut_off_is_recorded() -> None:
    calls: list[ModelCall] = []

    async def scenario() -> None:
        begun = asyncio.Event()

        async def forever() -> Any:
            begun.set()
            await asyncio.Event().wait()

        planners = InstalledPlanners({"own": Own(lambda _: forever())})
        task = asyncio.create_task(planners.decide("own", ASKED, cut_off=calls.append))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert [call.error and call.error.code for call in calls] == ["cancelled"]


def test_an_unknown_planner_names_those_that_there_are() -> None:
    with pytest.raises(ModelFailed, match="no planner 'other' is installed here; there are own"):
        asyncio.run(InstalledPlanners({"own": Own(lambda _: CALLS)}).decide("other", ASKED))


MODULE = """
class Planner:
    async def plan(self, request):
        return {"type": "noop"}

async def plan(request):
    return {"type": "noop"}

made = Planner()

def late(request):
    return {"type": "noop"}

class Broken:
    def __init__(self):
        raise ValueError("no index")
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., InstalledPlanners]:
    """Install a package whose entry points are given, `name=attribute`, and load its planners."""

    def install(group: str = "pq.planners", **entries: str) -> InstalledPlanners:
        (tmp_path / "pq_planning.py").write_text(MODULE, encoding="utf-8")
        metadata = tmp_path / "pq_planning-1.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: pq-planning\nVersion: 1\n", encoding="utf-8")
        lines = [f"{name} = pq_planning:{attribute}\n" for name, attribute in entries.items()]
        (metadata / "entry_points.txt").write_text(f"[{group}]\n" + "".join(lines), encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        importlib.invalidate_caches()
        return load_planners(group)

    return install


def test_functions_objects_and_classes_are_planners(installed: Callable[..., InstalledPlanners]) -> None:
    planners = installed(a="plan", b="made", c="Planner")

    assert planners.names == ["a", "b", "c"]
    for name in planners.names:
        reply = asyncio.run(planners.decide(name, ASKED))
        assert reply.tool_calls[0].arguments == {"type": "noop"}


@pytest.mark.parametrize(
    ("attribute", "told"),
    [
        ("late", "expected an async function plan"),
        ("Broken", "ValueError: no index"),
        ("nothing", "cannot be loaded"),
    ],
)
def test_what_is_no_planner_is_named(installed: Callable[..., InstalledPlanners], attribute: str, told: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        installed(mine=attribute)

    assert "entry point pq.planners:mine" in caught.value.message
    assert told in caught.value.message


def test_a_worker_has_the_planners_of_its_packages(installed: Callable[..., InstalledPlanners]) -> None:
    installed("planq.planners", mine="plan")

    tools = Tools.load(Settings(), NoDatabase(), NoDatabase())

    assert tools.planners.names == ["mine"]


def test_none_is_installed_with_planq() -> None:
    assert load_planners().names == []
