"""Who calls, and what a process offers, in tests of tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from planq.shared.agentic.tools.contract import Passage, ToolContext
from planq.worker.tools.declare import ToolOptions, options_of
from planq.worker.tools.function import FunctionTool
from planq.worker.tools.services import ToolServices
from planq.worker.tools.threads import ToolThreads

Make = Callable[..., FunctionTool]

NOW = datetime(2026, 11, 21, 2, 31, 7, 250_000, tzinfo=UTC)


class ShelfKnowledge:
    """A `Knowledge` over passages given in advance; it remembers what it was asked."""

    def __init__(self, passages: Sequence[Passage] = ()) -> None:
        self.passages = passages
        self.asked: list[tuple[str, str, int]] = []

    async def search(self, tenant_id: str, query: str, limit: int) -> Sequence[Passage]:
        """Return the passages that contain the query."""
        self.asked.append((tenant_id, query, limit))
        return [passage for passage in self.passages if query in passage.text][:limit]


@pytest.fixture
def context() -> ToolContext:
    """The caller of step 3 of a job."""
    return ToolContext(
        job_id="0193a1b2-0000-7000-8000-000000000001",
        step_index=3,
        attempt=1,
        tool_name="probe",
        tenant_id="default",
        user_id="ada",
        context_id="conversation",
        request_id="request",
        trace_id="trace",
    )


@pytest.fixture
def knowledge() -> ShelfKnowledge:
    """Two passages about leave."""
    return ShelfKnowledge(
        [
            Passage("Handbook", "handbook.md", "Parental leave lasts 14 months.", 0.9),
            Passage("Notes", "notes.md", "Sick leave needs a note.", 0.4),
        ]
    )


@pytest.fixture
def services(knowledge: ShelfKnowledge) -> ToolServices:
    """Services at a fixed moment."""
    return ToolServices(knowledge=knowledge, now=lambda: NOW)


@pytest.fixture
def make(services: ToolServices) -> Make:
    """Turn a function into a tool, decorated or not."""

    def build(function: Callable[..., Any], threads: ToolThreads | None = None) -> FunctionTool:
        options = options_of(function) or ToolOptions()
        return FunctionTool(function, options, services=services, threads=threads or ToolThreads())

    return build
