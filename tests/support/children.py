"""Tools that let child jobs do their work, and what tests ask about these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.children import ChildOutcome, ChildRequest, Delegated
from planq.shared.kernel.states import Effect, JobStatus, JoinPolicy, Pool, StepKind
from planq.shared.platform.errors import ToolFailed

ANY_OBJECT = {"type": "object"}


def child_plan(*calls: tuple[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The plan of a child job."""
    return {"calls": [{"tool_name": name, "arguments": dict(arguments)} for name, arguments in calls]}


@dataclass
class DelegatingTool:
    """Asks for the child jobs that its arguments list: `children` [{plan | agent, input, key, seconds}].

    `until` and `most` are the other arguments. Its output tells how they stood; with `must` it fails unless so many
    have completed. `gathers` and `calls` keep the contexts of what was asked of it.
    """

    name: str = "delegate"
    timeout_seconds: float = 60.0
    calls: list[ToolContext] = field(default_factory=list)
    gathers: list[ToolContext] = field(default_factory=list)

    @property
    def definition(self) -> ToolDefinition:
        return ToolDefinition(
            name=self.name,
            input_schema=ANY_OBJECT,
            output_schema=ANY_OBJECT,
            effect=Effect.IDEMPOTENT,
            pool=Pool.IO,
            timeout_seconds=self.timeout_seconds,
            retries=0,
            kind=StepKind.PARALLEL,
        )

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        self.calls.append(context)
        return Delegated(
            [
                ChildRequest(
                    child.get("agent"),
                    child.get("input", ""),
                    child.get("seconds", 60.0),
                    key=child.get("key"),
                    plan=child.get("plan"),
                )
                for child in arguments["children"]
            ],
            until=JoinPolicy(arguments.get("until", "all")),
            max_parallel=arguments.get("most", 4),
            note={"must": arguments.get("must", 0)},
        )

    async def gather(
        self, arguments: dict[str, Any], children: Sequence[ChildOutcome], note: Any, context: ToolContext
    ) -> Any:
        self.gathers.append(context)
        completed = sum(child.status is JobStatus.COMPLETED for child in children)
        if completed < note["must"]:
            raise ToolFailed(f"{completed} of the child jobs completed; expected {note['must']}")
        return {
            "statuses": [str(child.status) for child in children],
            "answers": [child.answer for child in children],
            "codes": [child.error.code if child.error else None for child in children],
            "keys": [child.key for child in children],
            "ids": [str(child.job_id) for child in children],
        }


CHILDREN = """
SELECT id, status, child_position, run_at = planq_never() AS is_held, is_joined, paused_at, depth, root_job_id,
       error->>'code' AS code, limits, expires_at, finished_at
FROM jobs WHERE parent_job_id = %s ORDER BY child_position, id
"""


async def children_of(database: Any, job_id: UUID) -> list[Any]:
    """The child jobs of a job, in the order in which they were asked for."""
    async with database.connection() as connection:
        return list(await (await connection.execute(CHILDREN.encode(), [job_id])).fetchall())
