"""Where tools are found, and what stops a process at start."""

from __future__ import annotations

import asyncio
import importlib
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.states import Effect, Pool
from planq.shared.platform.errors import Misconfigured
from planq.worker.tools import ToolServices
from planq.worker.tools.registry import Registry, load_registry

Write = Callable[[str, str], None]

GREETING = """
from planq.worker.tools import tool

@tool(effect="pure")
async def greet(name: str) -> str:
    "Greet somebody."
    return f"hello {name}"

def helper(number: int) -> int:
    "Not a tool by itself."
    return number + 1
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write modules into a folder on the import path; they are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names: list[str] = []

    def module(name: str, source: str) -> None:
        names.append(name)
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source), encoding="utf-8")

    yield module
    for name in names:
        sys.modules.pop(name, None)


class Fixed:
    """A tool that is no function."""

    def __init__(self, **fields: Any) -> None:
        self._definition = ToolDefinition(**{"output_schema": {"type": "object"}, "source": "test:fixed", **fields})

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        return arguments


def load(services: ToolServices, *modules: str, yaml_path: Path | None = None) -> Registry:
    return load_registry(services=services, entry_point_group=None, modules=modules, yaml_path=yaml_path)


def names(registry: Registry) -> list[str]:
    return [definition.name for definition in registry.definitions()]


def test_module_offers_its_decorated_functions(write: Write, services: ToolServices, context: ToolContext) -> None:
    write("pq_greeting", GREETING)

    registry = load(services, "pq_greeting")

    assert names(registry) == ["greet"]
    found = registry.find("greet")
    assert found is not None
    assert asyncio.run(found.call({"name": "Ada"}, context)) == {"text": "hello Ada"}
    assert registry.find("Greet") is None


def test_attribute_may_be_a_function_a_factory_or_a_list(write: Write, services: ToolServices) -> None:
    write("pq_greeting", GREETING)
    write(
        "pq_made",
        """
        from pq_greeting import greet
        from tests_fixed import Fixed
        from planq.worker.tools import ToolServices

        def make(services: ToolServices):
            assert isinstance(services, ToolServices)
            return [Fixed(name="made"), greet]

        every = [Fixed(name="listed")]
        """,
    )
    sys.modules["tests_fixed"] = sys.modules[__name__]
    try:
        assert names(load(services, "pq_greeting:greet")) == ["greet"]
        assert names(load(services, "pq_made:make")) == ["greet", "made"]
        assert names(load(services, "pq_made:every")) == ["listed"]
    finally:
        del sys.modules["tests_fixed"]


def test_module_with_a_factory_called_tools_offers_what_it_makes(write: Write, services: ToolServices) -> None:
    write(
        "pq_factory",
        """
        from planq.worker.tools import tool

        def tools(services):
            @tool
            async def inner(limit: int = services.http_max_bytes) -> int:
                return limit
            return [inner]
        """,
    )

    registry = load(services, "pq_factory")

    assert names(registry) == ["inner"]


def test_same_function_by_two_ways_is_one_tool(write: Write, services: ToolServices) -> None:
    write("pq_greeting", GREETING)
    write("pq_again", "from pq_greeting import greet\n")

    assert names(load(services, "pq_greeting", "pq_again", "pq_greeting:greet")) == ["greet"]


def test_entry_points_are_loaded(
    write: Write, services: ToolServices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("pq_greeting", GREETING)
    metadata = tmp_path / "pq_greeting-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: pq-greeting\nVersion: 1\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text("[pq.test]\ngreeting = pq_greeting\n", encoding="utf-8")
    importlib.invalidate_caches()

    registry = load_registry(services=services, entry_point_group="pq.test")

    assert names(registry) == ["greet"]


def test_clash_names_both_places(write: Write, services: ToolServices) -> None:
    write("pq_greeting", GREETING)
    write("pq_other", "from planq.worker.tools import tool\n\n\n@tool\ndef greet() -> str:\n    return ''\n")

    with pytest.raises(Misconfigured) as caught:
        load(services, "pq_greeting", "pq_other")

    assert "'greet'" in caught.value.message
    assert "pq_greeting.py:4 (pq_greeting:greet)" in caught.value.message
    assert "pq_other.py:4 (pq_other:greet)" in caught.value.message


@pytest.mark.parametrize("name", ["cp__plan", "__planning__", "with space", "9lives", "", "a" * 129])
def test_reserved_and_invalid_names_are_refused(write: Write, services: ToolServices, name: str) -> None:
    write(
        "pq_named", f"from planq.worker.tools import tool\n\n@tool(name={name!r})\ndef f() -> str:\n    return ''\n"
    )

    with pytest.raises(Misconfigured, match=r"pq_named\.py:3 .*(reserved|no valid tool name)"):
        load(services, "pq_named")


@pytest.mark.parametrize("field", ["input_schema", "output_schema"])
@pytest.mark.parametrize(
    "schema", [{"type": "array"}, {"type": "object", "properties": 3}, {"$ref": "https://example.org/schema.json"}]
)
def test_bad_schema_is_refused_with_its_place(field: str, schema: dict[str, Any]) -> None:
    with pytest.raises(Misconfigured, match=f"test:fixed: {field.replace('_', ' ')} of 'probe'"):
        Registry().extend([Fixed(name="probe", **{field: schema})])


def test_bad_schema_of_a_decorator_is_refused(write: Write, services: ToolServices) -> None:
    write(
        "pq_bad",
        "from planq.worker.tools import tool\n\n"
        "@tool(output_schema={'type': 'objekt'})\ndef f() -> str:\n    return ''\n",
    )

    with pytest.raises(Misconfigured, match=r"pq_bad\.py:3"):
        load(services, "pq_bad")


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("pq_absent", "PLANQ_TOOLS names 'pq_absent', which cannot be imported: ModuleNotFoundError"),
        ("pq_broken", "cannot be imported: ZeroDivisionError"),
        ("pq_syntax", "cannot be imported: SyntaxError"),
        ("pq_greeting:absent", "pq_greeting has no 'absent'"),
        ("pq_empty", "offers no tool"),
        ("pq_greeting:helper", "factory pq_greeting.*TypeError|returned|failed"),
        ("pq_empty:number", "expected a function decorated with @tool"),
    ],
)
def test_what_cannot_be_loaded_is_named(write: Write, services: ToolServices, reference: str, words: str) -> None:
    write("pq_greeting", GREETING)
    write("pq_broken", "1 / 0")
    write("pq_syntax", "def (")
    write("pq_empty", "number = 3")

    with pytest.raises(Misconfigured, match=words):
        load(services, reference)


def test_extending_is_all_or_nothing() -> None:
    registry = Registry()
    registry.extend([Fixed(name="first")])

    with pytest.raises(Misconfigured):
        registry.extend([Fixed(name="second"), Fixed(name="first")])

    assert names(registry) == ["first"]


def test_tools_of_one_source_are_replaced_together() -> None:
    registry = Registry()
    registry.extend([Fixed(name="a", source="mcp:x"), Fixed(name="b", source="mcp:x"), Fixed(name="c")])

    registry.replace("mcp:x", [Fixed(name="b", source="mcp:x"), Fixed(name="d", source="mcp:x")])

    assert names(registry) == ["b", "c", "d"]
    assert registry.replace("mcp:x", [Fixed(name="b", source="mcp:x"), Fixed(name="d", source="mcp:x")]) == []


@pytest.mark.parametrize("name", ["shop_search", "shop.search", "cp__plan", "no name"])
def test_a_source_cannot_take_or_imitate_the_name_of_a_tool_and_its_other_tools_are_there(name: str) -> None:
    registry = Registry()
    registry.extend([Fixed(name="shop.search")])

    left_out = registry.replace("mcp:x", [Fixed(name=name, source="mcp:x"), Fixed(name="d", source="mcp:x")])

    assert names(registry) == ["d", "shop.search"]
    (sentence,) = left_out
    assert f"{name!r}" in sentence


def test_yaml_overrides_decorated_functions_and_declares_plain_ones(
    write: Write, services: ToolServices, tmp_path: Path
) -> None:
    write("pq_greeting", GREETING)
    path = tmp_path / "tools.yaml"
    path.write_text(
        textwrap.dedent(
            """
            tools:
              - function: pq_greeting:greet
                name: salute
                description: Salute somebody.
                effect: read
                timeout_seconds: 5
                skill_id: manners
              - function: pq_greeting:helper
                pool: io
                retries: 1
            """
        ),
        encoding="utf-8",
    )

    registry = load(services, "pq_greeting", yaml_path=path)

    assert names(registry) == ["helper", "salute"]
    helper, salute = registry.definitions()
    assert (salute.description, salute.effect, salute.retries) == ("Salute somebody.", Effect.READ, 2)
    assert (salute.timeout_seconds, salute.skill_id) == (5, "manners")
    assert (helper.pool, helper.retries, helper.effect) == (Pool.IO, 1, Effect.UNSAFE)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tools:\n  - function: pq_greeting:greet\n    effect: maybe\n", r"tools\.0\.effect"),
        ("tools:\n  - function: pq_greeting:greet\n    timeout: 3\n", r"tools\.0\.timeout: Extra"),
        ("tools:\n  - function: pq_greeting:greet\n    timeout_seconds: 301\n", r"tools\.0\.timeout_seconds"),
        ("tools:\n  - name: x\n", r"tools\.0\.function: Field required"),
        ("tools:\n  - function: greet\n", r"tools\.0\.function"),
        ("tools:\n  - function: pq_greeting:gone\n", "has no 'gone'"),
        ("tools: [\n", "no valid YAML"),
        ("- 1\n", "valid dictionary"),
        ("tools:\n  - function: pq_greeting:greet\n  - function: pq_greeting:greet\n", "listed twice"),
    ],
)
def test_faults_in_yaml_name_file_and_key(
    write: Write, services: ToolServices, tmp_path: Path, text: str, words: str
) -> None:
    write("pq_greeting", GREETING)
    path = tmp_path / "tools.yaml"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(Misconfigured, match=words) as caught:
        load(services, yaml_path=path)

    assert str(path) in caught.value.message


def test_yaml_that_is_not_there_is_misconfigured(services: ToolServices, tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"absent\.yaml: cannot be read"):
        load(services, yaml_path=tmp_path / "absent.yaml")


def test_empty_yaml_changes_nothing(services: ToolServices, tmp_path: Path) -> None:
    path = tmp_path / "tools.yaml"
    path.write_text("", encoding="utf-8")

    assert names(load(services, yaml_path=path)) == []
