"""A Python function as a `Tool`: definition from signature and options, call with typed values, output as JSON."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from planq.shared.agentic.tools.contract import (
    AskingPerson,
    NotHappened,
    Ownership,
    RichOutput,
    Suspended,
    ToolContext,
)
from planq.shared.agentic.tools.definition import ToolDefinition, default_retries
from planq.shared.agentic.tools.scoping import scoped_arguments, unscoped_schema
from planq.shared.kernel.states import Effect, Pool, Recovery
from planq.shared.platform.errors import (
    ExecutionFailed,
    InternalFault,
    InvalidArguments,
    InvalidOutput,
    Misconfigured,
    OutcomeUnknown,
)
from planq.shared.platform.values.encoding import output_text
from planq.worker.tools.declare import ToolOptions, faults_of, source_place
from planq.worker.tools.errors import as_execution_failed, traceback_text
from planq.worker.tools.resources import Resources
from planq.worker.tools.services import ToolServices
from planq.worker.tools.signature import INJECTED, FindOutFunction, Inputs, read_inputs, read_output, read_question
from planq.worker.tools.threads import ToolThreads

_log = logging.getLogger("planq.tools")


class FunctionTool:
    """One Python function, callable as a tool; async ones run on the event loop, sync ones in `threads`."""

    def __init__(
        self,
        function: Callable[..., Any],
        options: ToolOptions,
        *,
        services: ToolServices,
        threads: ToolThreads,
        resources: Resources | None = None,
    ) -> None:
        """Read the signature; raises `Misconfigured` naming the function when it cannot be described."""
        self.function = function
        self.place = source_place(function)
        self._is_async = inspect.iscoroutinefunction(function)
        self._resources = resources or Resources()
        self._inputs = read_inputs(function, self.place, self._resources)
        self._output = read_output(function, self.place, options.output_schema)
        self._services = services
        self._threads = threads
        self._recovery = _recovery(options, self.place)
        self._question: FindOutFunction | None = None
        if options.find_out is not None:
            asked = f"{self.place}: find_out {getattr(options.find_out, '__qualname__', options.find_out)}"
            self._question = read_question(options.find_out, self._inputs, asked, self._resources)
        self._scoped = _user_scoped(options, self._inputs, self.place)
        self.definition = self._define(options)

    @property
    def needs(self) -> set[Any]:
        """The types of the resources that calls of the tool are handed."""
        injected = {*self._inputs.injected.values(), *(self._question.injected.values() if self._question else ())}
        return injected - INJECTED

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Run the function once; see `planq.shared.agentic.tools.contract.Tool.call`."""
        name = self.definition.name
        injected = self._inputs.injected
        values = self._bound(arguments, context, await self._offered(injected, context) if injected else {})
        result = await self._run(self.function, values, name, context.owner, is_async=self._is_async)
        if isinstance(result, Suspended):
            return replace(result, output=self._dumped_later(result.output, name, context))
        return self._output.dump(result, name, context)

    async def find_out(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Ask the tool's `find_out` function; see `planq.shared.agentic.tools.contract.FindsOut.find_out`."""
        question = self._question
        if question is None:
            raise OutcomeUnknown(f"{self.definition.name} has no function that finds out whether a call took effect")
        name = f"find_out of {self.definition.name}"
        offered = await self._offered({**self._inputs.injected, **question.injected}, context)
        values = question.bind(self._bound(arguments, context, offered), offered)
        result = await self._run(question.function, values, name, None, is_async=question.is_async)
        if isinstance(result, NotHappened):
            return result
        if isinstance(result, Suspended) or result is None:
            raise InvalidOutput(f"{name} returned {result!r}; expected the output of the call, or NotHappened()")
        return self._output.dump(result, name, context)

    def _dumped_later(self, result: Any, name: str, context: ToolContext) -> Any:
        dumped = self._output.dump(result, name, context)
        if isinstance(dumped, RichOutput):
            raise InvalidOutput(f"{name} returned Suspended with content or artifacts; expected the output alone")
        output_text(name, dumped)  # as it is stored now, apart from what answers
        return dumped

    async def _offered(self, injected: Mapping[str, Any], context: ToolContext) -> Mapping[Any, Any]:
        """Return what these parameters ask for, by type; raises `Unreached` where a resource cannot be opened."""
        offered = {ToolContext: context, ToolServices: self._services}
        wanted = {kind for kind in injected.values() if kind not in INJECTED}
        return {**offered, **await self._resources.get(wanted)} if wanted else offered

    def _bound(self, arguments: dict[str, Any], context: ToolContext, offered: Mapping[Any, Any]) -> dict[str, Any]:
        inputs = self._inputs
        given = {**arguments, **scoped_arguments(self._scoped, context)} if self._scoped else arguments
        try:
            typed = inputs.model.model_validate(given, by_alias=True, by_name=False)
        except ValidationError as error:
            raise InvalidArguments(f"{self.definition.name}: {faults_of(error)}") from error
        values = {name: getattr(typed, field) for field, name in inputs.names.items()}
        values.update({name: offered[kind] for name, kind in inputs.injected.items()})
        return values

    async def _run(
        self,
        function: Callable[..., Any],
        values: dict[str, Any],
        name: str,
        owner: Ownership | None,
        *,
        is_async: bool,
    ) -> Any:
        try:
            if is_async:
                return await function(**values)
            return await self._threads.call(function, values, owner)
        except asyncio.CancelledError as error:
            if not _is_being_cancelled():
                raise InternalFault(f"{name} cancelled itself") from error
            raise
        except (ExecutionFailed, AskingPerson):
            raise  # as it is: one that is said to come from itself would wait for the garbage collector
        except BaseException as error:
            # Not Exception alone: SystemExit and KeyboardInterrupt would end the event loop and every step on it.
            failure = as_execution_failed(error, name)
            # The step's own error quotes it in a line; where in the code it came from is for operators alone.
            failure.traceback = traceback_text(error)
            _log.error("tool_raised", exc_info=error, extra={"tool": name, "code": failure.code})
            raise failure from error

    def _define(self, options: ToolOptions) -> ToolDefinition:
        effect, schema = options.effect or Effect.UNSAFE, self._inputs.schema
        derived = {
            "name": self.function.__name__,
            "description": _first_paragraph(self.function),
            "pool": Pool.IO if self._is_async else Pool.CPU,
            "retries": default_retries(effect),
        }
        said = {name: value for name, value in options if value is not None and name in ToolDefinition.model_fields}
        checked = {
            "input_schema": unscoped_schema(schema, self._scoped) if self._scoped else schema,
            "output_schema": self._output.schema,
            "effect": effect,
            "recovery": self._recovery,
            "user_scoped": list(self._scoped),
            "source": f"python:{self.function.__module__}:{self.function.__qualname__}",
        }
        return ToolDefinition(**{**derived, **said, **checked})


def _is_being_cancelled() -> bool:
    """Return whether the running task was cancelled from outside; separate, so that no frame refers to it."""
    current = asyncio.current_task()
    return current is None or current.cancelling() > 0


def _user_scoped(options: ToolOptions, inputs: Inputs, place: str) -> Sequence[str]:
    names, known = options.user_scoped or (), inputs.names.values()
    if unknown := [name for name in names if name not in known]:
        raise Misconfigured(f"{place}: user_scoped names {unknown[0]!r}; its parameters are {', '.join(known)}")
    return names


def _recovery(options: ToolOptions, place: str) -> Recovery:
    recovery = options.recovery or (Recovery.FAIL if options.find_out is None else Recovery.FIND_OUT)
    effect = options.effect or Effect.UNSAFE
    if effect is not Effect.UNSAFE and (options.recovery is not None or options.find_out is not None):
        raise Misconfigured(
            f"{place}: recovery and find_out are for unsafe tools; {str(effect)!r} ones are simply called again"
        )
    if recovery is Recovery.FIND_OUT and options.find_out is None:
        raise Misconfigured(f"{place}: recovery 'find_out' needs the function: @tool(find_out=function)")
    return recovery


def _first_paragraph(function: Callable[..., Any]) -> str:
    text = inspect.getdoc(function) or ""
    return " ".join(text.split("\n\n", maxsplit=1)[0].split())
