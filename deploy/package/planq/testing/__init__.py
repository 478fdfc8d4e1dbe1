"""Tests of tools, plans and agents without services: `from planq.testing import run_plan`; docs/testing.md.

A job runs in this process, by the engine of a worker: `planq.worker.attempts` and all that it stands on are the real
ones. In the place of PostgreSQL stands `memory.MemoryStore`. It moves by the executable specification alone, `model`,
to which the transitions in SQL are held equal. Waits take no time.
"""

from planq.testing.answers import Question
from planq.testing.contexts import tool_context
from planq.testing.runs import Run, run_agent, run_job, run_plan
from planq.testing.scripted import ScriptedModel

__all__ = ["Question", "Run", "ScriptedModel", "run_agent", "run_job", "run_plan", "tool_context"]
