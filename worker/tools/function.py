"""A Python function as a `Tool`: definition from signature and options, call with typed values, output as JSON."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from shared.domain.errors import InvalidArguments, ToolFailed
from shared.domain.states import Effect, Lane
from shared.domain.tool import DEFAULT_TIMEOUT_SECONDS, ToolDefinition, default_retries
from shared.ports import Suspended, ToolContext
from worker.tools.declare import ToolOptions, describe, place_of
from worker.tools.errors import as_execution_failed
from worker.tools.services import ToolServices
from worker.tools.signature import read_inputs, read_output
from worker.tools.threads import ToolThreads


class FunctionTool:
    """One Python function, callable as a tool; async ones run on the event loop, sync ones in `threads`."""

    def __init__(
        self,
        function: Callable[..., Any],
        options: ToolOptions,
        *,
        services: ToolServices,
        threads: ToolThreads,
    ) -> None:
        """Read the signature; raises `Misconfigured` naming the function when it cannot be described."""
        self.function = function
        self.place = place_of(function)
        self._is_async = inspect.iscoroutinefunction(function)
        self._inputs = read_inputs(function, self.place)
        self._output = read_output(function, self.place, options.output_schema)
        self._services = services
        self._threads = threads
        self._definition = self._define(options)

    @property
    def definition(self) -> ToolDefinition:
        """The published definition."""
        return self._definition

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Run the function once; see `shared.ports.Tool.call`."""
        name = self._definition.name
        try:
            values = self._inputs.bind(arguments, context, self._services)
        except ValidationError as error:
            raise InvalidArguments(f"{name}: {describe(error)}") from error
        try:
            if self._is_async:
                result = await self.function(**values)
            else:
                result = await self._threads.call(self.function, values)
        except asyncio.CancelledError as error:
            current = asyncio.current_task()
            if current is not None and not current.cancelling():
                raise ToolFailed(f"{name} cancelled itself") from error
            raise
        except BaseException as error:
            # Not Exception alone: SystemExit and KeyboardInterrupt would end the event loop and every step on it.
            raise as_execution_failed(error, name) from error
        if isinstance(result, Suspended):
            return replace(result, output=self._output.dump(result.output, name))
        return self._output.dump(result, name)

    def _define(self, options: ToolOptions) -> ToolDefinition:
        effect = options.effect or Effect.UNSAFE
        retries = default_retries(effect) if options.retries is None else options.retries
        return ToolDefinition(
            name=self.function.__name__ if options.name is None else options.name,
            description=_first_paragraph(self.function) if options.description is None else options.description,
            input_schema=self._inputs.schema,
            output_schema=self._output.schema,
            effect=effect,
            lane=options.lane or (Lane.IO if self._is_async else Lane.CPU),
            timeout_seconds=options.timeout_seconds or DEFAULT_TIMEOUT_SECONDS,
            retries=retries,
            skill_id=options.skill_id,
            source=f"python:{self.function.__module__}:{self.function.__qualname__}",
        )


def _first_paragraph(function: Callable[..., Any]) -> str:
    text = inspect.getdoc(function) or ""
    return " ".join(text.split("\n\n", maxsplit=1)[0].split())
