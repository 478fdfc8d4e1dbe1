"""Resources: opened once before the first call, handed to tools by their type, closed with the process."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from planq.shared.agentic.tools.contract import NotHappened, ToolContext
from planq.shared.kernel.states import Pool
from planq.shared.platform.errors import Misconfigured, Unreached
from planq.worker.tools import resource, tool
from planq.worker.tools.registry import Registry, load_registry
from planq.worker.tools.services import ToolServices

CONTEXT = ToolContext("job", 0, 1, "t", "default", "", "job", "job", "")


class Connections:
    """What is shared."""

    def __init__(self) -> None:
        self.asked = 0


class Model:
    """What is loaded, and waits."""


class Happened(list[str]):
    """What was done, in its order."""


def module(monkeypatch: pytest.MonkeyPatch, **names: Any) -> Registry:
    """Return the registry of a module with these names."""
    made = ModuleType("desk")
    vars(made).update(names)
    monkeypatch.setitem(sys.modules, "desk", made)
    return load_registry(services=ToolServices(), entry_point_group=None, modules=["desk"])


def shared(happened: Happened) -> Callable[[], AsyncIterator[Connections]]:
    @resource
    async def connections() -> AsyncIterator[Connections]:
        happened.append("opened")
        yield Connections()
        happened.append("closed")

    return connections


@tool(effect="read")
async def ask(question: str, connections: Connections) -> dict[str, int]:
    """Ask over the connections."""
    connections.asked += 1
    return {"asked": connections.asked}


@tool(effect="read", pool="io")
def ask_in_thread(connections: Connections) -> dict[str, int]:
    """Ask in a thread."""
    connections.asked += 10
    return {"asked": connections.asked}


def call(registry: Registry, name: str, **arguments: Any) -> Any:
    found = registry.find(name)
    assert found is not None
    return found.call(arguments, CONTEXT)


def test_a_resource_is_opened_once_and_handed_to_all_tools_that_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    happened = Happened()
    registry = module(monkeypatch, connections=shared(happened), ask=ask, ask_in_thread=ask_in_thread)

    async def live() -> list[Any]:
        await registry.open_resources(Pool.IO)
        assert happened == ["opened"], "before the first call"
        answers = await asyncio.gather(*(call(registry, "ask", question="?") for _ in range(3)))
        answers.append(await call(registry, "ask_in_thread"))
        assert happened == ["opened"]
        await registry.resources.close()
        await registry.resources.close()
        return answers

    assert [answer["asked"] for answer in asyncio.run(live())] == [1, 2, 3, 13]
    assert happened == ["opened", "closed"]
    definition = registry.find("ask").definition  # type: ignore[union-attr]
    assert list(definition.input_schema["properties"]) == ["question"], "nobody chooses it"


def test_only_what_tools_of_the_pool_ask_for_is_opened_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    happened = Happened()
    registry = module(monkeypatch, connections=shared(happened), ask=ask)
    asyncio.run(registry.open_resources(Pool("gpu")))
    assert happened == []


def test_a_synchronous_resource_is_opened_and_closed_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[Any] = []

    @resource
    def model() -> Iterator[Model]:
        happened.append(threading.current_thread() is threading.main_thread())
        try:
            yield Model()
        finally:
            happened.append("closed")

    @tool(effect="pure", pool="cpu")
    def run(model: Model) -> dict[str, str]:
        """Use the model."""
        return {"with": type(model).__name__}

    registry = module(monkeypatch, model=model, run=run)

    async def live() -> Any:
        try:
            return await call(registry, "run")
        finally:
            await registry.resources.close()

    assert asyncio.run(live()) == {"with": "Model"}
    assert happened == [False, "closed"]


def test_a_context_manager_of_anyio_is_left_in_the_task_that_entered_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import anyio

    happened = Happened()

    @resource
    @contextlib.asynccontextmanager
    async def connections() -> AsyncIterator[Connections]:
        async with anyio.create_task_group():
            yield Connections()
        happened.append("closed")

    registry = module(monkeypatch, connections=connections, ask=ask)

    async def live() -> None:
        await call(registry, "ask", question="?")
        await registry.resources.close()

    asyncio.run(live())
    assert happened == ["closed"]


def test_what_cannot_be_opened_fails_the_call_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = Happened()

    @resource
    async def connections() -> AsyncIterator[Connections]:
        tries.append("try")
        if len(tries) < 3:
            raise OSError("nobody there")
        yield Connections()

    registry = module(monkeypatch, connections=connections, ask=ask)

    async def live() -> Any:
        await registry.open_resources(Pool.IO)
        with pytest.raises(
            Unreached, match=r"the resource Connections could not be opened \(OSError: nobody there\)"
        ):
            await call(registry, "ask", question="?")
        answer = await call(registry, "ask", question="?")
        await registry.resources.close()
        return answer

    assert asyncio.run(live()) == {"asked": 1}


def test_find_out_gets_resources_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Charge(dict[str, int]):
        """A charge."""

    async def look(connections: Connections) -> dict[str, int] | NotHappened:
        return {"asked": 100 + connections.asked}

    @tool(effect="unsafe", find_out=look)
    async def pay(cents: int) -> dict[str, int]:
        """Pay."""
        return {"asked": cents}

    registry = module(monkeypatch, connections=shared(Happened()), pay=pay)

    async def live() -> Any:
        found = await registry.find("pay").find_out({"cents": 1}, CONTEXT)  # type: ignore[union-attr]
        await registry.resources.close()
        return found

    assert asyncio.run(live()) == {"asked": 100}


def with_parameters(size: int) -> Iterator[Connections]:
    yield Connections()


def without_type() -> Iterator[Any]:
    yield Connections()


def of_no_class() -> Iterator[str]:
    yield "text"


def no_generator() -> Connections:
    return Connections()


async def of_the_wrong_kind() -> AsyncIterator[Connections]:
    yield Connections()


of_the_wrong_kind.__annotations__["return"] = Iterator[Connections]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (with_parameters, "has no parameters"),
        (without_type, "by its type"),
        (of_no_class, "by its type"),
        (no_generator, "expects a generator function"),
        (of_the_wrong_kind, r"AsyncIterator\[Connections\]"),
    ],
)
def test_what_is_no_resource_is_refused_by_name(function: Any, said: str) -> None:
    with pytest.raises(Misconfigured, match=said):
        resource(function)


def test_two_resources_of_one_type_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Misconfigured, match=r"two resources yield Connections: .*test_resources\.py:\d+.* and "):
        module(monkeypatch, one=shared(Happened()), two=shared(Happened()), ask=ask)


def test_a_tool_that_asks_for_what_nobody_yields_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Misconfigured, match="comes from a @resource that yields this type"):
        module(monkeypatch, ask=ask)


def test_resources_and_tools_may_lie_in_modules_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shelf.py").write_text(
        "from collections.abc import Iterator\nfrom planq import resource\n"
        "class Shelf:\n    books = 3\n"
        "@resource\ndef shelf() -> Iterator[Shelf]:\n    yield Shelf()\n"
    )
    (tmp_path / "reading.py").write_text(
        "from planq import tool\nfrom shelf import Shelf\n"
        "@tool(effect='read')\nasync def count(shelf: Shelf) -> int:\n    return shelf.books\n"
    )
    monkeypatch.chdir(tmp_path)
    registry = load_registry(services=ToolServices(), entry_point_group=None, modules=["reading", "shelf"])
    assert asyncio.run(call(registry, "count")) == {"result": 3}
