"""The tools of this process: found by entry point, by `PLANQ_TOOLS` and in `tools.yaml`, checked once at start.

Whatever is wrong with a tool (a name that clashes or is reserved, a bad schema, a module that cannot be imported)
is a `Misconfigured` that names the place, so that the worker refuses to start instead of failing its first job.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planq.shared.agentic.schema.schemas import check_schema
from planq.shared.agentic.source import load_yaml
from planq.shared.agentic.tools.contract import FindsOut, Tool
from planq.shared.agentic.tools.definition import RESERVED_NAME, TOOL_NAME, ToolDefinition
from planq.shared.agentic.tools.names import to_registry
from planq.shared.kernel.states import Effect, Pool, Recovery
from planq.shared.platform.errors import Misconfigured
from planq.shared.platform.logs import is_brought
from planq.worker.tools.declare import ToolOptions, faults_of, options_of, source_place
from planq.worker.tools.errors import quoted
from planq.worker.tools.function import FunctionTool
from planq.worker.tools.resources import Resources, resource_of
from planq.worker.tools.services import ToolServices
from planq.worker.tools.threads import ToolThreads

_ENTRY_POINTS = "planq.tools"

_OPEN_SECONDS = 30.0
"""Maximum wait for a worker's resources before it takes its first message."""


class Registry:
    """A `Toolbox` over tools of any kind; tools are added at start, and when an MCP server reconnects."""

    def __init__(self, threads: ToolThreads | None = None, resources: Resources | None = None) -> None:
        self.threads = threads or ToolThreads()
        self.resources = resources or Resources()
        self.left_out: Sequence[str] = ()  # tools of MCP servers that are not offered, and why
        self._tools: dict[str, Tool] = {}

    def definitions(self) -> Sequence[ToolDefinition]:
        return [self._tools[name].definition for name in sorted(self._tools)]

    def runnable(self) -> Sequence[ToolDefinition]:
        """Return the definition of every tool that can be called, including those that are not offered."""
        return [tool.definition for tool in self._tools.values()]

    def find(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def is_slow(self, name: str) -> bool:
        """Return whether a tool's calls may wait for something: all but pure ones. False for an unknown tool."""
        tool = self._tools.get(name)
        return tool is not None and tool.definition.effect is not Effect.PURE

    async def open_resources(self, pool: Pool) -> None:
        """Open a pool's resources at once; failures are logged and retried by calls."""
        tools = [tool for tool in self._tools.values() if isinstance(tool, FunctionTool)]
        kinds = {kind for tool in tools if tool.definition.pool == pool for kind in tool.needs}
        with suppress(TimeoutError):
            async with asyncio.timeout(_OPEN_SECONDS):
                await asyncio.gather(*(self.resources.get([kind]) for kind in kinds), return_exceptions=True)

    def extend(self, tools: Iterable[Tool]) -> None:
        """Add tools, all or none, each object once; raise `Misconfigured` for a clash, or a bad name or schema."""
        self._tools = self._grown(tools, check_definition)

    def reserve(self, tools: Iterable[Tool]) -> None:
        """Add planq's own tools, whose names are reserved; all or none, as `extend`."""
        self._tools = self._grown(tools, check_schemas)

    def _grown(self, tools: Iterable[Tool], check: Callable[[ToolDefinition, str], None]) -> dict[str, Tool]:
        grown = dict(self._tools)
        for tool in tools:
            definition = tool.definition
            known = grown.get(definition.name)
            if known is tool:
                continue
            if known is not None:
                raise Misconfigured(
                    f"two tools are called {definition.name!r}: {_place(known)} and {_place(tool)}; "
                    "rename one (name=… in @tool, or name: in tools.yaml)"
                )
            check(definition, _place(tool))
            if definition.recovery is Recovery.FIND_OUT and not isinstance(tool, FindsOut):
                raise Misconfigured(
                    f"{_place(tool)}: {definition.name!r} has the recovery 'find_out', and no method `find_out`"
                )
            grown[definition.name] = tool
        return grown

    def replace(self, source: str, tools: Iterable[Tool]) -> Sequence[str]:
        """Replace all tools whose definition names `source` by `tools`; return why some were left out.

        A source is not configuration: an invalid tool, or one whose name clashes with another source, is left out,
        and the others are added.
        """
        kept = {name: tool for name, tool in self._tools.items() if tool.definition.source != source}
        spelt = {to_registry(name): tool for name, tool in kept.items()}
        left_out = []
        for tool in tools:
            name = tool.definition.name
            known = spelt.get(to_registry(name))
            try:
                if known is not None:
                    raise Misconfigured(f"{_place(tool)}: {name!r} is the name of {_place(known)}")
                check_definition(tool.definition, _place(tool))
            except Misconfigured as error:
                left_out.append(error.message)
                continue
            kept[name] = spelt[to_registry(name)] = tool
        self._tools = kept
        return left_out


def load_registry(
    *,
    services: ToolServices,
    entry_point_group: str | None = _ENTRY_POINTS,
    modules: Sequence[str] = (),
    yaml_path: Path | None = None,
) -> Registry:
    """Collect and check the tools of all installed entry points, of `modules` and of the YAML file.

    Each of `modules` is `module` (all its `@tool` functions, or its factory `tools(services) -> list[Tool]`) or
    `module:attribute` (a `@tool` function, such a factory, or a list). None as group loads no entry point. The same
    function from two modules is one tool. Raises `Misconfigured`.
    """
    try:
        entries = read_tools_file(yaml_path) if yaml_path else []
    except Misconfigured as error:
        raise Misconfigured(f"PLANQ_TOOLS_FILE: {error.message}") from error
    loader = _Loader(services, entries, yaml_path)
    if entry_point_group is not None:
        for entry in sorted(importlib.metadata.entry_points(group=entry_point_group), key=lambda entry: entry.name):
            loader.load(entry.value, f"entry point {entry_point_group}:{entry.name}")
    for module in modules:
        loader.load(module, "PLANQ_TOOLS")
    loader.load_yaml()
    loader.make()
    registry = Registry(loader.threads, loader.resources)
    registry.extend(loader.tools)
    for tool in loader.tools:
        if isinstance(tool, FunctionTool):
            is_brought(tool.function.__module__)
    return registry


class _Loader:
    def __init__(self, services: ToolServices, entries: Sequence[FunctionOptions], yaml_path: Path | None) -> None:
        self.tools: list[Tool] = []
        self._services = services
        self.threads = ToolThreads()
        self.resources = Resources()
        self._yaml_path = yaml_path
        self._overrides: dict[Callable[..., Any], ToolOptions] = {}
        for entry in entries:
            function = _resolve(entry.function, f"{yaml_path}: function")
            if not inspect.isfunction(function):
                raise Misconfigured(f"{yaml_path}: {entry.function} is no function but {function!r}")
            self._overrides[function] = entry.options()
        self._functions: dict[Callable[..., Any], ToolOptions] = {}

    def load(self, reference: str, place: str) -> None:
        found = _resolve(reference, place)
        place = f"{place} ({reference})"
        module = found if isinstance(found, ModuleType) else sys.modules[reference.strip().partition(":")[0]]
        for declared in filter(None, map(resource_of, list(vars(module).values()))):
            self.resources.declare(declared)
        if isinstance(found, ModuleType):
            factory = vars(found).get("tools")
            if inspect.isfunction(factory) and options_of(factory) is None:
                items = _call_factory(factory, self._services, place)
            else:
                items = [item for item in vars(found).values() if options_of(item) is not None]
        elif isinstance(found, (list, tuple)):
            items = list(found)
        elif inspect.isfunction(found) and options_of(found) is None:
            items = _call_factory(found, self._services, place)
        else:
            items = [found]
        if not items and not (isinstance(found, ModuleType) and any(map(resource_of, vars(found).values()))):
            raise Misconfigured(
                f"{place} offers no tool; expected functions decorated with @tool, or a factory "
                "`tools(services) -> list[Tool]`"
            )
        for item in items:
            self._add(item, place)

    def load_yaml(self) -> None:
        for function in self._overrides:
            self._add_function(function, options_of(function) or ToolOptions())

    def _add(self, found: Any, place: str) -> None:
        options = options_of(found)
        if options is not None:
            self._add_function(found, options)
        elif callable(getattr(found, "call", None)) and isinstance(
            getattr(found, "definition", None), ToolDefinition
        ):
            self.tools.append(found)
        else:
            raise Misconfigured(f"{place}: expected a function decorated with @tool or a Tool, found {found!r}")

    def _add_function(self, function: Callable[..., Any], options: ToolOptions) -> None:
        if function not in self._functions:
            override = self._overrides.get(function)
            self._functions[function] = options if override is None else options.overridden_by(override)

    def make(self) -> None:
        """Create the tools of all functions that were found, once all resources are known."""
        self.tools += [
            FunctionTool(function, options, services=self._services, threads=self.threads, resources=self.resources)
            for function, options in self._functions.items()
        ]


def _call_factory(factory: Callable[..., Any], services: ToolServices, place: str) -> list[Any]:
    try:
        made = factory(services)
    except Misconfigured:
        raise
    except Exception as error:
        raise Misconfigured(f"{place}: the factory {source_place(factory)} failed: {quoted(error)}") from error
    if not isinstance(made, (list, tuple)):
        raise Misconfigured(
            f"{place}: {source_place(factory)} returned {type(made).__name__}; expected a list of tools "
            "(decorate it with @tool if it is a tool itself)"
        )
    return list(made)


@contextmanager
def _present_folder_first() -> Iterator[None]:
    """Find modules in the working directory first, and afterwards last: a project may have a `celery.py`."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
        if here not in sys.path:
            sys.path.append(here)


def _resolve(reference: str, place: str) -> Any:
    module_name, _, attribute = reference.strip().partition(":")
    try:
        with _present_folder_first():
            found: Any = importlib.import_module(module_name)
    except Misconfigured as error:
        raise Misconfigured(f"{place}: {module_name}: {error.message}") from error
    except Exception as error:
        raise Misconfigured(f"{place} names {reference!r}, which cannot be imported: {quoted(error)}") from error
    for part in attribute.split(".") if attribute else ():
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise Misconfigured(f"{place} names {reference!r}, but {module_name} has no {attribute!r}") from error
    return found


def check_definition(definition: ToolDefinition, place: str, *, is_trusted: bool = True) -> None:
    """Raise `Misconfigured` for an invalid name or schema, or an untrusted pattern that is not linear."""
    name = definition.name
    if RESERVED_NAME.search(name):
        raise Misconfigured(f"{place}: the tool name {name!r} is reserved for planq; choose another")
    if not TOOL_NAME.fullmatch(name):
        raise Misconfigured(
            f"{place}: {name!r} is no valid tool name; expected a letter, then up to 127 letters, digits or _ . - /"
        )
    check_schemas(definition, place, is_trusted=is_trusted)


def check_schemas(definition: ToolDefinition, place: str, *, is_trusted: bool = True) -> None:
    """Raise `Misconfigured` naming `place` if a schema or option of `definition` is invalid."""
    name = definition.name
    check_schema(definition.input_schema, f"{place}: input schema of {name!r}", is_trusted=is_trusted)
    if definition.output_schema is None:
        raise Misconfigured(f"{place}: {name!r} has no output schema; a registered tool always has one")
    check_schema(definition.output_schema, f"{place}: output schema of {name!r}", is_trusted=is_trusted)
    if definition.longest_seconds is not None and definition.longest_seconds < definition.timeout_seconds:
        raise Misconfigured(
            f"{place}: {name!r} has longest_seconds {definition.longest_seconds:g}, less than its timeout_seconds "
            f"{definition.timeout_seconds:g}, which is the time between two reports"
        )
    if definition.recovery is not Recovery.FAIL and definition.effect is not Effect.UNSAFE:
        raise Misconfigured(
            f"{place}: {name!r} has the recovery {str(definition.recovery)!r}, which is for unsafe tools; "
            f"{str(definition.effect)!r} ones are simply called again"
        )


def _place(tool: Tool) -> str:
    return str(getattr(tool, "place", "") or tool.definition.source or type(tool).__qualname__)


class FunctionOptions(ToolOptions):
    function: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    recovery: Literal[Recovery.FAIL, Recovery.ASK] | None = None
    find_out: None = None

    def options(self) -> ToolOptions:
        return ToolOptions.model_construct(**self.model_dump(exclude={"function"}))


class _ToolsFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    tools: list[FunctionOptions] = Field(default_factory=list)


def read_tools_file(path: Path) -> list[FunctionOptions]:
    """Return the file's entries; raise `Misconfigured` with the key or line of a defect."""
    try:
        content: Any = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"{path}: cannot be read as tool declarations: {error}") from error
    except yaml.YAMLError as error:
        raise Misconfigured(f"{path}: no valid YAML: {error}") from error
    try:
        entries = _ToolsFile.model_validate({} if content is None else content).tools
    except ValidationError as error:
        raise Misconfigured(f"{path}: {faults_of(error)}") from error
    seen: set[str] = set()
    for entry in entries:
        if entry.function in seen:
            raise Misconfigured(f"{path}: function {entry.function!r} is listed twice; merge the two entries")
        seen.add(entry.function)
    return entries
