"""Points at which a process dies or stands still on purpose, so that a test can be there. No setting for users.

    PLANQ_FAILPOINT=store.succeed_step:after            the process ends, exit code 137, once the method has returned
    PLANQ_FAILPOINT=publisher.publish:before@3          … before the method is called for the third time
    PLANQ_FAILPOINT=store.claim_step:after=hold:FOLDER  FOLDER/held appears; the call goes on once FOLDER/go exists

A point is an edge of a port's method: what lies between two of them is one statement, one commit or one message, so
these are all the places where a death can leave something half done. The names come from the contracts themselves:
a method that is added to a port is a point at once, and `tests/faults` fails until a test dies there. Composition
roots wrap their objects by `Failpoints.around`; where nothing is armed it returns the object itself, so that nothing
stands in the hot path.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from shared.domain.errors import Misconfigured
from shared.ports import Tool, Toolbox

VARIABLE = "PLANQ_FAILPOINT"

EXIT_CODE = 137
"""What a shell reports of a process that was killed; a real kill shows as -9 to the parent, so the two differ."""

EDGES = ("before", "after")

_FORM = re.compile(r"(\w+)\.(\w+):(before|after)(?:@([1-9]\d*))?(?:=hold:(.+))?")
_LOOK_SECONDS = 0.01

T = TypeVar("T")


def methods(contract: type) -> frozenset[str]:
    """Return the names of the public methods that a Protocol or class declares, its bases included."""
    found = inspect.getmembers(contract, inspect.isfunction)
    return frozenset(name for name, _ in found if not name.startswith("_"))


def point_names(contracts: Mapping[str, Collection[str]]) -> list[str]:
    """Return every point of a process whose ports are `contracts` (port name to method names)."""
    return [f"{port}.{method}:{edge}" for port in contracts for method in sorted(contracts[port]) for edge in EDGES]


@dataclass(frozen=True, slots=True)
class Point:
    """One armed point; `folder` is None where the process is to die, else where it says that it stands still."""

    port: str
    method: str
    edge: str
    hit: int = 1
    folder: Path | None = None


class Failpoints:
    """The point of this process that is armed, if any; counts how often it was reached. Safe from any thread."""

    def __init__(self, point: Point | None = None) -> None:
        self._point = point
        self._hits = 0
        self._lock = threading.Lock()

    @classmethod
    def load(cls, env: Mapping[str, str], contracts: Mapping[str, Collection[str]]) -> Failpoints:
        """Read the environment; raises `Misconfigured` for a name that this process does not have."""
        text = env.get(VARIABLE, "")
        if not text:
            return cls()
        parsed = _FORM.fullmatch(text)
        known = point_names(contracts)
        if parsed is None or f"{parsed[1]}.{parsed[2]}:{parsed[3]}" not in known:
            raise Misconfigured(
                f"{VARIABLE}: expected a point of this process, optionally with @NUMBER and =hold:FOLDER, found "
                f"{text[:80]!r}; its points are {', '.join(known)}"
            )
        folder = Path(parsed[5]) if parsed[5] else None
        return cls(Point(parsed[1], parsed[2], parsed[3], int(parsed[4] or 1), folder))

    def around(self, port: str, behind: T) -> T:
        """Return what stands for `behind` under the port's name: itself, unless one of the port's points is armed."""
        point = self._point
        if point is None or point.port != port:
            return behind
        return cast(T, _proxy_class(type(behind))(behind, point, self._is_due))

    def around_tools(self, port: str, toolbox: Toolbox) -> Toolbox:
        """Return a toolbox whose tools are wrapped, or itself as `around` does."""
        if self._point is None or self._point.port != port:
            return toolbox
        return _Tools(toolbox, lambda tool: self.around(port, tool))

    def _is_due(self) -> bool:
        with self._lock:
            self._hits += 1
            return self._point is not None and self._hits == self._point.hit


class _Proxy:
    """Everything of the object behind it, with one method that may not come back."""

    def __init__(self, behind: Any, point: Point, is_due: Callable[[], bool]) -> None:
        self._behind = behind
        self._point = point
        self._is_due = is_due

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._behind, name)
        if name != self._point.method:
            return found
        return self._slowly(found) if inspect.iscoroutinefunction(found) else self._plainly(found)

    def _slowly(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*arguments: Any, **keywords: Any) -> Any:
            due = self._is_due()
            if due and self._point.edge == "before":
                await self._arrive_on_loop()
            value = await method(*arguments, **keywords)
            if due and self._point.edge == "after":
                await self._arrive_on_loop()
            return value

        return call

    def _plainly(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            due = self._is_due()
            if due and self._point.edge == "before":
                self._arrive()
            value = method(*arguments, **keywords)
            if due and self._point.edge == "after":
                self._arrive()
            return value

        return call

    async def _arrive_on_loop(self) -> None:
        """Die, or stand still without holding up what else runs on the loop."""
        go = _arrived(self._point) / "go"
        # On the loop, not in a thread: a call that is cancelled here must leave nothing behind that still waits.
        while True:
            if go.exists():
                return
            await asyncio.sleep(_LOOK_SECONDS)

    def _arrive(self) -> None:
        go = _arrived(self._point) / "go"
        while not go.exists():
            time.sleep(_LOOK_SECONDS)


def _proxy_class(kind: type) -> type[_Proxy]:
    """Return a proxy that has a class's attributes in its own right: there `isinstance` with a Protocol looks."""
    names = [name for name in dir(kind) if not name.startswith("_")]
    return type(f"Failpoint{kind.__name__}", (_Proxy,), {name: property(_reader(name)) for name in names})


def _reader(name: str) -> Callable[[_Proxy], Any]:
    return lambda proxy: _Proxy.__getattr__(proxy, name)


def _arrived(point: Point) -> Path:
    if point.folder is None:
        # No clean-up of any kind: what a killed process would leave behind is what is to be seen.
        os._exit(EXIT_CODE)
    (point.folder / "held").touch()
    return point.folder


class _Tools:
    def __init__(self, toolbox: Toolbox, wrap: Callable[[Tool], Tool]) -> None:
        self._toolbox = toolbox
        self._wrap = wrap

    def __getattr__(self, name: str) -> Any:
        return getattr(self._toolbox, name)

    def definitions(self) -> Any:
        return self._toolbox.definitions()

    def find(self, name: str) -> Tool | None:
        tool = self._toolbox.find(name)
        return None if tool is None else self._wrap(tool)
