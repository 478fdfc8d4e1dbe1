"""What tools share for the life of a process: pools of connections, clients, loaded models.

    @resource
    async def orders() -> AsyncIterator[Connections]:
        async with connect(…) as connections:
            yield connections

A tool whose parameter is annotated with the yielded type gets it. A resource is opened once in each process that
carries out calls, after the fork, and closed when the process drains: processes share nothing of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import typing
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from planq.shared.platform.errors import Misconfigured, Unreached
from planq.worker.tools.declare import source_place
from planq.worker.tools.errors import quoted

_log = logging.getLogger("planq.tools")

_ATTRIBUTE = "__planq_resource__"
"""Attribute of a decorated function with its `Resource`."""

_CLOSE_SECONDS = 5.0
"""Time for all resources of a process together to close."""

_YIELDS = {
    True: (AsyncIterator, AsyncGenerator, AsyncIterable),
    False: (Iterator, Generator, Iterable),
}

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Resource:
    """A declared resource: tools ask for it by `kind`; `place` is for messages."""

    kind: Any
    open: Callable[[], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]
    place: str


def resource(function: F) -> F:
    """Declare a generator function without parameters, async or not, a resource: it yields one value, once.

    The part before the `yield` runs in the worker's process before the first call of a tool with a parameter of the
    annotated type; the part after it when the process drains. A synchronous one runs in a thread. Raises
    `Misconfigured` naming the function if it has parameters, or no type that tools could name.
    """
    inner = inspect.unwrap(function)
    is_async = inspect.isasyncgenfunction(inner)
    if not (is_async or inspect.isgeneratorfunction(inner)):
        raise Misconfigured(f"@resource expects a generator function that yields the resource, found {function!r}")
    place = source_place(inner)
    if inspect.signature(inner).parameters:
        raise Misconfigured(f"{place}: a resource has no parameters; read what it needs from the environment")
    kind = _kind(inner, place, is_async=is_async)
    if inner is not function:  # it is a context manager's function already
        manager: Callable[[], Any] = function
    else:
        manager = contextlib.asynccontextmanager(inner) if is_async else contextlib.contextmanager(inner)
    setattr(function, _ATTRIBUTE, Resource(kind, manager, place))
    return function


def resource_of(found: object) -> Resource | None:
    """Return what `@resource` attached, None if it did not decorate `found`."""
    declared = getattr(found, _ATTRIBUTE, None)
    return declared if isinstance(declared, Resource) else None


def _kind(function: Callable[..., Any], place: str, *, is_async: bool) -> Any:
    try:
        annotation = typing.get_type_hints(function).get("return")
    except (NameError, TypeError, AttributeError) as error:
        raise Misconfigured(f"{place}: its return annotation cannot be resolved ({error})") from error
    said = typing.get_args(annotation)
    if typing.get_origin(annotation) not in _YIELDS[is_async] or not said:
        wanted = "AsyncIterator" if is_async else "Iterator"
        raise Misconfigured(f"{place}: a resource says what it yields, as in `-> {wanted}[Connections]`")
    kind = said[0]
    if getattr(typing.get_origin(kind) or kind, "__module__", "builtins") in ("builtins", "typing", "types"):
        raise Misconfigured(f"{place}: tools ask for a resource by its type, so it is a class of its own, not {kind}")
    return kind


@dataclass(eq=False)
class _Open:
    """A resource that is open or opening: one task enters and leaves it, as some context managers require."""

    task: asyncio.Task[None]
    value: asyncio.Future[Any]
    close: asyncio.Event = field(default_factory=asyncio.Event)


class Resources:
    """The declared resources of a process. Declared at start; opened and closed on one event loop."""

    def __init__(self) -> None:
        self._declared: dict[Any, Resource] = {}
        self._open: dict[Any, _Open] = {}

    def declare(self, declared: Resource) -> None:
        known = self._declared.setdefault(declared.kind, declared)
        if known is not declared:
            raise Misconfigured(f"two resources yield {_name(declared.kind)}: {known.place} and {declared.place}")

    def __contains__(self, kind: object) -> bool:
        try:
            return kind in self._declared
        except TypeError:  # an annotation that cannot be hashed
            return False

    async def get(self, kinds: Iterable[Any]) -> Mapping[Any, Any]:
        """Return resources by type, each opened once; raise `Unreached` for one that cannot be opened."""
        return {kind: await self._get(kind) for kind in kinds}

    async def _get(self, kind: Any) -> Any:
        opened = self._open.get(kind)
        if opened is None:
            value: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            close = asyncio.Event()
            task = asyncio.create_task(self._hold(self._declared[kind], value, close))
            opened = self._open[kind] = _Open(task, value, close)
        try:
            return await asyncio.shield(opened.value)
        except _ResourceFailed as error:
            raise Unreached(f"the resource {_name(kind)} could not be opened ({error})") from None

    async def _hold(self, declared: Resource, value: asyncio.Future[Any], close: asyncio.Event) -> None:
        manager = declared.open()
        try:
            if isinstance(manager, AbstractAsyncContextManager):
                async with manager as opened:
                    value.set_result(opened)
                    await close.wait()
            else:
                value.set_result(await asyncio.to_thread(manager.__enter__))
                await close.wait()
                await asyncio.to_thread(manager.__exit__, None, None, None)
        except BaseException as error:
            _log.error("resource_failed", exc_info=error, extra={"resource": declared.place})
            if not value.done():
                self._open.pop(declared.kind, None)
                value.set_exception(_ResourceFailed(quoted(error)))
                value.exception()  # retrieved, even if no call waits any more
            if not isinstance(error, Exception):
                raise

    async def close(self) -> None:
        """Close what is open, the latest first; what takes too long is left behind. Idempotent."""
        opened, self._open = list(self._open.values()), {}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                for one in reversed(opened):
                    one.close.set()
                    await asyncio.wait([one.task])
                return
        for one in opened:
            one.task.cancel()


class _ResourceFailed(Exception):
    """A resource raised while it was opened; the text says what."""


def _name(kind: Any) -> str:
    return getattr(kind, "__qualname__", None) or str(kind)
