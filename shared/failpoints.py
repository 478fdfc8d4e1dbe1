"""Points at which a process dies or stops on purpose, for tests. No setting for users.

    PLANQ_FAILPOINT=store.succeed_step:after        the process exits with 137 after the method
    PLANQ_FAILPOINT=publisher.publish:before@3      … before its third call
    PLANQ_FAILPOINT=store.claim:after=hold:FOLDER   writes FOLDER/held, and goes on once FOLDER/go exists

A point is an edge of a port's method: between two of them is one statement, commit or message, so a death elsewhere
leaves nothing half done. Names come from the contracts; `tests/faults` fails for a new method without a test.
`Failpoints.around` replaces the armed method on the object itself, so unarmed code pays nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from planq.shared.agentic.tools.contract import Tool, Toolbox
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.platform.errors import Misconfigured

VARIABLE = "PLANQ_FAILPOINT"

EXIT_CODE = 137
"""A shell's code for a killed process; the parent of a really killed one sees -9."""

EDGES = ("before", "after")

_FORM = re.compile(r"(\w+)\.(\w+):(before|after)(?:@([1-9]\d*))?(?:=hold:(.+))?")
_LOOK_SECONDS = 0.01

T = TypeVar("T")


def methods(contract: type) -> frozenset[str]:
    """Return the public methods of a Protocol or class and its bases."""
    found = inspect.getmembers(contract, inspect.isfunction)
    return frozenset(name for name, _ in found if not name.startswith("_"))


def point_names(contracts: Mapping[str, Collection[str]]) -> list[str]:
    """Return every point of a process with these `contracts` (port to methods)."""
    return [f"{port}.{method}:{edge}" for port in contracts for method in sorted(contracts[port]) for edge in EDGES]


@dataclass(frozen=True, slots=True)
class Point:
    """One armed point; `folder` None: the process dies."""

    port: str
    method: str
    edge: str
    hit: int = 1
    folder: Path | None = None


class Failpoints:
    """The armed point of this process, if any, and its hits; thread-safe."""

    def __init__(self, point: Point | None = None) -> None:
        self._point = point
        self._hits = 0
        self._lock = threading.Lock()

    @classmethod
    def load(cls, env: Mapping[str, str], contracts: Mapping[str, Collection[str]]) -> Failpoints:
        """Read the environment; raises `Misconfigured` for an unknown point."""
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
        """Return the object behind a port, with its armed method replaced."""
        point = self._point
        if point is not None and point.port == port:
            method = getattr(behind, point.method, None)  # not every tool gathers or finds out
            if method is not None and not hasattr(method, "failpoint"):  # a tool is asked for again and again
                setattr(behind, point.method, self._armed(method, point))
        return behind

    def around_tools(self, port: str, toolbox: Toolbox) -> Toolbox:
        """Return a toolbox whose tools are armed like `around`, or itself."""
        if self._point is None or self._point.port != port:
            return toolbox
        return _ArmedToolbox(toolbox, lambda tool: self.around(port, tool))

    def _is_due(self) -> bool:
        with self._lock:
            self._hits += 1
            return self._point is not None and self._hits == self._point.hit

    def _armed(self, method: Callable[..., Any], point: Point) -> Any:
        async def call_on_loop(*arguments: Any, **keywords: Any) -> Any:
            due = self._is_due()
            if due and point.edge == "before":
                await _stand_still_on_loop(point)
            value = await method(*arguments, **keywords)
            if due and point.edge == "after":
                await _stand_still_on_loop(point)
            return value

        def call(*arguments: Any, **keywords: Any) -> Any:
            due = self._is_due()
            if due and point.edge == "before":
                _stand_still(point)
            value = method(*arguments, **keywords)
            if due and point.edge == "after":
                _stand_still(point)
            return value

        armed: Any = call_on_loop if inspect.iscoroutinefunction(method) else call
        armed.failpoint = point
        return armed


async def _stand_still_on_loop(point: Point) -> None:
    """Die, or wait without blocking the loop."""
    go = _arrived(point) / "go"
    # On the loop, not in a thread: a call that is cancelled here must leave nothing behind that still waits.
    while True:
        if go.exists():
            return
        await asyncio.sleep(_LOOK_SECONDS)


def _stand_still(point: Point) -> None:
    go = _arrived(point) / "go"
    while not go.exists():
        time.sleep(_LOOK_SECONDS)


def _arrived(point: Point) -> Path:
    if point.folder is None:
        # No clean-up of any kind: what a killed process would leave behind is what is to be seen.
        os._exit(EXIT_CODE)
    (point.folder / "held").touch()
    return point.folder


class _ArmedToolbox:
    """Arms each tool in `find`: tools of MCP servers arrive later than the toolbox."""

    def __init__(self, toolbox: Toolbox, arm: Callable[[Tool], Tool]) -> None:
        self._toolbox = toolbox
        self._arm = arm

    def definitions(self) -> Sequence[ToolDefinition]:
        return self._toolbox.definitions()

    def find(self, name: str) -> Tool | None:
        tool = self._toolbox.find(name)
        return None if tool is None else self._arm(tool)
