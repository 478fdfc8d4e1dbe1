"""Tests of tools, plans and agents without services: `from planq.testing import run_plan`; docs/testing.md.

A job runs in this process, by the engine of a worker: `planq.worker.handlers` and all that it uses are the real
ones. In the place of PostgreSQL stands `memory.MemoryStore`. It moves by the executable specification alone, `model`,
to which the transitions in SQL are held equal. Waits take no time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planq.testing.answers import AskedQuestion
    from planq.testing.cassettes import Cassette
    from planq.testing.contexts import tool_context
    from planq.testing.runs import Run, run_agent, run_job, run_plan
    from planq.testing.scripted import ScriptedModel

_PLACES = {
    "AskedQuestion": "answers",
    "Cassette": "cassettes",
    "Run": "runs",
    "ScriptedModel": "scripted",
    "run_agent": "runs",
    "run_job": "runs",
    "run_plan": "runs",
    "tool_context": "contexts",
}

__all__ = ["AskedQuestion", "Cassette", "Run", "ScriptedModel", "run_agent", "run_job", "run_plan", "tool_context"]


def __getattr__(name: str) -> Any:
    # pytest imports the plugin, and with it this package, at each start: who asks for nothing pays for nothing.
    if name in _PLACES:
        return getattr(import_module(f"planq.testing.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
