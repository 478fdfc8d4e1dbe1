"""How a typed Python function declares itself a tool.

    @tool(effect="read")
    async def shop_search(query: str, limit: Annotated[int, Field(ge=1, le=20)] = 5) -> SearchResult: ...

The function stays an ordinary function; the decorator only attaches its options, which `registry.load_registry`
reads. What the options leave open is derived: name and description from the function, schemas from the signature,
`io` pool for async functions and `cpu` for sync ones, retries from the effect class (docs/decisions.md, D10).
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planq.shared.agentic.tools.definition import MAX_PRICE_USD
from planq.shared.kernel.limits import MAX_LONGEST_SECONDS, MAX_TIMEOUT_SECONDS
from planq.shared.kernel.states import Effect, Pool, Recovery
from planq.shared.platform.errors import Misconfigured

_ATTRIBUTE = "__planq_tool__"
"""Attribute of a decorated function with its `ToolOptions`."""

F = TypeVar("F", bound=Callable[..., Any])


class ToolOptions(BaseModel):
    """The options of a tool from its author or an operator; None: derived."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str | None = None
    description: str | None = None
    effect: Effect | None = None
    pool: Pool | None = None
    timeout_seconds: float | None = Field(default=None, gt=0, le=MAX_TIMEOUT_SECONDS)
    longest_seconds: float | None = Field(default=None, gt=0, le=MAX_LONGEST_SECONDS)
    retries: int | None = Field(default=None, ge=0, le=100)
    skill_id: str | None = None
    output_schema: dict[str, Any] | None = None
    recovery: Recovery | None = None
    find_out: Callable[..., Any] | None = None
    repeatable: bool | None = None
    user_scoped: tuple[str, ...] | None = None
    version: str | None = Field(default=None, max_length=128)
    price_usd: float | None = Field(default=None, ge=0, le=MAX_PRICE_USD, allow_inf_nan=False)

    def overridden_by(self, other: ToolOptions) -> ToolOptions:
        """Return these options, replaced by those that `other` sets; only `unsafe` tools keep a recovery."""
        said = {name: value for name, value in other if value is not None}
        if other.effect not in (None, Effect.UNSAFE):
            said = {"recovery": None, "find_out": None, **said}
        return self.model_copy(update=said)


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect | str | None = None,
    pool: Pool | str | None = None,
    timeout_seconds: float | None = None,
    longest_seconds: float | None = None,
    retries: int | None = None,
    skill_id: str | None = None,
    output_schema: Mapping[str, Any] | None = None,
    recovery: Recovery | str | None = None,
    find_out: Callable[..., Any] | None = None,
    repeatable: bool | None = None,
    user_scoped: Sequence[str] | None = None,
    version: str | None = None,
    price_usd: float | None = None,
) -> Callable[[F], F]: ...


def tool(function: F | None = None, /, **options: Any) -> F | Callable[[F], F]:
    """Declare a function a tool; usable bare (`@tool`) or with options.

    `effect` is `pure`, `read`, `idempotent` or `unsafe` (the default: never repeated blindly). A custom `pool`, such
    as `gpu`, needs workers that serve it (`planq worker gpu`). `timeout_seconds` is at most 300. With
    `longest_seconds`, at most a day, it is the time between two reports of the call (`ToolContext.progress`); a
    worker with processes for its steps needs no reports. `retries` counts extra attempts. `output_schema` replaces
    the schema of the return annotation.
    If an `unsafe` call is cut off, it is unknown whether it took effect. Then its step fails (`recovery="fail"`, the
    default), waits for a person (`"ask"`), or calls `find_out`: a function over parameters of this one, by name, that
    returns the output of the call, or `NotHappened`; after that the tool is called again.
    A model may call a `repeatable` tool many times with the same arguments.
    `user_scoped` names parameters that planq fills in: `tenant_id` and `conversation_id` with those of the job, all
    others with its user; without one they are empty. `version` is shown if workers have different schemas.
    Each call costs `price_usd`, US dollars from 0 to 1000, which budgets count, unless its `ToolResponse` reports a
    cost. Raises `Misconfigured` naming the function when an option is wrong.
    """

    def declare(target: F) -> F:
        if not inspect.isfunction(target):
            raise Misconfigured(f"@tool expects a function, found {target!r}")
        try:
            declared = ToolOptions.model_validate(options)
        except ValidationError as error:
            raise Misconfigured(f"{source_place(target)}: {_wrong_options(error)}") from error
        if declared.find_out is not None and declared.recovery not in (None, Recovery.FIND_OUT):
            raise Misconfigured(
                f"{source_place(target)}: @tool(recovery={declared.recovery.value!r}, find_out=…) says two things; "
                "leave one of them out"
            )
        setattr(target, _ATTRIBUTE, declared)
        return target

    return declare if function is None else declare(function)


def options_of(function: object) -> ToolOptions | None:
    """Return what `@tool` attached; None when `function` was not decorated."""
    options = getattr(function, _ATTRIBUTE, None)
    return options if isinstance(options, ToolOptions) else None


def source_place(function: Callable[..., Any]) -> str:
    """Return `file:line (module:function)`, with a relative path inside the working directory."""
    code = inspect.unwrap(function).__code__
    path = code.co_filename
    relative = os.path.relpath(path)
    shown = path if relative.startswith(os.pardir) else relative
    return f"{shown}:{code.co_firstlineno} ({function.__module__}:{function.__qualname__})"


def faults_of(error: ValidationError) -> str:
    """Return the faults of a pydantic error in one line: `effect: Input should be …; …`."""
    return "; ".join(
        f"{'.'.join(str(part) for part in fault['loc']) or 'value'}: {fault['msg']}" for fault in error.errors()
    )


def _wrong_options(error: ValidationError) -> str:
    known = "".join(f", {name}" for name in ToolOptions.model_fields)[2:]
    is_unknown = any(fault["type"] == "extra_forbidden" for fault in error.errors())
    return f"@tool({faults_of(error)}){f'; the options are {known}' if is_unknown else ''}"
