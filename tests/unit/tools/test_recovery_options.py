"""How a tool says what becomes of a call that was cut off, and what is refused at start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.states import Recovery
from planq.shared.platform.errors import InvalidArguments, InvalidOutput, Misconfigured, OutcomeUnknown, Transient
from planq.worker.tools import NotHappened, Suspended, ToolServices, tool
from planq.worker.tools.mcp.config import McpServer
from planq.worker.tools.mcp.definitions import definition_of
from planq.worker.tools.registry import Registry, load_registry, read_tools_file
from tests.unit.tools.conftest import Make

HERE = "test_recovery_options.py"


async def look_up(amount: int, context: ToolContext) -> dict[str, int] | NotHappened:
    """Return what was paid, which is nothing above a hundred."""
    return NotHappened() if amount > 100 else {"paid": amount + context.step_index}


def payment(**options: Any) -> Callable[..., Any]:
    """A tool that pays."""

    @tool(effect="unsafe", **options)
    async def pay(
        amount: Annotated[int, Field(ge=1)], context: ToolContext, services: ToolServices, note: str = "none"
    ) -> dict[str, int]:
        """Pay."""
        return {"paid": amount}

    return pay


@pytest.mark.parametrize(
    ("options", "recovery"),
    [({}, "fail"), ({"recovery": "fail"}, "fail"), ({"recovery": "ask"}, "ask"), ({"find_out": look_up}, "find_out")],
)
def test_the_definition_tells_the_recovery(make: Make, options: dict[str, Any], recovery: str) -> None:
    definition = make(payment(**options)).definition

    assert definition.recovery == recovery
    assert definition.retries == 0
    assert ToolDefinition.model_validate_json(definition.model_dump_json()) == definition


def test_find_out_gets_typed_arguments_by_name_and_gives_an_output(make: Make, context: ToolContext) -> None:
    pay = make(payment(find_out=look_up))

    assert asyncio.run(pay.find_out({"amount": 7}, context)) == {"paid": 10}
    assert asyncio.run(pay.find_out({"amount": 700}, context)) == NotHappened()
    with pytest.raises(InvalidArguments, match="amount"):
        asyncio.run(pay.find_out({"amount": "much"}, context))


def test_a_sync_find_out_runs_beside_the_loop_and_knows_defaults(make: Make, context: ToolContext) -> None:
    def look(note: str, services: ToolServices) -> dict[str, int] | NotHappened:
        assert services.http_max_bytes > 0
        return {"paid": len(note)}

    assert asyncio.run(make(payment(find_out=look)).find_out({"amount": 1}, context)) == {"paid": 4}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, InvalidOutput),
        (Suspended(delay=None, output={}), InvalidOutput),  # type: ignore[arg-type]
        (["no object"], InvalidOutput),
        (ConnectionResetError("gone"), Transient),
    ],
)
def test_what_find_out_cannot_answer_is_an_error(
    make: Make, context: ToolContext, answer: Any, expected: type[Exception]
) -> None:
    async def look() -> dict[str, int] | NotHappened:
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    with pytest.raises(expected, match="find_out of pay"):
        asyncio.run(make(payment(find_out=look)).find_out({"amount": 1}, context))


def test_a_tool_without_the_function_finds_nothing_out(make: Make, context: ToolContext) -> None:
    with pytest.raises(OutcomeUnknown, match="no function"):
        asyncio.run(make(payment()).find_out({"amount": 1}, context))


async def of_another_tool(sum: int) -> dict[str, int] | NotHappened:
    """Ask for a parameter that the tool has not."""
    return {"paid": sum}


async def always_sure(amount: int) -> dict[str, int]:
    """Never say that nothing happened."""
    return {"paid": amount}


async def unannotated(amount):  # type: ignore[no-untyped-def]
    """Say nothing about the answer."""
    return {"paid": amount}


async def by_position(*amount: int) -> dict[str, int] | NotHappened:
    """Take what cannot be named."""
    return {"paid": sum(amount)}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"effect": "read", "recovery": "ask"}, "recovery and find_out are for unsafe tools; 'read' ones"),
        ({"effect": "idempotent", "recovery": "fail"}, "are for unsafe tools"),
        ({"effect": "pure", "find_out": look_up}, "are for unsafe tools"),
        ({"recovery": "find_out"}, r"needs the function: @tool\(find_out=function\)"),
        ({"recovery": "ask", "find_out": look_up}, "says two things"),
        ({"recovery": "guess"}, "recovery: Input should be 'fail', 'ask' or 'find_out'"),
        ({"find_out": "look_up"}, "find_out: Input should be callable"),
        ({"find_out": of_another_tool}, "find_out of_another_tool: parameter 'sum' is none of the tool's"),
        ({"find_out": always_sure}, "find_out always_sure: expected a return annotation with NotHappened"),
        ({"find_out": unannotated}, "find_out unannotated: expected a return annotation with NotHappened"),
        ({"find_out": by_position}, "cannot be passed by name"),
        ({"find_out": print}, "expected a function"),
    ],
)
def test_what_makes_no_sense_is_refused_at_start_with_its_place(
    make: Make, options: dict[str, Any], words: str
) -> None:
    async def pay(amount: int) -> dict[str, int]:
        """Pay."""
        return {"paid": amount}

    with pytest.raises(Misconfigured, match=words) as refused:
        make(tool(**options)(pay))

    assert HERE in refused.value.message


@pytest.mark.parametrize("recovery", ["fail", "ask"])
def test_an_operator_may_choose_between_failing_and_asking(
    tmp_path: Path, services: ToolServices, monkeypatch: pytest.MonkeyPatch, recovery: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    source = (
        "from planq.worker.tools import NotHappened, tool\n"
        "def look() -> str | NotHappened: return NotHappened()\n"
        "@tool(effect='unsafe', find_out=look)\n"
        "def send() -> str: return ''\n"
    )
    (tmp_path / f"sending_{recovery}.py").write_text(source)
    file = tmp_path / "tools.yaml"

    def load(**entry: str) -> ToolDefinition:
        lines = [f"  - function: sending_{recovery}:send", *(f"    {key}: {value}" for key, value in entry.items())]
        file.write_text("\n".join(["tools:", *lines]))
        (definition,) = load_registry(services=services, entry_point_group=None, yaml_path=file).definitions()
        return definition

    assert load().recovery is Recovery.FIND_OUT
    assert load(recovery=recovery).recovery == recovery
    assert load(effect="idempotent").recovery is Recovery.FAIL, "there is nothing to recover any more"
    with pytest.raises(Misconfigured, match="are for unsafe tools"):
        load(effect="read", recovery=recovery)


@pytest.mark.parametrize("line", ["recovery: find_out", "recovery: never", "find_out: sending:look"])
def test_what_an_operator_cannot_say_names_the_file_and_the_key(tmp_path: Path, line: str) -> None:
    file = tmp_path / "tools.yaml"
    file.write_text(f"tools:\n  - function: sending:send\n    {line}\n")

    with pytest.raises(Misconfigured, match=rf"tools\.yaml: tools\.0\.{line.split(':')[0]}: "):
        read_tools_file(file)


def test_a_file_of_brackets_is_given_up_at_once(tmp_path: Path) -> None:
    file = tmp_path / "tools.yaml"
    file.write_text("tools: " + "[" * 100_000)

    with pytest.raises(Misconfigured, match=r"tools\.yaml: no valid YAML: nested more than 100 levels deep"):
        read_tools_file(file)


class Fixed:
    """A tool that is no function, and has no `find_out`."""

    place = "the office"

    def __init__(self, **fields: Any) -> None:
        self.definition = ToolDefinition(name="pay", output_schema={"type": "object"}, **fields)

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Pay."""
        return {}


class Finding(Fixed):
    """One that has."""

    async def find_out(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Look it up."""
        return NotHappened()


def test_the_registry_checks_tools_of_every_kind() -> None:
    with pytest.raises(Misconfigured, match="the office: 'pay' has the recovery 'find_out', and no method"):
        Registry().extend([Fixed(recovery="find_out")])
    with pytest.raises(Misconfigured, match="the office: 'pay' has the recovery 'ask', which is for unsafe tools"):
        Registry().extend([Fixed(recovery="ask", effect="read")])
    Registry().extend([Finding(recovery="find_out")])
    Registry().extend([Fixed(recovery="ask")])


@pytest.mark.parametrize(
    ("hints", "recovery"), [({}, "ask"), ({"readOnlyHint": True}, "fail"), ({"idempotentHint": True}, "fail")]
)
def test_the_unsafe_tools_of_an_mcp_server_may_ask(hints: dict[str, bool], recovery: str) -> None:
    server = McpServer.model_validate({"name": "bank", "command": "bank", "planq": {"recovery": "ask"}})
    listed = {"name": "pay", "inputSchema": {"type": "object"}, "annotations": hints}

    assert definition_of(server, listed, "bank_pay").recovery == recovery
    assert definition_of(McpServer(name="bank", command="bank"), listed, "bank_pay").recovery == "fail"
